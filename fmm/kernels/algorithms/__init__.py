"""Algorithms as data: schemes and step tables, which are proved when they are read, and the additions they need."""

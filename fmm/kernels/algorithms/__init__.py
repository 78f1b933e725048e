"""Algorithms as data: schemes and step tables, proved when they are read, and programs of their additions."""

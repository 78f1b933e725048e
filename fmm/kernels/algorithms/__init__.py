"""Algorithms as data: schemes, step tables, and programs of their additions. Each one is proved when it is read."""

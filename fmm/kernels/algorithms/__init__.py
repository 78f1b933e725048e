"""Algorithms as data: schemes, step tables, and programs of their additions. Reading an algorithm proves it."""

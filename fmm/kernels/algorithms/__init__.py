"""Algorithms as data: schemes, step tables, and programs of their additions.

Each scheme and each step table is proved when its text is read.
"""

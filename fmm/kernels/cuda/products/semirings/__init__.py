"""Products over semirings: min-plus and its relatives."""

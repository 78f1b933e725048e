"""What a tuning's trials show: a section of the config, what speaks against it, thresholds, tables, words."""

"""What the papers print and their closed formulas, written out once more: tests compare fmm's counts with them."""

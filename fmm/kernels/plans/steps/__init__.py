"""The steps of a level: places, sums, products, and in which order they may be done."""

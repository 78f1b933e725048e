"""Products of arrays in chunks (Dask's): the grid of chunks that levels are walked over, and which levels."""

"""Plans on the host: sums in NumPy on several threads, products by BLAS, two of them side by side."""

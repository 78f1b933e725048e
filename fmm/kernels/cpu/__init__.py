"""Run plans on the CPU: sums in NumPy on several threads, and products by BLAS, two at the same time."""

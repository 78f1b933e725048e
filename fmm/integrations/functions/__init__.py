"""Functions of NumPy's and CuPy's under whose names functions of ours stand for a while."""

"""What NumPy's, CuPy's and torch's arrays are: described, found in memory, and multiplied by their own library.

Nothing here decides or runs a plan. A new library is one more class like NumpyLibrary.
"""

"""Matrix multiplication that beats the vendor's BLAS, and knows beforehand when it will."""

__version__ = "0.1.0"

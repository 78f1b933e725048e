"""The CUDA headers with all device code. entry_source.py generates short entry points that call the headers."""

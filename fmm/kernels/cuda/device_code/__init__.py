"""The CUDA headers with all device code.

The module entry_source.py generates short entry points that call the headers' functions.
"""

"""The CUDA headers. Each header includes what it uses; Python adds entry points of a few lines (entry_source.py)."""

"""The runtime for arrays on CUDA devices: whose they are, what is decided for a call, and its launches."""

"""The devices that experiments run on: what one is, this processor, a CUDA device, and how calls are timed on any."""

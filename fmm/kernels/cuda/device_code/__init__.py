"""The CUDA files. Each includes what it uses, so that an editor can read it alone; Python adds stubs of a few lines."""

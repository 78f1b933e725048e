"""Plans on CUDA devices: recorded once for a problem and a chip as a list of launches, then played.

record.py walks a plan (ops.py has its operations); select.py decides what runs; launch_list.py is the result. Only
launch/ and the flags in recompute/ need CuPy and a device.
"""

"""Plans on CUDA devices: recorded once for a problem and a chip as a list of launches, then played.

record.py walks a plan; select.py decides what runs; launch_list.py is what comes of it. Only launch/, and the flags in
recompute/, need CuPy and a device.
"""

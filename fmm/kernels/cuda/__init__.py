"""Run plans on CUDA devices: record each plan once for a problem and a chip, and play its launch list for each call.

record.py walks a plan and notes the operations of ops.py. select.py selects a kernel for each operation. launch_list.py
defines the launch list, which holds these kernels in order. Only launch/ and the flags in recompute/ need CuPy and a
device.
"""

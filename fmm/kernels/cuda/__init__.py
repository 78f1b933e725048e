"""Plans on CUDA devices: a plan is recorded once for a problem and a chip, and the launch list is played for each call.

record.py walks a plan and notes the operations of ops.py. select.py selects a kernel for each operation. launch_list.py
defines the resulting launch list. Only launch/ and the flags in recompute/ need CuPy and a device.
"""

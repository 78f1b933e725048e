"""Run plans on CUDA devices: record each plan once for a problem and a chip, and play its launch list for each call.

The module record.py walks a plan and records its operations; ops.py defines the types of operations. The module
select.py selects the kernels of each operation. The module launch_list.py defines the launch list: all selected kernels
in launch order. Only the modules in launch/ and recompute/flags.py import CuPy and need a device.
"""

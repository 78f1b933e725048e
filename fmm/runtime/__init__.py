"""Modules that prepare, decide and run products.

prepare.py describes the operands of a call and caches the prepared call. decisions/ chooses the plan. run_host.py or
run_device.py runs the plan. matmul.py, gemm.py and gram.py implement the three operations.
"""

"""Preparing, deciding and running products.

prepare.py describes the operands of a call and caches it, decisions/ chooses the plan, and run_host.py or
run_device.py runs it. matmul.py, gemm.py and gram.py are the three operations.
"""

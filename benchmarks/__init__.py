"""Benchmarks of fmm: `python -m benchmarks` lists them.

The variables that slow OpenBLAS down are removed here, before any benchmark imports NumPy. Processes that a benchmark
starts do not inherit them.
"""

from fmm_tune import ignore_openblas_variables

ignore_openblas_variables()

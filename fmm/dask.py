"""`import fmm.dask`: products of Dask's arrays, `fmm.dask.matmul(x, y)`."""

from fmm.integrations.dask_arrays import matmul

__all__ = ["matmul"]

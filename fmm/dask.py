"""`import fmm.dask`: products of Dask's arrays, `fmm.dask.matmul(x, y)`."""

from fmm.integrations.chunks.dask_arrays import matmul

__all__ = ["matmul"]

"""`import fmm.dask`: products of Dask's arrays, `fmm.dask.matmul(x, y)`; and fmm on all workers of a cluster, for
`x @ y` as it is: `fmm.dask.install(client, "numpy")`."""

from __future__ import annotations

from typing import Any

from fmm.distributed.dask_matmul import matmul

__all__ = ["install", "matmul", "uninstall"]


def install(client: Any, *names: str) -> Any:
    """`fmm.install(*names)` on every worker of the client's cluster: on those that there are, those that join later and
    those that are started again. Products of chunks are then fmm's, where a plan pays.

    If nothing is named, it is for those of torch, CuPy and NumPy that a worker has. Workers that are threads of this
    process (`processes=False`) share its libraries with it.

    To install twice changes nothing. Of an asynchronous client the result is to be awaited.
    """
    from fmm.distributed import dask_workers

    return dask_workers.install_on_workers(client, *names)


def uninstall(client: Any, *names: str) -> Any:
    """Ends what `install` began, for these libraries or for all."""
    from fmm.distributed import dask_workers

    return dask_workers.uninstall_on_workers(client, *names)

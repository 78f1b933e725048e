"""Products of Dask arrays (`fmm.dask.matmul`), and the installation of fmm on a cluster's workers (`install`)."""

from __future__ import annotations

from typing import Any

from fmm.distributed.dask_matmul import matmul

__all__ = ["install", "matmul", "uninstall"]


def install(client: Any, *names: str) -> Any:
    """Run `fmm.install(*names)` on every worker of a cluster, including workers that restart or join later.

    Afterwards, fmm computes the chunk products of `x @ y` if a plan is faster than the vendor's product.
    A second call with the same names changes nothing.

    Parameters
    ----------
    client : distributed.Client
        An open client of the cluster.
    *names : str
        Names as for `fmm.install`. The default is each of torch, CuPy, NumPy and SciPy that is installed on a worker.
        Workers that are threads of this process (`processes=False`) share this process's libraries.

    Returns
    -------
    None
        For an asynchronous client, an awaitable.

    Raises
    ------
    TypeError
        If `client` is not a distributed.Client.
    ValueError
        The client is closed, or a name is unknown.
    """
    from fmm.distributed import dask_workers

    return dask_workers.install_on_workers(client, *names)


def uninstall(client: Any, *names: str) -> Any:
    """Undo `install` on all workers for the named libraries, by default for all libraries.

    Parameters
    ----------
    client : distributed.Client
        An open client of the cluster.
    *names : str
        Names as for `fmm.install`.
    """
    from fmm.distributed import dask_workers

    return dask_workers.uninstall_on_workers(client, *names)

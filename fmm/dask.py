"""Products of Dask arrays (`fmm.dask.matmul`), and fmm on all workers of a cluster (`fmm.dask.install`)."""

from __future__ import annotations

from typing import Any

from fmm.distributed.dask_matmul import matmul

__all__ = ["install", "matmul", "uninstall"]


def install(client: Any, *names: str) -> Any:
    """Run `fmm.install(*names)` on every worker of a cluster: present, restarted and future ones.

    The products of chunks in `x @ y` are then computed by fmm where a plan pays. Installing twice changes nothing.

    Parameters
    ----------
    client : distributed.Client
        An open client of the cluster.
    *names : str
        Names as for `fmm.install`. By default those of torch, CuPy and NumPy that a worker has. Workers that are
        threads of this process (`processes=False`) share its libraries.

    Returns
    -------
    None
        For an asynchronous client, an awaitable.

    Raises
    ------
    TypeError
        If `client` is not a distributed.Client.
    ValueError
        If the client is closed, or a name is unknown.
    """
    from fmm.distributed import dask_workers

    return dask_workers.install_on_workers(client, *names)


def uninstall(client: Any, *names: str) -> Any:
    """Undo `install` for these libraries, by default for all.

    Parameters
    ----------
    client : distributed.Client
        An open client of the cluster.
    *names : str
        Names as for `fmm.install`.
    """
    from fmm.distributed import dask_workers

    return dask_workers.uninstall_on_workers(client, *names)

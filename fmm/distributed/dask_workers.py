"""fmm installed on a cluster's workers by a plugin, which Dask gives to those that join or are started again, too."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Any

from distributed import Client, WorkerPlugin

from fmm.integrations.install_targets import PLACES, check_names, installed

OPEN = "running", "connecting"  # Dask's words for a client that can ask its cluster for something
USUAL = ""  # stands for what fmm.install means where no library is named


class InstalledOnWorker(WorkerPlugin):
    """Installs for one library as long as the worker lives and nobody takes the plugin away. Several workers of one
    process hold that together: the last one that goes puts the library's objects back."""

    idempotent = True  # a second one of this name is not installed

    def __init__(self, library: str) -> None:
        self.library, self.name = library, plugin_name(library)

    def setup(self, worker: Any) -> None:
        self.held: AbstractContextManager[None] = installed(*([self.library] if self.library != USUAL else []))
        self.held.__enter__()

    def teardown(self, worker: Any) -> None:
        self.held.__exit__(None, None, None)


def plugin_name(library: str) -> str:
    """One for each library, by which Dask knows that a plugin is there already."""
    return f"fmm.install({library!r})" if library != USUAL else "fmm.install()"


def install_on_workers(client: Any, *libraries: str) -> Any:
    """As fmm.dask.install; of an asynchronous client, what is to be awaited."""
    check_client(client)
    check_names(libraries)

    async def register() -> None:
        for library in libraries or (USUAL,):
            await client.register_plugin(InstalledOnWorker(library))

    return client.sync(register)


def uninstall_on_workers(client: Any, *libraries: str) -> Any:
    """As fmm.dask.uninstall; what was not installed stays so."""
    check_client(client)
    check_names(libraries)

    def registered(dask_scheduler: Any) -> list[str]:  # no function of the module's: a scheduler may have no fmm
        return list(dask_scheduler.worker_plugins)

    async def unregister() -> None:
        known = await client.run_on_scheduler(registered)  # of others Dask logs an error
        for name in map(plugin_name, libraries or (USUAL, *PLACES)):
            if name in known:
                with suppress(ValueError):  # Dask's, where somebody else has just done the same
                    await client.unregister_worker_plugin(name)

    return client.sync(unregister)


def check_client(client: Any) -> None:
    if not isinstance(client, Client):
        raise TypeError(f"client must be a distributed.Client that is open, not {type(client).__name__}")
    if client.status not in OPEN:
        raise ValueError(f"client must be a distributed.Client that is open; this one is {client.status}")

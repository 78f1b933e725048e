"""fmm on a cluster's workers: a worker plugin, which Dask also applies to workers that join or restart later."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Any

from distributed import Client, WorkerPlugin

from fmm.integrations.install_targets import INSTALL_TARGETS, check_names, installed

OPEN_STATUSES = "running", "connecting"
DEFAULT = ""  # the default libraries of fmm.install


class InstalledOnWorker(WorkerPlugin):
    """Installs fmm for one library while the worker has the plugin.

    Several workers of one process share the installation; the last of them to end removes it.
    """

    idempotent = True  # Dask does not add a second plugin of this name

    def __init__(self, library: str) -> None:
        self.library, self.name = library, plugin_name(library)

    def setup(self, worker: Any) -> None:
        self.held: AbstractContextManager[None] = installed(*([self.library] if self.library != DEFAULT else []))
        self.held.__enter__()

    def teardown(self, worker: Any) -> None:
        self.held.__exit__(None, None, None)


def plugin_name(library: str) -> str:
    """Return the plugin's name, by which Dask recognizes a plugin that it already has."""
    return f"fmm.install({library!r})" if library != DEFAULT else "fmm.install()"


def install_on_workers(client: Any, *libraries: str) -> Any:
    """Register the plugins; see fmm.dask.install."""
    check_client(client)
    check_names(libraries)

    async def register() -> None:
        for library in libraries or (DEFAULT,):
            await client.register_plugin(InstalledOnWorker(library))

    return client.sync(register)


def uninstall_on_workers(client: Any, *libraries: str) -> Any:
    """Unregister the plugins that are registered; see fmm.dask.uninstall."""
    check_client(client)
    check_names(libraries)

    def registered(dask_scheduler: Any) -> list[str]:  # a closure, pickled by value: the scheduler may lack fmm
        return list(dask_scheduler.worker_plugins)

    async def unregister() -> None:
        present = await client.run_on_scheduler(registered)  # Dask logs an error for absent plugins
        for name in map(plugin_name, libraries or (DEFAULT, *INSTALL_TARGETS)):
            if name in present:
                with suppress(ValueError):  # another client has just unregistered it
                    await client.unregister_worker_plugin(name)

    return client.sync(unregister)


def check_client(client: Any) -> None:
    if not isinstance(client, Client):
        raise TypeError(f"client must be an open distributed.Client, not {type(client).__name__}")
    if client.status not in OPEN_STATUSES:
        raise ValueError(f"client must be an open distributed.Client; this one is {client.status}")

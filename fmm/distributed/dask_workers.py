"""Install fmm on a cluster's workers with a Dask plugin, which also covers later and restarted workers."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Any

from distributed import Client, WorkerPlugin

from fmm.integrations.install_targets import INSTALL_TARGETS, check_target_names, installed

OPEN_CLIENT_STATUSES = "running", "connecting"
DEFAULT_LIBRARIES_NAME = ""  # the name that means the default libraries of fmm.install


class InstallPlugin(WorkerPlugin):
    """Dask worker plugin that keeps fmm installed for one library while the plugin is registered on the worker.

    Several workers in one process share the installation; the last worker that stops removes the installation.
    """

    idempotent = True  # prevents Dask from adding a second plugin of the same name

    def __init__(self, library: str) -> None:
        self.library, self.name = library, plugin_name(library)

    def setup(self, worker: Any) -> None:
        self.held: AbstractContextManager[None] = installed(
            *([self.library] if self.library != DEFAULT_LIBRARIES_NAME else [])
        )
        self.held.__enter__()

    def teardown(self, worker: Any) -> None:
        self.held.__exit__(None, None, None)


def plugin_name(library: str) -> str:
    """Return the plugin's name; Dask compares names to recognize a plugin that is already registered."""
    return f"fmm.install({library!r})" if library != DEFAULT_LIBRARIES_NAME else "fmm.install()"


def install_on_workers(client: Any, *libraries: str) -> Any:
    """Register the worker plugins that install fmm for these libraries; see fmm.dask.install."""
    check_open_client(client)
    check_target_names(libraries)

    async def register_plugins() -> None:
        for library in libraries or (DEFAULT_LIBRARIES_NAME,):
            await client.register_plugin(InstallPlugin(library))

    return client.sync(register_plugins)


def uninstall_on_workers(client: Any, *libraries: str) -> Any:
    """Unregister the worker plugins of these libraries (by default all) that are registered; see fmm.dask.uninstall."""
    check_open_client(client)
    check_target_names(libraries)

    # the function is nested so that Dask pickles it by value: fmm may be missing on the scheduler
    def registered_plugin_names(dask_scheduler: Any) -> list[str]:
        return list(dask_scheduler.worker_plugins)

    async def unregister_plugins() -> None:
        # the names are queried first, since Dask logs an error if an unregistered plugin is removed
        present = await client.run_on_scheduler(registered_plugin_names)
        for name in map(plugin_name, libraries or (DEFAULT_LIBRARIES_NAME, *INSTALL_TARGETS)):
            if name in present:
                with suppress(ValueError):  # another client may have unregistered the plugin in the meantime
                    await client.unregister_worker_plugin(name)

    return client.sync(unregister_plugins)


def check_open_client(client: Any) -> None:
    if not isinstance(client, Client):
        raise TypeError(f"client must be an open distributed.Client, not {type(client).__name__}")
    if client.status not in OPEN_CLIENT_STATUSES:
        raise ValueError(f"client must be an open distributed.Client; this one is {client.status}")

"""Callbacks that run after the program has imported a module; registering a callback imports nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fmm.kernels.cpu.worker_threads import ForkSafeLock

LOADING_CHECK_SECONDS = 0.005
WAITING_THREAD_NAME = "fmm-import"
ImportCallback = Callable[[str], None]  # a callback receives the name of the imported module

_waiting_callbacks: dict[str, list[ImportCallback]] = {}
_finished_modules: set[str] = set()  # names of modules that are loaded and have no waiting callbacks
_callbacks_lock = (
    ForkSafeLock()
)  # guards _waiting_callbacks and _finished_modules; no thread imports a module while it holds the lock


def is_module_loaded(module: str) -> bool:
    """Return True if the module is loaded completely, False while a thread is loading the module."""
    loaded = sys.modules.get(module)
    return loaded is not None and not getattr(getattr(loaded, "__spec__", None), "_initializing", False)


def call_after_import(module: str, callback: ImportCallback) -> bool:
    """Register a callback that runs once after the module is imported; return False if it has been imported already.

    If the module is being imported, its loader was perhaps found before the finder of this module was there. A thread
    then waits for the end of the import and runs the callbacks.
    """
    with _callbacks_lock.now:
        if module in _finished_modules and module in sys.modules:
            return False
        _finished_modules.discard(module)
        callbacks = _waiting_callbacks.setdefault(module, [])
        is_first = not callbacks
        if callback not in callbacks:
            callbacks.append(callback)
        if _CALLBACK_FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _CALLBACK_FINDER)
    if is_first and sys.modules.get(module) is not None:
        waiting = threading.Thread(
            target=_run_callbacks_when_loaded, args=(module,), name=WAITING_THREAD_NAME, daemon=True
        )
        waiting.start()
    return True


def _run_callbacks_when_loaded(module: str) -> None:
    """Wait until the module is loaded, and run the callbacks that its loader has not run.

    If the import fails, the callbacks run after the next import. This thread does not import the module, since the
    program may have caught the error.
    """
    while module in _waiting_callbacks and sys.modules.get(module) is not None:
        if is_module_loaded(module):
            run_import_callbacks(module)
            return
        time.sleep(LOADING_CHECK_SECONDS)


def _pop_callbacks_of_module(module: str) -> list[ImportCallback]:
    """Remove and return the callbacks that wait for a loaded module.

    If no callback waits for the module, record that the module's import has ended.
    """
    with _callbacks_lock.now:
        callbacks = _waiting_callbacks.pop(module, [])
        if not callbacks:
            _finished_modules.add(module)
            if not _waiting_callbacks and _CALLBACK_FINDER in sys.meta_path:
                sys.meta_path.remove(_CALLBACK_FINDER)
        return callbacks


def run_import_callbacks(module: str) -> None:
    """Run the callbacks that wait for this module, which has just been loaded."""
    while callbacks := _pop_callbacks_of_module(module):  # a running callback may register another callback
        for callback in callbacks:
            callback(module)


class _CallbackFinder(MetaPathFinder):
    """An import finder that wraps the loader of each module for which callbacks wait; other finders find the loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting_callbacks:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)  # Python's own import also skips finders without find_spec
            spec: ModuleSpec | None = None
            if find is not None and finder is not self:
                spec = find(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _CallbackLoader(spec.loader)
                return spec
        return None


class _CallbackLoader(Loader):
    """A loader that calls the module's own loader and then runs the callbacks; the module does not see this wrapper."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.own
        module.__loader__ = self.own
        self.own.exec_module(module)
        run_import_callbacks(module.__name__)


_CALLBACK_FINDER = _CallbackFinder()

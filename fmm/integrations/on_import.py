"""Callbacks that run after the program has imported a module; registering a callback imports nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fmm.kernels.cpu.worker_threads import ForkSafeLock

Callback = Callable[[str], None]  # is called with the name of the imported module

_waiting: dict[str, list[Callback]] = {}
_finished: set[str] = set()  # modules that are loaded and whose callbacks have all run
_lock = ForkSafeLock()  # guards _waiting and _finished; no import happens while a thread has it


def is_loaded(module: str) -> bool:
    """Return True if the module is loaded completely, and False also while a thread is still loading the module."""
    loaded = sys.modules.get(module)
    return loaded is not None and not getattr(getattr(loaded, "__spec__", None), "_initializing", False)


def after_import(module: str, callback: Callback) -> bool:
    """Call `callback` once after the module's import; if the import is finished, return False and call nothing."""
    with _lock.now:
        if module in _finished and module in sys.modules:
            return False
        _finished.discard(module)
        callbacks = _waiting.setdefault(module, [])
        if callback not in callbacks:
            callbacks.append(callback)
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)
        return True


def _take_callbacks(module: str) -> list[Callback]:
    """Return the callbacks that wait for a loaded module; record the module as finished if no callback waits."""
    with _lock.now:
        callbacks = _waiting.pop(module, [])
        if not callbacks:
            _finished.add(module)
            if not _waiting and _FINDER in sys.meta_path:
                sys.meta_path.remove(_FINDER)
        return callbacks


def run_callbacks(module: str) -> None:
    """Run the callbacks that wait for this module, which has just been loaded."""
    while callbacks := _take_callbacks(module):  # a running callback may add another one
        for callback in callbacks:
            callback(module)


class _Finder(MetaPathFinder):
    """An import finder that wraps the loaders of modules with waiting callbacks; other finders find the modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)  # Python also skips finders without find_spec
            spec: ModuleSpec | None = None
            if find is not None and finder is not self:
                spec = find(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """A module's own loader, followed by the callbacks; the module does not see this wrapper."""

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
        run_callbacks(module.__name__)


_FINDER = _Finder()

"""Callbacks that run when a module has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fmm.kernels.cpu.worker_threads import ForkSafeLock

Callback = Callable[[str], None]  # its argument is the module's name

_waiting: dict[str, list[Callback]] = {}
_finished: set[str] = set()  # modules that were loaded, with all callbacks done
_lock = ForkSafeLock()  # of these two; no import happens while it is held


def is_loaded(module: str) -> bool:
    """Return True if the module is loaded completely; another thread, or a caller, may be loading it now."""
    loaded = sys.modules.get(module)
    return loaded is not None and not getattr(getattr(loaded, "__spec__", None), "_initializing", False)


def after_import(module: str, callback: Callback) -> bool:
    """Call `callback` once when the module has been imported; return False, and call nothing, if it just has been."""
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
    """Return the callbacks that wait for a module that is loaded now; record it as finished if there are none."""
    with _lock.now:
        callbacks = _waiting.pop(module, [])
        if not callbacks:
            _finished.add(module)
            if not _waiting and _FINDER in sys.meta_path:
                sys.meta_path.remove(_FINDER)
        return callbacks


def run_callbacks(module: str) -> None:
    """Call what waits for this module, which has just been loaded."""
    while callbacks := _take_callbacks(module):  # more may be added while some run
        for callback in callbacks:
            callback(module)


class _Finder(MetaPathFinder):
    """Finds the awaited modules by the other finders, and wraps their loaders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)  # (Python also skips finders without it)
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

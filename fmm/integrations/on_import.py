"""Being called once a module has been loaded, without loading it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fmm.kernels.cpu.worker_threads import ForkSafeLock

Act = Callable[[str], None]  # told the module's name

_waiting: dict[str, list[Act]] = {}
_told: set[str] = set()  # modules whose loading we have seen, and told of
_lock = ForkSafeLock()  # of these two; nothing is imported under it


def is_loaded(module: str) -> bool:
    """Has it been loaded as a whole? Another thread, or a caller of ours, may be in the midst of it."""
    found = sys.modules.get(module)
    return found is not None and not getattr(getattr(found, "__spec__", None), "_initializing", False)


def after_import(module: str, act: Act) -> bool:
    """Once the module has been loaded by whoever imports it, `act` is called; once, however often it is said. False,
    and nothing will be called, if that has just been done."""
    with _lock.now:
        if module in _told and module in sys.modules:
            return False
        _told.discard(module)
        acts = _waiting.setdefault(module, [])
        if act not in acts:
            acts.append(act)
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)
        return True


def _next_acts(module: str) -> list[Act]:
    """The calls that wait for a module, now that it is loaded. Once there are none, it is noted as loaded:
    whoever comes later is told so at once."""
    with _lock.now:
        acts = _waiting.pop(module, [])
        if not acts:
            _told.add(module)
            if not _waiting and _FINDER in sys.meta_path:
                sys.meta_path.remove(_FINDER)
        return acts


class _Finder(MetaPathFinder):
    """Finds what the others find, of the modules that are waited for, and has them loaded by a loader that tells."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)  # (Python too passes over finders without)
            found: ModuleSpec | None = None
            if find is not None and finder is not self:
                found = find(fullname, path, target)
            if found is not None and found.loader is not None:
                found.loader = _Loader(found.loader)
                return found
        return None


class _Loader(Loader):
    """Another loader, and the call afterwards; the module does not see that it was there."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self.own.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.own
        module.__loader__ = self.own
        self.own.exec_module(module)
        while acts := _next_acts(module.__name__):  # more may come while some are called
            for act in acts:
                act(module.__name__)


_FINDER = _Finder()

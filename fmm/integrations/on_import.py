"""Being called once a module has been loaded, without loading it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_waiting: dict[str, list[Callable[[], None]]] = {}


def after_import(module: str, act: Callable[[], None]) -> None:
    """Once the module has been loaded by whoever imports it, `act` is called; once, however often it is said."""
    acts = _waiting.setdefault(module, [])
    if act not in acts:
        acts.append(act)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Finder(MetaPathFinder):
    """Finds what the others find, of the modules that are waited for, and has them loaded by a loader that tells."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(fullname, path, target)
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
        acts = _waiting.pop(module.__name__, [])
        if not _waiting and _FINDER in sys.meta_path:
            sys.meta_path.remove(_FINDER)
        for act in acts:
            act()


_FINDER = _Finder()

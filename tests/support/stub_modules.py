"""Modules that stand in for libraries that are not installed, so that code which imports them can be loaded."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast
from unittest.mock import MagicMock


class StubFinder(MetaPathFinder, Loader):
    """Finds a stub for each module of some packages."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        stub: Any = MagicMock()
        stub.__name__, stub.__path__ = spec.name, []
        return cast(ModuleType, stub)

    def exec_module(self, module: ModuleType) -> None: ...


def install_stubs(*packages: str) -> None:
    """Let this process import these packages as stubs from now on."""
    sys.meta_path.insert(0, StubFinder(packages))

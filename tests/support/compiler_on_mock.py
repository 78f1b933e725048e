"""The module that compiles kernels, imported with a mock of CuPy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

from fmm.kernels import cuda

COMPILE = "fmm.kernels.cuda.launch.compile"
MODULES = "cupy", "cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.api", "cupy_backends.cuda.libs"


@contextmanager
def compiler_on_a_mock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a copy of the module that no other test uses."""
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    package = ModuleType(COMPILE.rpartition(".")[0])
    if package.__name__ not in sys.modules:
        package.__path__ = [f"{path}/launch" for path in cuda.__path__]
        monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.delitem(sys.modules, COMPILE, raising=False)
    yield importlib.import_module(COMPILE)
    sys.modules.pop(COMPILE, None)

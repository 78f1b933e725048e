"""Who waits for a compiler is told why, after a second and once; who does not wait hears nothing."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

from fmm.kernels import cuda, long_waits
from fmm.kernels.cuda.launch_list import Kernel
from fmm.kernels.long_waits import log_if_slow

COMPILE = "fmm.kernels.cuda.launch.compile"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_waits, "_said", set())


def soon(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A second that is over at once; what is returned waits until all is said."""
    before = set(threading.enumerate())
    monkeypatch.setattr(long_waits, "PATIENCE", 0.0)

    def wait() -> None:
        for thread in set(threading.enumerate()) - before:
            thread.join(60)

    return wait


def test_a_long_wait_is_said_while_it_lasts_and_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait = soon(monkeypatch)
    for _ in range(3):
        with log_if_slow("something is being compiled"):
            wait()
            assert caplog.messages == ["fmm: something is being compiled"]
    with log_if_slow("something else"):
        wait()
    assert caplog.messages == ["fmm: something is being compiled", "fmm: something else"]


def test_a_short_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    threads = threading.active_count()
    for _ in range(100):
        with log_if_slow("something"):
            pass
    with pytest.raises(KeyboardInterrupt), log_if_slow("something"):
        raise KeyboardInterrupt
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(60)
    assert not caplog.messages and threading.active_count() <= threads


# ---- kernels


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that compiles, on a CuPy that does nothing else."""
    names = "cupy", "cupy_backends", "cupy_backends.cuda.api", "cupy_backends.cuda.libs"
    for name in (*names, "cupy_backends.cuda"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    package = ModuleType(COMPILE.rpartition(".")[0])
    if package.__name__ not in sys.modules:
        package.__path__ = [f"{path}/launch" for path in cuda.__path__]
        monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.delitem(sys.modules, COMPILE, raising=False)
    yield importlib.import_module(COMPILE)
    sys.modules.pop(COMPILE, None)


def kernels(count: int) -> list[Kernel]:
    return [Kernel(str, (number,), "entry", 32) for number in range(count)]


@pytest.mark.parametrize("count", [1, 3])
def test_compiling_kernels_is_said_and_they_are_asked_for_once(
    count: int, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Kernel] = []
    wait = soon(monkeypatch)
    said = threading.Event()
    monkeypatch.setattr(long_waits.log, "warning", lambda *words: said.set())

    def compile_slowly(device: int, kernel: Kernel) -> None:
        asked.append(kernel)
        assert said.wait(60)

    monkeypatch.setattr(compiled, "compiled_kernel", compile_slowly)
    for _ in range(3):
        compiled.compile_all(0, kernels(count))
    wait()
    assert sorted(kernel.given for kernel in asked) == [(number,) for number in range(count)]
    compiled.compile_all(1, kernels(count))  # another device's
    assert len(asked) == 2 * count


def test_what_cannot_be_compiled_is_asked_for_again(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Kernel] = []

    def fail(device: int, kernel: Kernel) -> None:
        asked.append(kernel)
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(compiled, "compiled_kernel", fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such"):
            compiled.compile_all(0, kernels(1))
    assert len(asked) == 2

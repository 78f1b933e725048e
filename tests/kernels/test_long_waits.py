"""log_if_slow logs one line while a compiler runs longer than a second, once in a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fmm.kernels import long_waits
from fmm.kernels.cuda.launch_list import Kernel
from fmm.kernels.long_waits import log_if_slow
from tests.support.compiler_on_mock import compiler_on_a_mock


@pytest.fixture(autouse=True)
def empty_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_waits, "_logged_messages", set())


def no_patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Set the patience to zero; the returned function waits until every message is logged."""
    before = set(threading.enumerate())
    monkeypatch.setattr(long_waits, "WAIT_SECONDS_BEFORE_LOG", 0.0)

    def wait() -> None:
        for thread in set(threading.enumerate()) - before:
            thread.join(60)

    return wait


def test_slow_block_is_logged_once_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait = no_patience(monkeypatch)
    for _ in range(3):
        with log_if_slow("something is being compiled"):
            wait()
            assert caplog.messages == ["fmm: something is being compiled"]
    with log_if_slow("something else"):
        wait()
    assert caplog.messages == ["fmm: something is being compiled", "fmm: something else"]


def test_fast_block_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
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
    with compiler_on_a_mock(monkeypatch) as module:
        yield module


def kernels(count: int) -> list[Kernel]:
    return [Kernel(str, (number,), "entry", 32) for number in range(count)]


@pytest.mark.parametrize("count", [1, 3])
def test_slow_compilation_is_logged_and_kernels_compile_once(
    count: int, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[Kernel] = []
    wait = no_patience(monkeypatch)
    logged = threading.Event()
    monkeypatch.setattr(long_waits.log, "warning", lambda *words: logged.set())

    def compile_slowly(kernel: Kernel) -> Any:
        requested.append(kernel)
        assert logged.wait(60)
        return compiled.LoadedKernel(1, None)

    monkeypatch.setattr(compiled, "_load_kernel", compile_slowly)
    for _ in range(3):
        compiled.compile_kernels(0, kernels(count))
    wait()
    assert sorted(kernel.source_arguments for kernel in requested) == [(number,) for number in range(count)]
    compiled.compile_kernels(1, kernels(count))  # another device
    assert len(requested) == 2 * count


def test_failed_compilation_is_repeated(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[Kernel] = []

    def fail(device: int, kernel: Kernel) -> None:
        requested.append(kernel)
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(compiled, "compile_kernel", fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such"):
            compiled.compile_kernels(0, kernels(1))
    assert len(requested) == 2

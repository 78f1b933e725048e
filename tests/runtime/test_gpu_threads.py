"""Threads and streams that come and go, on a CUDA device: right results, and nothing that grows with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fmm
from tests.support.device_arrays import CupyLibrary, draw, same_places

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

LEVEL = "strassen.batched.pad16 > vendor"
LANES = "strassen.overlapped.pad16 > vendor"  # on streams of our own, each with a handle of cuBLAS


def in_a_thread(call: Callable[[], Any]) -> Any:
    """What it returns, or raises."""
    found: list[Any] = []

    def use() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@pytest.fixture
def operands() -> tuple[CupyLibrary, Any, Any, Any]:
    """Two matrices, the first of which has an inf, and their product by CuPy."""
    library = CupyLibrary()
    x, y = draw((300, 264), "float32"), draw((264, 280), "float32", 1)
    x[7, 9] = np.inf
    a, b = library.array(x, "float32"), library.array(y, "float32")
    expected = library.matmul(a, b)
    cupy.cuda.get_current_stream().synchronize()  # other streams read them
    return library, a, b, expected


def test_threads_that_come_and_go_share_a_flag(operands: Any) -> None:
    """One after the other on one stream: each takes up what the one before it left, while that is still at work."""
    from fmm.kernels.cuda.recompute import flags

    library, a, b, expected = operands
    stream = cupy.cuda.Stream(non_blocking=True)

    def multiply() -> tuple[int, Any]:
        with stream:
            return flags.stream_flag(0, stream.ptr).address, fmm.matmul(a, b, plan=LEVEL)

    found = [in_a_thread(multiply) for _ in range(50)]
    stream.synchronize()
    assert len({address for address, _ in found}) == 1
    for _, c in found:
        same_places(library, c, expected)


def test_threads_at_the_same_time_have_flags_of_their_own(operands: Any) -> None:
    library, a, b, expected = operands
    stream = cupy.cuda.Stream(non_blocking=True)
    found: list[tuple[Any, Any]] = []
    finite = library.array(draw((300, 264), "float32"), "float32")
    cupy.cuda.get_current_stream().synchronize()

    def multiply(x: Any) -> None:
        with stream:
            found.extend((x, fmm.matmul(x, b, plan=LEVEL)) for _ in range(20))

    threads = [threading.Thread(target=multiply, args=(x,)) for x in (a, finite, a, finite)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.synchronize()
    assert len(found) == 80
    sound = library.matmul(finite, b)
    for x, c in found:
        same_places(library, c, expected if x is a else sound)


def test_streams_that_come_and_go_leave_nothing(operands: Any) -> None:
    from fmm.kernels.cuda.recompute import flags

    library, a, b, expected = operands
    for _ in range(2 * flags.MAX_FLAGS_PER_THREAD):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            c = fmm.matmul(a, b, plan=LEVEL)
            stream.synchronize()
        del stream
    same_places(library, c, expected)
    assert len(flags._thread_flags.flags.by_stream) <= flags.MAX_FLAGS_PER_THREAD


def test_lanes_of_threads_that_are_gone_are_taken_up(operands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fmm.kernels.cuda.launch import cublas, streams

    library, a, b, expected = operands
    handles: list[int] = []

    def counted() -> int:
        handles.append(cublas.create_handle())
        return handles[-1]

    monkeypatch.setattr(streams, "create_handle", counted)

    def multiply() -> Any:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            c = fmm.matmul(a, b, plan=LANES)
            stream.synchronize()
        return c

    results = [in_a_thread(multiply) for _ in range(12)]
    first = len(handles)
    results += [in_a_thread(multiply) for _ in range(12)]
    assert len(handles) == first <= 8
    for c in results:
        same_places(library, c, expected)

"""Interrupts, threads and faults at any moment of products on a CUDA device: `out` is complete or untouched."""

from __future__ import annotations

import operator
import threading
from typing import Any

import numpy as np
import pytest

import fmm
from tests.support.device_arrays import CupyLibrary, close, draw
from tests.support.interrupts import interpreter_output

pytestmark = pytest.mark.gpu
OVERLAPPED = "strassen.overlapped > vendor"


def test_some_seconds_of_hostile_use() -> None:
    """`make gpu-check` takes a minute of it, and prints the counts."""
    command = "-m", "tests.support.hostile_device", "--seconds", "3", "--seed", "1"
    assert "interrupts" in interpreter_output(*command, seconds=600, quiet=False)


@pytest.mark.parametrize("at", range(1, 16, 2))
def test_a_launch_that_fails_leaves_a_complete_out(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    library = CupyLibrary()
    a, b = library.array(draw((256, 256)), "float32"), library.array(draw((256, 256), seed=1), "float32")
    out, count, make = library.empty((256, 256), "float32"), 0, operator.call

    def failing(prepared: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise RuntimeError("for the test")
        return make(prepared)

    fmm.matmul(a, b, plan=OVERLAPPED)
    monkeypatch.setattr("fmm.kernels.cuda.launch.bound_calls.call", failing)
    with pytest.raises(RuntimeError, match="for the test"):
        fmm.matmul(a, b, out, plan=OVERLAPPED)
    monkeypatch.undo()
    close(library, out, a, b, "float32")
    close(library, fmm.matmul(a, b, plan=OVERLAPPED), a, b, "float32")


def test_threads_play_one_list_at_once() -> None:
    """Each with parameters of its own."""
    library = CupyLibrary()
    pairs = [(library.array(draw((192, 192), seed=i), "float32"), i) for i in range(4)]
    expected = [library.host(a) @ library.host(a) for a, _ in pairs]
    wrong: list[Any] = []

    def work(a: Any, i: int) -> None:
        for _ in range(30):
            found = library.host(fmm.matmul(a, a, plan="strassen.batched.pad16 > vendor"))
            if np.abs(found - expected[i]).max() > 1e-2:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

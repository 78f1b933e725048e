"""How far a long product is, where that was asked for: on stderr, with tqdm and without it, and of which calls."""

from __future__ import annotations

import re
import sys
import threading
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays.numpy_library import NUMPY
from fmm.kernels.cpu import parallel_products
from fmm.out_of_core import product as out_of_core
from fmm.runtime import progress
from fmm.runtime.decisions.limits import NO_CONSTRAINTS
from tests.support.host_engine import HostEngine, HostMachine

M = np.arange(12.0).reshape(3, 4) @ np.ones((4, 3))


class Seen:
    """What people would see, noted."""

    update_seconds = 0.001

    def __init__(self) -> None:
        self.shown: list[tuple[int, int]] = []
        self.some, self.closed = threading.Event(), False

    def show_counts(self, done: int, total: int, elapsed: float) -> None:
        self.shown.append((done, total))
        self.some.set()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    monkeypatch.setattr(progress, "_new_display", lambda total: found)
    return found


@pytest.fixture(autouse=True)
def every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_core, "ALWAYS_FREE_BYTES", 0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[progress.Progress]:
    """All that calls tell how far they are."""
    found: list[progress.Progress] = []

    class Noted(progress.Progress):
        def __init__(self, wanted: bool) -> None:
            super().__init__(wanted)
            found.append(self)

    monkeypatch.setattr(progress, "Progress", Noted)
    return found


# ---- when it is shown, and how


def test_it_appears_at_once_where_the_product_is_predicted_to_take_long(seen: Seen) -> None:
    with progress.show_progress(True) as told:
        told.begin_count(100, progress.MIN_SHOWN_SECONDS)
        assert seen.some.wait(10)
        told.add_done(40)
        seen.some.clear()
        assert seen.some.wait(10)
    assert seen.shown[-1] == (40, 100) and seen.closed


def test_it_appears_when_the_product_has_taken_long(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing of it was done so far, as where a file is read first."""
    monkeypatch.setattr(progress, "MIN_SHOWN_SECONDS", 0.02)
    with progress.show_progress(True) as told:
        told.begin_count(100, 0.0)
        assert seen.some.wait(10)
    assert seen.shown[0] == (0, 100) and seen.closed


@pytest.mark.parametrize(("wanted", "seconds"), [(True, 0.0), (False, 100.0)])
def test_else_it_does_not_appear_and_nobody_waits_for_it(seen: Seen, wanted: bool, seconds: float) -> None:
    before = threading.active_count()
    with progress.show_progress(wanted) as told:
        told.begin_count(100, seconds)
    assert not seen.shown and threading.active_count() == before


def test_without_tqdm_there_are_lines_with_the_same_words(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with progress.show_progress(True) as told:
        told.begin_count(8, 3600.0)
    assert re.fullmatch(r"fmm\.matmul   0% 00:0\d<\?\n", capfd.readouterr().err)
    progress._new_display(8).show_counts(2, 8, 5.0)
    assert capfd.readouterr().err == "fmm.matmul  25% 00:05<00:15\n"
    assert [progress.clock_time_text(x) for x in (42.9, 60, 3723)] == ["00:42", "01:00", "1:02:03"]


def test_a_bar_where_there_is_tqdm(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    with progress.show_progress(True) as told:
        told.begin_count(8, 3600.0)
    assert re.search(r"fmm\.matmul +0%\|", capfd.readouterr().err)


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise ValueError("I/O operation on closed file")

        def flush(self) -> None: ...

    monkeypatch.setitem(sys.modules, "tqdm", None)
    for stderr in (Closed(), None):
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress.show_progress(True) as told:
            told.begin_count(8, 3600.0)


# ---- of products that are streamed


def streamed(a: Any, b: Any, machine: HostMachine) -> Any:
    return out_of_core.streamed_matmul(NUMPY, a, b, None, machine, NO_CONSTRAINTS, True)


def test_a_stack_is_one_bar(made: list[progress.Progress]) -> None:
    """Whose beginning is told of the time of all its products."""
    a, b = np.ones((3, 40, 50)), np.ones((3, 50, 30))
    for x, y in ((a, b), (a[0], b[0]), (a, b[0])):
        np.testing.assert_allclose(streamed(x, y, HostMachine(200_000)), x @ y)
    stack, one, folded = made
    assert stack.done == stack.total == folded.done == folded.total == 3 * one.total == 3 * 40 * 50 * 30
    assert stack.predicted == pytest.approx(3 * one.predicted) and one.predicted > 0


@pytest.mark.slow
def test_what_is_begun_anew_is_not_counted_twice(made: list[progress.Progress]) -> None:
    left = [3]

    def fails(what: str) -> None:
        if what == "multiply":
            left[0] -= 1
            if left[0] == 0:
                raise MemoryError

    a = np.ones((150, 150))
    np.testing.assert_allclose(streamed(a, a, HostMachine(60_000, HostEngine(fails))), a @ a)
    assert left[0] < 0 and made[0].done == made[0].total == 150**3


# ---- of plans on the host


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "plan",
    ["strassen > vendor", "winograd^2 > vendor", "strassen.sequential > winograd > vendor", "3m > strassen > vendor"],
)
def test_a_plan_on_the_host_tells_of_each_leafs_product(
    plan: str, at_once: bool, made: list[progress.Progress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time, too, where they become tasks that come later."""
    if at_once:
        monkeypatch.setattr(parallel_products, "MIN_CONCURRENT_FLOPS", 0)
        monkeypatch.setattr(parallel_products, "MIN_PART_ROWS", 8)
        monkeypatch.setattr(parallel_products, "PART_ROW_UNIT", 8)
        monkeypatch.setattr("fmm.runtime.run_host.SMALL_ARRAY_BYTES", 0)
    a, b = (np.ones(shape, "c16" if plan.startswith("3m") else "f8") for shape in ((203, 301), (301, 155)))
    np.testing.assert_allclose(fmm.matmul(a, b, plan=plan, progress=True), a @ b)
    assert made[0].done == made[0].total > 0


def test_a_stack_on_the_host_is_one_bar_too(made: list[progress.Progress]) -> None:
    a, b = np.ones((3, 200, 200)), np.ones((3, 200, 200))
    fmm.matmul(a, b, plan="strassen > vendor", progress=True)
    fmm.matmul(a[0], b[0], plan="strassen > vendor", progress=True)
    assert made[0].done == made[0].total == 3 * made[1].total


def test_whole_numbers_in_the_digits_of_one_product_tell_nothing(made: list[progress.Progress]) -> None:
    a = np.ones((300, 300), np.int64)
    np.testing.assert_array_equal(fmm.matmul(a, a, progress=True), a @ a)
    assert not made[0].total


def test_of_the_librarys_own_product_nothing_is_shown(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MIN_SHOWN_SECONDS", 0.0)
    for device in (None, "cpu"):
        np.testing.assert_array_equal(fmm.matmul(M, M, plan="vendor", device=device, progress=True), M @ M)
    assert not seen.shown
    a = np.ones((200, 200))
    fmm.matmul(a, a, plan="strassen > vendor", progress=True)
    assert seen.shown


def test_calls_that_do_not_ask_for_it_tell_nobody(made: list[progress.Progress]) -> None:
    a = np.ones((200, 200))
    fmm.matmul(a, a, plan="strassen > vendor")
    fmm.matmul(a, a, plan="strassen > vendor", progress=None)
    assert not made and progress.current_progress() is None


# ---- the argument


@pytest.mark.parametrize("value", ["yes please", M, [True], 2, 0.5, {}, object()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("device", [None, "cpu", 0])
def test_what_is_no_answer_is_an_error_that_names_the_choices(value: Any, device: Any) -> None:
    for call in (fmm.matmul, fmm.explain):
        with pytest.raises(TypeError, match="progress must be True, False or None, not"):
            call(M, M, device=device, progress=value)


@pytest.mark.parametrize("value", [None, False, True, 0, 1, np.False_, np.True_], ids=repr)
def test_what_is_one_is_taken(value: Any) -> None:
    np.testing.assert_array_equal(fmm.matmul(M, M, progress=value), M @ M)

"""Workspaces: what a call may take and keeps, and what it leaves behind when memory or patience runs out."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays import host_memory, numpy_library
from fmm.arrays.numpy_library import NUMPY
from fmm.kernels import VENDOR, plan_workspace_bytes
from fmm.kernels.cpu import numpy_backend
from fmm.kernels.cpu.host_arrays import aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.plan import Plan
from fmm.runtime import run_host
from fmm.runtime.decisions import limits
from tests.support import ROOT
from tests.support.marks import quick_and_slow
from tests.support.threads import at_once

Array = np.ndarray[Any, Any]
PLANS = ("winograd > vendor", "winograd > li-fig23 > vendor", "strassen.sequential > vendor", "hasa > vendor")

# What a call takes beside its workspace: Python objects, and per thread a few panels where a sum needs scratch. The
# panels are made small here, so that they do not hide a workspace that was counted wrongly.
SMALL_PANEL = 16 * 1024
SLACK = 192 * 1024 + 3 * SMALL_PANEL * blas_threads()


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """No test finds another's block."""
    fmm.release_workspace()
    yield
    fmm.release_workspace()


def pair(side: int = 96, dtype: str = "f8", seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng([side, seed])
    a, b = rng.standard_normal((side, side)), rng.standard_normal((side, side))
    return a.astype(dtype), b.astype(dtype)


def close(c: Any, a: Any, b: Any) -> bool:
    scale = np.abs(a).max() * np.abs(b).max() * a.shape[-1] * np.finfo(a.dtype).eps
    return bool(np.abs(c - np.matmul(a, b)).max() <= 8 * scale)


@pytest.fixture
def small_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_backend, "PANEL_BYTES", SMALL_PANEL)
    monkeypatch.setattr(numpy_backend, "MIN_PANEL_COLUMNS", 128)


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """The most bytes that were alive at once within the block, beyond those at its start."""
    found: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


# ---- how much


EVEN, ODD_SIZE = ((512, 512, 512), "f8"), ((501, 399, 607), "f4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "problem"),
    quick_and_slow(zip(PLANS, (ODD_SIZE, EVEN) * 2, strict=True), zip(PLANS, (EVEN, ODD_SIZE) * 2, strict=True)),
)
@pytest.mark.usefixtures("small_panels")
def test_the_peak_is_what_the_plan_said(plan: str, problem: tuple[tuple[int, int, int], str]) -> None:
    (m, k, n), dtype = problem
    a, b, c = np.ones((m, k), dtype), np.ones((k, n), dtype), np.empty((m, n), dtype)
    said = plan_workspace_bytes(Plan.parse(plan), m, k, n, a.itemsize)
    fmm.matmul(a, b, out=c, plan=plan)  # recipes are remembered from here on
    fmm.release_workspace()
    with peak_bytes() as peak:
        fmm.matmul(a, b, out=c, plan=plan)
    assert said <= peak[0] <= 1.01 * said + SLACK
    assert fmm.release_workspace() == pytest.approx(said, abs=64)


def _limited(a: Any, b: Any, limit: int) -> tuple[Any, int]:
    fmm.matmul(a, b, workspace=limit)
    fmm.release_workspace()
    with peak_bytes() as peak:
        c = fmm.matmul(a, b, workspace=limit)
    return c, peak[0] - c.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 1, 10_000, 100_000, 400_000, 1_000_000, 10**9])
@pytest.mark.usefixtures("eager", "small_panels")
def test_a_limit_is_kept(limit: int) -> None:
    a, b = pair(256)
    found = fmm.explain(a, b, workspace=limit)
    assert found.workspace <= limit
    assert fmm.plan(256, 256, 256, workspace=limit).plan == found.plan
    if limit < 10_000:
        assert found.plan == VENDOR
    c, taken = _limited(a, b, limit)
    assert close(c, a, b)
    assert taken <= 1.01 * limit + SLACK


@pytest.mark.usefixtures("eager")
def test_a_tighter_limit_never_takes_more() -> None:
    a, b = pair(384)
    taken = [fmm.explain(a, b, workspace=limit).workspace for limit in (0, 500_000, 10**6, 2 * 10**6, 10**9)]
    assert taken == sorted(taken)
    assert taken[0] == 0 < taken[-1]
    assert len(set(taken)) > 2  # lean plans are used, not only the vendor


ODD: dict[str, Callable[[Any], Any]] = {
    "backwards": lambda x: x[::-1, ::-1],
    "every second": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ODD)
@pytest.mark.usefixtures("eager", "small_panels")
def test_a_limit_holds_for_the_copies_of_operands_that_blas_cannot_read(how: str) -> None:
    a, b = (ODD[how](x) for x in pair(256))
    for limit in (0, 1_400_000):
        c, taken = _limited(a, b, limit)
        assert close(c, a, b)
        with peak_bytes() as vendor:
            np.matmul(a, b)
        assert taken <= max(1.01 * limit, vendor[0]) + SLACK


def test_the_default_limit_is_a_share_of_the_memory() -> None:
    assert 0 < limits.default_workspace_bytes(NUMPY, 2) <= limits.WORKSPACE_SHARE * host_memory.available_bytes() * 1.1
    assert 0 < host_memory.available_bytes() <= host_memory.total_bytes() * 1.01


GROUP_FILES = [
    # version, the group's line, where its files are, the files, (limit, used without what can be dropped)
    (
        "0::/",
        "",
        {"memory.max": "3000000", "memory.current": "1000000", "memory.stat": "anon 7\ninactive_file 200000\n"},
    ),
    ("0::/job/42", "job", {"memory.max": "3000000", "memory.current": "800000", "memory.stat": "anon 7\n"}),
    (
        "5:cpu:/x\n4:memory:/box",
        "memory/box",
        {"memory.limit_in_bytes": "3000000", "memory.usage_in_bytes": "800000", "memory.stat": "cache 1\n"},
    ),
]


@pytest.mark.parametrize(("line", "folder", "files"), GROUP_FILES)
def test_a_containers_limit_is_kept(
    line: str, folder: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "process").write_text(line + "\n")
    (tmp_path / "groups" / folder).mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "groups" / folder / name).write_text(text)
    monkeypatch.setattr(host_memory, "CGROUP_ROOT", str(tmp_path / "groups"))
    monkeypatch.setattr(host_memory, "PROCESS_CGROUPS", str(tmp_path / "process"))
    assert host_memory.total_bytes() == 3_000_000
    assert host_memory.available_bytes() == 2_200_000 + sum(x.nbytes for x in host_memory._cached_blocks)


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", "", None])
def test_a_group_without_a_limit_changes_nothing(
    limit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "CGROUP_ROOT", str(tmp_path))
    monkeypatch.setattr(host_memory, "PROCESS_CGROUPS", str(tmp_path / "process"))
    (tmp_path / "process").write_text("0::/\nnonsense\n")
    if limit is not None:
        files = {"memory.max": limit, "memory.current": "5", "memory.stat": "inactive_file 1"}
        for name, text in files.items():
            (tmp_path / name).write_text(text)
    assert host_memory.total_bytes() == host_memory._installed_bytes()


def test_the_kept_block_counts_as_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_cached_blocks", [])
    with host_memory.borrow_cached_memory(1 << 20):
        pass
    lines = ["MemTotal: 4000 kB\n", "MemAvailable: 1000 kB\n"]
    monkeypatch.setattr(host_memory, "open", lambda *a, **k: _LineProgress(lines), raising=False)
    assert host_memory.available_bytes() == 1000 * 1024 + sum(x.nbytes for x in host_memory._cached_blocks) > 1 << 20


class _LineProgress(list[str]):
    def __enter__(self) -> _LineProgress:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize("lines", [[], ["MemTotal: 4000 kB\n"], None])
def test_without_the_systems_answer_half_of_the_memory_is_available(
    lines: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*arguments: Any, **options: Any) -> _LineProgress:
        if lines is None:
            raise PermissionError("not here")
        return _LineProgress(lines)

    monkeypatch.setattr(host_memory, "open", opened, raising=False)
    assert host_memory.available_bytes() == host_memory.total_bytes() // 2


# ---- the block that is kept


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The address of every block that is allocated."""
    taken: list[int] = []

    def noted(nbytes: int) -> Array:
        found = aligned_block(nbytes)
        taken.append(found.ctypes.data)
        return found

    monkeypatch.setattr(host_memory, "aligned_block", noted)
    return taken


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """(thread, first byte, last byte) of every block while it is lent, in the order of lending."""
    loans: list[tuple[int, int, int]] = []

    @contextmanager
    def noted(nbytes: int) -> Iterator[Array]:
        with host_memory.borrow_cached_memory(nbytes) as found:
            start = found.ctypes.data
            loans.append((threading.get_ident(), start, start + found.nbytes))
            yield found

    monkeypatch.setattr(run_host, "borrow_cached_memory", noted)
    return loans


def test_the_second_call_reuses_the_first_ones_block(blocks: list[int], lent: list[tuple[int, int, int]]) -> None:
    a, b = pair()
    for _ in range(3):
        assert close(fmm.matmul(a, b, plan=PLANS[0]), a, b)
    assert len(blocks) == 1
    assert len({start for _, start, _ in lent}) == 1 and len(lent) == 3
    fmm.matmul(a[:40], b, plan=PLANS[0])  # a smaller one fits
    assert len(blocks) == 1
    fmm.matmul(*pair(200), plan=PLANS[0])  # a larger one does not
    assert len(blocks) == 2
    fmm.matmul(a, b, plan=PLANS[0])
    assert len(blocks) == 2


@pytest.mark.usefixtures("small_panels")
def test_release_frees_the_block() -> None:
    a, b = pair(400)
    said = plan_workspace_bytes(Plan.parse(PLANS[0]), 400, 400, 400, 8)
    fmm.matmul(a, b, plan=PLANS[0])
    fmm.release_workspace()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        fmm.matmul(a, b, plan=PLANS[0])
        kept = tracemalloc.get_traced_memory()[0] - before
        freed = fmm.release_workspace()
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert freed == pytest.approx(said, abs=64) and kept >= said
    assert left < SLACK
    assert fmm.release_workspace() == 0


def test_a_block_too_large_to_keep_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "total_bytes", lambda: 100_000)
    fmm.matmul(*pair(), plan=PLANS[0])
    assert fmm.release_workspace() == 0


def test_two_borrowers_never_share() -> None:
    with (
        host_memory.borrow_cached_memory(1000) as first,
        host_memory.borrow_cached_memory(1000) as second,
        host_memory.borrow_cached_memory(0) as third,
    ):
        assert first.nbytes >= 1000 <= second.nbytes
        assert not any(np.shares_memory(x, y) for x, y in ((first, second), (first, third), (second, third)))


def test_a_borrowed_block_comes_back_after_an_exception() -> None:
    with pytest.raises(KeyError), host_memory.borrow_cached_memory(1000):
        raise KeyError
    assert fmm.release_workspace() >= 1000


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 4096, 100_001])
def test_a_block_starts_on_a_cache_line(nbytes: int) -> None:
    with host_memory.borrow_cached_memory(nbytes) as found:
        assert found.nbytes >= nbytes
        assert found.ctypes.data % 64 == 0


# ---- no memory


class Scarce:
    """Fails the chosen allocations; counts all."""

    def __init__(self, allocate: Callable[..., Any], fails: Callable[[int], bool]) -> None:
        self.allocate, self.fails, self.count = allocate, fails, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.count += 1
        if self.fails(self.count):
            raise MemoryError("for the test")
        return self.allocate(*arguments, **options)


class Module:
    """NumPy with one function replaced."""

    def __init__(self, **replaced: Any) -> None:
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


FAILS: dict[str, Callable[[int], bool]] = {
    **{f"the {n}th": (lambda count, n=n: count == n) for n in (1, 2, 3, 5)},  # type: ignore[misc]
    **{f"from the {n}th": (lambda count, n=n: count >= n) for n in (1, 2, 4)},  # type: ignore[misc]
    "every second": lambda count: count % 2 == 0,
}
SMALL = pair(12)  # small enough that plans can need more than their estimated workspace
CALLS: dict[str, tuple[Any, Any]] = {
    "two matrices": SMALL,
    "a stack": (np.stack([SMALL[0]] * 2), np.stack([SMALL[1]] * 2)),
    "a folded stack": (np.stack([SMALL[0]] * 2), SMALL[1]),
    "backwards": (SMALL[0][::-1], SMALL[1][:, ::-1]),
    "of two types": (SMALL[0].astype("f4"), SMALL[1]),
    "float32": (SMALL[0].astype("f4"), SMALL[1].astype("f4")),
}


# In the quick run, a stack, operands that are copied and one type, and the first and the last of each kind of failure.
QUICK_CALLS, QUICK_FAILS = (
    ("a folded stack", "backwards", "float32"),
    ("the 1th", "the 5th", "from the 2th", "every second"),
)
SCARCITIES = list(product(CALLS, FAILS))
QUICK_SCARCITIES = list(product(QUICK_CALLS, QUICK_FAILS))


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("which", ["blocks", "panels", "results"])
@pytest.mark.parametrize(
    ("call", "fails"), quick_and_slow(QUICK_SCARCITIES, [x for x in SCARCITIES if x not in QUICK_SCARCITIES])
)
@pytest.mark.usefixtures("eager", "either_way")
def test_the_result_is_right_when_memory_runs_out(
    call: str, fails: str, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leaner plan, at last the vendor's: the right result, into out as well as into a new array.

    A plan that was given is not replaced: then the error comes out, and `out` is complete or untouched.
    """
    a, b = CALLS[call]
    allocate: dict[str, Callable[..., Any]] = {"blocks": aligned_block, "panels": np.empty, "results": np.ndarray}
    scarce = Scarce(allocate[which], FAILS[fails])
    for plan in ("winograd > strassen > vendor", None):
        for out in (None, np.full_like(np.matmul(a, b), np.nan)):
            with monkeypatch.context() as patch:
                if which == "blocks":
                    patch.setattr(host_memory, "aligned_block", scarce)
                elif which == "panels":
                    patch.setattr(numpy_backend, "np", Module(empty=scarce))
                else:
                    patch.setattr(numpy_library, "np", Module(ndarray=scarce))
                try:
                    c = fmm.matmul(a, b, out=out, plan=plan)
                except MemoryError:
                    assert plan is not None and scarce.count
                    assert out is None or np.isnan(out).all() or close(out, a, b)
                else:
                    assert out is None or c is out
                    assert close(c, a, b)
            fmm.release_workspace()


@pytest.mark.usefixtures("eager")
def test_a_given_plan_that_has_no_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair(256)
    fmm.release_workspace()
    monkeypatch.setattr(host_memory, "aligned_block", Scarce(aligned_block, lambda count: True))
    with pytest.raises(MemoryError, match="for the test"):
        fmm.matmul(a, b, plan="winograd > vendor")
    assert close(fmm.matmul(a, b), a, b)


@pytest.mark.usefixtures("eager")
def test_leaner_plans_are_tried_before_the_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair(256)
    asked: list[int] = []

    def small(nbytes: int) -> Array:
        asked.append(nbytes)
        if nbytes > 400_000:
            raise MemoryError
        return aligned_block(nbytes)

    monkeypatch.setattr(host_memory, "aligned_block", small)
    assert close(fmm.matmul(a, b), a, b)
    assert len(asked) > 1 and asked == sorted(asked, reverse=True)
    assert 0 < asked[-1] <= 400_000, "the vendor did it, though a lean plan would have fitted"


@pytest.mark.usefixtures("eager")
def test_the_leaner_plan_is_kept_for_the_rest_of_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair(256)
    tried: list[str] = []

    def small(nbytes: int) -> Array:
        tried.append("too much" if nbytes > 400_000 else "granted")
        if nbytes > 400_000:
            raise MemoryError
        return aligned_block(nbytes)

    monkeypatch.setattr(host_memory, "aligned_block", small)
    c = fmm.matmul(np.stack([a] * 4), np.stack([b] * 4))
    assert all(close(x, a, b) for x in c)
    assert "too much" not in tried[tried.index("granted") :]


# ---- interrupted


@contextmanager
def failing(method: str, at: int, error: type[BaseException]) -> Iterator[list[int]]:
    """The backend's method raises at the chosen call, counted over all threads."""
    calls: list[int] = []
    original = getattr(NumpyBackend, method)

    def interrupted(self: NumpyBackend, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == at:
            raise error
        original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NumpyBackend, method, interrupted)
        yield calls


@pytest.fixture(params=["on the caller's thread", "apart"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are multiplied on the caller's thread, others on one of ours: here, all of one kind."""
    monkeypatch.setattr(run_host, "SMALL_ARRAY_BYTES", 0 if request.param == "apart" else 1 << 60)


@pytest.mark.quick_cases(12)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("at", "error"),
    [
        *((at, KeyboardInterrupt) for at in (1, 3, 7)),
        *((1, RuntimeError), (3, SystemExit), (7, FloatingPointError)),
    ],
)
@pytest.mark.parametrize("method", ["multiply", "compute_sums"])
@pytest.mark.parametrize("plan", PLANS)
def test_out_is_complete_or_untouched_when_an_exception_leaves(
    plan: str, method: str, at: int, error: type[BaseException]
) -> None:
    a, b = pair(48)
    outs = {
        "C": np.full((48, 48), 7.0),
        "F": np.full((48, 48), 7.0, order="F"),
        "backwards": np.full((48, 48), 7.0)[::-1],
        "float32": np.full((48, 48), 7.0, "f4"),
    }
    for out in outs.values():
        with failing(method, at, error) as calls:
            if method == "compute_sums" and at == 7 and len(Plan.parse(plan).levels) < 2 and "sequential" not in plan:
                break  # not so many passes
            with pytest.raises(error):
                fmm.matmul(a, b, out=out, plan=plan)
            assert len(calls) == at
        untouched = bool((out == 7).all())
        exact = np.matmul(a, b, out=np.empty_like(out), casting="same_kind")
        assert untouched or np.abs(out - exact).max() < 1e-4 if out.dtype == "f4" else untouched or close(out, a, b)
        assert close(fmm.matmul(a, b, plan=plan), a, b)  # and the next call is not disturbed


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("at", [2, 9, 16])
def test_a_stack_is_complete_or_untouched_when_an_exception_leaves(at: int) -> None:
    a, b = (np.stack([x] * 3) for x in pair())
    out = np.full((3, 96, 96), 7.0)
    with failing("multiply", at, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        fmm.matmul(a, b, out=out, plan=PLANS[0])
    assert bool((out == 7).all()) or close(out, a, b)


@pytest.mark.usefixtures("either_way")
def test_out_that_overlaps_an_operand_survives_an_exception() -> None:
    a, b = pair()
    kept = a.copy()
    with failing("multiply", 3, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        fmm.matmul(a, b, out=a, plan=PLANS[0])
    np.testing.assert_array_equal(a, kept)


def test_an_exception_in_another_thread_leaves_through_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair(700)
    monkeypatch.setattr(numpy_library, "blas_threads", lambda: 3)
    fmm.plan(700, 700, 700)  # proves the schemes, by panels of this thread's own
    panel, out, failed = numpy_backend._run_sums_on_panel, np.full((700, 700), 7.0), threading.Event()
    first: list[int] = []

    def interrupted(*arguments: Any) -> None:
        first.append(threading.get_ident())
        if threading.get_ident() != first[0]:
            failed.set()
            raise ZeroDivisionError
        failed.wait(10)  # or this thread may do it all before another has begun
        panel(*arguments)

    monkeypatch.setattr(numpy_backend, "compiled_sum_tasks", lambda *_: [])  # compiled sums have no panels
    monkeypatch.setattr(numpy_backend, "_run_sums_on_panel", interrupted)
    with pytest.raises(ZeroDivisionError):
        fmm.matmul(a, b, out=out, plan=PLANS[0])
    assert bool((out == 7).all()) or close(out, a, b)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")
def test_a_real_interrupt_at_any_moment() -> None:
    """A signal's handler raises somewhere between the steps; afterwards out is whole, and fmm still works."""

    class AlarmError(Exception):
        pass

    def ring(*_: object) -> None:
        raise AlarmError

    a, b = pair(300)
    before = signal.signal(signal.SIGALRM, ring)
    interrupted = 0
    gc.disable()  # what is raised within a collector's callback (others' too) is lost
    try:
        for delay in np.linspace(0.0005, 0.02, 25):
            out = np.full((300, 300), 7.0)
            try:
                signal.setitimer(signal.ITIMER_REAL, float(delay))
                fmm.matmul(a, b, out=out, plan="winograd > winograd > vendor")
                signal.setitimer(signal.ITIMER_REAL, 0)
            except AlarmError:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert bool((out == 7).all()) or close(out, a, b)
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert interrupted, "no delay was short enough to interrupt a call"
    assert close(fmm.matmul(a, b, plan=PLANS[0]), a, b)


# ---- several threads and processes


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("count", [2, 8])
def test_threads_call_at_once(count: int, lent: list[tuple[int, int, int]]) -> None:
    cases = [(*pair(64 + 32 * (i % 3), seed=i), PLANS[i % len(PLANS)]) for i in range(count)]
    start = threading.Barrier(count, timeout=60)

    def work(a: Any, b: Any, plan: str) -> None:
        exact = a @ b
        start.wait()
        for _ in range(12):
            assert np.abs(fmm.matmul(a, b, plan=plan) - exact).max() <= 1e-10, plan

    at_once([partial(work, *case) for case in cases])
    assert len(lent) == 12 * count
    assert len({thread for thread, _, _ in lent}) == count


def test_threads_at_once_do_not_share_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both calls are held inside their products until each has its block."""
    both = threading.Barrier(2, timeout=30)
    spans: list[tuple[int, int]] = []

    @contextmanager
    def held(nbytes: int) -> Iterator[Array]:
        with host_memory.borrow_cached_memory(nbytes) as found:
            spans.append((found.ctypes.data, found.ctypes.data + found.nbytes))
            both.wait()
            yield found

    monkeypatch.setattr(run_host, "borrow_cached_memory", held)
    a, b = pair()
    assert all(close(c, a, b) for c in at_once([lambda: fmm.matmul(a, b, plan=PLANS[0])] * 2))
    (start, end), (other, last) = sorted(spans)
    assert start < end <= other < last


def test_releasing_while_others_multiply() -> None:
    a, b = pair()
    stop, wrong = threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            if not close(fmm.matmul(a, b, plan=PLANS[0]), a, b):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        fmm.release_workspace()
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not wrong


def forked(work: Callable[[], bool]) -> int:
    """The exit status of a child that does the work: 0 if it was right, a signal's number if it hung."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which is what is tested
        child = os.fork()
    if child == 0:  # pragma: no cover - the child
        code = 2
        try:
            signal.alarm(30)
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_multiplies() -> None:
    a, b = pair(700)  # several panels: the pool of threads exists before the fork
    assert close(fmm.matmul(a, b, plan=PLANS[0]), a, b)
    assert forked(lambda: close(fmm.matmul(a, b, plan=PLANS[0]), a, b)) == 0
    assert forked(lambda: fmm.release_workspace() >= 0 == fmm.release_workspace()) == 0
    assert close(fmm.matmul(a, b, plan=PLANS[0]), a, b)


LOCKING = ("fmm.kernels.cpu.thread_pool",)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("module", LOCKING)
def test_a_child_forked_while_another_thread_holds_the_lock(module: str) -> None:
    """The lock stays locked in the child, and nobody is left there to open it."""
    a, b = pair(700)
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with sys.modules[module]._lock.now:
            taken.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(10)
    try:
        status = forked(lambda: _within(20, lambda: close(fmm.matmul(a, b, plan=PLANS[0]), a, b)))
    finally:
        done.set()
        holder.join()
    assert status == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_every_lock_of_a_cpu_is_open_in_a_child() -> None:
    """Whoever held them in the parent is not there to open them."""
    others = "fmm.runtime.probe", "fmm.runtime.decisions.online", "fmm.kernels.cpu.openblas"
    modules = [sys.modules[name] for name in (*LOCKING, *others)]
    with ExitStack() as held:
        for module in modules:
            held.enter_context(module._lock.now)
        assert forked(lambda: not any(module._lock.now.locked() for module in modules)) == 0
        assert all(module._lock.now.locked() for module in modules)


def _within(seconds: int, work: Callable[[], bool]) -> bool:
    signal.alarm(seconds)
    return work()


AT_EXIT = """
import atexit, numpy as np, fmm
a = np.ones((700, 700))
fmm.arrays.numpy_library.blas_threads = lambda: 2
def last():
    c = fmm.matmul(a, a, plan="winograd > vendor")
    print("right" if (c == 700).all() else "wrong")
atexit.register(last)
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "last()"])
def test_multiplying_while_the_interpreter_exits(before: str) -> None:
    """NumPy still can when no new thread may be started."""
    code = AT_EXIT + before
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["right"] * (2 if before else 1), done.stderr
    assert not done.stderr

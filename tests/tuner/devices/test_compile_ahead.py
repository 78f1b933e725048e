"""Kernels compiled ahead: what the jobs make, and workers that work, fail, hang or die."""

from __future__ import annotations

import io
import random
import sys
import time
from pathlib import Path

import pytest

from fmm.kernels.cuda.launch_list import Kernel
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.plans.levels.scheme_level import SchemeLevel
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.perfmodel.candidates import device_candidate_plans, probed_plans
from fmm.problem import Problem
from fmm.tuner.devices import compile_worker
from fmm.tuner.devices.compile_ahead import (
    COMPILE_PHASES,
    COMPILED_SIZES,
    CompileJob,
    CompileWorkers,
    compilation_phase,
    compile_jobs_of_calls,
    is_needed_by_first_look,
    kernel_keys,
    plans_to_compile,
    tuning_compile_jobs,
    uses_own_kernel,
)
from tests.support.chips import H200
from tests.support.marks import quick_and_slow

WORKERS = {
    "done": "for line in sys.stdin: print('done', flush=True)",
    "heavy hangs": "import time\nfor line in sys.stdin: '^3' in line and time.sleep(1000); print('done', flush=True)",
    "hangs": "import time; time.sleep(1000)",
    "dies": "sys.stdin.readline(); sys.exit(1)",
    "dies at once": "sys.exit(1)",
}


def worker(does: str) -> tuple[str, ...]:
    return sys.executable, "-c", "import sys\n" + WORKERS[does]


LIGHT, HEAVY = (Plan.parse(f"{x}.batched > vendor") for x in ("strassen", "strassen^3"))
WANTED = [CompileJob(dtype, str(plan), (1, 2, 3)) for dtype in ("float32", "float64") for plan in (LIGHT, HEAVY) * 2]


@pytest.mark.parametrize("dtype", ["float32", "float64", "tf32", "bfloat16"])
def test_a_plan_is_waited_for(dtype: str) -> None:
    """TF32 waits for float32's kernels; what nobody asked for is not waited for."""
    made = CompileWorkers(0, WANTED, 3, worker("done"))
    try:
        assert made.wait_for_plan(dtype, HEAVY, 30)
    finally:
        made.close()


def test_a_plan_waits_for_its_own_levels_alone() -> None:
    """The light ones are done first; what needs nothing else can be measured then."""
    made = CompileWorkers(0, WANTED[:2], 1, worker("heavy hangs"))
    try:
        assert made.wait_for_plan("float32", LIGHT, 30)
        assert made.wait_for_plan("float64", HEAVY, 0.1)  # nobody makes it ahead
        assert not made.wait_for_plan("float32", HEAVY, 0.3)
        assert not made.wait_for_plan("float32", Plan.parse(f"strassen > {HEAVY}"), 0.1)
    finally:
        made.close()


def test_kernels_that_no_job_compiles_are_not_compiled() -> None:
    """A first look would otherwise compile them in its own time: 12 s on an H200 for `3m(strassen^2.pad16)`."""
    made = CompileWorkers(0, WANTED, 3, worker("done"))
    try:
        assert made.wait_for_all(30)
        assert made.wait_for_plan("float32", HEAVY, 0.0) and made.wait_for_plan("bfloat16", HEAVY, 1.0)
        assert not made.wait_for_plan("bfloat16", HEAVY, 0.0)
    finally:
        made.close()


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64", "complex128"])
def test_all_candidates_above_measured_leaves_are_compiled_ahead(dtype: str) -> None:
    plans = plans_to_compile(probed_plans("cuda"))
    compiled = {
        key for job in tuning_compile_jobs([dtype], plans) for key in kernel_keys(Plan.parse(job.plan), job.dtype)
    }
    leaves = {plan.leaf for plan in probed_plans("cuda")}
    candidates = [x for x in device_candidate_plans(True) if x.is_candidate_for(dtype) and x.leaf in leaves]
    own = {key for x in candidates for key in kernel_keys(x, dtype) if key[0] == dtype}
    assert own and own <= compiled
    assert not any(job.plan.startswith("residues(16)") for job in tuning_compile_jobs([dtype], plans))


def test_light_kernels_come_first() -> None:
    """Before all others what a first look needs."""
    plans = [Plan.parse(job.plan) for job in tuning_compile_jobs(["float32"], probed_plans("cuda"))]
    turns = [(not is_needed_by_first_look(plan), compilation_phase(plan)) for plan in plans]
    assert turns == sorted(turns) and {turn for _, turn in turns} == set(COMPILE_PHASES)
    sums = [p for p in plans if p.leaf == "vendor"]
    heavy = [max(step.products for step in p.levels if isinstance(step, SchemeLevel)) for p in sums]
    assert heavy == sorted(heavy) and heavy[0] < 49 and heavy[-1] == 343


def test_leaves_with_kernels_of_their_own_are_waited_for() -> None:
    """Alone and with sums inside; cuBLASLt's candidates have none."""
    leaves = [Plan(leaf=name) for name in ("tile", "f16x3", "lt3")]
    jobs = list(tuning_compile_jobs(["float32"], [*leaves, Plan.parse("strassen.batched.pad16 > f16x3")]))
    assert {job.plan for job in jobs} == {"tile", "f16x3", "strassen.batched.pad16 > f16x3"}
    made = CompileWorkers(0, jobs[:1], 1, worker("hangs"))
    try:
        assert not made.wait_for_plan("float32", Plan.parse(jobs[0].plan), 0.1)
        assert made.wait_for_plan("float32", leaves[2], 30)
    finally:
        made.close()


def test_below_a_level_that_changes_the_numbers_kernels_are_of_their_type() -> None:
    """Those of real numbers are made once, be it for real products or for complex ones."""
    plans = [Plan.parse(text) for text in ("strassen.batched > vendor", "3m > strassen.batched > vendor")]
    jobs = [
        (job.dtype, job.plan)
        for job in tuning_compile_jobs(["float32", "complex64"], plans)
        if job.size == COMPILED_SIZES[0]
    ]
    assert jobs == [("float32", str(plans[0])), ("complex64", str(plans[0])), ("complex64", str(plans[1]))]
    assert kernel_keys(plans[1], "complex64") == {
        ("complex64", "3m", False),
        ("float32", "strassen.batched", True),
    }


@pytest.mark.parametrize("does", ["dies", "dies at once"])
def test_dead_workers_keep_nobody_waiting(does: str) -> None:
    made = CompileWorkers(0, WANTED, 2, worker(does))
    try:
        assert made.wait_for_plan("float64", HEAVY, 30)
    finally:
        made.close()


@pytest.mark.slow
def test_waiting_ends_in_time_and_workers_end_at_once() -> None:
    made = CompileWorkers(0, WANTED, 2, worker("hangs"))
    start = time.perf_counter()
    assert not made.wait_for_plan("float32", LIGHT, 0.3)
    made.close()
    assert time.perf_counter() - start < 5
    assert all(w.poll() is not None for w in made._workers)


def test_each_source_is_compiled_once(tmp_path: Path) -> None:
    assert [compile_worker.claim_kernel_for_this_process(text, tmp_path) for text in ("x", "y", "x", "y")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_job_that_fails_is_said_and_the_next_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = ['["float32", "no plan", [4, 4, 4], ""]', '["float32", "strassen.batched > vendor", [64, 64, 64], "join"]']
    compiled: list[str] = []
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
    monkeypatch.setattr(compile_worker, "compile_to_disk_cache", lambda kernel, text, device: compiled.append(text))
    monkeypatch.setattr(compile_worker, "chip_from_driver", lambda device: H200)
    monkeypatch.setattr("os.nice", lambda more: 0)
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    assert compile_worker.compile_requested_jobs(["0", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("PlanError") and second == "done" and len(compiled) == 1


def test_the_jobs_of_calls_make_what_they_launch() -> None:
    """Kernels that raise a flag are others than those that a tuning times; three levels' are a job each."""
    sizes = ((4096, 4096, 4096), (4133, 2053, 3001))
    plans = [Plan.parse(x) for x in ("f16x3", "strassen.batched.pad16 > vendor", "strassen^3.batched.pad16 > f16x3")]
    calls = [("float32", plan, size) for plan in plans for size in sizes]
    jobs = list(compile_jobs_of_calls([*calls, *calls]))
    assert len(jobs) == 2 * (1 + 1 + 4) and "^3" in jobs[0].plan, "the longest first"
    made = {kernel for job in jobs for kernel in compile_worker.kernels_of_compile_job(job, H200)}
    met = set[Kernel]()
    for dtype, plan, size in calls:
        met |= {
            x.kernel for x in record_launches(plan, Problem(*size, dtype), chip_target(H200, flagged=True)).launches
        }
    plain = {k for job in jobs for k in compile_worker.kernels_of_compile_job(job._replace(flagged=False), H200)}
    assert made == met != plain


def test_all_jobs_are_waited_for() -> None:
    for does, expected in (("done", True), ("hangs", False)):
        made = CompileWorkers(0, WANTED, 2, worker(does))
        try:
            assert made.wait_for_all(30 if expected else 0.2) == expected
        finally:
            made.close()


@pytest.mark.slow
@pytest.mark.parametrize(("does", "least"), quick_and_slow([("product", 7)], [("sums", 20)]))
def test_the_jobs_make_the_kernels_that_a_tuning_meets(does: str, least: int) -> None:
    """On random shapes, round and odd, of the candidates in float32; those of two levels and less, to be quick."""
    plans = [p for p in probed_plans("cuda") if "^3" not in str(p) and p.is_candidate_for("float32")]
    plans = [p for p in plans if uses_own_kernel(p) == (does == "product") and (p.levels or uses_own_kernel(p))]
    jobs = list(tuning_compile_jobs(["float32"], plans))
    made = {kernel for job in jobs for kernel in compile_worker.kernels_of_compile_job(job, H200)}
    rng, met = random.Random(1), set[Kernel]()
    for step in (1, 32):
        m, k, n = (rng.randint(1000, 9000) // step * step for _ in range(3))
        for plan in plans:
            found = record_launches(plan, Problem(m, k, n, "float32"), chip_target(H200)).launches
            met |= {x.kernel for x in found if x.does == does}
    assert len(met) >= least and len(met - made) <= 0.2 * len(met), (len(met - made), len(met))

"""What is added is used: a leaf, a level and a scheme, which stand in this file and nowhere else, are read, explained,
counted, predicted, chosen, run and searched like those that fmm comes with; and when they are gone, all is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.algorithms.catalogue import register_scheme, scheme, unregister_scheme
from fmm.kernels.algorithms.scheme import SchemeError
from fmm.kernels.algorithms.step_table import (
    StepTableError,
    register_step_table,
    step_table,
    step_table_names,
    unregister_step_table,
)
from fmm.kernels.cpu.symbolic_proof import first_plan_defect
from fmm.kernels.plans import explain
from fmm.kernels.plans.leaf import (
    Leaf,
    register_leaf,
    unregister_leaf,
)
from fmm.kernels.plans.level import CandidateLevel, LevelKind, register_level, unregister_level
from fmm.kernels.plans.lower import LevelWithSteps
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.steps import LevelSteps, Product, temporary_sizes
from fmm.kernels.plans.sums import COPY_PROGRAM, Place, Sum, cut_side_into_parts, whole_matrix
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel import Calibration, Limits, choose, cost, error_bound, expected_error_growth, predict
from fmm.perfmodel.calibration import ProductRate
from fmm.perfmodel.candidates import candidate_plans
from fmm.perfmodel.predict import predict_vendor
from fmm.problem import Problem
from fmm.tuner.devices.device import CPU_EFFORTS
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.search.race import optuna_proposals, search_plans
from fmm.tuner.search.space import search_space
from fmm.tuner.trials.journal import Journal

# ---- a leaf: NumPy's einsum, in half the time of BLAS (so it says)

CALLS: list[tuple[int, ...]] = []


def by_einsum(left: Any, right: Any, dest: Any) -> None:
    CALLS.append(left.shape)
    np.einsum("ij,jk->ik", left, right, out=dest)


LEAF = Leaf(
    "einsum",
    "NumPy's own loops, without BLAS",
    ("cpu",),
    types=("float32", "float64"),
    call_text="one einsum",
    host_product=by_einsum,
    relative_error=1.5,
    relative_time=0.5,
)

# ---- a level: halves of the rows, each on copies whose rows are aligned


class Halves(LevelWithSteps):
    """C's upper and lower half, one after the other, on copies of A's halves and of B."""

    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        right = whole_matrix("T", k, n)
        steps: list[Sum | Product] = [Sum("copy", COPY_PROGRAM, (whole_matrix("B", k, n),), (right,))]
        for row, rows in cut_side_into_parts(m, 2, None):
            left, product = whole_matrix("S", rows, k), whole_matrix("M", rows, n)
            steps.append(Sum("copy", COPY_PROGRAM, (Place("A", row, 0, rows, k),), (left,)))
            steps.append(Product(left, right, product, plan.inner_plan))
            steps.append(Sum("copy", COPY_PROGRAM, (product,), (Place("C", row, 0, rows, n),)))
        return LevelSteps(temporary_sizes(steps), tuple(steps))


LEVEL = LevelKind(
    "halves",
    lambda text: Halves(text="halves", products=2) if text == "halves" else None,
    lambda: ("halves",),
    lambda: [CandidateLevel("halves", ("nested",), products=2)],
)

# ---- a scheme: Smirnov's, as somebody's file that says nothing of where it pays

SCHEME = scheme("smirnov336").to_text().replace("smirnov336", "toy336")

# ---- devices on which they win: sums cost nothing, and leaf products below a side of 300 are not to be chosen


def calibration(**rate: float) -> Calibration:
    return Calibration(
        "toys",
        "by definition",
        MappingProxyType({"float64": ProductRate(1e11, 1.0, 1.0, **rate)}),
        stream=1e15,
        launch=1e-9,
        least=300.0,
    )


@dataclass(frozen=True)
class Toy:
    """What is added, on which device and problem it is the best choice, and what is known of that plan."""

    plan: str
    device: Calibration
    problem: Problem
    limits: Limits
    message: str  # that its text is answered with when it is gone
    explained: str
    products: int
    share: float  # of the vendor's predicted time


TOYS = {
    "leaf": Toy(
        "einsum",
        calibration(),
        Problem(500, 500, 500),
        Limits(1 << 40),
        "ends in 'einsum'; a plan ends in its leaf: vendor, lt0 to lt31, .*each with .inner",
        "one einsum",
        1,
        0.5,
    ),
    "level": Toy(
        "halves > vendor",
        calibration(unaligned=5.0),
        Problem(1001, 501, 501),  # rows of 501 float64 are not aligned, and those of the copies are
        Limits(1 << 40, error_growth=1.0),
        "unknown algorithm 'halves'; valid: .*strassen.*balanced",
        "2 products, 5 passes of sums",
        2,
        0.2,
    ),
    "scheme": Toy(
        "toy336 > vendor",
        calibration(),
        Problem(3 * 301, 3 * 301, 6 * 301),
        Limits(1 << 40, error_growth=100.0),
        "unknown algorithm 'toy336'; valid: .*strassen",
        "3x3x6 blocks, 3 passes of sums",
        40,
        40 / 54,
    ),
}


@pytest.fixture(params=TOYS)
def toy(request: pytest.FixtureRequest) -> Iterator[Toy]:
    """One of them, for as long as a test takes."""
    found = TOYS[request.param]
    with pytest.raises(PlanError, match=found.message):
        Plan.parse(found.plan)
    before = (
        [candidate_plans(device) for device in ("cpu", "cuda")],
        [search_space(device) for device in ("cpu", "cuda")],
    )
    if request.param == "leaf":
        register_leaf(LEAF)
    elif request.param == "level":
        register_level(LEVEL)
    else:
        register_scheme(SCHEME)
    try:
        yield found
    finally:
        {"leaf": unregister_leaf, "level": unregister_level, "scheme": unregister_scheme}[request.param](
            {"leaf": "einsum", "level": "halves", "scheme": "toy336"}[request.param]
        )
    assert before == (
        [candidate_plans(device) for device in ("cpu", "cuda")],
        [search_space(device) for device in ("cpu", "cuda")],
    )
    with pytest.raises(PlanError, match=found.message):
        Plan.parse(found.plan)


@pytest.mark.quick_cases(2)
def test_it_is_parsed_and_explained(toy: Toy) -> None:
    plan = Plan.parse(toy.plan)
    assert str(plan) == toy.plan and Plan.parse(str(plan)) == plan
    assert toy.explained in explain.plan_table(plan, *toy.problem.size, 8)
    assert str(Plan.parse(f"strassen > {toy.plan}")) == f"strassen > {toy.plan}"


@pytest.mark.quick_cases(2)
def test_it_is_counted_and_predicted(toy: Toy) -> None:
    plan, problem = Plan.parse(toy.plan), toy.problem
    counts = cost(plan, *problem.size, 8)
    assert sum(times for _, times in counts.leaves) == toy.products
    assert counts.workspace == plan_workspace_bytes(plan, *problem.size, 8)
    assert (counts.workspace > 0) == bool(plan.levels)
    seconds = predict(plan, problem, toy.device).predicted_seconds
    assert seconds / predict_vendor(problem, toy.device).predicted_seconds == pytest.approx(toy.share, rel=0.01)
    assert error_bound(plan, *problem.size) > 0
    if not plan.levels:
        assert expected_error_growth(plan) == LEAF.relative_error


@pytest.mark.quick_cases(2)
def test_it_is_chosen(toy: Toy) -> None:
    """On a device where it wins: among all candidates, and without a word about it anywhere else."""
    found = choose(toy.problem, toy.device, toy.limits)
    assert str(found.best.plan) == toy.plan, found.reason
    assert found.best.time == pytest.approx(toy.share, rel=0.01)
    dearer = replace(toy.device, margin=0.95)
    assert str(choose(toy.problem, dearer, toy.limits).best.plan) == "vendor"


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_runs_on_a_cpu(toy: Toy, dtype: str, rng: np.random.Generator) -> None:
    for text in (toy.plan, f"strassen > {toy.plan}"):
        for m, k, n in ((64, 64, 64), (67, 35, 41), (5, 3, 2)):
            a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
            CALLS.clear()
            c = fmm.matmul(a, b, plan=text)
            assert np.abs(c - a @ b).max() < 1e4 * np.finfo(dtype).eps
            assert len(CALLS) == (0 if text.endswith("vendor") else 7 if "strassen" in text else 1)


def test_a_toy_level_computes_ab() -> None:
    register_level(LEVEL)
    try:
        assert first_plan_defect(Plan.parse("halves > vendor"), [(2, 2, 2), (3, 2, 3), (1, 1, 1)]) is None
        assert first_plan_defect(Plan.parse("strassen > halves > vendor"), [(5, 4, 6)]) is None
    finally:
        unregister_level("halves")


@pytest.mark.slow
def test_it_is_searched(toy: Toy) -> None:
    """By the model's order, and by what Optuna proposes."""
    import optuna

    device, effort = SimulatedDevice(toy.device, noise=0.001), replace(CPU_EFFORTS["quick"], trials=2, enqueued=2)
    found = search_plans(Journal("run", device), toy.problem, toy.device, effort, 1e9)
    assert dict(found.plans)[Plan.parse(toy.plan)] == pytest.approx(1 / toy.share, rel=0.05)

    proposed = optuna_proposals(device, toy.problem, {}, 80, optuna.samplers.RandomSampler(seed=0))
    name = toy.plan.split(" > ")[0]
    assert any(name in str(plan) for plan in proposed)


# ---- what is refused


def test_a_name_has_one_meaning() -> None:
    with pytest.raises(ValueError, match="there is a leaf 'vendor' already"):
        register_leaf(replace(LEAF, name="vendor"))
    with pytest.raises(ValueError, match="there is a kind of level 'balanced' already"):
        register_level(replace(LEVEL, name="balanced"))
    with pytest.raises(SchemeError, match="there is a scheme 'strassen' already"):
        register_scheme(scheme("strassen").to_text())


def test_what_does_not_multiply_is_not_registered() -> None:
    with pytest.raises(SchemeError, match="not a matrix multiplication"):
        register_scheme(SCHEME.replace("M1 = (A11 + A13", "M1 = (A11 - A13"))
    table = step_table("li-fig3").to_text().replace("li-fig3", "toy")
    with pytest.raises(StepTableError, match="toy does not compute AB"):
        register_step_table(table.replace("sub(T1, A11, T1)", "add(T1, A11, T1)"))
    with pytest.raises(StepTableError, match="there is a step table 'hasa' already"):
        register_step_table(step_table("hasa").to_text())


def test_a_step_table_can_be_registered_too(rng: np.random.Generator) -> None:
    register_step_table(step_table("li-fig3").to_text().replace("li-fig3", "toy"))
    try:
        assert Plan.parse("toy > vendor") == Plan.parse("toy.unequal > vendor")
        assert Plan.parse("toy > vendor") in candidate_plans("cpu")
        a = rng.standard_normal((33, 33))
        assert np.allclose(fmm.matmul(a, a, plan="toy > vendor"), a @ a)
    finally:
        unregister_step_table("toy")
    assert "toy" not in step_table_names()

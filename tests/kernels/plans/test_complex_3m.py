"""The level 3m: complex products by three real ones, on arrays and as launches, counted, bounded and explained."""

from __future__ import annotations

from itertools import product
from types import MappingProxyType

import numpy as np
import pytest

import fmm
from fmm.dtypes import DTYPES
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.cuda.launch_list import StreamSync, VendorCall
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.recompute.recompute import may_create_nonfinite
from fmm.kernels.cuda.record import record_launches, record_operations
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.plans.explain import plan_table
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import count_multiplications, plan_workspace_bytes
from fmm.perfmodel import Calibration, Limits, Problem, choose, cost, error_bound, expected_error_growth, predict
from fmm.perfmodel.block_model import chip_target
from fmm.perfmodel.calibration import ProductRate
from fmm.perfmodel.candidates import candidate_plans, vendor_alternative_plans
from fmm.perfmodel.choose import rank_candidates
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.work import counted_work, estimated_work, estimated_workspace
from fmm.problem import Layout
from tests.support.chips import H200
from tests.support.launch_lists import buffer, matrices, play
from tests.support.marks import quick_and_slow

ORDERS = ("3m", "3m.batched", "3m.overlapped", "3m.sequential")
PLANS = (
    *(f"{order} > vendor" for order in ORDERS),
    "3m > strassen.batched.pad4 > vendor",
    "3m.sequential > li-fig3.peel > vendor",
    "strassen.batched.pad4 > 3m > vendor",
    "li-fig3.peel > 3m > vendor",  # complex strips beside a core of real numbers
    "winograd.overlapped > 3m.sequential > vendor",
    "3m.overlapped > winograd.pad16 > vendor",
    "3m.batched > vendor.inner",
    "3m(strassen.pad4) > vendor",
    "3m(strassen.pad4) > winograd > vendor",
)
LARGER = ("3m(strassen^2) > vendor", "3m(laderman) > vendor")
SIZES = ((8, 6, 10), (23, 18, 35), (1, 1, 1), (2, 1, 3), (0, 4, 3), (4, 0, 3))


def problem_of(size: tuple[int, int, int], dtype: str, order: str, alpha: complex, beta: complex) -> Problem:
    m, k, n = size
    layouts = [Layout(order, max(c if order == "C" else r, 1) + 3) for r, c in ((m, k), (k, n), (m, n))]  # type: ignore[arg-type]
    return Problem(m, k, n, dtype, (layouts[0], layouts[1], layouts[2]), alpha, beta)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("text", quick_and_slow(PLANS, LARGER))
@pytest.mark.parametrize("dtype", quick_and_slow(["complex64"], ["complex128"]))
def test_on_arrays_and_as_launches(text: str, dtype: str) -> None:
    """Small integers, of which every sum is exact: the same numbers, with all of the counted workspace and no more."""
    plan = Plan.parse(text)
    for size, order, scalars in product(SIZES, "CF", ((1, 0), (1 + 2j, 3 - 1j), (1j, 0), (0, 2))):
        problem = problem_of(size, dtype, order, *scalars)
        memory, (a, b, c) = matrices(problem, np.random.default_rng(1))
        alpha, beta = scalars
        expected = alpha * (a.astype(np.complex128) @ b) + (beta * c if beta else 0)
        needed = plan_workspace_bytes(plan, *size, problem.itemsize, alpha, beta)
        recorded, found = record_operations(plan, problem), np.array(c)
        assert recorded.workspace <= needed if 0 in (*size, alpha) else recorded.workspace == needed
        execute_plan(
            plan, a, b, found, NumpyBackend(ThreadGroup(1)), Arena(aligned_block(needed), a.dtype), alpha, beta
        )
        memory["W"] = buffer(recorded.workspace)
        play(recorded, memory)
        np.testing.assert_array_equal(found, expected, err_msg=str(problem))
        np.testing.assert_array_equal(c, expected, err_msg=str(problem))


INF, NAN = float("inf"), float("nan")


@pytest.mark.quick_cases()
@pytest.mark.parametrize(
    "text", ["3m > vendor", "3m.sequential > vendor", "3m(strassen.pad4) > vendor", "winograd > vendor"]
)
@pytest.mark.parametrize("alpha", [1, INF, NAN, complex(0, INF), complex(NAN, 1), 2 - 1j])
@pytest.mark.parametrize("beta", [0, 1, -INF, NAN, complex(1, INF)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinite_and_nan_scalars(text: str, alpha: complex, beta: complex, rng: np.random.Generator) -> None:
    """Each part of each entry is finite, infinite or NaN as in NumPy's alpha (A B) + beta C."""
    a, b, c = (rng.standard_normal((3, 12, 12)) + 1j * rng.standard_normal((3, 12, 12))) @ np.eye(12)
    expected = np.multiply(a @ b, alpha) + (np.multiply(c, beta) if beta else 0)
    found = fmm.gemm(a, b, c.copy() if beta else None, alpha=alpha, beta=beta, plan=text)
    problem = problem_of((12, 12, 12), "complex128", "C", alpha, beta)
    memory, operands = matrices(problem, rng)
    for x, values in zip(operands, (a, b, c), strict=True):
        x[...] = values
    recorded = record_operations(Plan.parse(text), problem)
    memory["W"] = buffer(recorded.workspace)
    play(recorded, memory)
    for result in (found, operands[2]):
        for part, wanted in ((result.real, expected.real), (result.imag, expected.imag)):
            np.testing.assert_array_equal(np.isnan(part), np.isnan(wanted))
            np.testing.assert_allclose(part, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", ["3m", "3m.sequential", "3m(strassen)"])
def test_conjugating_an_operand_twice_changes_nothing(text: str) -> None:
    conjugates = {(a, b): Plan.parse(f"{text}{'.conj-a' * a}{'.conj-b' * b} > vendor") for a in (0, 1) for b in (0, 1)}
    for (a, b), plan in conjugates.items():
        for (x, y), other in conjugates.items():
            assert plan.with_conjugation(a != x, b != y) == other


@pytest.mark.parametrize(
    ("text", "conjugated"), [("3m.conj-a", "a"), ("3m.sequential.conj-b", "b"), ("3m(strassen).conj-b", "b")]
)
def test_conjugated_operands_cost_no_copy(text: str, conjugated: str, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((40, 40, 2)) @ [1, 1j] for _ in range(2))
    plan = Plan.parse(f"{text} > vendor")
    assert str(plan) == f"{text} > vendor"
    expected = a.conj() @ b if conjugated == "a" else a @ b.conj()
    arena, found = Arena(aligned_block(plan_workspace_bytes(plan, 40, 40, 40, 16)), a.dtype), np.empty_like(a)
    execute_plan(plan, a, b, found, NumpyBackend(ThreadGroup(1)), arena)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    with pytest.raises(PlanError, match="multiplies conjugates"):  # which a product has none of
        fmm.matmul(a, b, plan=plan)
    plain = Plan.parse(str(plan).replace(f".conj-{conjugated}", ""))
    assert plan_workspace_bytes(plan, 40, 40, 40, 16) == plan_workspace_bytes(plain, 40, 40, 40, 16)
    assert cost(plan, 40, 40, 40, 16) == cost(plain, 40, 40, 40, 16)


# ---- what runs


def test_what_is_below_it_is_real() -> None:
    operations = record_operations(
        Plan.parse("strassen.batched > 3m.batched > vendor"), Problem(64, 64, 64, "complex64")
    )
    products = [op for op in operations.ops if isinstance(op, GemmOp)]
    assert [(op.dtype, op.count) for op in products] == [("float32", 3)] * 7
    sums = [op.kernel.element for op in operations.ops if isinstance(op, SumOp)]
    assert set(sums) == {"float32"}  # real coefficients: complex blocks are real ones with twice the columns
    peeled = record_operations(Plan.parse("li-fig3.peel > 3m > vendor"), Problem(65, 65, 65, "complex128"))
    assert [op.dtype for op in peeled.ops if isinstance(op, GemmOp)].count("complex128") == 3


def test_cublas_has_three_products_of_its_own() -> None:
    """One call each; batches of complex128 one by one, because cuBLAS has no such batch."""
    for dtype, calls in (("complex64", 1), ("complex128", 7)):
        found = record_launches(
            Plan.parse("strassen.batched.pad16 > vendor3m"), Problem(64, 64, 64, dtype), chip_target(H200, flagged=True)
        )
        vendors = [step for step in found.steps if isinstance(step, VendorCall)]
        assert len(vendors) == calls and all(f"cuBLAS, {dtype} by three" in step.label for step in vendors)
        ops = [step.op for step in vendors if isinstance(step.op, GemmOp)]
        assert len({op.left.offset for op in ops}) == calls and sum(op.count for op in ops) == 7
    alone = record_launches(Plan.parse("vendor3m"), Problem(64, 64, 64, "complex64"), chip_target(H200, flagged=True))
    does = [step.does for step in alone.steps if not isinstance(step, StreamSync)]
    assert does == ["product", "recompute", "recompute"]  # looked through for inf and NaN, then computed again
    with pytest.raises(PlanError, match="vendor3m multiplies complex64, complex128 there, not float32"):
        record_operations(Plan.parse("vendor3m"), Problem(64, 64, 64, "float32"))
    with pytest.raises(PlanError, match="vendor3m is a product on a GPU"):
        fmm.matmul(np.ones((2, 2), "c8"), np.ones((2, 2), "c8"), plan="vendor3m")


@pytest.mark.parametrize("text", ["3m > vendor", "strassen > 3m > vendor", "vendor3m"])
def test_a_result_with_inf_or_nan_is_computed_again(text: str) -> None:
    assert may_create_nonfinite(Plan.parse(text))


def test_it_is_for_complex_numbers_alone() -> None:
    for call in (
        lambda: fmm.matmul(np.ones((2, 2)), np.ones((2, 2)), plan="3m > vendor"),
        lambda: record_operations(Plan.parse("3m > vendor"), Problem(8, 8, 8, "float64")),
        lambda: record_operations(Plan.parse("3m > 3m > vendor"), Problem(8, 8, 8, "complex128")),
    ):
        with pytest.raises(PlanError, match="3m is for complex64 and complex128, not for float64"):
            call()


WRONG = [
    ("3m.batched.sequential > vendor", "3m cannot be both batched and sequential"),
    ("3m.pad16 > vendor", "unknown option 'pad16' of 3m; valid: stacked, batched, overlapped, sequential, conj-a"),
    ("3m.overlapped > winograd.overlapped > vendor", "only one level of a plan can be overlapped"),
    ("3m(strassen^3) > vendor", r"3m\(strassen\^3\): in one pass with 3m, a scheme of at most 49 products"),
    ("3m(li-fig3) > vendor", "the step table li-fig3 is sequential, not batched"),
    ("3m(strassen).batched > vendor", r"unknown option 'batched' of 3m\(...\); valid: conj-a, conj-b"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_is_no_such_level(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.parse(text)


# ---- what it costs


def test_it_is_counted_exactly() -> None:
    """Of real numbers: 5 for each of A, of B and of C that sums move, three temporaries of each, one in the lean
    order."""
    size, mk, kn, mn = (48, 80, 112), 48 * 80, 80 * 112, 48 * 112
    for text, many, moved in (("3m", 3, 5 * (mk + kn + mn)), ("3m.sequential", 1, 7 * (mk + kn) + 11 * mn)):
        found = cost(Plan.parse(f"{text} > vendor"), *size, itemsize=16)
        real = [temporary_bytes(*shape, 8) for shape in ((48, 80), (80, 112), (48, 112))]
        assert found.workspace == many * sum(real)
        assert found.bytes_read + found.bytes_written == 8 * moved
        assert found.leaf_bytes == 3 * 8 * (mk + kn + mn) and found.leaves == ((size, 3),)
        problem, plan = Problem(*size, "complex128"), Plan.parse(f"{text} > strassen.batched > vendor")
        assert estimated_work(plan, problem).traffic == pytest.approx(counted_work(plan, problem).traffic)
        assert estimated_workspace(plan, problem) == pytest.approx(plan_workspace_bytes(plan, *size, 16), rel=0.1)
    # In one pass with a scheme's level, what is written and read between the two is saved.
    one, two = (Plan.parse(f"{text} > vendor") for text in ("3m(strassen.pad16)", "3m > strassen.batched.pad16"))
    problem = Problem(1024, 1024, 1024, "complex64")
    assert estimated_work(one, problem).traffic == counted_work(one, problem).traffic
    assert counted_work(one, problem).traffic < 0.65 * counted_work(two, problem).traffic
    assert counted_work(one, problem).leaves == ((512, 512, 512, 21.0, 21.0),)
    assert count_multiplications(one, 1024, 1024, 1024) == count_multiplications(two, 1024, 1024, 1024)
    assert expected_error_growth(one, "complex64") == pytest.approx(expected_error_growth(two, "complex64"))
    assert count_multiplications(Plan.parse("3m > strassen > vendor"), 64, 64, 64) == 0.75 * 7 / 8 * 64**3
    assert count_multiplications(Plan.parse("strassen > 3m > vendor"), 64, 64, 64) == 0.75 * 7 / 8 * 64**3


def test_its_products_take_the_time_of_real_ones() -> None:
    rates = {"complex128": ProductRate(1e12, 0.0, 0.0), "float64": ProductRate(2e12, 0.0, 0.0)}
    known = Calibration("test", "test", MappingProxyType(rates), stream=1e15)
    problem = Problem(512, 512, 512, "complex128")
    assert predict(Plan.parse("3m > vendor"), problem, known).products == pytest.approx(3 * 2 * 512**3 / 2e12)
    assert predict(VENDOR, problem, known).products == pytest.approx(8 * 512**3 / 1e12)
    # What nobody has measured of real products is taken from the complex ones.
    half = Calibration("test", "test", MappingProxyType({"complex128": rates["complex128"]}), stream=1e15)
    assert rank_candidates(problem, half, [Plan.parse("3m > vendor")])
    assert predict(Plan.parse("3m > vendor"), problem, half).products == pytest.approx(3 * 2 * 512**3 / 1e12)


@pytest.mark.parametrize(
    ("device", "below"),
    [
        ("cpu", ("vendor", "winograd > vendor", "li-fig23 > li-fig23 > vendor")),
        ("cuda", ("vendor", "strassen^3.batched.pad16 > vendor", "strassen.pad4 > strassen.fused.pad4 > tile")),
    ],
)
def test_it_is_compared_above_every_real_plan(device: str, below: tuple[str, ...]) -> None:
    found = candidate_plans(device)
    for plan in below:
        assert {Plan.parse(f"3m > {plan}"), Plan.parse(f"3m.sequential > {plan}")} <= set(found)
    lean = [plan.levels[0] for plan in found if plan.levels and str(plan).startswith("3m")]
    assert [str(level) for level in lean] == sorted((str(level) for level in lean), key="3m.sequential".__eq__)
    assert not any(plan.is_candidate_for("float64") for plan in found if str(plan).startswith(("3m", "vendor3m")))
    assert (
        (Plan(leaf="vendor3m") in vendor_alternative_plans(device))
        == (Plan(leaf="vendor3m") in found)
        == (device == "cuda")
    )


CHOSEN = [
    # (type, side, workspace, error, may numbers be multiplied in another type, the beginning of what is chosen on an
    # H200 that nobody has measured)
    ("complex64", 8192, 1 << 36, 16.0, True, "3m > f16x3"),
    ("complex64", 1024, 1 << 36, 16.0, True, "3m.batched > f16x3"),
    ("complex64", 8192, 1 << 36, 16.0, False, "3m"),
    ("complex128", 2048, 1 << 36, 16.0, False, "3m(strassen.pad16) > vendor"),
    ("complex128", 8192, 2 << 30, 16.0, False, "li-fig23.pad16 > winograd.pad16 > 3m"),  # tight: on complex blocks
    # Residues only for an error below the vendor's: their bound is looser where the scale varies along k.
    ("complex64", 8192, 1 << 36, 0.2, True, "residues2m(8)"),
    ("complex64", 512, 1 << 36, 0.2, True, "residues2m(8) > bytes"),  # slower than the vendor
    ("complex64", 8192, 1 << 36, 1.4, True, "vendor"),
    # No error beyond the vendor's is allowed.
    ("complex64", 8192, 1 << 36, 1.4, False, "vendor"),
    ("complex64", 8192, 1 << 36, 1.0, False, "vendor"),
    # Less than the vendor's, beside norms.
    ("float32", 8192, 1 << 36, 0.02, True, "residues(8) > bytes"),
    ("float32", 8192, 1 << 36, 0.02, False, "vendor"),
    ("float32", 512, 1 << 36, 0.02, True, "residues(8) > bytes"),  # slower than the vendor
    ("float64", 8192, 1 << 36, 0.1, True, "residues(15) > strassen > bytes"),
    ("float64", 8192, 1 << 36, 0.05, True, "residues(16) > strassen > bytes"),
    ("float64", 8192, 1 << 36, 0.1, False, "vendor"),
    ("float64", 8192, 1 << 36, 0.02, True, "vendor"),  # no plan is so accurate
    ("float64", 8192, 1 << 36, 16.0, False, "strassen"),
    # With levels below the residues, which add nothing to the error.
    ("complex128", 8192, 1 << 36, 16.0, True, "residues2m(15)"),
    ("complex128", 8192, 1 << 36, 1.1, True, "residues2m(15)"),
    ("complex128", 8192, 1 << 36, 0.05, True, "residues2m(17)"),
    ("complex128", 8192, 1 << 36, 2.3, False, "3m"),
    ("float64", 16384, 1 << 37, 1.5, True, "residues(14) > strassen > bytes"),
]


@pytest.mark.parametrize(("dtype", "side", "room", "growth", "emulation", "expected"), CHOSEN)
def test_it_is_chosen(dtype: str, side: int, room: int, growth: float, emulation: bool, expected: str) -> None:
    found = choose(Problem(side, side, side, dtype), datasheet_calibration("H200"), Limits(room, growth, emulation))
    assert str(found.best.plan).startswith(expected), found.reason
    assert found.best.workspace_bytes <= room and found.best.error_growth <= max(growth, 1)


# ---- its error


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("text", ["3m > vendor", "3m.sequential > vendor", "3m > winograd > vendor"])
def test_its_error_in_norm_is_what_is_expected(text: str, dtype: str, rng: np.random.Generator) -> None:
    """On random numbers the expected growth is met, and the bound is kept."""
    plan, n = Plan.parse(text), 256
    a, b = ((rng.standard_normal((n, n, 2)) @ [1, 1j]).astype(dtype) for _ in range(2))
    reference = a.astype(np.clongdouble) @ b.astype(np.clongdouble)
    errors = [np.abs(fmm.matmul(a, b, plan=p) - reference) for p in (plan, VENDOR)]
    growth = np.linalg.norm(errors[0].astype(float)) / np.linalg.norm(errors[1].astype(float))
    assert expected_error_growth(plan, dtype) / 3 < growth < expected_error_growth(plan, dtype, in_pieces=True)
    u = DTYPES[dtype].unit_roundoff
    assert errors[0].max() <= error_bound(plan, n, n, n) * u * np.abs(a).max() * np.abs(b).max()


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("k", [64, 291, 700])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_its_error_on_positive_numbers_is_what_is_expected(dtype: str, k: int, rng: np.random.Generator) -> None:
    """There P and Q are as large as the result, and R is four times as large."""
    plan = Plan.parse("3m > vendor")
    a, b = ((rng.random((*shape, 2)) @ [1, 1j]).astype(dtype) for shape in ((100, k), (k, 110)))
    reference = a.astype(np.clongdouble) @ b.astype(np.clongdouble)
    errors = [np.linalg.norm(np.abs(c - reference).astype(float)) for c in (fmm.matmul(a, b, plan=plan), a @ b)]
    assert 1.5 < errors[0] / errors[1] < expected_error_growth(plan, dtype, in_pieces=True)


def test_small_parts_lose_digits_and_that_is_said(rng: np.random.Generator) -> None:
    """A tiny imaginary part beside a large real one: right in norm, and wrong by itself, as explain says."""
    a, b = (rng.standard_normal((200, 200)) + 1e-12j * rng.standard_normal((200, 200)) for _ in range(2))
    c, vendor = fmm.matmul(a, b, plan="3m > vendor"), a @ b
    assert np.linalg.norm(c - vendor) < 1e-14 * np.linalg.norm(vendor)
    assert np.abs(c.imag - vendor.imag).max() > 1e-5 * np.abs(vendor.imag).max()
    explained = str(fmm.explain(a, b, plan="3m > vendor"))
    assert "expected error: 6.0 times the vendor's, in norm: a real or imaginary part" in explained
    assert "75.0% of the classical multiplications" in explained
    assert "in norm" not in str(fmm.explain(a, b, plan="winograd > vendor"))


def test_explained_levels_have_the_bytes_of_their_type() -> None:
    table = plan_table(Plan.parse("3m > winograd > vendor"), 1024, 1024, 1024, 16)
    rows = [line.split("  ")[-1].strip() for line in table.splitlines()[1:3]]
    below = plan_table(Plan.parse("winograd > vendor"), 1024, 1024, 1024, 8).splitlines()[1]
    assert rows[1] == below.split("  ")[-1].strip()


# ---- arrays as they come

SHAPES = [((7, 5), (5, 3)), ((1, 1), (1, 1)), ((64, 1), (1, 64)), ((3, 17, 5), (5, 4)), ((2, 1, 6, 5), (3, 5, 7))]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_shapes_and_views(left: tuple[int, ...], right: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    a, b = ((rng.standard_normal((*shape, 2)) @ [1, 1j]).astype(dtype) for shape in (left, right))
    eps = 50 * left[-1] * float(np.finfo(dtype).eps)
    views = (a, np.asfortranarray(a), np.repeat(a, 2, -1)[..., ::2], a[..., ::-1, :], a.conj())
    for x in views:
        for text in ("3m > vendor", "3m.sequential > winograd > vendor"):
            c = fmm.matmul(x, b, plan=text)
            assert c.dtype == dtype and c.shape == (x @ b).shape
            np.testing.assert_allclose(c, x @ b, rtol=0, atol=eps)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1j * np.inf, complex(1, np.nan), 1e200])
def test_inf_and_nan_are_where_numpy_has_them(bad: complex, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((40, 40, 2)) @ [1, 1j] for _ in range(2))
    a[3, 5] = bad
    b[7, 2] = bad
    with np.errstate(all="ignore"):
        expected, found = a @ b, fmm.matmul(a, b, plan="3m > vendor")
    for part in (np.real, np.imag):
        np.testing.assert_array_equal(np.isnan(part(found)), np.isnan(part(expected)))
        np.testing.assert_array_equal(np.isinf(part(found)), np.isinf(part(expected)))

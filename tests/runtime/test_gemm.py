"""fmm.gemm: alpha op(A) op(B) + beta C against higher precision, in new arrays and in place, on the host; and how its
launches keep what C held for a device."""

from __future__ import annotations

from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays.numpy_library import NumpyLibrary
from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.cuda.recompute.recompute import (
    RECOMPUTE_ENTRY_NAME,
    SCAN_ENTRY_NAME,
    may_create_nonfinite,
    recompute_launches,
    simple_recompute_source,
)
from fmm.kernels.cuda.record import record_launches, record_operations
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem
from fmm.runtime import gemm, matmul, prepare, run_host
from fmm.runtime.decisions.decide import Decision
from tests.support.chips import H200
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import CPP17, EACH_ARCHITECTURE, compile_cuda, nvrtc, report

DTYPES = ("float32", "float64", "complex64", "complex128")
PLANS = (None, "vendor", "winograd > vendor", "li-fig3.peel > vendor")
BY_THREE = ("3m > vendor", "3m.sequential > winograd > vendor")
SHAPES = (
    ((37, 23), (23, 41)),
    ((1, 1), (1, 1)),
    ((3, 7, 5), (5, 4)),
    ((2, 3, 7, 5), (3, 5, 4)),
    ((0, 4), (4, 3)),
    ((4, 0), (0, 3)),
)


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape)).astype(dtype) if np.dtype(dtype).kind == "c" else x.astype(dtype)


def turned(x: Any, op: Any) -> Any:
    if op in (False, 0, "N"):
        return x
    return np.swapaxes(x, -1, -2) if op in (True, 1, "T") else np.swapaxes(x, -1, -2).conj()


def wide(x: Any) -> Any:
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


# ---- values


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("plan", quick_and_slow((*PLANS, BY_THREE[0]), BY_THREE[1:]))
def test_values(plan: str | None, dtype: str, rng: np.random.Generator) -> None:
    """In a new array and in place; operands, and c where it is not out, stay as they are."""
    complex_ones = np.dtype(dtype).kind == "c"
    if plan in BY_THREE and not complex_ones:
        pytest.skip("for complex numbers")
    scalars: list[tuple[complex, complex]] = [(1, 0), (-0.5, 3), (0, 2)]
    scalars += [(1 + 2j, 0.5j)] if complex_ones else [(2, 1)]
    ops = list(product((False, True, "C"), repeat=2))
    cases = [*product(SHAPES[:1], ops), *product(SHAPES[1:], ops[::3])]
    for (left, right), (op_a, op_b) in cases:
        a = np.ascontiguousarray(turned(draw(rng, left, dtype), bool(op_a)))
        b = np.ascontiguousarray(turned(draw(rng, right, dtype), bool(op_b)))
        whole = wide(turned(a, op_a)) @ wide(turned(b, op_b))
        close = 200 * float(np.finfo(dtype).eps) * max(1, left[-1])
        for alpha, beta in scalars:
            c = draw(rng, whole.shape, dtype)
            kept = a.copy(), b.copy(), c.copy()
            options: dict[str, Any] = {"transpose_a": op_a, "transpose_b": op_b, "plan": plan}
            found = fmm.gemm(a, b, c, alpha=alpha, beta=beta, **options)
            for before, now in zip(kept, (a, b, c), strict=True):
                np.testing.assert_array_equal(before, now)
            assert found.dtype == np.dtype(dtype) and found.shape == whole.shape
            np.testing.assert_allclose(found, alpha * whole + beta * c, rtol=0, atol=close)
            assert fmm.gemm(a, b, c, alpha=alpha, beta=beta, **options, out=c) is c
            np.testing.assert_array_equal(c, found)


VIEWS: dict[str, Any] = {
    "columns": lambda x: np.asfortranarray(x),
    "every second": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],
    "backward": lambda x: x[::-1, ::-1],
    "a part": lambda x: np.pad(x, 3)[3:-3, 3:-3],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("plan", ["winograd > vendor", "vendor", "3m > vendor"])
def test_views_of_all_three(view: str, plan: str, rng: np.random.Generator) -> None:
    dtype = "complex128" if plan.startswith("3m") else "float64"
    make = VIEWS[view]
    a, b, c = (make(draw(rng, shape, dtype)) for shape in ((40, 30), (30, 50), (40, 50)))
    expected = 2 * (a @ b) + 3 * c
    np.testing.assert_allclose(fmm.gemm(a, b, c, alpha=2, beta=3, plan=plan), expected, rtol=0, atol=1e-11)
    out = make(np.zeros((40, 50), dtype))
    assert fmm.gemm(a, b, c, alpha=2, beta=3, plan=plan, out=out) is out
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-11)
    assert fmm.gemm(a, b, c, alpha=2, beta=3, plan=plan, out=c) is c
    np.testing.assert_allclose(c, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("out", ["a", "a.T", "a backward", "c overlaps"])
def test_out_may_overlap_everything(out: str, rng: np.random.Generator) -> None:
    memory = rng.standard_normal((41, 40))
    a = memory[:40]
    target = {"a": a, "a.T": a.T, "a backward": a[::-1], "c overlaps": memory[1:]}[out]
    c = memory[:40] if out == "c overlaps" else target
    expected = 2 * (a @ a) + 3 * c
    assert fmm.gemm(a, a, c, alpha=2, beta=3, out=target, plan="winograd > vendor") is target
    np.testing.assert_allclose(target, expected, rtol=0, atol=1e-11)


def test_c_is_broadcast(rng: np.random.Generator) -> None:
    """As torch.addmm does: a bias of a linear layer."""
    x, weight, bias = rng.standard_normal((40, 30)), rng.standard_normal((50, 30)), rng.standard_normal(50)
    for plan in PLANS:
        found = fmm.gemm(x, weight, bias, beta=1, transpose_b=True, plan=plan)
        np.testing.assert_allclose(found, x @ weight.T + bias, rtol=0, atol=1e-12)
    stack = rng.standard_normal((3, 40, 30))
    found = fmm.gemm(stack, weight, bias, beta=2, transpose_b=True)
    np.testing.assert_allclose(found, stack @ weight.T + 2 * bias, rtol=0, atol=1e-12)


def test_types_are_those_that_hold_all(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((20, 20)).astype("f4"), rng.standard_normal((20, 20))
    for x, y, z in ((a, a, a), (a, a, b), (a, b, a), (a, a + 0j, b), (a > 0, a, a)):
        found = fmm.gemm(x, y, z, alpha=2, beta=3)
        assert found.dtype == np.result_type(x.dtype, y.dtype, z.dtype)
        np.testing.assert_allclose(found, 2 * (x @ y) + 3 * z, rtol=1e-4, atol=1e-4)
    whole = np.arange(9).reshape(3, 3)
    np.testing.assert_array_equal(fmm.gemm(whole, whole, whole, alpha=2, beta=3), 2 * (whole @ whole) + 3 * whole)
    narrow = np.ones((20, 20), "f4")
    assert fmm.gemm(b, b, narrow, beta=2, out=narrow) is narrow  # cast to out, as numpy.matmul does
    np.testing.assert_allclose(narrow, b @ b + 2, rtol=1e-5)
    assert fmm.gemm([[1.0, 2.0]], [[3.0], [4.0]], alpha=2).tolist() == [[22.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_scipys_gemm_is_the_specification(dtype: str, rng: np.random.Generator) -> None:
    blas = pytest.importorskip("scipy.linalg.blas")
    theirs = getattr(blas, {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}[dtype] + "gemm")
    a, b, c = (draw(rng, shape, dtype) for shape in ((31, 20), (20, 25), (31, 25)))
    for op_a, op_b in product((0, 1, 2), repeat=2):
        x, y = (np.ascontiguousarray(turned(v, bool(op))) for v, op in ((a, op_a), (b, op_b)))
        for options in ({"alpha": 2.0}, {"alpha": 0.5, "beta": 2.0, "c": c}, {"alpha": 0.0, "beta": 2.0, "c": c}):
            expected = theirs(a=x, b=y, trans_a=op_a, trans_b=op_b, **options)
            given = {name: value for name, value in options.items() if name != "c"}
            found = fmm.gemm(x, y, options.get("c"), transpose_a=op_a, transpose_b=op_b, **given)  # type: ignore[arg-type]
            np.testing.assert_allclose(found, expected, rtol=0, atol=200 * float(np.finfo(dtype).eps))


def test_what_is_not_asked_is_not_read() -> None:
    """BLAS's rules: with beta 0 not c, with alpha 0 neither a nor b."""
    nan, ones = np.full((30, 30), np.nan), np.ones((30, 30))
    for plan in PLANS:
        np.testing.assert_array_equal(fmm.gemm(ones, ones, nan, alpha=2, plan=plan), 60 * ones)
        np.testing.assert_array_equal(fmm.gemm(ones, ones, nan, out=nan.copy(), plan=plan), 30 * ones)
        np.testing.assert_array_equal(fmm.gemm(nan, nan, ones, alpha=0, beta=2, plan=plan), 2 * ones)
    np.testing.assert_array_equal(fmm.gemm(nan, nan, alpha=0), 0 * ones)


# ---- inf, NaN and overflow


@pytest.mark.parametrize("plan", ["winograd > vendor", "li-fig3.peel > vendor"])
@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e308, -1e200])
def test_inf_and_nan_are_where_numpy_has_them(plan: str, bad: float, rng: np.random.Generator) -> None:
    """In place too: the check comes before anything is added to c, also to that of another matrix of a stack."""
    a, b, c = rng.standard_normal((2, 40, 40)), rng.standard_normal((40, 40)), rng.standard_normal((2, 40, 40))
    a[1, 3, 5], b[7, 2] = bad, bad
    for alpha, beta in ((2, 1), (1e3, -0.5)):
        with np.errstate(all="ignore"):
            expected = alpha * (a @ b) + beta * c
            for out in (None, c.copy(), np.stack([c.copy()] * 2)[0]):
                found = fmm.gemm(a, b, c if out is None else out, alpha=alpha, beta=beta, out=out, plan=plan)
                np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
                np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
                fine = np.isfinite(expected)
                np.testing.assert_allclose(found[fine], expected[fine], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", [np.array(2.0), np.array(2), np.float32(2)])
def test_an_array_without_axes_is_a_number(alpha: object) -> None:
    a = np.ones((40, 30), np.float32)
    c = fmm.gemm(a, a.T, alpha=alpha)  # type: ignore[arg-type]
    assert c.dtype == np.float32 and (c == 60).all()


def test_a_large_alpha_does_not_overflow_the_sums() -> None:
    ones = np.full((64, 64), 1e150)
    found = fmm.gemm(ones, ones / 1e150, alpha=1e155, plan="winograd > vendor")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(1e155 * (ones @ (ones / 1e150))))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("plan", [*BY_THREE, "3m(strassen) > vendor", "winograd > vendor"])
def test_a_large_addend_does_not_overflow_the_sums(plan: str, in_place: bool, rng: np.random.Generator) -> None:
    a, b = (draw(rng, (16, 16), "complex128") * 8e151 for _ in range(2))
    c = np.copysign(1.79765e308, rng.standard_normal((16, 16))) * (1 - 1j)
    with np.errstate(all="ignore"):
        expected = a @ b + c
        found = fmm.gemm(a, b, c, beta=1, out=c if in_place else None, plan=plan)
    for part, wanted in ((found.real, expected.real), (found.imag, expected.imag)):
        assert np.isfinite(wanted).any()
        np.testing.assert_array_equal(np.isfinite(part), np.isfinite(wanted))


def test_memory_that_runs_out_in_the_middle_is_no_second_addition(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Before anything was added c is as it was; later, nobody can restore it, and that is said."""
    a, c = rng.standard_normal((300, 300)), np.ones((300, 300))

    def fails(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(run_host, "borrow_cached_memory", fails)
        with pytest.raises(MemoryError):
            fmm.gemm(a, a, c, beta=2, out=c, plan="winograd > vendor")
    np.testing.assert_array_equal(c, np.ones((300, 300)))
    monkeypatch.setattr(run_host, "execute_plan", fails)
    with pytest.raises(run_host.OutPartlyUpdatedError):
        fmm.gemm(a, a, c, beta=2, out=c, plan="winograd > vendor")
    with pytest.raises(MemoryError):
        fmm.gemm(a, a, alpha=2, plan="winograd > vendor")


@pytest.mark.parametrize("alpha", [2, -0.5])
def test_memory_that_runs_out_leaves_a_whole_product(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, alpha: float
) -> None:
    """Where nothing is added, the library's product replaces what a plan left in its middle, factor and all."""
    a, out = rng.standard_normal((300, 300)), np.full((300, 300), 7.25)

    def ends_in_the_middle(plan: Any, x: Any, y: Any, c: Any, *_: Any) -> None:
        c[:200] = 0.5
        raise MemoryError

    monkeypatch.setattr(run_host, "SMALL_ARRAY_BYTES", 0)
    monkeypatch.setattr(run_host, "execute_plan", ends_in_the_middle)
    with pytest.raises(MemoryError):
        fmm.gemm(a, a, alpha=alpha, out=out, plan="winograd > vendor")
    np.testing.assert_array_equal(out, alpha * (a @ a))


@pytest.mark.parametrize("fails", ["vendor_product", "conjugated_copy"])
def test_an_exception_leaves_out_unchanged_where_the_library_multiplies(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def raise_interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    a, c, out = np.ones((4, 4)) + 0j, np.ones((4, 4)) + 0j, np.full((4, 4), 7) + 0j
    monkeypatch.setattr(NumpyLibrary, fails, raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        fmm.gemm(a, a, c, transpose_a="C", beta=2, out=out)
    np.testing.assert_array_equal(out, np.full((4, 4), 7))


# ---- what is refused, what is explained

ONES = np.ones((4, 4))
WRONG: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
    ({"beta": 1}, ValueError, "beta is a factor of c, which was not passed"),
    ({"alpha": "2"}, ValueError, "alpha must be a number, not '2'"),
    ({"alpha": True}, ValueError, "alpha must be a number, not True"),
    ({"alpha": 1j}, TypeError, "alpha and beta must be real numbers for real matrices"),
    ({"alpha": 10**400}, ValueError, "alpha must be a number, not a number of 1329 bits"),
    ({"beta": Decimal(2)}, ValueError, "beta must be a number, not Decimal"),
    ({"out": [[0.0] * 4] * 4}, TypeError, "out must be an array, not a list"),
    ({"out": (ONES, ONES)}, TypeError, "out must be an array, not a tuple"),
    ({"transpose_a": ([],)}, ValueError, "transpose_a must be 'N'"),
    ({"transpose_a": 3}, ValueError, "transpose_a must be 'N', 'T' or 'C', False or True, or 0, 1 or 2, not 3"),
    ({"transpose_b": []}, ValueError, "transpose_b must be 'N'"),
    ({"out": np.ones((4, 5))}, ValueError, r"out is \(4, 5\), the product \(4, 4\)"),
    ({"plan": "3m > vendor"}, PlanError, "3m is for complex64 and complex128, not for float64"),
    ({"max_error_growth": 0}, ValueError, "max_error_growth must be a number above 0"),
)


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fmm.gemm(ONES, ONES, **options)


def test_a_call_that_is_refused_leaves_out_as_it_is() -> None:
    """Also where c is to be copied there first."""
    a, c = np.ones((64, 64)), np.ones((64, 64))
    for plan in ("tile", "strassen^9 > vendor", "3m > vendor"):
        out = np.full((64, 64), 7.25)
        with pytest.raises(PlanError):
            fmm.gemm(a, a, c, beta=2, out=out, plan=plan)
        assert (out == 7.25).all()
    np.testing.assert_array_equal(fmm.gemm(a, a, c, beta=2, out=out, plan="winograd > vendor"), a @ a + 2 * c)


def test_shapes_that_do_not_match() -> None:
    with pytest.raises(ValueError, match=r"takes matrices with matching shapes, not \(4, 4\) and \(3, 4\)"):
        fmm.gemm(ONES, ONES[:3])
    with pytest.raises(ValueError, match="takes matrices with matching shapes"):
        fmm.gemm(ONES, ONES[0])
    for ask in (fmm.gemm, fmm.explain_gemm):
        with pytest.raises(ValueError, match="takes matrices with matching shapes"):
            ask(ONES[0], ONES[0], transpose_a=True)
    with pytest.raises(ValueError, match=r"c is \(3, 4\), the product \(4, 4\)"):
        fmm.gemm(ONES, ONES, ONES[:3], beta=1)


# ---- operands to be conjugated, by plans that do so on their way


@pytest.mark.parametrize(("op_a", "op_b"), [("C", False), (True, "C"), ("C", "C")])
def test_what_is_left_to_the_library_is_conjugated_too(op_a: Any, op_b: Any, rng: np.random.Generator) -> None:
    """Numbers that may overflow, reports of underflow, no memory: other plans multiply operands as they lie."""
    a, b, c = (rng.standard_normal((60, 60)) + 1j * rng.standard_normal((60, 60)) for _ in range(3))
    large = a.copy()
    large[7, 7] = 1e307
    turned: dict[Any, Any] = {False: lambda x: x, True: lambda x: x.T, "C": lambda x: x.conj().T}
    asked: dict[str, Any] = {"transpose_a": op_a, "transpose_b": op_b, "plan": "3m > vendor"}
    cases: list[tuple[Any, Any]] = [(large, "ignore"), (a, "raise")]
    for x, under in cases:
        wanted = turned[op_a](x) @ turned[op_b](b) + 2 * c
        with np.errstate(under=under):
            for out in (None, c.copy(), np.empty_like(c)):
                found = fmm.gemm(x, b, c, beta=2, out=out, **asked)
                rows = [i for i in range(60) if i != 7]
                np.testing.assert_allclose(found[rows], wanted[rows])


def test_the_vendor_conjugates_where_it_completes_a_stack(rng: np.random.Generator) -> None:
    """The second matrix has an inf, after the plan has written the first matrix of `out`."""
    a, b = (draw(rng, (2, 150, 150), "complex128") for _ in range(2))
    a[1, 0, 0] = np.inf
    with np.errstate(all="ignore"):
        expected = turned(a, "C") @ b
        for out in (None, np.full_like(a, np.nan)):
            found = fmm.gemm(a, b, transpose_a="C", plan="3m > vendor", out=out)
            np.testing.assert_allclose(found[0], expected[0])
            np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))


def test_residues_that_find_an_inf_add_nothing_twice(rng: np.random.Generator) -> None:
    """C is computed in bands of rows; the last band has an inf."""
    a, b, c = (rng.standard_normal(size) for size in ((2048, 64), (64, 1024), (2048, 1024)))
    a[-1, 0] = np.inf
    with np.errstate(all="ignore"):
        expected = a @ b + c
        found = fmm.gemm(a, b, c, beta=1, out=c, plan="residues(14) > bytes")
    np.testing.assert_allclose(found[:-1], expected[:-1])
    assert not np.isfinite(found[-1]).any()


def test_conjugated_operands_have_products_by_residues(rng: np.random.Generator) -> None:
    a, b = (draw(rng, (40, 30), "complex128") for _ in range(2))
    plan = "residues2m(15) > bytes"
    np.testing.assert_allclose(fmm.gemm(a, b, transpose_a="C", plan=plan), a.conj().T @ b)
    assert str(fmm.explain_gemm(a, b, transpose_a="C", plan=plan).plan) == plan


def test_an_out_of_a_narrower_type_does_not_round_the_addend() -> None:
    a, b, c = (np.full((1, 1), x) for x in (1.0, -1.0, 1 + 1e-9))
    found = fmm.gemm(a, b, c, beta=1, out=np.zeros((1, 1), np.float32))
    np.testing.assert_allclose(found, 1e-9, rtol=1e-6)
    found = fmm.gemm(a * 1e300, b, np.full((1, 1), 1e300), beta=1, out=np.ones((1, 1), np.float32))
    assert found == 0


def test_no_other_plan_takes_the_place_of_one_that_conjugates(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    chosen, instead = Plan.parse("3m > vendor"), Plan.parse("winograd > vendor")
    monkeypatch.setattr(prepare, "decide_plan", lambda problem, *rest: Decision(chosen, problem, "for the test"))
    monkeypatch.setattr(matmul, "MEMORY_FAILURE", matmul.PlanFailure(lambda *rest: iter([instead])))
    monkeypatch.setattr(gemm, "is_small_on_host", lambda a, b: False)
    run, tried = run_host.run_call, list[str]()

    def without_memory(library: Any, ready: Any, *rest: Any) -> Any:
        tried.append(str(ready.plan))
        if ready.plan.levels[0].conjugates != (False, False):
            raise MemoryError
        return run(library, ready, *rest)

    monkeypatch.setattr(run_host, "run_call", without_memory)
    a, b = (rng.standard_normal((60, 60)) + 1j * rng.standard_normal((60, 60)) for _ in range(2))
    np.testing.assert_allclose(fmm.gemm(a, b, transpose_a="C"), a.conj().T @ b)
    assert tried == ["3m.conj-a > vendor"]
    with pytest.raises(MemoryError):
        fmm.gemm(a, b, transpose_a="C", plan=chosen)


def test_a_plan_that_conjugates_is_fmms_own_idea(rng: np.random.Generator) -> None:
    """What explains a call can be given to it; other products have no conjugates."""
    a, b = (rng.standard_normal((60, 60)) + 1j * rng.standard_normal((60, 60)) for _ in range(2))
    decision = fmm.explain_gemm(a, b, transpose_a="C", plan="3m > vendor")
    assert str(decision.plan) == "3m.conj-a > vendor"
    np.testing.assert_allclose(fmm.gemm(a, b, transpose_a="C", plan=decision), a.conj().T @ b)
    np.testing.assert_allclose(fmm.gemm(a, b, plan=decision), a @ b)
    for plan in (decision, "winograd > 3m.conj-b > vendor"):
        with pytest.raises(PlanError, match="multiplies conjugates"):
            fmm.matmul(a, b, plan=plan)
    with pytest.raises(PlanError, match="multiplies conjugates"):
        fmm.gemm(a, b, plan="winograd > 3m.conj-b > vendor")


@pytest.mark.parametrize("dtype", ["float64", "int64", "float16"])
def test_what_multiplies_nothing_is_explained_as_it_is_done(dtype: str) -> None:
    """Whatever plan is given: with alpha 0, or without an inner side, there is nothing for it to do."""
    a, empty, c = np.ones((5, 4), dtype), np.ones((5, 0), dtype), np.full((5, 5), 3, dtype)
    for left, alpha in ((a, 0), (empty, 2)):
        asked: dict[str, Any] = {"alpha": alpha, "beta": 2, "plan": "winograd > vendor"}
        np.testing.assert_array_equal(fmm.gemm(left, left.T, c, **asked), 2 * c)
        found = fmm.explain_gemm(left, left.T, c, **asked)
        assert found.plan == VENDOR and "there is nothing to multiply" in found.reason and found.kernels
    with pytest.raises(ValueError, match="match"):
        fmm.gemm(a, a, alpha=0)


def test_it_is_explained() -> None:
    a, c = np.ones((600, 400)), np.ones((600, 600))
    found = fmm.explain_gemm(a, a, c, alpha=2, beta=1, transpose_b=True, plan="winograd > vendor", out=c)
    assert found.problem is not None and (found.problem.alpha, found.problem.beta) == (2, 1)
    assert found.problem.size == (600, 400, 600) and str(found.plan) == "winograd > vendor"
    vendor = str(fmm.explain_gemm(a, a, c, alpha=2, beta=1, transpose_b=True))
    assert "numpy.matmul" in vendor and "in bands of rows" in vendor
    conjugated = fmm.explain_gemm(a + 0j, a + 0j, transpose_b="C", plan="3m > vendor")
    assert str(conjugated.plan) == "3m.conj-b > vendor"


# ---- a device's launches

LAYOUTS = Layout("C", 80), Layout("C", 96), Layout("F", 72)


def launches(plan: str, dtype: str, alpha: complex, beta: complex) -> Any:
    problem = Problem(64, 80, 96, dtype, LAYOUTS, alpha, beta)
    text = Plan.parse(plan)
    return problem, record_launches(text, problem, chip_target(H200, flagged=may_create_nonfinite(text)))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_what_c_held_is_kept_for_computing_again(dtype: str) -> None:
    problem, found = launches("strassen.batched.pad16 > vendor", dtype, 2, 0.5)
    wanted = record_operations(found.plan, problem)
    assert found.workspace == wanted.workspace + temporary_bytes(64, 96, problem.itemsize)
    first, *_, again = found.steps
    assert isinstance(first, Launch) and "keep C" in first.label and isinstance(again, Launch)
    (kept,) = [slot for slot in first.slots if slot.base == "W"]
    (old,) = [slot for slot in again.slots if slot.base == "W"]
    assert kept.offset == old.offset == wanted.workspace
    numbers = np.frombuffer(again.parameters, np.int64)
    assert numbers[15:17].tolist() == [1, 64]  # its strides, column by column as C lies
    assert numbers[17] == 0  # not one half alone
    assert np.frombuffer(again.parameters, np.float64)[-4:].tolist() == [2, 0, 0.5, 0]
    assert "recompute_simple" in again.label  # the tiled kernel knows no alpha


def test_of_an_empty_result_nothing_is_kept() -> None:
    problem = Problem(0, 80, 96, "float32", alpha=2, beta=0.5)
    found = record_launches(Plan.parse("strassen.batched > vendor"), problem, chip_target(H200, flagged=True))
    assert len(found.steps) == len(found.streams) and not any("keep" in launch.label for launch in found.launches)


def test_nothing_is_kept_where_nothing_is_added() -> None:
    _, scaled = launches("strassen.batched.pad16 > vendor", "float32", 2, 0)
    assert scaled.workspace == record_operations(scaled.plan, scaled.problem).workspace
    assert not any(slot.base == "W" for slot in scaled.steps[-1].slots)
    _, vendor = launches("vendor", "float32", 2, 0.5)
    assert vendor.workspace == 0 and [step.label for step in vendor.steps] == ["cuBLAS"]


def test_alpha_and_beta_cost_no_launch() -> None:
    plain, updated = (
        record_operations(Plan.parse("strassen.batched > vendor"), Problem(64, 64, 64, alpha=x, beta=y))
        for x, y in ((1, 0), (2, 3))
    )
    assert len(plain.ops) == len(updated.ops)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
def test_what_computes_again_compiles(architecture: str) -> None:
    nvrtc()
    for dtype, entry in product(("float16", "complex128"), (RECOMPUTE_ENTRY_NAME, SCAN_ENTRY_NAME)):
        r = report(f"{entry} {dtype} {architecture}", simple_recompute_source(dtype, entry), architecture, CPP17)
        assert r.local == 0, r
    size = len(recompute_launches(Problem(8, 8, 8, "float64"), True, H200, dict.fromkeys("ABCW", 256))[0].parameters)
    check = f'static_assert(sizeof(fmm::classical::ClassicalParams) == {size}, "size");\n'
    compile_cuda(simple_recompute_source("float64", RECOMPUTE_ENTRY_NAME) + check, architecture, *CPP17)


@pytest.mark.parametrize("plan", [None, "vendor", "winograd > vendor"])
@pytest.mark.parametrize("in_place", [False, True])
def test_operands_that_begin_between_numbers(plan: str | None, in_place: bool) -> None:
    """Of such arrays it is not known where they end; C is then computed in a copy, once."""
    a = np.frombuffer(bytearray(np.random.default_rng(1).bytes(96 * 80 * 4 + 2)), "u1")[2:].view("f4").reshape(96, 80)
    a[:] = np.random.default_rng(2).standard_normal(a.shape)
    assert not a.flags.aligned
    b, c = (np.random.default_rng(seed).standard_normal(s).astype("f4") for seed, s in ((3, (80, 70)), (4, (96, 70))))
    wanted = 2 * (a.astype("f8") @ b) - c
    found = fmm.gemm(a, b, c, alpha=2, beta=-1, out=c if in_place else None, plan=plan)
    assert (found is c) == in_place
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)

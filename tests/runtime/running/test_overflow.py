"""Overflow and non-finite data: inf and NaN exactly where numpy.matmul has them, and its warnings, for every plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fmm
from fmm.arrays.numpy_library import NUMPY
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.sums import Mirror, Sum
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.runtime import overflow
from fmm.runtime.overflow import frobenius_norm_bound, intermediate_growth_bound, largest_magnitude, may_overflow

Array = np.ndarray[Any, Any]
PLANS = (
    "winograd > vendor",
    "strassen^2 > vendor",
    "strassen.sequential > winograd.pad > vendor",
    "li-fig23 > winograd > vendor",
    "hasa > vendor",
    "laderman.peel > vendor",
    "dps > vendor",  # coefficients of 1/2 and 1/8
    "balanced(2) > adaptive-winograd > vendor",
    "vendor",
)
TYPES = ("f4", "f8", "F", "D")
ONE = ThreadGroup(1)


def seen(function: Callable[..., Any], a: Any, b: Any, **options: Any) -> tuple[Any, Any, list[tuple[type, str]]]:
    """What a call gives: its value or the exception, what out= holds, and the warnings."""
    out = np.full((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), 7, a.dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            error: Any = function(a, b, out=out, **options) is not out
        except FloatingPointError as problem:
            error = str(problem)
    return error, out, [(w.category, str(w.message)) for w in caught]


def agree(a: Any, b: Any, plan: str, strict: bool = True) -> None:
    """Infinities (with their signs), NaNs and warnings where NumPy has them; finite numbers close to NumPy's."""
    ours, theirs = seen(fmm.matmul, a, b, plan=plan), seen(np.matmul, a, b)
    assert ours[0] == theirs[0]
    assert ours[2] == theirs[2] or not strict
    k = a.shape[-1]
    for part in (np.real, np.imag):
        x, y = part(ours[1]), part(theirs[1])
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
        np.testing.assert_array_equal(np.where(np.isinf(x), x, 0), np.where(np.isinf(y), y, 0))
    finite = np.isfinite(theirs[1])
    a, b = (np.abs(np.where(np.isfinite(x), x, 0)).max().astype(np.longdouble) for x in (a, b))
    rounding = a * b * k * 16 * np.finfo(theirs[1].dtype).eps
    underflow = float(np.finfo(theirs[1].dtype).smallest_subnormal) * k * 16
    difference = np.abs(ours[1][finite].astype("G") - theirs[1][finite])
    assert np.all(difference <= rounding + underflow)


def normal(shape: Sequence[int], dtype: str, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


# ---- non-finite operands

SPOTS = ((0, 0), (4, 2), (8, 6), (8, 0), (3, 6))  # corners, the middle and the fringe of 9 x 7
VALUES: dict[str, tuple[Any, ...]] = {
    "inf": (np.inf,),
    "-inf": (-np.inf,),
    "nan": (np.nan,),
    "inf and -inf": (np.inf, -np.inf),
    "inf and nan": (np.inf, np.nan),
}


@pytest.mark.quick_cases()
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("plan", PLANS)
def test_infinities_and_nans_anywhere(plan: str, dtype: str, values: str) -> None:
    for first, second in zip(SPOTS, SPOTS[1:] + SPOTS[:1], strict=True):
        for which in range(3):
            a, b = normal((9, 7), dtype), normal((7, 10), dtype)
            for x, wanted in ((a, which != 1), (b, which != 0)):
                for spot, value in zip((first, second), VALUES[values], strict=False):
                    x[spot[0] % len(x), spot[1]] = value if wanted else x[spot[0] % len(x), spot[1]]
            agree(a, b, plan)


@pytest.mark.parametrize("plan", PLANS)
def test_infinities_in_one_part_of_a_complex_number(plan: str) -> None:
    for value in (complex(np.inf, 0), complex(0, -np.inf), complex(np.nan, 1), complex(np.inf, np.nan)):
        a, b = normal((9, 7), "D"), normal((7, 10), "D")
        a[4, 2] = value
        agree(a, b, plan)


@pytest.mark.parametrize("plan", PLANS)
def test_infinities_meet_zeros(plan: str) -> None:
    a, b = np.zeros((9, 7)), np.zeros((7, 10))
    a[2, 3], b[5, 5] = np.inf, -np.inf
    agree(a, b, plan)
    agree(np.full((9, 7), np.inf), np.full((7, 10), -np.inf), plan)
    agree(np.full((9, 7), np.nan), np.zeros((7, 10)), plan)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("plan", PLANS)
def test_one_bad_matrix_of_a_stack(plan: str) -> None:
    for where in range(3):
        a, b = normal((3, 9, 7), "f8"), normal((3, 7, 10), "f8")
        a[where, 8, 6] = np.inf
        agree(a, b, plan)
        agree(a, b[1], plan)
        agree(a[1], b, plan)


# ---- finite operands, large and small


def scaled(plan: str, dtype: str, powers: tuple[int, int], seed: int) -> None:
    """Random numbers of either sign, each operand's up to a power of two."""
    limit = np.finfo(dtype).maxexp - 1
    a, b = normal((9, 7), dtype, seed), normal((7, 10), dtype, seed)
    factors = (np.ldexp(np.ones((), a.real.dtype), max(min(p, limit), -limit)) for p in powers)
    a, b = (x / np.abs(x).max() * f for x, f in zip((a, b), factors, strict=True))
    agree(a.astype(dtype), b.astype(dtype), plan)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.sampled_from(PLANS), st.sampled_from(TYPES), st.integers(-1100, 1100), st.integers(-8, 8), st.integers(0, 9))
def test_products_near_the_largest_number(plan: str, dtype: str, left: int, extra: int, seed: int) -> None:
    limit = np.finfo(dtype).maxexp
    left = left if dtype in ("f8", "D") else left // 8
    scaled(plan, dtype, (left, limit - left + extra), seed)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.sampled_from(PLANS), st.sampled_from(TYPES), st.integers(-8, 0), st.integers(0, 9), st.booleans())
def test_one_operand_near_the_largest_number(plan: str, dtype: str, below: int, seed: int, left: bool) -> None:
    """The other is so small that no product overflows: but sums of the first alone do, in a fast algorithm."""
    limit = np.finfo(dtype).maxexp
    scaled(plan, dtype, (limit + below, -limit) if left else (-limit, limit + below), seed)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("plan", PLANS)
def test_sums_of_one_operand_overflow(plan: str, dtype: str) -> None:
    large, small = np.finfo(dtype).max, np.finfo(dtype).tiny
    for a, b in (
        (np.full((8, 8), large), np.full((8, 8), small)),
        (np.full((8, 8), small), np.full((8, 8), -large)),
        (np.full((8, 8), large), np.zeros((8, 8), dtype)),
        (np.where(np.indices((8, 8)).sum(0) % 2, large, -large).astype(dtype), np.eye(8, dtype=dtype)),
    ):
        agree(a, b.astype(dtype), plan)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("plan", PLANS)
def test_partial_sums_of_the_classical_product_overflow(plan: str, dtype: str) -> None:
    """large + large - large - large: inf or not by the order of the additions, which must be NumPy's."""
    large = float(np.finfo(dtype).max)
    for signs in ((1, 1, -1, -1), (1, -1, 1, -1), (1, -1, -1, 1), (1, 1, 1, -1)):
        a = np.tile(np.array(signs) * large * 0.75, (8, 2)).astype(dtype)
        agree(a, np.ones((8, 8), dtype), plan, strict=False)
        agree(np.stack([a, a[::-1]]), np.ones((8, 5), dtype), plan, strict=False)  # folded


@pytest.mark.slow
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_folded_stack_overflows_where_numpys_does(dtype: str) -> None:
    """One product of all rows may add in another order than one a matrix."""
    rng = np.random.default_rng(5)
    large = np.finfo(dtype).max
    for _ in range(60):
        m, k, n = rng.integers(1, 5), rng.integers(2, 40), rng.integers(1, 9)
        a = (rng.choice([1, -1], (3, m, k)) * rng.uniform(0.2, 1, (3, m, k))).astype(dtype) * large
        for plan in ("vendor", "winograd > vendor"):
            agree(a, np.ones((k, n), dtype), plan, strict=False)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("plan", ["vendor", "classical > vendor", "classical.sequential > vendor"])
def test_sums_that_rounding_carries_over_the_edge(plan: str, dtype: str) -> None:
    """k x y is a little less than the largest number: whether the sum is inf depends on how each addition rounds."""
    largest, eps = (float(getattr(np.finfo(dtype), name)) for name in ("max", "eps"))
    for k in (64, 1000, 1003):
        for below in (1, 10, 100):
            x = np.full((4, 4, k), (largest / k) ** 0.5, dtype)
            y = np.full((k, 8), largest * (1 - below * eps) / k / float(x[0, 0, 0]), dtype)
            agree(x, y, plan)
            agree(x[0], y, plan)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("plan", PLANS)
def test_subnormal_numbers(plan: str, dtype: str) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    for other in (1.0, 0.0, np.finfo(dtype).max, tiny):
        agree(np.full((9, 7), tiny, dtype), np.full((7, 10), other, dtype), plan)
        agree(np.full((9, 7), other, dtype), np.full((7, 10), tiny, dtype), plan)


# ---- warnings, and exceptions instead of warnings


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("plan", PLANS)
def test_ordinary_data_never_warns(plan: str, dtype: str) -> None:
    """(Warnings are errors in these tests.)"""
    with np.errstate(all="raise", under="ignore"):
        for shape in ((64, 64), (33, 17), (3, 9, 7)):
            a = normal(shape, dtype)
            b = np.swapaxes(normal(shape, dtype, 1), -1, -2)
            fmm.matmul(a, b, plan=plan)
            fmm.matmul(a * 1e15, b * 1e15, plan=plan)


BAD: list[tuple[str, Any, Any]] = [
    ("inf", np.full((8, 8), np.inf), np.ones((8, 8))),
    ("inf - inf", np.where(np.eye(8), np.inf, -np.inf), np.ones((8, 8))),
    ("nan", np.full((8, 8), np.nan), np.ones((8, 8))),
    ("overflow", np.full((8, 8), 1e200), np.full((8, 8), 1e200)),
    ("underflow", np.full((8, 8), 1e-200), np.full((8, 8), 1e-200)),
    ("underflow to a subnormal", np.full((8, 8), 1e-160), np.full((8, 8), 1.1e-160)),
    ("finite", np.full((8, 8), 1e100), np.full((8, 8), 1e100)),
]


@pytest.mark.quick_cases()
@pytest.mark.parametrize("how", ["raise", "warn", "ignore", "print"])
@pytest.mark.parametrize(("what", "a", "b"), BAD, ids=[b[0] for b in BAD])
def test_the_callers_error_state_is_respected(
    what: str, a: Any, b: Any, how: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    for plan in PLANS:
        with np.errstate(all=how):
            agree(a, b, plan)
    printed = capfd.readouterr().out.splitlines()
    assert printed[0::2] == printed[1::2]  # what one prints, the other prints


def test_the_callers_error_handler_is_called_as_numpy_calls_it() -> None:
    calls: list[tuple[str, int]] = []
    with np.errstate(all="call", call=lambda kind, flag: calls.append((kind, flag))):
        for function in (np.matmul, lambda a, b: fmm.matmul(a, b, plan="winograd > vendor")):
            for _, a, b in BAD:
                function(a, b)
    assert len(calls) and calls[: len(calls) // 2] == calls[len(calls) // 2 :]


def test_the_error_state_is_given_back() -> None:
    before = np.geterr()
    for _, a, b in BAD:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fmm.matmul(a, b, plan="winograd > vendor")
        assert np.geterr() == before


@pytest.mark.quick_cases()
@pytest.mark.parametrize("to", ["dtype", "out"])
@pytest.mark.parametrize("plan", PLANS)
def test_overflow_in_a_cast_warns_as_numpy_does(plan: str, to: str) -> None:
    for factor in (1.0, 1e200, 1e-200):
        a, b = normal((8, 8), "f8") * factor, normal((8, 8), "f8")
        for pair in ((a, b), (b, a), (np.stack([a] * 3), b), (np.stack([a] * 3), np.stack([b] * 3))):
            shape = np.matmul(*pair).shape
            found = []
            functions: list[tuple[Any, dict[str, Any]]] = [(fmm.matmul, {"plan": plan}), (np.matmul, {})]
            for function, mode in functions:
                options: dict[str, Any] = {"dtype": "f4"} if to == "dtype" else {"out": np.zeros(shape, "f4")}
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    function(*pair, **options, **mode)
                found.append([str(w.message) for w in caught])
            assert found[0] == found[1]


# ---- the bound itself


@pytest.mark.parametrize("dtype", TYPES)
def test_peak(dtype: str) -> None:
    x = normal((700, 90), dtype)  # several panels
    largest = max(np.abs(x.real).max(), np.abs(x.imag).max())
    for view in (x, x.T, x[::-1], x[::3, ::2], np.asfortranarray(x), np.broadcast_to(x[:1], x.shape)):
        for threads in (ONE, ThreadGroup(3)):
            assert largest_magnitude(view, threads) <= largest
            assert largest_magnitude(view, threads) == max(np.abs(view.real).max(), np.abs(view.imag).max())
    assert largest_magnitude(x[:0], ONE) == largest_magnitude(x[:, :0], ONE) == 0


@pytest.mark.parametrize("dtype", TYPES)
def test_peak_finds_what_is_not_finite(dtype: str) -> None:
    for value in (np.inf, -np.inf, np.nan):
        for spot in ((0, 0), (699, 89), (350, 45)):
            for part in ("real", "imag") if dtype in "FD" else ("real",):
                x = normal((700, 90), dtype)
                getattr(x, part)[spot] = value
                np.testing.assert_equal(largest_magnitude(x, ONE), abs(value))
    x = normal((700, 90), dtype)
    x[0, 0], x[699, 89] = np.inf, np.nan
    assert np.isnan(largest_magnitude(x, ONE))


class Magnitudes:
    """A backend that adds absolute values: what it meets is the most that any signs could make of the operands."""

    def __init__(self) -> None:
        self.largest = 0.0

    def compute_sums(self, step: Sum, reads: list[Array], writes: list[Array]) -> None:
        shape = tuple(max(x.shape[axis] for x in (*reads, *writes)) for axis in (0, 1))
        values = [np.pad(x, [(0, n - have) for n, have in zip(shape, x.shape, strict=True)]) for x in reads]
        for terms in step.program.lines:
            values.append(sum((float(abs(c)) * values[v] for c, v in terms), np.zeros(shape)))
        self.largest = max(self.largest, *(float(v.max(initial=0)) for v in values))
        for place, output in zip(writes, step.program.outputs, strict=True):
            place[...] = values[output][: place.shape[0], : place.shape[1]]

    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None:
        dest[...] = left @ right
        self.largest = max(self.largest, float(dest.max(initial=0)))

    def multiply_triangle(self, leaf: str, left: Array, right: Array, dest: Array, asked: GemmParams) -> None:
        self.multiply(leaf, left, right, dest)

    def mirror_triangle(self, step: Mirror, source: Array, dest: Array) -> None:
        dest[...] = np.tril(source) + np.tril(source, -1).T

    def multiply_batch(self, leaf: str, lefts: list[Array], rights: list[Array], dests: list[Array]) -> None:
        for factors in zip(lefts, rights, dests, strict=True):
            self.multiply(leaf, *factors)


BOUNDED = (
    *PLANS,
    "winograd > winograd > winograd > vendor",
    "li-fig3 > li-fig3 > vendor",
    "li-fig13 > vendor",
    "adaptive-winograd > adaptive-winograd > vendor",
    "hasa > hasa > vendor",
    "laderman > winograd > vendor",
    "dps > dps > dps > vendor",
    "smirnov336 > vendor",
    "hk233.sequential > vendor",
    "winograd.peel > li-fig23.peel > vendor",
    "strassen.batched > vendor",
    "balanced(2) > hasa > vendor",
)


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("size", [(16, 16, 16), (13, 11, 15), (18, 9, 36), (5, 40, 7)], ids=str)
@pytest.mark.parametrize("plan", BOUNDED)
def test_gain_bounds_every_intermediate(plan: str, size: tuple[int, int, int]) -> None:
    """Entries of one size, their signs the worst: sums of A, of B, products and everything added to C."""
    m, k, n = size
    parsed = Plan.parse(plan)
    for left, right in ((1.0, 1.0), (2.0**600, 2.0**-600), (2.0**-600, 2.0**600)):
        backend, c = Magnitudes(), np.zeros((m, n))
        arena = Arena(aligned_block(plan_workspace_bytes(parsed, m, k, n, 8)), np.dtype("f8"))
        arena.memory[...] = 0
        execute_plan(parsed, np.full((m, k), left), np.full((k, n), right), c, backend, arena)
        top = max(backend.largest, float(c.max()))
        assert top <= intermediate_growth_bound(parsed, m, k, n) * max(left * right * k, left, right) * (1 + 1e-12)


TWELVE = ("strassen", "strassen.sequential", "li-fig2", "li-fig12", "li-fig16", "hasa")
EIGHTEEN = ("winograd", "winograd.sequential", "li-fig3", "li-fig13", "li-fig23", "adaptive-winograd")


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("n", [64, 41])
@pytest.mark.parametrize(("algorithm", "gain"), [*((x, 12.0) for x in TWELVE), *((x, 18.0) for x in EIGHTEEN)], ids=str)
def test_the_gain_of_strassens_and_winograds_levels(algorithm: str, gain: float, n: int) -> None:
    """12^k and 18^k, whatever else a table keeps in the blocks of C while it goes on."""
    for levels in (1, 2, 3):
        plan = Plan.parse(" > ".join([algorithm] * levels + ["vendor"]))
        assert intermediate_growth_bound(plan, n, n, n) == gain**levels


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("size", [(64, 64, 64), (61, 43, 57)], ids=str)
@pytest.mark.parametrize("plan", ["li-fig16 > li-fig16 > li-fig12 > vendor", "li-fig2 > li-fig2 > li-fig2 > vendor"])
def test_a_given_plan_of_tables_runs_on_ordinary_numbers(
    plan: str, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    m, k, n = size
    a, b = normal((m, k), "f4"), normal((k, n), "f4")
    monkeypatch.setattr(NUMPY, "vendor_product", lambda *operands: pytest.fail("NumPy multiplied instead"))
    np.testing.assert_allclose(fmm.matmul(a, b, plan=plan), np.matmul(a, b), atol=1e-3)


@pytest.mark.parametrize("plan", BOUNDED)
def test_gain_is_not_wasteful(plan: str) -> None:
    """A bound without sense would send ordinary data to the vendor: the fast plan would never run."""
    parsed = Plan.parse(plan)
    assert 1 <= intermediate_growth_bound(parsed, 64, 64, 64) <= 500.0 ** max(parsed.depth, 1)
    for dtype in TYPES:
        assert not may_overflow(parsed, normal((64, 64), dtype), normal((64, 64), dtype), ONE)


def test_gain_of_the_vendor_is_one() -> None:
    assert intermediate_growth_bound(VENDOR, 5, 6, 7) == 1


@pytest.mark.parametrize(("dtype", "a", "b", "expected"), [
    ("f8", 1e152, 1e152, False),
    ("f8", 1e154, 1e154, True),
    ("f8", 1e308, 1e-300, True),  # two of them already make an inf
    ("f8", 1e306, 1e-300, False),
    ("f8", 0.0, np.inf, True),
    ("f8", 0.0, np.nan, True),
    ("f8", np.nan, 0.0, True),
    ("f8", 0.0, 0.0, False),
    ("f4", 1e18, 1e18, False),
    ("f4", 3e38, 1e-30, True),
    ("D", 1e152, 1e152, False),
])  # fmt: skip
def test_may_overflow(dtype: str, a: float, b: float, expected: bool) -> None:
    x, y = np.full((8, 8), a, dtype), np.full((8, 8), b, dtype)
    assert may_overflow(Plan.parse("winograd > vendor"), x, y, ONE) is expected
    assert may_overflow(Plan.parse("winograd > vendor"), y, x, ONE) is expected


# ---- norms, which settle most calls in one pass


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15])
def test_the_norm_is_bounded_from_both_sides(kind: str, scale: float, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((60, 5000)) * scale).astype(kind)
    if x.dtype.kind == "c":
        x = x + x.dtype.type(1j) * x[::-1]
    exact = float(np.linalg.norm(x.astype(complex)))
    lost = float(np.sqrt(np.finfo(kind).tiny * 4 * x.size))  # what squares that underflow can hide
    for view in (x, x.T, x[:, 100:4000], x[5:50], np.asfortranarray(x)):
        if view.shape == x.shape or view.shape == x.T.shape:
            assert exact <= frobenius_norm_bound(view, ONE) <= exact * 1.03 + lost
        else:
            assert largest_magnitude(view, ONE) <= frobenius_norm_bound(view, ONE) <= exact * 1.03 + lost


def test_a_norm_by_two_threads_is_that_of_one(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1500, 3000)).astype(np.float32)  # more than one task
    for view in (x, x[:, :2900], x.T):
        assert frobenius_norm_bound(view, ThreadGroup(2)) == pytest.approx(frobenius_norm_bound(view, ONE), rel=1e-6)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_the_norm_of_what_is_not_finite_is_not_finite(bad: float) -> None:
    x = np.ones((4, 300_000))
    x[3, -1] = bad
    assert not np.isfinite(frobenius_norm_bound(x, ONE))


@pytest.mark.parametrize(
    "x",
    [
        np.ones((300, 300))[:, ::2],  # BLAS cannot read it
        np.ones((300, 300))[:, :200],  # rows too short to be asked for one by one
        np.full((300, 300), 1e30, np.float32),  # squares that do not fit
    ],
)
def test_where_the_norm_does_not_help_the_maxima_decide(x: Array) -> None:
    assert frobenius_norm_bound(x, ONE) == np.inf
    assert not may_overflow(Plan.parse("winograd > vendor"), x, np.ones((300, 300), x.dtype), ONE)


def test_the_maxima_are_not_asked_for_ordinary_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def looks_again(*given: object) -> None:
        pytest.fail("a second pass over the operands")

    monkeypatch.setattr("fmm.runtime.overflow.largest_magnitude", looks_again)
    x = np.random.default_rng(0).standard_normal((300, 300))
    assert not may_overflow(Plan.parse("winograd > vendor"), x, x, ONE)


@pytest.mark.parametrize("kind", [np.float64, np.complex128])
def test_the_check_uses_no_threads_of_blas(
    kind: type, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All callers share BLAS's threads, and many at once would wait for each other."""

    def threaded(*operands: object, **options: object) -> None:
        pytest.fail("a function of BLAS that uses its threads")

    for name in ("dot", "vdot", "inner", "matmul", "tensordot"):
        monkeypatch.setattr(np, name, threaded)
    monkeypatch.setattr("fmm.runtime.overflow.dot", threaded)
    x: Any = rng.standard_normal((600, 600)).astype(kind)
    for view in (x, x.T, x[:, :500]):
        assert not may_overflow(Plan.parse("winograd > vendor"), view, view.T, ONE)
    assert frobenius_norm_bound(x, ThreadGroup(2)) == pytest.approx(np.sqrt((x * x.conj()).real.sum()), rel=0.03)
    assert not np.isfinite(frobenius_norm_bound(np.full((600, 600), np.inf), ONE))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_no_sum_of_squares_waits_for_threads_that_all_callers_share(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenBLAS shares a dot product of float64 among its threads; of float32 it computes it on the caller's."""
    types: set[str] = set()

    def dot(x: Any, y: Any) -> float:
        types.add(x.dtype.name)
        return float((x * y).sum())

    monkeypatch.setattr(overflow, "dot", dot)
    for name in ("dot", "vdot", "inner", "matmul", "tensordot"):
        monkeypatch.setattr(np, name, lambda *operands, **options: pytest.fail("BLAS's threads take part"))
    x = np.ones((600, 700), dtype)
    assert frobenius_norm_bound(x, ThreadGroup(2)) == pytest.approx(np.sqrt(x.size), rel=0.03)
    assert types == ({"float32"} if dtype in ("float32", "complex64") else set())

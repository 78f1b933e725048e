"""fmm.gemm, fmm.gram and fmm.minplus on random calls: as exact arithmetic has them, and explained as they are done.

Sides of all sizes (none, one, odd), types, layouts, factors, plans and limits are drawn by a seed, which a failure
names. Operands are small whole numbers, so that products in floating point are exact but for what a plan's own
fractions round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import fmm
from fmm.kernels.plans.plan import PlanError
from fmm.semirings.domain import no_edge_value

Array = np.ndarray[Any, Any]
DTYPES = "float32", "float64", "complex64", "complex128", "int16", "int64", "uint8", "bool"
WHOLE = "winograd > vendor", "li-fig3 > vendor", "hasa > vendor", "laderman.peel > vendor", "scaled > winograd > vendor"
PLANS = None, None, "vendor", "digits", "winograd > digits", "quarters > digits", "3m > vendor", "tile", *WHOLE
HALVES = None, None, "vendor", "gram > vendor", "gram^2 > strassen > vendor", "sforza(2) > vendor", "winograd > vendor"
COUNTS = [60, pytest.param(2000, marks=pytest.mark.slow)]


class Chance:
    """What a seed draws."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one_of(self, *values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def side(self) -> int:
        return int(self.rng.integers(*self.one_of((0, 3), (1, 20), (1, 20), (20, 90))))

    def numbers(self, shape: tuple[int, ...], dtype: str) -> Array:
        kind, drawn = np.dtype(dtype).kind, self.rng.integers(-4, 5, shape)
        if kind in "iu" and self.rng.random() < 0.5:  # as large as they come, which wrap
            limits = np.iinfo(dtype)
            return self.rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        found = drawn + 1j * self.rng.integers(-4, 5, shape) if kind == "c" else abs(drawn) if kind == "u" else drawn
        return (found > 1 if kind == "b" else found).astype(dtype)

    def laid_out(self, x: Array) -> Array:
        """The same numbers elsewhere: columns first, with gaps, backwards, between addresses of numbers."""
        backwards, apart = (slice(None, None, -1),) * x.ndim, (slice(None, None, 2),) * x.ndim
        found = self.one_of(
            x.copy(),
            np.asfortranarray(x),
            np.empty([2 * n for n in x.shape], x.dtype)[apart],
            x[backwards].copy()[backwards],
            np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape),
        )
        found[...] = x
        return np.asarray(found)

    def factor(self, dtype: str) -> Any:
        kind = np.dtype(dtype).kind
        usual = 0, 1, 1, 1.0
        more = {"b": (), "u": (2, 3.0), "i": (2, -3, -2.0), "f": (0.5, -2), "c": (0.5, -2)}[kind]
        return self.one_of(*usual, *more)

    @property
    def limits(self) -> dict[str, Any]:
        return dict(self.one_of({}, {}, {"workspace": 0}, {"max_error_growth": 0.5}, {"workspace": 10**6}))


def exact(x: Array) -> Array:
    """In Python's whole numbers or in long double; of bool as it is."""
    kind = x.dtype.kind
    wide: Any = {"i": object, "u": object, "f": np.longdouble, "c": np.clongdouble}
    return x if kind == "b" else x.astype(wide[kind])


def product_of(a: Array, b: Array) -> Array:
    if a.dtype == object and 0 in (*a.shape, *b.shape):
        return np.zeros((a.shape[0], b.shape[1]), object)
    return np.asarray(np.matmul(a, b))


def check(found: Array, expected: Array, dtype: str, inner: int) -> None:
    assert found.dtype == dtype and found.shape == expected.shape
    if expected.dtype == object:  # of whole numbers the lowest bits are kept
        bits = 8 * found.itemsize
        residues = np.array([int(x) % 2**bits for x in expected.ravel()], f"u{found.itemsize}").reshape(found.shape)
        expected = residues.view(dtype)
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
        return
    room = 50 * max(inner, 1) * np.finfo(dtype).eps * max(float(np.abs(expected).max(initial=1)), 1)
    assert np.abs(found - expected).max(initial=0) <= room


def both_ways(call: Callable[[], Any], explained: Callable[[], Any], plan: str | None) -> Any:
    """The result, or None where the plan cannot run here: then both say so."""
    try:
        found = call()
    except PlanError:
        with pytest.raises(PlanError):
            explained()
        return None
    decision = explained()
    assert str(decision)
    if plan is not None and "this plan was passed" in decision.reason:
        ran = (
            decision.plan.with_conjugation(*decision.plan.conjugated_operands) or decision.plan
        )  # which the call decides
        assert ran == fmm.Plan.parse(plan)
    return found


# ---- gemm


class Gemm(NamedTuple):
    a: Array
    b: Array
    c: Array
    out: Array | None
    asked: dict[str, Any]


OPS: dict[Any, Callable[[Array], Array]] = {False: lambda x: x, True: lambda x: x.T, "C": lambda x: x.conj().T}


def drawn_gemm(chance: Chance) -> Gemm:
    m, k, n, dtype = chance.side(), chance.side(), chance.side(), chance.one_of(*DTYPES)
    op_a, op_b = chance.one_of(False, True, "C"), chance.one_of(False, True, "C")
    shapes = (k, m) if op_a else (m, k), (n, k) if op_b else (k, n), (m, n)
    a, b, c = (chance.laid_out(chance.numbers(shape, dtype)) for shape in shapes)
    out = chance.one_of(None, c, chance.laid_out(np.zeros((m, n), dtype)), a if a.shape == (m, n) else None)
    if m and out is None and chance.rng.random() < 0.3:
        c = c[:1]
    asked = {"alpha": chance.factor(dtype), "beta": chance.factor(dtype), "transpose_a": op_a, "transpose_b": op_b}
    plan = chance.one_of(*PLANS)
    return Gemm(a, b, c, out, asked | ({"plan": plan} if plan else chance.limits))


@pytest.mark.parametrize("count", COUNTS)
def test_gemm(count: int) -> None:
    for seed in range(count):
        chance = Chance(seed)
        a, b, c, out, asked = drawn_gemm(chance)
        left, right = (exact(OPS[asked[f"transpose_{name}"]](x)) for name, x in (("a", a), ("b", b)))
        expected = product_of(left, right)
        alpha, beta = (int(asked[x]) if expected.dtype == object else asked[x] for x in ("alpha", "beta"))
        if a.dtype == bool:
            expected = expected & bool(alpha) | exact(c) & bool(beta)
        else:
            expected = alpha * expected + beta * exact(c)
        before = exact(c).copy(), a.copy()
        found = both_ways(
            lambda: fmm.gemm(a, b, c, out=out, **asked),  # noqa: B023 - called at once
            lambda: fmm.explain_gemm(a, b, c, out=out, **asked),  # noqa: B023
            asked.get("plan"),
        )
        if found is not None:
            check(found, expected, a.dtype.name, left.shape[1])
            assert out is None or found is out
        if found is None or out is not c:
            np.testing.assert_array_equal(c, before[0], f"seed {seed}: c")
        if found is None or out is not a:
            np.testing.assert_array_equal(a, before[1], f"seed {seed}: a")


# ---- gram


@pytest.mark.parametrize("count", COUNTS)
def test_gram(count: int) -> None:
    for seed in range(count):
        chance = Chance(seed)
        m, k, dtype = chance.side(), chance.side(), chance.one_of(*DTYPES)
        a, rows, plan = (
            chance.laid_out(chance.numbers((m, k), dtype)),
            bool(chance.one_of(0, 1)),
            chance.one_of(*HALVES),
        )
        wide, n = exact(a), m if rows else k
        expected = product_of(wide, wide.conj().T) if rows else product_of(wide.conj().T, wide)
        old = chance.numbers((n, n), dtype)
        old = old | old.T if dtype == "bool" else (old + old.conj().T).astype(dtype)
        asked = {"rows": rows, "fill": chance.one_of("full", "lower", "upper"), "alpha": chance.factor(dtype)}
        out = chance.one_of(None, chance.laid_out(old))
        asked["beta"] = 0 if out is None else chance.factor(dtype)
        alpha, beta = (int(asked[x]) if wide.dtype == object else asked[x] for x in ("alpha", "beta"))
        if dtype == "bool":
            expected = expected & bool(alpha) | old & bool(beta)
        else:
            expected = alpha * expected + beta * exact(old)
        half = np.tri(n, dtype=bool)
        wanted = {"full": np.ones((n, n), bool), "lower": half, "upper": half.T}[asked["fill"]]
        expected = np.where(wanted, expected, 0 if out is None else exact(old))
        asked |= {"plan": plan} if plan else chance.limits
        found = both_ways(
            lambda: fmm.gram(a, None, out, **asked),  # noqa: B023
            lambda: fmm.explain_gram(a, None, None if out is None else old.copy(), **asked),  # noqa: B023
            plan,
        )
        if found is not None:
            check(np.asarray(found), expected, dtype, wide.shape[0 if not rows else 1])
            assert asked["fill"] != "full" or np.array_equal(found, found.conj().T)


# ---- minplus


@pytest.mark.parametrize("count", COUNTS)
def test_minplus(count: int) -> None:
    """Of two types, of which each has its own none."""
    for seed in range(count):
        chance = Chance(seed)
        m, k, n = chance.side() % 40, chance.side() % 40, chance.side() % 40
        kinds = "float32", "float64", "int32", "int16", "int64", "uint8", "bool", "float16"
        greatest, a, b = (
            bool(chance.one_of(0, 1)),
            *(drawn_lengths(chance, shape, chance.one_of(*kinds)) for shape in ((m, k), (k, n))),
        )
        dtype = np.result_type(a, b)
        dtype = dtype if dtype.name in kinds[:4] else np.dtype(float)
        none = -np.inf if greatest else np.inf
        with np.errstate(invalid="ignore"):
            sums = as_floats(a, greatest)[:, :, None] + as_floats(b, greatest)[None]
        sums[np.isnan(sums)] = none
        best = (sums.max if greatest else sums.min)(axis=1, initial=none)
        if dtype.kind == "i":
            limits = np.iinfo(dtype)
            best = np.where(best == none, no_edge_value(dtype, greatest), np.clip(best, limits.min, limits.max))
        found, step = fmm.minplus(chance.laid_out(a), chance.laid_out(b), maximum=greatest, argmin=True)
        assert found.dtype == dtype, f"seed {seed}"
        np.testing.assert_allclose(found, best, 1e-6, err_msg=f"seed {seed}")
        np.testing.assert_array_equal(fmm.minplus(a, b, maximum=greatest), found)
        if dtype.kind == "f" and k:
            first = (sums.argmax if greatest else sums.argmin)(axis=1)
            np.testing.assert_array_equal(step, np.where(best == none, -1, first), f"seed {seed}")


def drawn_lengths(chance: Chance, shape: tuple[int, int], dtype: str) -> Array:
    kind, rng = np.dtype(dtype).kind, chance.rng
    if dtype == "int64":
        return rng.integers(-(10**6), 10**6, shape)
    found = chance.numbers(shape, dtype)
    if kind == "f":
        found[rng.random(shape) < 0.2] = chance.one_of(np.inf, -np.inf, np.nan)
    elif dtype in ("int32", "int16"):
        found[rng.random(shape) < 0.2] = no_edge_value(dtype, chance.one_of(False, True))
    return found


def as_floats(x: Array, greatest: bool) -> Array:
    found = x.astype(np.float64)
    if x.dtype.name in ("int32", "int16"):
        found[x == no_edge_value(x.dtype, greatest)] = -np.inf if greatest else np.inf
    return found

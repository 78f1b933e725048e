"""The executor: every algorithm, traversal and fringe gives AB, to the last bit where that is possible; and proofs.

Matrices hold small whole numbers and the shipped schemes' coefficients are powers of two, so every intermediate is
exact and a wrong result differs visibly. Workspace, output and everything around it start as NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import count, product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.symbolic_proof import Polynomial, first_plan_defect, plan_defect, symbolic_matrix
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.level import Traversal
from fmm.kernels.plans.levels.scheme_level import build_scheme_level
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.sums import Sum
from fmm.kernels.plans.workspace import plan_workspace_bytes
from tests.support.marks import quick_and_slow

Array = np.ndarray[Any, np.dtype[Any]]
Size = tuple[int, int, int]
Layout = Callable[[Array], Array]

BACKEND = NumpyBackend(ThreadGroup(2))
DTYPES = ("f4", "f8", "c8", "c16")

# ---- memory layouts: each gives a view with these values whose surroundings are NaN


def within(shape: tuple[int, ...], dtype: np.dtype[Any], view: Callable[[Array], Array]) -> Array:
    """The first rows x cols of a view of an array of NaN."""
    rows, cols = shape
    return view(np.full((3 * rows + 2, 3 * cols + 2), np.nan, dtype))[:rows, :cols]


def c_order(x: Array) -> Array:
    return filled(within(x.shape, x.dtype, lambda room: room[1:, 1:]), x)


def f_order(x: Array) -> Array:
    return filled(within(x.shape[::-1], x.dtype, lambda room: room[1:, 1:]).T, x)


def strided(x: Array) -> Array:
    return filled(within(x.shape, x.dtype, lambda room: room[1::3, 2::3]), x)


def upside_down(x: Array) -> Array:
    return filled(within(x.shape, x.dtype, lambda room: room)[::-1], x)


def mirrored(x: Array) -> Array:
    return filled(within(x.shape[::-1], x.dtype, lambda room: room[:, ::2])[::-1, ::-1].T, x)


def packed(x: Array) -> Array:
    return filled(np.empty(x.shape, x.dtype), x)


def filled(view: Array, x: Array) -> Array:
    view[...] = x
    return view


LAYOUTS: tuple[Layout, ...] = (c_order, f_order, strided, upside_down, mirrored, packed)
_serial = count()

# ---- one run


def base_of(x: Array) -> Array:
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def whole_numbers(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> Array:
    x = rng.integers(-1, 2, shape)
    return x.astype(dtype) if np.dtype(dtype).kind == "f" else (x + 1j * rng.integers(-1, 2, shape)).astype(dtype)


def poisoned_arena(plan: Plan, size: Size, dtype: np.dtype[Any], alpha: Coefficient, beta: Coefficient) -> Arena:
    memory = aligned_block(plan_workspace_bytes(plan, *size, dtype.itemsize, alpha, beta))
    memory[:] = 255  # NaN in every format
    return Arena(memory, dtype)


def check(
    plan: Plan, size: Size, dtype: str, rng: np.random.Generator, alpha: Coefficient = 1, beta: Coefficient = 0
) -> None:
    (m, k, n), layout = size, [LAYOUTS[i] for i in rng.integers(0, len(LAYOUTS), 3)]  # the same in every run
    a, b, c = (whole_numbers(rng, shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    wanted = alpha * (a @ b) + beta * c
    if not beta:
        c[...] = np.nan  # must not be read
    x, y, z = (make(values) for make, values in zip(layout, (a, b, c), strict=True))
    arena = poisoned_arena(plan, size, x.dtype, alpha, beta)
    execute_plan(plan, x, y, z, BACKEND, arena, alpha, beta)
    where = f"{plan} {size} {dtype} {[f.__name__ for f in layout]} alpha={alpha} beta={beta}"
    assert np.array_equal(z, wanted), where
    assert np.array_equal(x, a), f"A changed: {where}"
    assert np.array_equal(y, b), f"B changed: {where}"
    assert (arena.used_bytes, arena.peak) == (0, arena.memory.nbytes), where
    z[...] = np.nan
    assert np.isnan(base_of(z)).all(), f"wrote outside C: {where}"


# ---- every algorithm

SIZES: list[Size] = [
    (0, 0, 0),
    (0, 5, 3),
    (4, 0, 3),
    (3, 4, 0),
    (1, 1, 1),
    (1, 2, 3),
    (2, 2, 2),
    (7, 5, 11),
    (13, 17, 19),
    (24, 18, 36),
    (33, 31, 35),
    (1, 300, 2),
    (257, 3, 64),
]

OPTIONS = [
    "",
    ".pad",
    ".peel",
    ".pad8",
    ".sequential",
    ".sequential.pad",
    ".sequential.peel",
    ".batched",
    ".batched.pad4",
]
TABLE_OPTIONS = [".unequal", ".pad", ".peel", ".pad8"]

# (alpha, beta) with exact products; the last ones for complex matrices only
FACTORS: list[tuple[Coefficient, Coefficient]] = [(1, 0), (1, 1), (-1, 0), (2, -1), (0.5, 2), (0, 1), (0, 0), (-1, 1)]
COMPLEX_FACTORS: list[tuple[Coefficient, Coefficient]] = [(1j, 0), (1j, 1), (1, 1j), (2 - 1j, -1j), (1j, 1j)]

# These keep sums of A and of B in blocks of C, which must be large enough for them.
SUMS_IN_C = ("li-fig2", "li-fig12", "li-fig16")


# A long list of sums is scheduled anew for every pattern of edges.
LONG = [name for name in scheme_names() if name.startswith("smirnov")]


@pytest.mark.quick_cases()
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", quick_and_slow([name for name in scheme_names() if name not in LONG], LONG))
def test_every_scheme(name: str, options: str, rng: np.random.Generator) -> None:
    plan = Plan.parse(f"{name}{options} > vendor")
    for i, size in enumerate(SIZES[:: 3 if name in LONG else 1]):
        check(plan, size, DTYPES[(i + len(options)) % 4], rng)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("options", TABLE_OPTIONS)
@pytest.mark.parametrize("name", step_table_names())
def test_every_step_table(name: str, options: str, rng: np.random.Generator) -> None:
    plan = Plan.parse(f"{name}{options} > vendor")
    for size, dtype in product(SIZES, DTYPES):
        if name not in SUMS_IN_C:
            check(plan, size, dtype, rng)
        elif sums_fit(size, options):
            if options != ".unequal" or not any(side % 2 for side in size):
                check(plan, size, dtype, rng)
        else:
            with pytest.raises(PlanError, match=rf"{name} keeps a .* sum in C.*hasa"):
                check(plan, size, dtype, rng)


def sums_fit(size: Size, options: str) -> bool:
    """Is half of k no longer than half of m and n, as these blocks are cut?"""
    if options == ".peel":
        m, k, n = (side // 2 for side in size)
        return 0 in (m, k, n) or k <= min(m, n)
    unit = 8 if options == ".pad8" else 1
    m, k, n = (-(-side // (2 * unit)) for side in size)
    if options == ".pad8":  # A and B are cut at multiples of 8, but only as far as they go
        return min(8 * k, size[1]) <= min(8 * m, 8 * n)
    return k <= min(m, n)


PLANS_WITH_FACTORS = [
    "vendor",
    "strassen > vendor",
    "winograd.pad > vendor",
    "dps.sequential > vendor",
    "hk233.peel > vendor",
    "laderman.batched > vendor",
    "li-fig3 > vendor",
    "li-fig13.pad > vendor",
    "hasa.peel > vendor",
    "balanced > strassen > vendor",
    "strassen^2 > vendor",
]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("text", quick_and_slow(PLANS_WITH_FACTORS[::2], PLANS_WITH_FACTORS[1::2]))
def test_alpha_and_beta(text: str, rng: np.random.Generator) -> None:
    plan = Plan.parse(text)
    for size in [(0, 3, 2), (3, 0, 2), (1, 1, 1), (2, 3, 4), (9, 8, 7), (20, 13, 33), (6, 40, 9)]:
        for dtype in DTYPES:
            for alpha, beta in FACTORS + (COMPLEX_FACTORS if dtype[0] == "c" else []):
                check(plan, size, dtype, rng, alpha, beta)


@pytest.mark.parametrize("text", ["vendor", "strassen > vendor", "li-fig3 > vendor", "winograd.sequential > vendor"])
def test_with_alpha_zero_nan_does_not_pass(text: str) -> None:
    """BLAS's rule: C = beta C, whatever A and B hold."""
    plan, nan, c = Plan.parse(text), np.full((6, 6), np.nan), np.arange(36.0).reshape(6, 6)
    wanted = 2 * c
    execute_plan(plan, nan, nan, c, BACKEND, poisoned_arena(plan, (6, 6, 6), c.dtype, 0, 2), 0, 2)
    assert np.array_equal(c, wanted)


MIXES = [
    "winograd^2 > li-fig3.peel > vendor",
    "strassen > winograd > vendor",
    "strassen.peel > hk223.pad > vendor",
    "hk233.sequential > hk322.batched > vendor",
    "balanced(2) > hasa > vendor",
    "balanced(1.5) > balanced > adaptive-winograd.pad > vendor",
    "hasa > balanced > strassen.sequential > vendor",
    "li-fig3 > li-fig13.peel > li-fig23.pad > vendor",
    "li-fig23 > dps > classical.sequential > vendor",
    "adaptive-winograd > hasa > vendor",
    "laderman.peel > li-fig13 > vendor",
    "winograd*hk223.sequential > hasa.pad > vendor",
    "strassen.batched > winograd.batched.pad4 > vendor",
    "hk322.pad8 > strassen > vendor",
    "classical.batched > li-fig3 > winograd.sequential.peel > vendor",
]


MIX_SIZES = [
    (0, 2, 3),
    (1, 1, 1),
    (2, 3, 2),
    (6, 5, 7),
    (17, 13, 19),
    (36, 36, 36),
    (37, 35, 39),
    (96, 5, 7),
    (5, 90, 8),
]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("text", quick_and_slow(MIXES[::2], MIXES[1::2]))
def test_mixes_of_levels(text: str, rng: np.random.Generator) -> None:
    plan = Plan.parse(text)
    for i, size in enumerate(MIX_SIZES):
        for dtype in ("f8", DTYPES[i % 4]):
            check(plan, size, dtype, rng, *FACTORS[(i + len(text)) % 4])


@pytest.mark.parametrize("name", SUMS_IN_C)
def test_padded_tables_nest_on_odd_squares(name: str, rng: np.random.Generator) -> None:
    """Li's own use, several levels of Figure 2, 12 or 16, on squares of any side."""
    plan = Plan.parse(f"{name} > {name} > vendor")
    for n in (4, 6, 5, 7, 11):
        check(plan, (n, n, n), "f8", rng)


@pytest.mark.slow
def test_sums_over_several_panels(rng: np.random.Generator) -> None:
    """Blocks of more than one panel, wide and high."""
    for text, size in [
        ("winograd > vendor", (7, 3, 9001)),
        ("li-fig3 > vendor", (9001, 3, 7)),
        ("strassen > vendor", (700, 4, 701)),
    ]:
        for dtype in ("f4", "c16"):
            check(Plan.parse(text), size, dtype, rng)


TOLERANCES = [
    # (plan, largest error as a multiple of k eps max|A| max|B|): rounding, not mistakes
    ("vendor", 1),
    ("strassen > vendor", 2),
    ("winograd^2 > vendor", 8),
    ("li-fig3 > li-fig3 > li-fig3 > vendor", 30),
    ("dps > dps > vendor", 4),
    ("smirnov336 > vendor", 30),
    ("laderman.peel > hasa > vendor", 8),
]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(("text", "growth"), TOLERANCES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_normal_data(text: str, growth: float, dtype: str, rng: np.random.Generator) -> None:
    (m, k, n), plan = (150, 190, 170), Plan.parse(text)
    a, b = (rng.standard_normal(shape) for shape in ((m, k), (k, n)))
    if dtype[0] == "c":
        a, b = a + 1j * rng.standard_normal(a.shape), b + 1j * rng.standard_normal(b.shape)
    a, b = a.astype(dtype), b.astype(dtype)
    c = np.full((m, n), np.nan, dtype)
    execute_plan(plan, a, b, c, BACKEND, poisoned_arena(plan, (m, k, n), a.dtype, 1, 0))
    wide = np.clongdouble if dtype[0] == "c" else np.longdouble
    error = float(np.abs(c - a.astype(wide) @ b.astype(wide)).max())
    scale = k * float(np.finfo(dtype).eps) * float(np.abs(a).max()) * float(np.abs(b).max())
    assert error <= growth * scale
    assert error > 0, "the reference is the same computation"


def test_a_workspace_is_used_again_without_a_trace(rng: np.random.Generator) -> None:
    """The second product finds the first one's numbers in the arena, and the result does not show it."""
    plan, found = Plan.parse("hasa > winograd.sequential > vendor"), []
    a, b = rng.standard_normal((31, 29)), rng.standard_normal((29, 37))
    arena = poisoned_arena(plan, (31, 29, 37), a.dtype, 1, 0)
    for _ in range(2):
        found.append(np.full((31, 37), np.nan))
        execute_plan(plan, a, b, found[-1], BACKEND, arena)
    assert np.array_equal(found[0], found[1])


# ---- proofs

PROVED = [
    "vendor",
    "strassen > vendor",
    "winograd.pad > vendor",
    "dps.sequential > vendor",
    "classical.batched > vendor",
    "hk223.peel > vendor",
    "li-fig3 > vendor",
    "li-fig13 > vendor",
    "li-fig23.pad > vendor",
    "hasa > vendor",
    "adaptive-winograd.peel > vendor",
    "balanced > strassen.sequential > vendor",
]

EVERY_SIZE = list(product(range(1, 6), repeat=3))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("text", quick_and_slow(PROVED[::3], [text for i, text in enumerate(PROVED) if i % 3]))
def test_plans_are_proved_on_every_small_size(text: str) -> None:
    assert first_plan_defect(Plan.parse(text), EVERY_SIZE) is None


DEEP = [
    ("strassen > winograd.sequential > vendor", [(4, 4, 4), (5, 3, 6), (7, 7, 7)]),
    ("hasa > li-fig3 > vendor", [(4, 4, 4), (5, 6, 3), (7, 7, 7)]),
    ("winograd^2 > vendor", [(4, 4, 4), (3, 5, 2), (5, 5, 5)]),
    ("winograd*hk223.sequential > vendor", [(4, 4, 6), (3, 5, 2)]),
    ("laderman > vendor", [(3, 3, 3), (4, 2, 5)]),
    ("hk233.sequential > vendor", [(2, 3, 3), (3, 2, 4)]),
    ("hk323.sequential.pad > vendor", [(1, 1, 2), (4, 3, 5)]),
    ("hk244.sequential > vendor", [(1, 1, 1), (3, 5, 3)]),
    ("smirnov336 > vendor", [(3, 3, 6), (2, 4, 5)]),
    ("adaptive-winograd > adaptive-winograd > vendor", [(5, 5, 5), (6, 3, 7)]),
]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(("text", "sizes"), DEEP)
def test_deeper_plans_are_proved(text: str, sizes: list[Size]) -> None:
    assert first_plan_defect(Plan.parse(text), sizes) is None


@pytest.mark.parametrize(
    "text",
    ["vendor", "strassen > vendor", "li-fig13 > vendor", "hk233.sequential > vendor", "balanced > hasa > vendor"],
)
def test_updates_are_proved(text: str) -> None:
    for (alpha, beta), size in product([(1, 1), (2, 0), (-1, 3), (0, 2), (0, 0)], [(2, 3, 2), (3, 5, 4), (1, 1, 1)]):
        assert plan_defect(Plan.parse(text), *size, alpha, beta) is None


def level_of(wrong: Scheme, traversal: Traversal = "stacked") -> Plan:
    """Return the plan of a scheme that no file can hold, since files are proved when they are read."""
    return Plan((build_scheme_level(f"wrong {next(_serial)}", wrong, None, traversal, "unequal"),))


@pytest.mark.parametrize("traversal", ["stacked", "sequential"])
@pytest.mark.parametrize("letter", ["u", "v", "w"])
def test_the_prover_rejects_a_wrong_scheme(letter: str, traversal: Traversal) -> None:
    for place, p in ((0, 0), (1, 4), (3, 2), (2, 6)):
        rows = [list(row) for row in getattr(scheme("strassen"), letter)]
        rows[place][p] = -rows[place][p] if rows[place][p] else Fraction(1)
        changed: dict[str, Any] = {letter: tuple(map(tuple, rows))}
        wrong = replace(scheme("strassen"), **changed)
        found = first_plan_defect(level_of(wrong, traversal), [(2, 2, 2)])
        assert found is not None
        assert "entry" in found
    assert first_plan_defect(level_of(scheme("strassen"), traversal), [(2, 2, 2), (3, 3, 3)]) is None


class Forgetful(NumpyBackend):
    """A backend that leaves out one step."""

    def compute_sums(self, step: Sum, reads: list[Array], writes: list[Array]) -> None:
        if step.label != "split A":
            super().compute_sums(step, reads, writes)


def test_the_prover_rejects_a_backend_that_skips_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fmm.kernels.cpu.symbolic_proof.NumpyBackend", Forgetful)
    assert "nothing was written" in (plan_defect(Plan.parse("strassen > vendor"), 2, 2, 2) or "")


def test_symbols_do_not_commute() -> None:
    (x,), (y,) = symbolic_matrix("a", 1, 1)[0], symbolic_matrix("b", 1, 1)[0]
    assert x * y != y * x
    assert x * y - x * y == 0
    assert (x + y) * (x - y) == x * x - x * y + y * x - y * y
    assert 2 * x == x + x == x * Fraction(2)
    assert -x == 0 - x == Polynomial({("a0.0",): Fraction(-1)})
    assert "2 a0.0*b0.0" in repr(x * y * 2 + 1)
    with pytest.raises(TypeError, match="nothing was written"):
        x + None


@pytest.mark.parametrize("name", step_table_names())
def test_a_product_with_sums_inside_is_proved_as_a_product_and_sums(name: str) -> None:
    """The prover has no kernel that multiplies and updates blocks of C at once."""
    assert first_plan_defect(Plan.parse(f"{name} > tile"), [(2, 2, 2), (4, 4, 4)]) is None

"""Li, Ranka and Sahni's accuracy: Figures 30 to 35 in single and 43 and 44 in double precision.

Kaporin's matrices are inverses of each other, so the error is |C - I|. It includes the errors of forming A and B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, Final

from benchmarks.papers.bench import Bench
from benchmarks.papers.experiment import Experiment, ExperimentPart, Key, Numbers, Results, Row, one_part, products_of
from benchmarks.papers.figure import Figure, quantity_column
from benchmarks.papers.li_codes import CPU, GPU8, SCHEME_OF_CODE, SGEMM, SIZES, code_depth, li_plan
from benchmarks.papers.matrices import kaporin_matrices, precise_product, uniform_matrices
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.stability import error_bound, expected_error_growth


def errors_from_identity(xp: Any, c: Any, rows: Any = None) -> dict[str, float]:
    """Return the largest and the mean |C - I|, of all rows or of `rows`; C is overwritten."""
    at = xp.arange(len(c)) if rows is None else rows
    c[xp.arange(len(c)), at] -= 1
    off = abs(c)
    return {"maximum": float(off.max()), "average": float(off.mean(dtype="float64"))}


def code_plan(code: str, depth: int, bench: Bench) -> Plan | None:
    """Return the plan of one of the paper's codes; None for the sums in the order of k, which no plan has."""
    if code == CPU:
        return None
    return li_plan(code, depth) if code in SCHEME_OF_CODE else Plan.parse(_leaf_of_code(code, bench))


def _leaf_of_code(code: str, bench: Bench) -> str:
    return "tile.gpu8" if code == GPU8 and not bench.on_host else "vendor"


def code_errors(bench: Bench, code: str, depth: int, pair: tuple[Any, Any]) -> dict[str, float]:
    """Return the largest and the mean |C - I| of one of the paper's codes."""
    plan = code_plan(code, depth, bench)
    if plan is None:
        rows, found = bench.row_by_column(*pair)
        return errors_from_identity(bench.xp, found, rows)
    return errors_from_identity(bench.xp, bench.multiply(plan, *pair))


def kaporin_bound(code: str, depth: int, n: int, dtype: str) -> float:
    """Return the a-priori bound f u |A| |B| of the product of Kaporin's matrices.

    The errors of forming the matrices are not in the bound.
    """
    i = [float(x) for x in range(1, n + 1)]
    inner = sum(x**0.5 / (n + 1 - x) for x in i)
    # the largest entries: the last of A; the diagonal or the last row of B
    largest = (1 + n**0.5) * max(1.0, n**0.5 / (1 + inner))
    plan = li_plan(code, depth) if code in SCHEME_OF_CODE else VENDOR
    return float(error_bound(plan, n, n, n) * DTYPES[dtype].unit_roundoff * largest)


# ---- single precision

THRESHOLDS: Final = (2048, 4096)

# ---- Figures 30 and 31: by size

CODES: Final[tuple[tuple[str, str | int], ...]] = (
    (CPU, "-"),
    (SGEMM, "-"),
    (GPU8, "-"),
    *product(SCHEME_OF_CODE, THRESHOLDS),
)


def _size_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    """Yield a part for each size."""
    for n in SIZES:
        side = max(int(n * scale), 16)
        plans = [plan for code, tau2 in CODES if (plan := code_plan(code, code_depth(n, tau2), bench)) is not None]
        products = products_of(dict.fromkeys(plans), side, "float32")
        yield ExperimentPart((n,), partial(_size_rows, bench, n, side), products, 2.0 * side**3 * len(CODES))


def _size_rows(bench: Bench, n: int, side: int) -> Iterator[Row]:
    pair = kaporin_matrices(bench.xp, side, "float32")
    for code, tau2 in CODES:
        if not (code == GPU8 and bench.on_host):
            yield {"key": [code, tau2, n], **code_errors(bench, code, code_depth(n, tau2), pair)}


SIZE_EXPERIMENT: Final = Experiment("li-fig30", ("code", "tau2", "n"), SIZES[-1], _size_parts, ("n",))


def _printed_numbers(columns: Mapping[Key, tuple[float, ...]], last: tuple[int, ...]) -> Numbers:
    return {(*key, x): value for key, values in columns.items() for x, value in zip(last, values, strict=True)}


FIGURE_30: Final[Mapping[Key, tuple[float, ...]]] = {
    (CPU, "-"): (7.9e-5, 1.6e-4, 2.3e-4, 3.9e-4),
    (SGEMM, "-"): (8.1e-5, 1.6e-4, 2.4e-4, 3.9e-4),
    (GPU8, "-"): (8.1e-5, 1.6e-4, 2.4e-4, 3.9e-4),
    ("Strassen", 2048): (2.4e-4, 6.7e-4, 8.8e-3, 8.3e-2),
    ("Strassen", 4096): (8.1e-5, 3.4e-4, 1.5e-3, 5.8e-2),
    ("Winograd", 2048): (2.5e-4, 1.9e-3, 2.9e-2, 6.3e-1),
    ("Winograd", 4096): (8.1e-5, 5.0e-4, 3.6e-3, 1.6e-1),
}
FIGURE_31: Final[Mapping[Key, tuple[float, ...]]] = {
    (CPU, "-"): (6.6e-8, 5.5e-8, 4.7e-8, 3.3e-8),
    (SGEMM, "-"): (6.6e-8, 5.6e-8, 4.7e-8, 3.3e-8),
    (GPU8, "-"): (6.6e-8, 5.6e-8, 4.7e-8, 3.3e-8),
    ("Strassen", 2048): (2.1e-7, 4.6e-7, 1.4e-6, 1.4e-5),
    ("Strassen", 4096): (6.6e-8, 1.7e-7, 3.9e-7, 2.9e-6),
    ("Winograd", 2048): (2.8e-7, 1.3e-6, 1.2e-5, 1.7e-4),
    ("Winograd", 4096): (6.6e-8, 2.8e-7, 1.2e-6, 3.2e-5),
}


def _size_bounds() -> Numbers:
    found: dict[Key, float] = {}
    for code, tau2 in CODES:
        for n in SIZES:
            found[code, tau2, n] = kaporin_bound(code, code_depth(n, tau2), n, "float32")
    return found


def _expected_errors(printed: Numbers, base: Numbers, depth: Mapping[Key, int]) -> Numbers:
    """Return the errors expected on random data: the printed classical error times the expected growth."""
    return {
        key: base[key]
        * expected_error_growth(li_plan(str(key[0]), depth[key]) if key[0] in SCHEME_OF_CODE else VENDOR, "float32")
        for key in printed
    }


def _expected_by_size(columns: Mapping[Key, tuple[float, ...]]) -> Numbers:
    printed = _printed_numbers(columns, SIZES)
    base = {key: printed[SGEMM, "-", key[2]] for key in printed}
    depth = {key: code_depth(int(key[2]), key[1]) for key in printed}
    return _expected_errors(printed, base, depth)


KAPORIN_COMMENTARY: Final = (
    "The errors of both codes grow by a factor of at least three with each level. The rows of A differ by a factor of "
    "n, and sums of blocks carry the errors of the largest rows into the smallest rows. The growth is therefore far "
    "above the growth on random data (column `expected`), and far below the bound. The published errors are from a "
    "C1060."
)
FIGURES_BY_SIZE: Final = tuple(
    Figure(
        f"li-fig{number}",
        f"Li et al., Figure {number}: {what} errors on Kaporin's matrix",
        SIZE_EXPERIMENT,
        {"measured": quantity_column(what)},
        KAPORIN_COMMENTARY,
        _printed_numbers(columns, SIZES),
        {
            "expected": partial(_expected_by_size, columns),
            **({"bound": _size_bounds} if what == "maximum" else {}),
        },
        unit=f"{what} |C - I|",
    )
    for number, what, columns in ((30, "maximum", FIGURE_30), (31, "average", FIGURE_31))
)


# ---- Figures 32 to 35: by levels

DEPTHS: Final = (0, 1, 2, 3, 4)
FIGURE_32: Final[Mapping[Key, tuple[float, ...]]] = {
    ("Strassen",): (3.9e-4, 3.3e-3, 3.1e-2, 5.8e-2, 8.3e-2),
    ("Winograd",): (3.9e-4, 1.4e-3, 9.7e-3, 1.6e-1, 6.3e-1),
}
FIGURE_34: Final[Mapping[Key, tuple[float, ...]]] = {
    ("Strassen",): (6.6e-8, 1.1e-7, 4.4e-7, 2.9e-6, 1.4e-5),
    ("Winograd",): (6.6e-8, 1.9e-7, 1.6e-6, 3.2e-5, 1.7e-4),
}


def _level_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    """Yield a part for each code and number of levels."""
    side = max(int(SIZES[-1] * scale), 32)
    for code, depth in product(SCHEME_OF_CODE, DEPTHS):
        products = products_of([li_plan(code, depth)], side, "float32")
        yield ExperimentPart((code, depth), partial(_level_rows, bench, side, code, depth), products, 2.0 * side**3)


def _level_rows(bench: Bench, side: int, code: str, depth: int) -> Iterator[Row]:
    yield {"key": [code, depth], **code_errors(bench, code, depth, kaporin_matrices(bench.xp, side, "float32"))}


BY_LEVELS: Final = Experiment("li-fig32", ("code", "levels"), SIZES[-1], _level_parts, ("code", "levels"))
FIGURE_32_COMMENTARY: Final = (
    "At levels 1 and 2, the printed errors of Winograd's variant are smaller than those of Strassen's method, unlike "
    "in theory and in the text."
)
FIGURE_34_COMMENTARY: Final = (
    "The printed error at level 0 is 6.6e-8, which is the value of Figure 31 at n = 2048. At n = 16384 Figure 31 has "
    "3.3e-8, from which the text's ratio of 425 follows."
)


def _expected_by_levels(columns: Mapping[Key, tuple[float, ...]], base: float) -> Numbers:
    printed = _printed_numbers(columns, DEPTHS)
    return _expected_errors(printed, dict.fromkeys(printed, base), {key: int(key[1]) for key in printed})


def _level_bounds() -> Numbers:
    return {(code, k): kaporin_bound(code, k, SIZES[-1], "float32") for code, k in product(SCHEME_OF_CODE, DEPTHS)}


FIGURES_BY_LEVELS: Final = tuple(
    Figure(
        f"li-fig{number}",
        f"Li et al., Figures {number} and {number + 1}: {what} errors by levels, n = 16384",
        BY_LEVELS,
        {"measured": quantity_column(what)},
        says,
        _printed_numbers(columns, DEPTHS),
        {
            "expected": partial(_expected_by_levels, columns, base),
            **({"bound": _level_bounds} if what == "maximum" else {}),
        },
        x="levels",
        unit=f"{what} |C - I|",
    )
    for number, what, columns, base, says in (
        (32, "maximum", FIGURE_32, 3.9e-4, FIGURE_32_COMMENTARY),
        (34, "average", FIGURE_34, 3.3e-8, FIGURE_34_COMMENTARY),
    )
)


SINGLE_FIGURES: Final = (*FIGURES_BY_SIZE, *FIGURES_BY_LEVELS)


# ---- double precision

DOUBLE_SIDE: Final = 8192
DOUBLE_CODES: Final = {CPU: "", "dgemm": "", "dStrassen": "Strassen", "dWinograd": "Winograd"}
DOUBLE_DEPTH: Final = 2  # tau2 = 4096
MATRIX_COUNT: Final = 10


def _double_rows(bench: Bench, scale: float) -> Iterator[Row]:
    pair = kaporin_matrices(bench.xp, max(int(DOUBLE_SIDE * scale), 16), "float64")
    for code, method in DOUBLE_CODES.items():
        found = code_errors(bench, CPU if code == CPU else method, DOUBLE_DEPTH, pair)
        yield from ({"key": [what, code], "error": found[what]} for what in ("maximum", "average"))


def _random_errors(bench: Bench, scale: float) -> Iterator[Row]:
    """Yield the errors of ten random matrices over the mean |C|.

    They are against the classical product and against a more precise one.
    """
    n = max(int(DOUBLE_SIDE * scale), 16)
    found: dict[tuple[str, str, str], list[float]] = {}
    for seed in range(MATRIX_COUNT):
        a, b = uniform_matrices(bench.xp, bench.generator(seed), n)
        rows, classical = bench.row_by_column(a, b)
        size = float(abs(classical).mean())
        exact = precise_product(bench.xp, a[rows], b)
        results = {
            code: _method_product(bench, method, a, b)[rows] for code, method in DOUBLE_CODES.items() if code != CPU
        }
        for code, c in {CPU: classical, **results}.items():
            for against, off in (("classical", abs(c - classical)), ("exact", exact.distance(c))):
                for what, value in (("maximum", off.max()), ("average", off.mean())):
                    found.setdefault((what, code, against), []).append(float(value) / size)
    for what, code, against in found:
        values = found[what, code, against]
        if against == "classical":
            worst = max if what == "maximum" else _mean_magnitude
            yield {
                "key": [what, code],
                "error": worst(values),
                "exact": worst(found[what, code, "exact"]),
                "samples": values,
            }


def _mean_magnitude(values: list[float]) -> float:
    return sum(values) / len(values)


def _method_product(bench: Bench, method: str, a: Any, b: Any) -> Any:
    return bench.multiply(li_plan(method, DOUBLE_DEPTH) if method else VENDOR, a, b)


def _error_rows_of_methods(maximum: tuple[float, ...], average: tuple[float, ...]) -> Numbers:
    codes = list(DOUBLE_CODES)[-len(maximum) :]
    rows = {"maximum": maximum, "average": average}
    return {(what, code): x for what, values in rows.items() for code, x in zip(codes, values, strict=True)}


FIGURE_43: Final = _error_rows_of_methods((6.5e-13, 6.5e-13, 4.3e-12, 7.5e-12), (1.2e-16, 1.2e-16, 1.3e-15, 3.1e-15))
FIGURE_44: Final = _error_rows_of_methods((8.9e-16, 3.5e-14, 1.4e-14), (5.3e-17, 3.0e-15, 1.8e-15))


def _expected_double(printed: Numbers) -> Numbers:
    growth = {
        code: expected_error_growth(li_plan(method, DOUBLE_DEPTH) if method else VENDOR)
        for code, method in DOUBLE_CODES.items()
    }
    return {key: printed[key[0], "dgemm"] * growth[str(key[1])] for key in printed}


def _not_the_reference(results: Results) -> Numbers:
    return {key: x for key, x in results.numbers("error").items() if key[1] != CPU}


FIGURE_43_COMMENTARY: Final = "On this matrix Winograd's variant has about twice Strassen's printed error."
FIGURE_44_COMMENTARY: Final = (
    "The paper prints the larger error for dStrassen, unlike in Figure 43, in theory and on this device: the two "
    "columns look exchanged. The difference of dgemm and another classical product says nothing about dgemm's error, "
    "since both add up nearly the same sums in the same order. Relative to a reference of twice the precision (column "
    "`exact`), dgemm's mean error is 4 times as large, and the mean errors of the codes are 2 and 3.4 times dgemm's."
)
DOUBLE_FIGURES: Final = (
    Figure(
        "li-fig43",
        "Li et al., Figure 43: errors on Kaporin's matrix in double precision, n = 8192, tau2 = 4096",
        Experiment("li-fig43", ("error", "code"), DOUBLE_SIDE, one_part(_double_rows)),
        {"measured": quantity_column("error")},
        FIGURE_43_COMMENTARY,
        FIGURE_43,
        {"expected": partial(_expected_double, FIGURE_43)},
        x="code",
        unit="|C - I|",
    ),
    Figure(
        "li-fig44",
        "Li et al., Figure 44: errors of ten random matrices over mean |C|, n = 8192, tau2 = 4096",
        Experiment("li-fig44", ("error", "code"), DOUBLE_SIDE, one_part(_random_errors)),
        {"measured": _not_the_reference, "measured, exact": quantity_column("exact")},
        FIGURE_44_COMMENTARY,
        FIGURE_44,
        {"expected": partial(_expected_double, FIGURE_44)},
        x="code",
        unit="error / mean |C|",
    ),
)


FIGURES: Final = (*SINGLE_FIGURES, *DOUBLE_FIGURES)

"""Li, Ranka and Sahni's run times: Figures 24 to 29 and 36 to 39, their threshold tau2, and Figures 40 to 42.

fmm's own kernel plays GPU8: the leaf tile, with sums inside where the paper's kernels have them, and tile.texture for
tStrassen and tWinograd. The paper's own block (tile.gpu8) is much slower on today's chips, so only sides that take less
than seconds are measured. On a CPU the leaf is the vendor's product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Final

from benchmarks.papers.bench import Bench
from benchmarks.papers.experiment import Experiment, ExperimentPart, Key, Numbers, Results
from benchmarks.papers.figure import Figure, quantity_column
from benchmarks.papers.li_codes import FMM_CHOICE, GPU8, SCHEME_OF_CODE, SGEMM, SIZES, code_depth, li_plan, timed_part
from fmm.perfmodel.papers import li_counts
from fmm.perfmodel.papers.li_results import FIGURE_24_SECONDS, FIGURE_36_SECONDS, FIGURE_37_SPEEDUPS, reduction_curve

# ---- single precision

DEPTHS: Final = (1, 2, 3, 4)
OWN_BLOCK: Final = 4096  # largest side that is measured by the block of 2009
OWN_BLOCK_SUFFIX: Final = ", its block"


def leaf_names(on_host: bool) -> Mapping[str, str]:
    """Return the leaf of each of the paper's codes."""
    if on_host:
        return dict.fromkeys(SCHEME_OF_CODE, "vendor")
    return {
        name: "tile.texture" if name[0] == "t" else "tile" for code in SCHEME_OF_CODE for name in (code, f"t{code}")
    }


def speed_plans(n: int, on_host: bool) -> dict[Key, str]:
    """Return the plans by code and number of levels."""
    found: dict[Key, str] = {(SGEMM, 0): "vendor"}
    if not on_host:
        found[GPU8, 0] = "tile"
    for (name, leaf), depth in product(leaf_names(on_host).items(), DEPTHS):
        found[name, depth] = str(li_plan(name.removeprefix("t"), depth, leaf))
    if not on_host and n <= OWN_BLOCK:
        found[GPU8 + OWN_BLOCK_SUFFIX, 0] = "tile.gpu8"
        for name, depth in product(SCHEME_OF_CODE, (1, 2)):
            found[name + OWN_BLOCK_SUFFIX, depth] = str(li_plan(name, depth, "tile.gpu8"))
            found[f"t{name}{OWN_BLOCK_SUFFIX}", depth] = str(li_plan(name, depth, "tile.gpu8.texture"))
    return found


def _level_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    for n in SIZES:
        side = max(int(n * scale), 64)
        yield timed_part(bench, speed_plans(n, bench.on_host), n, side, "float32", (FMM_CHOICE, 0))


EXPERIMENT: Final = Experiment("li-fig36", ("code", "n", "levels"), SIZES[-1], _level_parts, ("n",))

# Figure 24 and 25, seconds at SIZES; Strassen and Winograd at their best tau2 = 4096, with texture at 2048.
FIGURE_24: Final[Mapping[tuple[str, str | int], tuple[float, ...]]] = {
    (SGEMM, "-"): (0.048, 0.373, 2.966, 23.699),
    (GPU8, "-"): (0.046, 0.361, 2.875, 22.971),
    ("Strassen", 4096): (0.046, 0.329, 2.344, 16.561),
    ("tStrassen", 2048): (0.044, 0.320, 2.276, 16.107),
    ("Winograd", 4096): (0.046, 0.328, 2.329, 16.425),
    ("tWinograd", 2048): (0.044, 0.318, 2.243, 15.846),
}


def _printed_24() -> Numbers:
    return {
        (code, tau2, n): x for (code, tau2), values in FIGURE_24.items() for n, x in zip(SIZES, values, strict=True)
    }


def _seconds_24(results: Results) -> Numbers:
    """Return the runs of Figure 24: of all runs by levels, those with the levels that tau2 gives."""
    seconds, found = results.numbers("seconds"), dict[Key, float]()
    for (code, tau2), n in product(FIGURE_24, SIZES):
        depth = code_depth(n, tau2)
        base = GPU8 if (GPU8, n, 0) in seconds else SGEMM
        key = (code, n, depth) if depth or tau2 == "-" else (base, n, 0)
        if key in seconds:
            found[code, tau2, n] = seconds[key]
    return found


def _printed_36() -> Numbers:
    """Return the printed seconds of n = 16384."""
    found: dict[Key, float] = {(SGEMM, SIZES[-1], 0): 23.699, (GPU8, SIZES[-1], 0): 22.971}
    for code, seconds, *_ in FIGURE_37_SPEEDUPS:
        found |= {(code, SIZES[-1], k): x for k, x in enumerate(seconds, 1)}
    return found


def _time_savings(seconds: Numbers) -> Numbers:
    """Return the percent of time that is saved over sgemm and over GPU8."""
    found: dict[Key, float] = {}
    for (code, n, k), x in seconds.items():
        for base in (SGEMM, GPU8):
            if k and (base, n, 0) in seconds and not str(code).endswith(OWN_BLOCK_SUFFIX):
                found[base, code, n, k] = 100 * (1 - x / seconds[base, n, 0])
        own = (f"{GPU8}{OWN_BLOCK_SUFFIX}", n, 0)
        if k and str(code).endswith(OWN_BLOCK_SUFFIX) and own in seconds:
            found[own[0], code, n, k] = 100 * (1 - x / seconds[own])
    return found


def _printed_37() -> Numbers:
    return {
        (base, code, SIZES[-1], k): float(x)
        for code, _, *both in FIGURE_37_SPEEDUPS
        for base, percents in zip((SGEMM, GPU8), both, strict=True)
        for k, x in enumerate(percents, 1)
    }


def _counted_37(what: li_counts.Quantity) -> Numbers:
    """Return the percent of GPU8's counts that each code saves."""
    return {
        (GPU8, code, n, k): float(li_counts.percent_reduction(what, SCHEME_OF_CODE[code], k, n))
        for code, n, k in product(SCHEME_OF_CODE, SIZES[1:], DEPTHS)
    }


# ---- Figures 26 to 29: the reductions in time and in counts

CURVE_FIGURES: Final = ((26, "Strassen", 4096), (27, "Winograd", 4096), (28, "Strassen", 2048), (29, "Winograd", 2048))


def _printed_curve(code: str, tau2: int) -> Numbers:
    """Return the percent from the printed seconds; for tau2 = 2048 only n = 16384 is printed."""
    method, base = SCHEME_OF_CODE[code], FIGURE_24_SECONDS["gpu8"]
    if tau2 == 4096:
        return {(n,): 100 * (1 - x / y) for n, x, y in zip(SIZES, FIGURE_24_SECONDS[method], base, strict=True)}
    return {(SIZES[-1],): 100 * (1 - FIGURE_36_SECONDS[method] / base[-1])}


def _curve_by_counts(code: str, tau2: int, which: int) -> Numbers:
    return {(row[0],): float(row[2 + which]) for row in reduction_curve(SCHEME_OF_CODE[code], tau2)}


def _curve_by_measurements(code: str, tau2: int, results: Results) -> Numbers:
    seconds, found = results.numbers("seconds"), dict[Key, float]()
    for n in SIZES:
        base, depth = (GPU8 if (GPU8, n, 0) in seconds else SGEMM, n, 0), li_counts.levels_by_threshold(n, tau2)
        own = (code, n, depth) if depth else base
        if base in seconds and own in seconds:
            found[(n,)] = 100 * (1 - seconds[own] / seconds[base])
    return found


TIME_COMMENTARY: Final = (
    "On a C1060 three to four levels save time at 16384, and the time is proportional to the volume. Products "
    "of today's devices are faster by a larger factor than their memory, so sums take a larger share of the time, and "
    "fewer levels save time."
)
FIGURE_37_COMMENTARY: Final = (
    "The printed percentages follow from the seconds of Figure 36. In this measurement fmm's own kernel replaces "
    "GPU8, and loads of the read-only path replace texture memory. With the paper's block all codes are many times "
    "slower."
)


def at_largest(key: Key) -> bool:
    """Return True for a row of the largest n, which the paper's pictures show; tables have all sizes."""
    return key[-2] == SIZES[-1]


def _counted_columns(find: Callable[[int], Numbers]) -> dict[str, Callable[[], Numbers]]:
    return {what: partial(find, i) for i, what in enumerate(li_counts.QUANTITIES)}


SINGLE_FIGURES: Final = (
    Figure(
        "li-fig24",
        "Li et al., Figures 24 and 25: run time by size, tau1 = tau2/2",
        EXPERIMENT,
        {"measured": _seconds_24},
        TIME_COMMENTARY,
        _printed_24(),
        keys=("code", "tau2", "n"),
        unit="seconds",
    ),
    *(
        Figure(
            f"li-fig{number}",
            f"Li et al., Figure {number}: percent less than GPU8, {code}, tau2 = {tau2}",
            EXPERIMENT,
            {"measured": partial(_curve_by_measurements, code, tau2)},
            TIME_COMMENTARY,
            _printed_curve(code, tau2),
            _counted_columns(partial(_curve_by_counts, code, tau2)),
            keys=("n",),
            unit="percent",
            logarithmic=False,
        )
        for number, code, tau2 in CURVE_FIGURES
    ),
    Figure(
        "li-fig36",
        "Li et al., Figure 36: run time by levels; printed are those of n = 16384",
        EXPERIMENT,
        {"measured": quantity_column("seconds")},
        TIME_COMMENTARY,
        _printed_36(),
        x="levels",
        unit="seconds",
        is_drawn=at_largest,
    ),
    Figure(
        "li-fig37",
        "Li et al., Figures 37 to 39: percent less time than sgemm and GPU8, by levels",
        EXPERIMENT,
        {"measured": lambda results: _time_savings(results.numbers("seconds"))},
        FIGURE_37_COMMENTARY,
        _printed_37(),
        {what: partial(_counted_37, what) for what in li_counts.QUANTITIES},
        keys=("over", "code", "n", "levels"),
        x="levels",
        unit="percent",
        logarithmic=False,
        is_drawn=at_largest,
    ),
)


# ---- the threshold tau2

SCANNED_TAU2: Final = (512, 1024, 2048, 4096, 8192, 16384)


def _seconds_by_tau2(results: Results) -> dict[Key, float]:
    """Return the runs by levels as a scan of tau2: 2^(k-2) tau2 < n <= 2^(k-1) tau2 gives k levels."""
    seconds, found = results.numbers("seconds"), dict[Key, float]()
    for code, n, depth in seconds:
        for tau2 in SCANNED_TAU2 if depth else ():
            if depth == li_counts.levels_by_threshold(int(n), tau2):
                found[code, n, tau2] = seconds[code, n, depth]
    return found


def _best_tau2(results: Results) -> Numbers:
    """Return the fastest threshold of each code; 2 n if the code is fastest without levels."""
    seconds, best = results.numbers("seconds"), dict[Key, tuple[float, int]]()
    for (code, n, tau2), x in _seconds_by_tau2(results).items():
        base = GPU8 if (GPU8, n, 0) in seconds else SGEMM
        own = f"{GPU8}{OWN_BLOCK_SUFFIX}" if str(code).endswith(OWN_BLOCK_SUFFIX) else base
        none = (seconds.get((own, n, 0), float("inf")), 2 * int(n))
        best[code, n] = min(best.get((code, n), none), (x, int(tau2)))
    return {key: float(tau2) for key, (_, tau2) in best.items()}


# In words: "Strassen and Winograd had best performance when tau2 = 4096, tStrassen and tWinograd when tau2 = 2048".
PRINTED_TAU2: Final[Numbers] = {
    (code, SIZES[-1]): 2048.0 if code[0] == "t" else 4096.0
    for code in ("Strassen", "tStrassen", "Winograd", "tWinograd")
}


TAU2_COMMENTARY: Final = (
    "On a C1060 four levels save time with texture memory and three levels without, so tau2 is 2048 and 4096. On "
    "today's chips one operation of a sum takes as long as tens of operations of a product, and in these codes each "
    "sum is a separate pass. Fewer levels therefore save time and tau2 is larger; if no level saves time, the table "
    "shows 2 n."
)
THRESHOLD_FIGURES: Final = (
    Figure(
        "li-tau2",
        "Li et al., section 8.1.1: run time by threshold, tau1 = tau2/2",
        EXPERIMENT,
        {"measured": _seconds_by_tau2},
        TAU2_COMMENTARY,
        keys=("code", "n", "tau2"),
        x="tau2",
        unit="seconds",
        is_drawn=at_largest,
    ),
    Figure(
        "li-tau2-best",
        "Li et al., section 8.1.1: the threshold of least time",
        EXPERIMENT,
        {"measured": _best_tau2},
        TAU2_COMMENTARY,
        PRINTED_TAU2,
        keys=("code", "n"),
        unit="tau2",
    ),
)


# ---- double precision

DOUBLE_SIZES: Final = (4096, 8192)
DOUBLE_CODES: Final = {"dgemm": "", "dStrassen": "Strassen", "dWinograd": "Winograd"}
FIGURE_40: Final = {"dgemm": (0.456, 3.634), "dStrassen": (0.404, 2.900), "dWinograd": (0.402, 2.870)}


def _double_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    for n in DOUBLE_SIZES:
        depth = li_counts.levels_by_threshold(n, 4096)
        plans: dict[Key, str] = {
            (code,): str(li_plan(method, depth)) if method else "vendor" for code, method in DOUBLE_CODES.items()
        }
        yield timed_part(bench, plans, n, max(int(n * scale), 64), "float64", (FMM_CHOICE,))


DOUBLE_EXPERIMENT: Final = Experiment("li-fig40", ("code", "n"), DOUBLE_SIZES[-1], _double_parts, ("n",))


def _over_dgemm(seconds: Numbers) -> Numbers:
    percent = {(code, n): 100 * (1 - x / seconds["dgemm", n]) for (code, n), x in seconds.items()}
    return {key: x for key, x in percent.items() if key[0] != "dgemm"}


def _printed_40() -> Numbers:
    return {(code, n): x for code, values in FIGURE_40.items() for n, x in zip(DOUBLE_SIZES, values, strict=True)}


DOUBLE_FIGURES: Final[tuple[Figure, ...]] = (
    Figure(
        "li-fig40",
        "Li et al., Figures 40 and 41: double precision, tau2 = 4096",
        DOUBLE_EXPERIMENT,
        {"measured": quantity_column("seconds")},
        "On a C2050 both codes save 20 percent at 8192. Figure 42 has the savings on this device.",
        _printed_40(),
        unit="seconds",
    ),
    Figure(
        "li-fig42",
        "Li et al., Figure 42: double precision, percent less time than dgemm",
        DOUBLE_EXPERIMENT,
        {"measured": lambda results: _over_dgemm(results.numbers("seconds"))},
        "The paper's step tables run one product after the other, and each sum is a separate pass. The plan that fmm "
        "chooses (row fmm, without emulation) forms all sums of several levels in one pass.",
        _over_dgemm(_printed_40()),
        unit="percent",
        logarithmic=False,
    ),
)


FIGURES: Final = (*SINGLE_FIGURES, *THRESHOLD_FIGURES, *DOUBLE_FIGURES)

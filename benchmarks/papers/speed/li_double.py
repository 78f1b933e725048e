"""Li, Ranka and Sahni's run times in double precision: Figures 40 to 42."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.papers.bench import Bench
from benchmarks.papers.experiment import Experiment, Key, Numbers, Part
from benchmarks.papers.figure import Figure, quantity
from benchmarks.papers.li_codes import CHOICE, li_plan, timed_part
from fmm.perfmodel.papers import li_counts

DOUBLE_SIZES: Final = (4096, 8192)
DOUBLE_CODES: Final = {"dgemm": "", "dStrassen": "Strassen", "dWinograd": "Winograd"}
FIGURE_40: Final = {"dgemm": (0.456, 3.634), "dStrassen": (0.404, 2.900), "dWinograd": (0.402, 2.870)}


def _double_parts(bench: Bench, scale: float) -> Iterator[Part]:
    for n in DOUBLE_SIZES:
        depth = li_counts.levels(n, 4096)
        plans: dict[Key, str] = {
            (code,): str(li_plan(method, depth)) if method else "vendor" for code, method in DOUBLE_CODES.items()
        }
        yield timed_part(bench, plans, n, max(int(n * scale), 64), "float64", (CHOICE,))


DOUBLE: Final = Experiment("li-fig40", ("code", "n"), DOUBLE_SIZES[-1], _double_parts, ("n",))


def _over_dgemm(seconds: Numbers) -> Numbers:
    percent = {(code, n): 100 * (1 - x / seconds["dgemm", n]) for (code, n), x in seconds.items()}
    return {key: x for key, x in percent.items() if key[0] != "dgemm"}


def _printed_40() -> Numbers:
    return {(code, n): x for code, values in FIGURE_40.items() for n, x in zip(DOUBLE_SIZES, values, strict=True)}


FIGURES: Final[tuple[Figure, ...]] = (
    Figure(
        "li-fig40",
        "Li et al., Figures 40 and 41: double precision, tau2 = 4096",
        DOUBLE,
        {"measured": quantity("seconds")},
        "On a C2050 both codes save 20 percent at 8192; here see Figure 42.",
        _printed_40(),
        unit="seconds",
    ),
    Figure(
        "li-fig42",
        "Li et al., Figure 42: double precision, percent less time than dgemm",
        DOUBLE,
        {"measured": lambda results: _over_dgemm(results.numbers("seconds"))},
        "The paper's step tables run one product after the other, each sum a pass of its own; what fmm chooses (row "
        "fmm, without emulation) forms all sums of several levels in one pass. On an H200 the tables take 1 to 9 "
        "percent longer than dgemm, and fmm's choice 6 and 19 percent less time.",
        _over_dgemm(_printed_40()),
        unit="percent",
        logarithmic=False,
    ),
)

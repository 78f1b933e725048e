"""Li, Ranka and Sahni's codes as plans, timed at one size together with fmm's own choice.

With tau1 = tau2/2, a code has as many levels as halve n down to tau1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from benchmarks.papers.bench import Bench, time_plans
from benchmarks.papers.experiment import ExperimentPart, Key, Row, products_of
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.papers.li_counts import METHOD_STEP_TABLES, levels_by_threshold
from fmm.problem import Problem

SIZES: Final = (2048, 4096, 8192, 16384)
CPU, SGEMM, GPU8 = "O(n^3) on CPU", "sgemm", "GPU8"
SCHEME_OF_CODE: Final = {"Strassen": "strassen", "Winograd": "winograd"}


def li_plan(code: str, depth: int, leaf: str = "vendor") -> Plan:
    """Return the plan of a code with this number of levels: Figure 16 or 23 outside, Figure 12 or 13 innermost."""
    if not depth:
        return Plan.parse(leaf)
    innermost, above = METHOD_STEP_TABLES[SCHEME_OF_CODE[code]]
    return Plan.parse(" > ".join([*[above] * (depth - 1), innermost, leaf]))


def code_depth(n: int, tau2: str | float) -> int:
    """Return the levels of a code at size n; 0 for a code without a threshold."""
    return levels_by_threshold(n, tau2) if isinstance(tau2, int) else 0


# ---- timing

ROUNDS: Final = 3
FMM_CHOICE: Final = "fmm"  # the name of fmm's own choice without emulation


def timed_part(bench: Bench, plans: Mapping[Key, str], n: int, side: int, dtype: str, chosen: Key) -> ExperimentPart:
    """Return the part of the experiment that times all plans at the paper's size n; `chosen` is the key of
    fmm's own choice."""
    products = products_of(map(Plan.parse, plans.values()), side, dtype)
    rows = partial(_timed_rows, bench, plans, n, Problem(side, side, side, dtype), chosen)
    return ExperimentPart((n,), rows, products, 2.0 * side**3 * (len(plans) + 1) * (ROUNDS + 1))


def _timed_rows(bench: Bench, plans: Mapping[Key, str], n: int, problem: Problem, chosen: Key) -> Iterator[Row]:
    """Yield a row for each plan: the seconds of the rounds, or the reason why the plan failed."""
    own, side, rng = bench.choose_plan(problem, emulation=False), problem.n, bench.generator(problem.n)
    plans = {**plans, chosen: str(own)}
    bench.prepare([(own, problem)])
    a, b = (bench.to_storage_type(rng.standard_normal((side, side)), problem.dtype) for _ in range(2))
    names = {str(name): name for name in plans}
    seconds, failed = time_plans(bench, {str(name): text for name, text in plans.items()}, a, b, ROUNDS)
    for name, (code, *more) in names.items():
        said = {"seconds": seconds[name]} if name in seconds else {"failed": failed[name]}
        yield {"key": [code, n, *more], "plan": plans[names[name]], "side": side, **said}

"""A part of Li, Ranka and Sahni's run times: all codes at one size in turns, and beside them what fmm chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from benchmarks.papers.bench import Bench, time_plans
from benchmarks.papers.experiment import Key, Part, Row, products_of
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

ROUNDS: Final = 3
CHOICE: Final = "fmm"  # what fmm chooses itself, without emulation


def timed_part(bench: Bench, plans: Mapping[Key, str], n: int, side: int, dtype: str, chosen: Key) -> Part:
    """All plans at the paper's size n, in turns, and under the key `chosen` what fmm chooses."""
    products = products_of(map(Plan.parse, plans.values()), side, dtype)
    rows = partial(_timed_rows, bench, plans, n, Problem(side, side, side, dtype), chosen)
    return Part((n,), rows, products, 2.0 * side**3 * (len(plans) + 1) * (ROUNDS + 1))


def _timed_rows(bench: Bench, plans: Mapping[Key, str], n: int, problem: Problem, chosen: Key) -> Iterator[Row]:
    """A row for each plan: seconds of the rounds, or why there are none."""
    own, side, rng = bench.chosen(problem, emulation=False), problem.n, bench.generator(problem.n)
    plans = {**plans, chosen: str(own)}
    bench.prepare([(own, problem)])
    a, b = (bench.stored(rng.standard_normal((side, side)), problem.dtype) for _ in range(2))
    names = {str(name): name for name in plans}
    seconds, failed = time_plans(bench, {str(name): text for name, text in plans.items()}, a, b, ROUNDS)
    for name, (code, *more) in names.items():
        said = {"seconds": seconds[name]} if name in seconds else {"failed": failed[name]}
        yield {"key": [code, n, *more], "plan": plans[names[name]], "side": side, **said}

"""Times of calls on a bench: all of them in shuffled rounds, so that a device's drift hits all alike."""

from __future__ import annotations

import random
from collections.abc import Mapping

from benchmarks.papers.bench import Array, Bench, Call
from fmm.kernels.plans.plan import Plan, PlanError

LONG = 2e-2  # seconds from which on a call takes longer than what may disturb its first timing
SHORTEST = 2e-3  # seconds of a sample: shorter calls are repeated


def timed_in_turns(bench: Bench, calls: Mapping[str, Call], rounds: int, seed: int = 0) -> dict[str, list[float]]:
    """Seconds of each in shuffled rounds, so that a device's drift hits all alike."""
    names, found = list(calls), {name: [0.0] * 0 for name in calls}
    first = {name: bench.seconds(calls[name], 1) for name in names}
    repeats = {name: max(int(SHORTEST / max(x, 1e-7)), 1) for name, x in first.items()}
    shuffled = random.Random(seed)
    if min(first.values(), default=0) > LONG:
        found, rounds = {name: [x] for name, x in first.items()}, rounds - 1  # that was the first round
    for _ in range(rounds):
        shuffled.shuffle(names)
        for name in names:
            found[name].append(bench.seconds(calls[name], repeats[name]))
    return found


def time_plans(
    bench: Bench, plans: Mapping[str, str], a: Array, b: Array, rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of each plan that runs, and why the others do not."""
    calls: dict[str, Call] = {}
    failed: dict[str, str] = {}
    for name, text in plans.items():
        try:
            calls[name] = bench.call(Plan.parse(text), a, b)
        except (PlanError, MemoryError) as error:
            failed[name] = str(error)
    return timed_in_turns(bench, calls, rounds), failed


def vendor_speed(bench: Bench, side: int) -> float:
    """Flops a second of the vendor's float64 product of this side, warm."""
    rng = bench.generator(0)
    a, b = rng.standard_normal((side, side)), rng.standard_normal((side, side))
    seconds, _ = time_plans(bench, {"vendor": "vendor"}, a, b, 3)
    bench.free()
    return float(2 * side**3 / min(seconds["vendor"]))

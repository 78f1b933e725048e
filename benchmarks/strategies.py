"""Regret and search strategies: `python -m benchmarks.strategies [--device cpu] [--dtype float64] [--config PATH]`.

Every candidate is measured on shapes that no fit saw. Then it is asked how much slower than the best the model's choice
is, and how many measurements each strategy needs until it has seen a plan within 1 % of the best: the model's order,
Optuna's TPE, random order, the grid's order. The strategies are run on the recording, so all have the same numbers.

A plan's regret is the median of its seconds over another's in the same rounds, for the plan where that is most. The
most of many medians is above 1 by chance alone. So it is told as well what a perfect choice would show, and how much
slower the model's choice is in a round than what is best in all others.
With `--recorded` nothing is measured: another calibration is judged by the samples of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, median
from typing import Any

from fmm.config import certify, files, schema
from fmm.config.identity import Identity
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, choose, default_error_growth, rank_candidates
from fmm.problem import Problem
from fmm.tuner.device_registry import chosen_devices
from fmm.tuner.devices.device import Device, Effort, Run
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.search.certify import paired_samples
from fmm.tuner.search.race import explored_plans, within_limits
from fmm.tuner.search.space import choices_of_plans, device_space
from fmm.tuner.stages import shapes
from fmm.tuner.stages.probes import find_scale
from fmm.tuner.trials.environment import environment, source_commit, typed_command
from fmm.tuner.trials.journal import Journal, RoundLimits
from fmm.tuner.trials.record import Header, Size, Trial, Trials
from fmm.tuner.tune import output_path

ROOT = Path(__file__).parents[1]
STAGE, SEED, CLOSE = "exhaustive", 29, 1.01
REPEATS = 20  # runs of a strategy that is a matter of chance, unless told
PERFECT = 100  # how often a perfect choice is judged

Seconds = Mapping[Plan, Sequence[float]]  # of every plan in the same rounds
Speedups = Mapping[Plan, float]
Strategy = Callable[[Problem, int], Iterable[Plan]]


@dataclass(frozen=True)
class Row:
    """One shape: every plan's seconds, round by round, and the model's choice."""

    size: Size
    seconds: Seconds
    model: Plan

    @cached_property
    def speedups(self) -> Speedups:
        """Over the vendor's product."""
        return {plan: _faster(self.seconds[VENDOR], own) for plan, own in self.seconds.items()}

    @property
    def best(self) -> float:
        return max(self.speedups.values())

    def regret(self, plan: Plan) -> float:
        """How much longer it takes than the plan that it is slowest beside, in the same rounds."""
        return max(_faster(self.seconds[plan], other) for other in self.seconds.values()) - 1

    def confirmed(self, plan: Plan) -> float:
        """How much longer it takes in a round than what is best in all others: no plan's luck counts."""
        found = []
        for at, own in enumerate(self.seconds[plan]):
            others = {p: [s for i, s in enumerate(x) if i != at] for p, x in self.seconds.items()}
            best = max(others, key=lambda p: _faster(others[plan], others[p]))
            found.append(own / self.seconds[best][at] - 1)
        return median(found)

    def again(self, rng: random.Random) -> Row:
        """The shape as it might be measured again: medians as they are, the rounds' scatter about them by chance."""
        rounds = range(len(self.seconds[VENDOR]))
        middle = {p: median(map(log, own)) for p, own in self.seconds.items()}
        drift = [median(log(own[i]) - middle[p] for p, own in self.seconds.items()) for i in rounds]
        more = sqrt(len(rounds) / max(len(rounds) - 1, 1))  # of so few the scatter is seen too small
        found = {}
        for p, own in self.seconds.items():
            rest = [log(own[i]) - middle[p] - drift[i] for i in rounds]
            found[p] = [exp(middle[p] + more * (rng.choice(rest) - mean(rest))) for _ in rounds]
        return Row(self.size, found, min(middle, key=lambda p: middle[p]))


def _faster(base: Sequence[float], own: Sequence[float]) -> float:
    return median(certify.paired_ratios(base, own))


def measured(journal: Journal, problem: Problem, plans: Iterable[Plan], rounds: int) -> Seconds:
    """Every plan, in shuffled rounds with the vendor."""
    runs = [Run(p) for p in plans if p == VENDOR or within_limits(journal.device, p, problem)]
    with journal.open(STAGE, problem) as timed:
        samples = timed.rounds(runs, RoundLimits(rounds))
    return {run.plan: samples[run] for run in runs if samples[run]}


def rows(
    journal: Journal, dtype: str, sizes: Iterable[Size], calibration: Calibration, rounds: int, every: bool
) -> Iterator[Row]:
    device = journal.device
    plans, limits = list(device.candidates()), Limits(device.memory, default_error_growth(calibration.batches))
    if every:
        plans += [p for p in _space(device) if p not in plans]
    for size in sizes:
        problem = Problem(*size, dtype)
        found = measured(journal, problem, plans, rounds)
        model = choose(problem, calibration, limits).best.plan
        yield Row(size, found, model if model in found else VENDOR)


def recalled(trials: Sequence[Trial], dtype: str, calibration: Calibration, device: Device) -> Iterator[Row]:
    """The rows of an earlier run: every plan that has all its rounds, in the vendor's."""
    limits = Limits(device.memory, default_error_growth(calibration.batches))
    trials = [t for t in trials if (t.stage, t.dtype) == (STAGE, dtype)]
    for size in dict.fromkeys(t.size for t in trials):
        pairs = list(paired_samples([t for t in trials if t.size == size]))
        rounds = max((len(own) for *_, own in pairs), default=0)
        found = dict([(VENDOR, base) for _, base, _ in pairs if len(base) == rounds][:1])
        found |= {Plan.parse(p): own for p, _, own in pairs if len(own) == rounds}
        model = choose(Problem(*size, dtype), calibration, limits).best.plan
        if VENDOR in found:
            yield Row(size, found, model if model in found else VENDOR)


def _space(device: Device) -> list[Plan]:
    return list(choices_of_plans(tuple((name, tuple(values)) for name, values in device_space(device).items())))


# ---- strategies


def strategies(device: Device, calibration: Calibration, speedups: Mapping[Problem, Speedups]) -> dict[str, Strategy]:
    """Each gives the plans of a problem in the order in which it would measure them."""

    def plans(problem: Problem) -> list[Plan]:
        return [p for p in speedups[problem] if p != VENDOR]

    def model(problem: Problem, seed: int) -> Iterable[Plan]:
        return [c.plan for c in rank_candidates(problem, calibration, plans(problem))]

    def grid(problem: Problem, seed: int) -> Iterable[Plan]:
        return sorted(plans(problem), key=str)

    def shuffled(problem: Problem, seed: int) -> Iterable[Plan]:
        return random.Random(seed).sample(plans(problem), len(plans(problem)))

    def tpe(problem: Problem, seed: int) -> Iterator[Plan]:
        import optuna

        seen: dict[Plan, float] = {}
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=4)
        for plan in explored_plans(device, problem, seen, 20 * len(plans(problem)), sampler):
            known = speedups[problem].get(plan)
            seen[plan] = known if known is not None else 0.0  # not among those measured: costs nothing here
            if known is not None:
                yield plan
        yield from (p for p in plans(problem) if p not in seen)

    return {"model": model, "tpe": tpe, "random": shuffled, "grid": grid}


def needed(order: Iterable[Plan], speedups: Speedups) -> int:
    """Measurements until a plan within 1 % of the best was seen; the vendor is measured anyway."""
    best = max(speedups.values())
    if speedups[VENDOR] * CLOSE >= best:
        return 0
    count = 0
    for plan in order:
        count += 1
        if speedups[plan] * CLOSE >= best:
            return count
    return count


def compared(
    device: Device, calibration: Calibration, dtype: str, found: list[Row], repeats: int = REPEATS
) -> dict[str, Any]:
    """Mean and worst number of measurements of every strategy, over the shapes where a plan beats the vendor."""
    speedups = {Problem(*row.size, dtype): row.speedups for row in found}
    contested = [p for p, s in speedups.items() if needed(s, s)]
    result: dict[str, Any] = {"shapes": len(contested)}
    for name, strategy in strategies(device, calibration, speedups).items():
        seeds = range(repeats if name in ("tpe", "random") else 1)
        counts = [needed(strategy(p, seed), speedups[p]) for p in contested for seed in seeds]
        result[name] = {"mean": mean(counts), "worst": max(counts)} if counts else None
    return result


# ---- the command


def summary(found: list[Row]) -> dict[str, Any]:
    regrets = [row.regret(row.model) for row in found]
    return {
        "shapes": len(found),
        "rounds": min(len(row.seconds[VENDOR]) for row in found),
        **_mean_and_worst(regrets),
        "share_of_best": mean(1 / (1 + r) for r in regrets),
        "by_speedups": _mean_and_worst([row.best / row.speedups[row.model] - 1 for row in found]),
        "confirmed": _mean_and_worst([row.confirmed(row.model) for row in found]),
        "of_a_perfect_choice": _perfect(found),
    }


def _mean_and_worst(regrets: Sequence[float]) -> dict[str, float]:
    return {"mean": mean(regrets), "worst": max(regrets)}


def _perfect(found: Sequence[Row]) -> dict[str, float]:
    """The regret of the plan that is best, were all measured again: what chance alone shows, in the typical case."""
    rng = random.Random(SEED)
    runs = [[again.regret(again.model) for again in (row.again(rng) for row in found)] for _ in range(PERFECT)]
    return {"mean": median(map(mean, runs)), "worst": median(map(max, runs))}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--config", type=Path, help="the calibration to judge (the one that fmm reads)")
    parser.add_argument("--shapes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=180, help="what the measurements take, about")
    parser.add_argument(
        "--every", action="store_true", help="every plan of the search's space, not only the candidates"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs of TPE and of random order")
    parser.add_argument("--output", type=Path, default=ROOT / "results")
    parser.add_argument(
        "--recorded", type=Path, metavar="FOLDER", help="measure nothing: judge its config.json by its samples"
    )
    options = parser.parse_args(arguments)
    judged = _judged(options) if options.recorded else _run(options)
    report = {
        "environment": judged.where,
        "dtype": options.dtype,
        "regret": summary(judged.rows),
        "measurements_to_within_1_percent": compared(
            judged.device, judged.calibration, options.dtype, judged.rows, options.repeats
        ),
        "rows": [_as_dict(row) for row in judged.rows],
    }
    path = judged.folder / f"regret-{options.dtype}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: report[k] for k in ("regret", "measurements_to_within_1_percent")}, indent=1))
    return 0


@dataclass(frozen=True)
class Judged:
    """A calibration on a device, what was measured there, and where that is kept."""

    device: Device
    calibration: Calibration
    rows: list[Row]
    where: Mapping[str, Any]
    folder: Path


def _run(options: argparse.Namespace) -> Judged:
    device = chosen_devices(options.device)[0]
    calibration = _calibration(options, device.identity)
    folder = options.output / device.identity.key
    trials = Trials(folder / f"exhaustive-{options.dtype}.jsonl")
    where = environment(typed_command()) if device.identity.key.startswith("cpu") else _said()
    settings = {"dtype": options.dtype, "seed": SEED}
    versions = dict(device.identity.versions)
    past = [t for tuning in trials.tunings() for t in tuning.trials]  # an interrupted run goes on where it was
    if not past:
        trials.header(Header("exhaustive", device.identity.key, versions, where, settings, where["command"], ""))
    journal = Journal("exhaustive", device, past, trials.add)
    plans = len(_space(device)) if options.every else len(device.candidates())
    effort = Effort(options.seconds, 1e9, options.rounds, options.shapes, 0, 0, 0)
    side = find_scale(journal, options.dtype, effort)
    sizes = shapes.scattered_shapes(side, effort, 3 / plans, SEED)
    found = []
    with device.ahead([options.dtype]):
        for row in rows(journal, options.dtype, sizes, calibration, options.rounds, options.every):
            found.append(row)
            print(_line(row), flush=True)
    return Judged(device, calibration, found, {**where, **versions}, folder)


def _judged(options: argparse.Namespace) -> Judged:
    options.config = options.recorded / files.FILE
    ((key, types),) = files.read_config(options.config).items()
    section = types[options.dtype]
    identity = Identity(key, section["conditions"]["device"], section["versions"])
    calibration = _calibration(options, identity)
    device = SimulatedDevice(calibration, identity=identity, memory=1 << 62, gpu=calibration.batches)  # it is not here
    tunings = Trials(options.recorded / f"exhaustive-{options.dtype}.jsonl").tunings()
    trials = [t for tuning in tunings for t in tuning.trials]
    found = list(recalled(trials, options.dtype, calibration, device))
    print(*map(_line, found), sep="\n")
    measured_by = {"measured": [tuning.header.command for tuning in tunings]}
    return Judged(device, calibration, found, {**_said(), **measured_by, **identity.versions}, options.recorded)


def _said() -> dict[str, Any]:
    return {"command": " ".join(typed_command()), "commit": source_commit()}


def _calibration(options: argparse.Namespace, identity: Identity) -> Calibration:
    raw = files.read_config(output_path(options.config))[identity.key][options.dtype]
    found = schema.read_section(raw, options.dtype, identity, options.dtype).calibration
    assert found is not None, "the config has no calibration"
    return found


def _as_dict(row: Row) -> dict[str, Any]:
    speedups = {str(p): round(s, 4) for p, s in row.speedups.items()}
    return {"size": row.size, "model": str(row.model), "regret": row.regret(row.model), "speedups": speedups}


def _line(row: Row) -> str:
    best = max(row.speedups, key=lambda p: row.speedups[p])
    typical = median(row.speedups.values())
    return (
        f"{' x '.join(map(str, row.size)):22} best {row.best:.3f} (median plan {typical:.3f}), "
        f"model {row.speedups[row.model]:.3f}, regret {row.regret(row.model):.2%}  {best} / {row.model}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

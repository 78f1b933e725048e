"""Regret on shapes that no fit saw: `python -m benchmarks.regret [--device 0] [--dtype float32] [--time-limit 300]`.

What `fmm.matmul` does after a tuning, beside the best of all plans that it compared, and the vendor's product, all
through the public call. Shapes are drawn by a seed that comes from the tuned config itself, after the model is frozen:
`large` (sides from 1024 up to 8192 on a CPU, 20000 on a GPU), `middle` (1024 to 4096), `thin` (one side of 128 to
1024); half of each have odd sides. Each shape's samples are a line of results/<device>/held-out.jsonl; what is on
record there under the same config is not measured again, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from statistics import mean, median
from typing import Any, Protocol

import numpy as np

import fmm
from fmm.config import environment as settings
from fmm.config import files, locate
from fmm.kernels.plans.candidates import candidate_plans
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.work import estimated_work
from fmm.problem import Problem
from fmm.tuner.environment import device_folder, environment

ROOT = Path(__file__).parents[1]
FILE = "held-out.jsonl"
LEAST, MIDDLE, THIN = 1024, 4096, 128  # sides
COUNTS = {"large": 20, "middle": 60, "thin": 30}
TYPES = {"cpu": ("float64", "float32"), "cuda": ("float32", "float64", "bfloat16")}
LARGEST = {"cpu": 8192, "cuda": 20000}
SMALLEST_LEAF = 256  # the shortest side of the products of plans that are tried
SAMPLE = 4e-3  # seconds of a sample, at least
CLOSE = 1.2  # a plan that takes so many times as long as the best in the first rounds is measured no more
CALLS = ("vendor", "default")  # that are measured whatever they take
Size = tuple[int, int, int]
Seconds = Mapping[str, Sequence[float]]  # of what was called, round by round


@dataclass(frozen=True)
class Row:
    """A shape: what was chosen, and the seconds of the default call, of the vendor's and of every plan, by rounds."""

    config: int  # the number of the tuned config under which it was measured
    dtype: str
    kind: str
    size: Size
    chosen: str
    step: str
    seconds: Seconds

    @property
    def speedup(self) -> float:
        """Of the default call over the vendor's."""
        return paired(self.seconds["vendor"], self.seconds["default"])

    @property
    def best(self) -> str:
        """The call that was fastest beside the vendor's."""
        return max(self.whole, key=lambda name: paired(self.seconds["vendor"], self.seconds[name]))

    @property
    def share_of_best(self) -> float:
        """The default call's speed as a share of the best plan's, in the same rounds; 1 if it is the best itself."""
        if self.best == self.chosen:
            return 1.0
        return min(paired(self.seconds[self.best], self.seconds["default"]), 1.0)

    @property
    def whole(self) -> list[str]:
        """What was called in every round."""
        rounds = len(self.seconds["vendor"])
        return [name for name, own in self.seconds.items() if len(own) == rounds]


def paired(base: Sequence[float], own: Sequence[float]) -> float:
    return median(b / o for b, o in zip(base, own, strict=True))


# ---- shapes


def drawn_shapes(kind: str, count: int, largest: int, seed: int) -> Iterator[Size]:
    """Sides spread evenly by logarithm, half of the shapes with odd ones; the same for one seed."""
    rng = random.Random(f"{kind} {seed}")
    least, most = min(LEAST, largest), min(MIDDLE if kind == "middle" else largest, largest)
    for i in range(count):
        sides = [math.exp(rng.uniform(math.log(least), math.log(most))) for _ in range(3)]
        if kind == "thin":
            sides[rng.randrange(3)] = math.exp(rng.uniform(math.log(min(THIN, least)), math.log(least)))
        m, k, n = (int(x) | 1 if i % 2 else max(int(x) // 16 * 16, 16) for x in sides)
        yield m, k, n


def config_number(path: Path) -> int:
    """Another one for every config: who draws by it cannot have seen the shapes while the model was fitted."""
    return zlib.crc32(path.read_bytes())


# ---- machines


class Machine(Protocol):
    """Where products are timed."""

    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
        """Random normal matrices, and the product of the library that they belong to."""

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        """Of one of so many calls."""

    def plans(self, size: Size, dtype: str) -> list[Plan]:
        """Everything that is ever compared there, but for plans of tiny products."""

    def forget(self) -> None:
        """Give memory back."""


def plans_on(processor: str, size: Size, dtype: str) -> list[Plan]:
    found = []
    for plan in candidate_plans(processor):
        with suppress(PlanError):
            work = estimated_work(plan, Problem(*size, dtype))
            if plan.considered_for(dtype) and (not plan.levels or work.smallest >= SMALLEST_LEAF):
                found.append(plan)
    return found


class Cpu:
    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
        rng, (m, k, n) = np.random.default_rng(list(size)), size
        kind: Any = dtype
        a, b = rng.standard_normal((m, k), dtype=kind), rng.standard_normal((k, n), dtype=kind)
        return a, b, np.matmul

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats

    def plans(self, size: Size, dtype: str) -> list[Plan]:
        return plans_on("cpu", size, dtype)

    def forget(self) -> None:
        fmm.release_workspace()


class Gpu:
    """CuPy's arrays, and torch's tensors for bfloat16."""

    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
        m, k, n = size
        if dtype == "bfloat16":
            import torch

            a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
            return a, b, torch.matmul
        import cupy

        a, b = (cupy.random.standard_normal(shape, dtype=dtype) for shape in ((m, k), (k, n)))
        return a, b, cupy.matmul

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        from benchmarks.clock import elapsed

        return elapsed(call, repeats)

    def plans(self, size: Size, dtype: str) -> list[Plan]:
        return plans_on("cuda", size, dtype)

    def forget(self) -> None:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


# ---- measuring


def measured(machine: Machine, size: Size, dtype: str, rounds: int) -> tuple[fmm.Decision, Seconds]:
    """The default call, the vendor's and every plan that was considered, in shuffled rounds; far slower ones leave."""
    a, b, vendor = machine.operands(size, dtype)
    decision = fmm.explain(a, b)
    calls: dict[str, Callable[[], object]] = {"vendor": partial(vendor, a, b), "default": partial(fmm.matmul, a, b)}
    plans = dict.fromkeys([decision.plan, *(c.plan for c in decision.considered), *machine.plans(size, dtype)])
    calls |= {str(p): partial(fmm.matmul, a, b, plan=p) for p in plans if p != VENDOR}
    samples: dict[str, list[float]] = {}
    for name, call in list(calls.items()):  # the first call compiles, and asks for memory
        try:
            call()
            samples[name] = [machine.seconds(call, 1)]
        except (MemoryError, RuntimeError, ValueError) as error:  # a plan that fails is left out
            print(f"  {name}: {error}"[:150], file=sys.stderr)
            if name in CALLS:
                raise
    repeats = max(int(SAMPLE / samples["vendor"][0]), 1)
    best = min(own[0] for own in samples.values())
    fastest = min((x for x in samples if x not in CALLS), key=lambda x: samples[x][0], default="")
    kept = [x for x, own in samples.items() if x in (*CALLS, fastest) or own[0] <= CLOSE * best]
    found: dict[str, list[float]] = {name: [] for name in kept}
    for _ in range(rounds):
        for name in random.sample(kept, len(kept)):
            found[name].append(machine.seconds(calls[name], repeats))
    return decision, found


def measured_rows(
    machine: Machine, wanted: Sequence[tuple[str, str, Size]], config: int, rounds: int, until: float
) -> Iterator[Row]:
    """Until the time is up."""
    for dtype, kind, size in wanted:
        if time.monotonic() > until:
            return
        decision, found = measured(machine, size, dtype, rounds)
        machine.forget()
        yield Row(config, dtype, kind, size, str(decision.plan), decision.step, found)


def recorded_rows(path: Path, config: int) -> list[Row]:
    """What is on record under this config; a torn last line is ignored."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            raw = json.loads(line)
        except ValueError:
            continue
        if raw.get("config") == config:
            found.append(Row(**{**raw, "size": tuple(raw["size"])}))
    return found


# ---- what it comes to


def summary(rows: Sequence[Row]) -> dict[str, float | int]:
    """Of shapes of one type and kind."""
    shares, speedups = [row.share_of_best for row in rows], [row.speedup for row in rows]
    return {
        "shapes": len(rows),
        "by_plans": sum(row.chosen != "vendor" for row in rows),
        "worth_a_plan": sum(row.best not in ("vendor", "default") for row in rows),
        "mean_share_of_best": mean(shares),
        "least_share_of_best": min(shares),
        "mean_speedup": mean(speedups),
        "least_speedup": min(speedups),
    }


def summaries(rows: Sequence[Row]) -> Iterator[str]:
    for dtype, kind in dict.fromkeys((row.dtype, row.kind) for row in rows):
        s = summary([row for row in rows if (row.dtype, row.kind) == (dtype, kind)])
        yield (
            f"{dtype:9} {kind:7} {s['shapes']:3} shapes, {s['by_plans']} by plans ({s['worth_a_plan']} worth one): "
            f"{s['mean_share_of_best']:.3f} of the best plan's speed, {s['least_share_of_best']:.3f} at least; "
            f"{s['mean_speedup']:.3f} times the vendor's, {s['least_speedup']:.3f} at least"
        )


def line(row: Row) -> str:
    shape = " x ".join(map(str, row.size))
    return (
        f"{row.dtype:9} {row.kind:7} {shape:22} {row.speedup:6.3f}  {row.share_of_best:.3f} of {row.best}"
        f"{'' if row.best == row.chosen else f' / {row.chosen}'} ({row.step})"
    )


# ---- the command


def arguments_of(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu (unless given), or the number of a CUDA device")
    parser.add_argument("--dtype", action="append", help="only this type (may be repeated)")
    parser.add_argument("--kind", choices=COUNTS, action="append", help="only these shapes (may be repeated)")
    parser.add_argument("--count", type=int, help="shapes of each kind and type")
    parser.add_argument("--largest", type=int, help="side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, help="(the config's own number unless given)")
    parser.add_argument("--time-limit", type=float, default=300, help="seconds after which no shape is begun")
    parser.add_argument("--config", type=Path, help="the tuned config (the one that fmm reads)")
    parser.add_argument("--output", type=Path, help="a folder (results/<device>/ unless given)")
    return parser.parse_args(given)


def wanted_shapes(options: argparse.Namespace, processor: str, seed: int) -> Iterator[tuple[str, str, Size]]:
    """Types and kinds in turn, so that a run that is cut short has some of each."""
    largest = options.largest or LARGEST[processor]
    lists = [
        [(dtype, kind, size) for size in drawn_shapes(kind, options.count or COUNTS[kind], largest, seed)]
        for kind in options.kind or COUNTS
        for dtype in options.dtype or TYPES[processor]
    ]
    yield from (x for x in chain.from_iterable(zip_longest(*lists)) if x is not None)


def main(arguments: list[str]) -> int:
    options = arguments_of(arguments)
    if options.config:
        os.environ["FMM_CONFIG"] = str(options.config)
        files.forget_configs()
    processor = "cpu" if options.device == "cpu" else "cuda"
    paths = locate.search_path(os.environ.get("FMM_CONFIG", ""))
    path = next((found for found in paths if found.exists()), paths[0])
    if not path.exists() or settings.tuning_mode() == "off":
        print(f"there is no tuned config {path}: run `fmm-tune --device {options.device}` first", file=sys.stderr)
        return 2
    number = config_number(path)
    folder = options.output or _folder(processor)
    folder.mkdir(parents=True, exist_ok=True)
    known = recorded_rows(folder / FILE, number)
    done = {(row.dtype, row.kind, row.size) for row in known}
    seed = number if options.seed is None else options.seed
    wanted = list(wanted_shapes(options, processor, seed))
    machine: Machine = Cpu() if processor == "cpu" else Gpu()
    left = [x for x in wanted if x not in done]
    with (folder / FILE).open("a", encoding="utf-8") as file:
        _write(file, {"environment": _environment(processor), "settings": {"seed": seed}})
        for row in measured_rows(machine, left, number, options.rounds, time.monotonic() + options.time_limit):
            known.append(row)
            _write(file, asdict(row))
            print(line(row), flush=True)
    print(*summaries([row for row in known if (row.dtype, row.kind, row.size) in set(wanted)]), sep="\n")
    return 0


def _write(file: Any, what: Mapping[str, Any]) -> None:
    file.write(json.dumps(what) + "\n")
    file.flush()


def _folder(processor: str) -> Path:
    if processor == "cpu":
        return ROOT / "results" / device_folder()
    from benchmarks.gpu import results_folder

    return results_folder()


def _environment(processor: str) -> Mapping[str, Any]:
    if processor == "cpu":
        return environment(["python -m benchmarks.regret", *sys.argv[1:]])
    from benchmarks.gpu import environment as of_gpu

    return of_gpu()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

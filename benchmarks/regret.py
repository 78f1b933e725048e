"""Regret on shapes that no fit saw: `python -m benchmarks.regret [--device 0] [--dtype float32] [--time-limit 300]`.

What `fmm.matmul` does after a tuning, beside the best of all plans that were tried, and the vendor's product, all
through the public call. Shapes are drawn by a seed that comes from the tuned config itself, after the model is frozen:
`middle` (sides from 1024 to 4096), `thin` (one side of 128 to 1024), `large` (3000 to 8192 on a CPU, where plans have
something to gain, 1024 to 20000 on a GPU) and, on a CPU, `gram` (real matrices by their transposes, sides as of large
ones); half of each have odd sides. On a CPU large complex ones have sides 0.63 as long: each is four times the work.
`float32-ieee` and `float64-ieee` are these types with FMM_EMULATION=0.

Of every *family* (so many products at each level, and the leaf) the plan is tried that the model likes best, unless it
predicts far more time than for the best of all; of the first family, two more. `--all` tries every candidate. Each
shape's samples are a line of results/<device>/held-out.jsonl; what is on record there under the same config is not
measured again, so a run that was stopped goes on where it was, and has measured as many shapes of each type and kind.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import fmm
from benchmarks.held_out import (
    CALLS,
    COUNTS,
    FILE,
    HALVES,
    LARGEST,
    LEAST,
    LEAST_LARGE,
    OWN,
    TYPES,
    Row,
    Size,
    config_number,
    drawn_shapes,
    recorded_rows,
    summaries,
)
from fmm.config import environment as settings
from fmm.config import files, locate
from fmm.dtypes import DTYPES
from fmm.kernels.plans.candidates import candidate_plans, half_candidates
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.choose import Limits, usual_growth
from fmm.perfmodel.stability import expected_growth
from fmm.perfmodel.work.estimate import estimated_work
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision, decide
from fmm.runtime.devices import cuda_device
from fmm.tuner.devices.compile_ahead import call_jobs, working_ahead
from fmm.tuner.trials.environment import device_folder, environment

ROOT = Path(__file__).parents[1]
SMALLEST_LEAF = 256  # the shortest side of the products of plans that are tried
SAMPLE = 3e-3  # seconds of a sample, at least
WARM = 4  # calls before short products are timed: by then a recurring one is a graph
CLOSE = 1.15  # a plan that takes so many times as long as the best in the first round is measured no more
MORE = 2  # plans of the first family
FAR = 1.35  # times the least predicted time: beyond, a plan is not tried
PATIENCE = 4.0  # seconds of first calls, which compile, after which no other plan is tried on a shape
COMPILING = 25.0  # seconds that are waited for compilers before anything is measured, unless told
ROOM = 32 << 30  # bytes of workspace that a plan may need whose kernels are compiled
AHEAD = 240  # shapes for which they work: more are not measured in a minute
SHORTER = 4 ** (-1 / 3)  # sides of complex products that are as much work as real ones
DIGITS = 5  # of the seconds that are kept

Shape = tuple[str, str, Size]  # type, kind, sides


# ---- machines


class Machine(Protocol):
    """Where products are timed."""

    def as_type(self, dtype: str) -> AbstractContextManager[object]:
        """Meanwhile numbers are of this type."""

    patience: float  # seconds of first calls after which no other plan is tried on a shape
    most: int  # plans that are tried on a shape

    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
        """Random normal matrices, and the product of the library that they belong to."""

    def place(self, a: Any, b: Any) -> Mapping[str, Any]:
        """Where every call is to put its result, if that is not to be a new array."""

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        """Of one of so many calls."""

    def make_ready(self, wanted: Sequence[Shape], seconds: float, whole: bool) -> None:
        """Compile what will be called on these shapes, for so long at most."""

    def forget(self) -> None:
        """Give memory back."""


class Cpu:
    patience, most = math.inf, 4  # nothing is compiled; a product can take many seconds

    def as_type(self, dtype: str) -> AbstractContextManager[object]:
        return nullcontext()

    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
        rng, (m, k, n) = np.random.default_rng(list(size)), size
        real: Any = DTYPES[dtype].real or dtype
        parts = 2 if DTYPES[dtype].is_complex else 1
        a, b = (rng.standard_normal((rows, parts * cols), dtype=real).view(dtype) for rows, cols in ((m, k), (k, n)))
        return a, b, np.matmul

    def place(self, a: Any, b: Any) -> Mapping[str, Any]:
        """One array for all: on a virtual machine fresh pages can take as long as the product."""
        return {"out": np.zeros((len(a), b.shape[1]), a.dtype)}

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats

    def make_ready(self, wanted: Sequence[Shape], seconds: float, whole: bool) -> None:
        pass

    def forget(self) -> None:
        """What is kept is used again: fresh pages take as long as a product."""


class Gpu:
    """CuPy's arrays, and torch's tensors for bfloat16."""

    patience, most = PATIENCE, 1000

    @contextmanager
    def as_type(self, dtype: str) -> Iterator[None]:
        import cupy

        before = os.environ.get("FMM_EMULATION")
        try:
            cupy._core.set_compute_type(cupy.float32, 7 if dtype == "tf32" else 1)
            os.environ["FMM_EMULATION"] = "0" if dtype.endswith(OWN) else "1"
            yield
        finally:
            cupy._core.set_compute_type(cupy.float32, 1)
            os.environ.pop("FMM_EMULATION")
            if before is not None:
                os.environ["FMM_EMULATION"] = before

    def operands(self, size: Size, dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
        m, k, n = size
        if dtype == "bfloat16":
            import torch

            a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
            return a, b, torch.matmul
        import cupy

        kind = "float64" if element_type(dtype) == "float64" else "float32"
        a, b = (cupy.random.standard_normal(shape, dtype=kind) for shape in ((m, k), (k, n)))
        return a, b, cupy.matmul

    def place(self, a: Any, b: Any) -> Mapping[str, Any]:
        return {}

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        from benchmarks.clock import elapsed

        return elapsed(call, repeats)

    def make_ready(self, wanted: Sequence[Shape], seconds: float, whole: bool) -> None:
        calls, device = list[tuple[str, Plan, Size]](), cuda_device(0)
        for dtype, _, size in wanted[:AHEAD]:
            limits = Limits(ROOM, device.error_growth, emulation=not dtype.endswith(OWN))
            with self.as_type(dtype):
                decision = decide(Problem(*size, element_type(dtype)), limits, device)
            tried = tried_plans("cuda", size, dtype, decision, whole)
            calls += [(element_type(dtype), plan, size) for plan in tried]
        with working_ahead(0, list(call_jobs(calls))) as ahead:
            ahead.wait_for_all(seconds)

    def forget(self) -> None:
        import cupy

        from fmm.runtime.running.device_run import GRAPHS

        GRAPHS.clear()  # a program that calls so many plans would no longer replay those of the last shapes
        cupy.get_default_memory_pool().free_all_blocks()


def element_type(dtype: str) -> str:
    return dtype.removesuffix(OWN)


# ---- which plans are tried


@lru_cache(maxsize=1024)
def whole_list(processor: str, size: Size, dtype: str) -> tuple[Plan, ...]:
    """Everything that is ever compared there, but for plans of tiny products, other types and large errors."""
    found, kind, most = [], element_type(dtype), usual_growth(processor != "cpu")
    for plan in candidate_plans(processor):
        with suppress(PlanError):
            work = estimated_work(plan, Problem(*size, kind))
            possible = plan.considered_for(kind) and (not plan.levels or work.smallest >= SMALLEST_LEAF)
            if (
                possible
                and expected_growth(plan, kind) <= most
                and not (dtype.endswith(OWN) and plan.leaf_use.leaf.error.emulates)
            ):
                found.append(plan)
    return tuple(found)


def family(plan: Plan) -> tuple[object, ...]:
    """Plans of one family make as many products at each level, by the same leaf."""
    return (*(step.products for step in plan.levels), plan.leaf)


def shortlist(chosen: Plan, predicted: Mapping[Plan, float], everything: Sequence[Plan]) -> list[Plan]:
    """The chosen plan, two more of the first one's family, and the first of every other family: in the order of the
    predicted times, then those of which the model says nothing."""
    times = {plan: predicted[plan] for plan in everything if plan in predicted}
    least = min(times.values(), default=0.0)
    liked = sorted((plan for plan in times if times[plan] <= FAR * least), key=lambda plan: times[plan])
    ordered = [p for p in (*liked, *(p for p in everything if p not in times)) if p != VENDOR]
    firsts = {family(p): p for p in reversed(ordered)}
    more = [p for p in ordered if family(p) == family(ordered[0])][: MORE + 1] if ordered else []
    wanted = {*firsts.values(), *more, chosen}
    return [p for p in dict.fromkeys([chosen, *ordered]) if p in wanted and p != VENDOR]


def tried_plans(
    processor: str, size: Size, dtype: str, decision: Decision, whole: bool, half: bool = False
) -> list[Plan]:
    """The plans that are tried on a shape beside the vendor's product."""
    among: Sequence[Plan] = whole_list(processor, size, dtype)
    if half:
        among = [plan for plan in half_candidates(processor) if plan.considered_for(dtype)]
    if whole:
        return [plan for plan in among if plan != VENDOR]
    return shortlist(decision.plan, {c.plan: c.time for c in decision.considered}, among)


# ---- measuring


def measured(machine: Machine, processor: str, shape: Shape, rounds: int, whole: bool) -> Row:
    """The default call, the vendor's and the plans of the shortlist, in shuffled rounds; far slower ones leave."""
    dtype, kind, size = shape
    a, b, vendor = machine.operands(size, dtype)
    half = kind == HALVES
    b = a.T if half else b
    into = machine.place(a, b)
    product = partial(fmm.gram, a, rows=True, **into) if half else partial(fmm.matmul, a, b, **into)
    decision = fmm.explain_gram(a, rows=True, **into) if half else fmm.explain(a, b, **into)
    plans = tried_plans(processor, size, dtype, decision, whole, half)[: None if whole else machine.most]
    calls: dict[str, Callable[[], object]] = {"vendor": partial(vendor, a, b, **into), "default": product}
    calls |= {str(p): partial(product, plan=p) for p in plans}
    samples, untried = first_samples(machine, calls)
    repeats = max(int(SAMPLE / samples["vendor"][0]), 1)
    best = min(own[0] for own in samples.values())
    kept = [x for x, own in samples.items() if x in (*CALLS, str(decision.plan)) or own[0] <= CLOSE * best]
    found: dict[str, list[float]] = {name: [] for name in kept}
    for _ in range(rounds):
        for name in random.sample(kept, len(kept)):
            found[name].append(rounded(machine.seconds(calls[name], repeats)))
    others = {name: own for name, own in samples.items() if name not in found}
    return Row(0, dtype, kind, size, str(decision.plan), decision.step, {**found, **others}, untried)


def first_samples(
    machine: Machine, calls: Mapping[str, Callable[[], object]]
) -> tuple[dict[str, list[float]], tuple[str, ...]]:
    """One of each, after calls that compile and ask for memory; and what was not called any more for want of time."""
    samples: dict[str, list[float]] = {}
    began = time.monotonic()
    for name, call in calls.items():
        if name not in CALLS and time.monotonic() - began > machine.patience:
            break
        try:
            call()
            if machine.seconds(call, 1) < SAMPLE:
                machine.seconds(call, WARM)
            samples[name] = [rounded(machine.seconds(call, 1))]
        except (MemoryError, RuntimeError, ValueError) as error:  # a plan that fails is left out
            print(f"  {name}: {error}"[:150], file=sys.stderr)
            if name in CALLS:
                raise
    return samples, tuple(name for name in calls if name not in samples)


def rounded(seconds: float) -> float:
    return float(f"{seconds:.{DIGITS}g}")


def measured_rows(
    machine: Machine, wanted: Sequence[Shape], options: argparse.Namespace, until: float
) -> Iterator[Row]:
    """Until the time is up."""
    processor = "cpu" if options.device == "cpu" else "cuda"
    for dtype, kind, size in wanted:
        if time.monotonic() > until:
            return
        try:
            with machine.as_type(dtype):
                row = measured(machine, processor, (dtype, kind, size), options.rounds, options.all)
        except (MemoryError, RuntimeError) as error:  # the next shape may be measured
            print(f"  {dtype} {size}: {error}"[:150], file=sys.stderr)
            continue
        finally:
            machine.forget()
        yield row


# ---- the command


def arguments_of(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu (unless given), or the number of a CUDA device")
    parser.add_argument("--dtype", action="append", help="only this type (may be repeated)")
    parser.add_argument("--kind", choices=COUNTS["cpu"], action="append", help="only these shapes (may be repeated)")
    parser.add_argument("--count", type=int, help="shapes of each kind and type")
    parser.add_argument("--largest", type=int, help="side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--all", action="store_true", help="try every candidate on every shape")
    parser.add_argument("--seed", type=int, help="(the config's own number unless given)")
    parser.add_argument("--time-limit", type=float, default=300, help="seconds after which no shape is begun")
    parser.add_argument("--compiling", type=float, default=COMPILING, help="seconds that are waited for compilers")
    parser.add_argument("--config", type=Path, help="the tuned config (the one that fmm reads)")
    parser.add_argument("--output", type=Path, help="a folder (results/<device>/ unless given)")
    return parser.parse_args(given)


def wanted_shapes(options: argparse.Namespace, processor: str, seed: int) -> list[Shape]:
    """Types and kinds in turn, so that a run that is cut short has the same share of each."""
    largest, found = options.largest or LARGEST[processor], list[tuple[float, Shape]]()
    for kind in options.kind or COUNTS[processor]:
        count, plans_pay = options.count or COUNTS[processor][kind], kind in ("large", HALVES)
        for dtype in options.dtype or TYPES[processor]:
            is_complex = DTYPES[element_type(dtype)].is_complex
            if is_complex and kind == HALVES:
                continue
            part = SHORTER if is_complex and plans_pay else 1
            least, most = round(part * (LEAST_LARGE[processor] if plans_pay else LEAST)), round(part * largest)
            for i, size in enumerate(drawn_shapes(kind, count, most, seed, least)):
                found.append(((i + 0.5) / count, (dtype, kind, size)))
    return [shape for _, shape in sorted(found, key=lambda x: x[0])]


def main(arguments: list[str]) -> int:
    began, options = time.monotonic(), arguments_of(arguments)
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
    seed = number if options.seed is None else options.seed
    folder = options.output or _folder(processor)
    folder.mkdir(parents=True, exist_ok=True)
    known = recorded_rows(folder / FILE, number)
    done = {(row.dtype, row.kind, row.size) for row in known}
    wanted = wanted_shapes(options, processor, seed)
    left = [x for x in wanted if x not in done]
    machine: Machine = Cpu() if processor == "cpu" else Gpu()
    machine.make_ready(left, options.compiling, options.all)
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    with (folder / FILE).open("a", encoding="utf-8") as file:
        _write(file, {"environment": _environment(processor), "settings": {"seed": seed, "config": number}})
        for row in measured_rows(machine, left, options, began + options.time_limit):
            known.append(replace(row, config=number))
            _write(file, asdict(known[-1]))
            if row.poor:
                print(row, flush=True)
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

"""Regret on held-out shapes: `python -m benchmarks regret [--device 0] [--dtype float32] [--time-limit 300]`.

`fmm.matmul`'s default call competes with the best of all tried plans and with the vendor, all by the public call. The
shapes are drawn by a seed of the tuned config itself, so that they are unknown while the model is fitted (`--seed`
gives another seed, and pages name it). Kinds of shapes: `middle` (sides from 1024 to 4096), `thin` (one side of 128 to
1024), `large` (3000 to 8192 on a CPU, where plans gain nothing below; 1024 to 20000 on a GPU) and, on a CPU, `gram`
(real matrices by their transposes). Every second shape is odd. The sides of large complex shapes are 0.63 times as
long, since each product is four times the work. `float32-ieee` and `float64-ieee` are these types with
FMM_EMULATION=0.

Plans of one *family* make as many products at each level, by the same leaf. Of every family the plan with the least
predicted time is tried, unless it is predicted to be far slower than the best plan; of the best family two more.
`--all` tries every candidate. Each shape is a line of results/<device>/held-out.jsonl. Shapes on record under the same
config are not measured again, so a stopped run continues, and has measured the same share of each type and kind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import fmm
from benchmarks.harness import benchmark_parser, check_blas_kernel, machine_of
from benchmarks.held_out import (
    GRAM,
    HELD_OUT_FILE_NAME,
    LARGEST_SIDES,
    REQUIRED_CALLS,
    SHAPE_COUNTS,
    SHORTEST_LARGE_SIDE,
    SHORTEST_SIDE,
    TYPES,
    Row,
    Shape,
    Size,
    config_number,
    drawn_shapes,
    element_type,
    recorded_rows,
    summary_lines,
)
from benchmarks.matrices import OWN_ARITHMETIC
from benchmarks.timed_machines import Cpu, Gpu
from fmm.config import environment as settings
from fmm.config import files
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.candidates import candidate_plans, gram_candidates
from fmm.perfmodel.choose import Limits, default_error_growth_limit
from fmm.perfmodel.stability import expected_error_growth
from fmm.perfmodel.work import estimated_work
from fmm.problem import Problem
from fmm.runtime.decisions.decide import Decision, decide_plan
from fmm.runtime.devices import cuda_device
from fmm.tuner.devices.compile_ahead import compile_jobs_of_calls, run_compile_workers

SAMPLE_SECONDS = 3e-3  # seconds of a sample, at least
WARM_UP_CALLS = 4  # calls before short products are timed: by then a recurring one is a graph
DROPPED_RATIO = 1.15  # a plan slower than this multiple of the best in the first round is dropped
FIRST_LOOK_COMPILE_SECONDS = 25.0  # longest wait for compilers before the first shape
COMPILED_SHAPES = 240  # shapes whose kernels are compiled ahead: more are not measured in a minute
COMPILED_WORKSPACE = 32 << 30  # bytes; kernels of plans that need more workspace are not compiled ahead
COMPLEX_SIDE = 4 ** (-1 / 3)  # ratio of sides of complex and real products of the same work
SAMPLE_DIGITS = 5  # significant digits of a sample
SMALLEST_LEAF = 256  # the shortest side of the leaf products of plans that are tried
MORE_OF_BEST_FAMILY = 2  # further plans of the family that is predicted to be the fastest
SLOWEST_TRIED = 1.35  # times the least predicted time: slower plans are not tried


# The plans that are tried on a shape


def tried_plans(
    processor: str, size: Size, dtype: str, decision: Decision, every: bool, gram: bool = False
) -> list[Plan]:
    """Return the plans that compete with the vendor's product; `every`: all candidates."""
    candidates: Sequence[Plan] = comparable_plans(processor, size, dtype)
    if gram:
        candidates = [plan for plan in gram_candidates(processor) if plan.is_candidate_for(dtype)]
    if every:
        return [plan for plan in candidates if plan != VENDOR]
    return plans_by_family(decision.plan, {c.plan: c.time for c in decision.candidates}, candidates)


@lru_cache(maxsize=1024)
def comparable_plans(processor: str, size: Size, dtype: str) -> tuple[Plan, ...]:
    """Return the candidates of a default call, without plans of tiny leaf products, other types or large errors."""
    found, kind, limit = [], element_type(dtype), default_error_growth_limit(processor != "cpu")
    for plan in candidate_plans(processor):
        with suppress(PlanError):
            work = estimated_work(plan, Problem(*size, kind))
            is_emulated = dtype.endswith(OWN_ARITHMETIC) and plan.leaf_use.leaf.emulates
            is_large = not plan.levels or work.smallest_leaf_side >= SMALLEST_LEAF
            is_default = plan.is_candidate_for(kind) and not plan.is_for_smaller_errors
            if is_default and is_large and not is_emulated and expected_error_growth(plan, kind) <= limit:
                found.append(plan)
    return tuple(found)


def plans_by_family(chosen: Plan, predicted: Mapping[Plan, float], candidates: Sequence[Plan]) -> list[Plan]:
    """Return the chosen plan, the best plan of every family, and more plans of the best family.

    They are in the order of their predicted times; plans without a predicted time come last.
    """
    times = {plan: predicted[plan] for plan in candidates if plan in predicted}
    least = min(times.values(), default=0.0)
    fast = sorted((plan for plan in times if times[plan] <= SLOWEST_TRIED * least), key=lambda plan: times[plan])
    ordered = [p for p in (*fast, *(p for p in candidates if p not in times)) if p != VENDOR]
    best_of_family = {plan_family(p): p for p in reversed(ordered)}
    first_family = (
        [p for p in ordered if plan_family(p) == plan_family(ordered[0])][: MORE_OF_BEST_FAMILY + 1] if ordered else []
    )
    wanted = {*best_of_family.values(), *first_family, chosen}
    return [p for p in dict.fromkeys([chosen, *ordered]) if p in wanted and p != VENDOR]


def plan_family(plan: Plan) -> tuple[object, ...]:
    """Return the numbers of products of the plan's levels, and its leaf."""
    return (*(step.products for step in plan.levels), plan.leaf)


def compile_kernels(gpu: Gpu, shapes: Sequence[Shape], seconds: float, every: bool) -> None:
    """Compile the kernels of these shapes' plans on all processors, for at most `seconds`."""
    calls, device = list[tuple[str, Plan, Size]](), cuda_device(0)
    for dtype, _, size in shapes[:COMPILED_SHAPES]:
        limits = Limits(COMPILED_WORKSPACE, device.error_growth, emulation=not dtype.endswith(OWN_ARITHMETIC))
        with gpu.as_type(dtype):
            decision = decide_plan(Problem(*size, element_type(dtype)), limits, device)
        tried = tried_plans("cuda", size, dtype, decision, every)
        calls += [(element_type(dtype), plan, size) for plan in tried]
    with run_compile_workers(0, list(compile_jobs_of_calls(calls))) as ahead:
        ahead.wait_for_all(seconds)


# Measuring


def measure_shape(machine: Cpu, processor: str, shape: Shape, rounds: int, every: bool) -> Row:
    """Time the default call, the vendor's and the tried plans in shuffled rounds; far slower plans are dropped."""
    dtype, kind, size = shape
    a, b, vendor = machine.operands(size, dtype)
    is_gram = kind == GRAM
    b = a.T if is_gram else b
    into = machine.result_arguments(a, b)
    product = partial(fmm.gram, a, rows=True, **into) if is_gram else partial(fmm.matmul, a, b, **into)
    decision = fmm.explain_gram(a, rows=True, **into) if is_gram else fmm.explain(a, b, **into)
    plans = tried_plans(processor, size, dtype, decision, every, is_gram)[: None if every else machine.max_plans]
    calls: dict[str, Callable[[], object]] = {"vendor": partial(vendor, a, b, **into), "default": product}
    calls |= {str(p): partial(product, plan=p) for p in plans}
    samples, untried = first_samples(machine, calls)
    repeats = max(int(SAMPLE_SECONDS / samples["vendor"][0]), 1)
    best = min(own[0] for own in samples.values())
    names = [
        x for x, own in samples.items() if x in (*REQUIRED_CALLS, str(decision.plan)) or own[0] <= DROPPED_RATIO * best
    ]
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in random.sample(names, len(names)):
            found[name].append(rounded_seconds(machine.seconds(calls[name], repeats)))
    others = {name: own for name, own in samples.items() if name not in found}
    return Row(0, dtype, kind, size, str(decision.plan), decision.source, {**found, **others}, untried)


def first_samples(
    machine: Cpu, calls: Mapping[str, Callable[[], object]]
) -> tuple[dict[str, list[float]], tuple[str, ...]]:
    """Warm all calls up; return one sample of each, and the names of the calls that the time limit left.

    Several short calls make one sample: the time of a single call would include the host's part.
    """
    samples: dict[str, list[float]] = {}
    began = time.monotonic()
    for name, call in calls.items():
        if name not in REQUIRED_CALLS and time.monotonic() - began > machine.warm_up_limit:
            break
        try:
            call()
            repeats = WARM_UP_CALLS if machine.seconds(call, 1) < SAMPLE_SECONDS else 1
            if repeats > 1:
                machine.seconds(call, repeats)
            samples[name] = [rounded_seconds(machine.seconds(call, repeats))]
        except (MemoryError, RuntimeError, ValueError) as error:  # a plan that fails is left out
            print(f"  {name}: {error}"[:150], file=sys.stderr)
            if name in REQUIRED_CALLS:
                raise
    return samples, tuple(name for name in calls if name not in samples)


def rounded_seconds(seconds: float) -> float:
    return float(f"{seconds:.{SAMPLE_DIGITS}g}")


def measure_shapes(machine: Cpu, wanted: Sequence[Shape], options: argparse.Namespace, until: float) -> Iterator[Row]:
    """Yield the rows of these shapes; no shape begins after `until` (time.monotonic)."""
    processor = "cpu" if options.device == "cpu" else "cuda"
    for dtype, kind, size in wanted:
        if time.monotonic() > until:
            return
        try:
            with machine.as_type(dtype):
                row = measure_shape(machine, processor, (dtype, kind, size), options.rounds, options.all)
        except (MemoryError, RuntimeError) as error:  # the next shape may be measured
            print(f"  {dtype} {size}: {error}"[:150], file=sys.stderr)
            continue
        finally:
            machine.free_memory()
        yield row


# The command


def parsed_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = benchmark_parser("regret", __doc__, time_limit=300, device="cpu")
    parser.add_argument("--dtype", action="append", help="only this type (may be repeated)")
    parser.add_argument(
        "--kind", choices=SHAPE_COUNTS["cpu"], action="append", help="only these shapes (may be repeated)"
    )
    parser.add_argument("--count", type=int, help="shapes of each kind and type")
    parser.add_argument("--largest", type=int, help="side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--all", action="store_true", help="try every candidate on every shape")
    parser.add_argument("--seed", type=int, help="of the shapes (default: the config's own number)")
    parser.add_argument(
        "--compiling", type=float, default=FIRST_LOOK_COMPILE_SECONDS, help="longest wait for compilers, in seconds"
    )
    parser.add_argument("--config", type=Path, help="the tuned config (the one that fmm reads)")
    return parser.parse_args(arguments)


def wanted_shapes(options: argparse.Namespace, processor: str, seed: int) -> list[Shape]:
    """Return the shapes of all kinds and types in turn: a run that is cut short has the same share of each."""
    largest, found = options.largest or LARGEST_SIDES[processor], list[tuple[float, Shape]]()
    for kind in options.kind or SHAPE_COUNTS[processor]:
        count, is_large = options.count or SHAPE_COUNTS[processor][kind], kind in ("large", GRAM)
        for dtype in options.dtype or TYPES[processor]:
            is_complex = DTYPES[element_type(dtype)].is_complex
            if is_complex and kind == GRAM:
                continue
            part = COMPLEX_SIDE if is_complex and is_large else 1
            least, most = (
                round(part * (SHORTEST_LARGE_SIDE[processor] if is_large else SHORTEST_SIDE)),
                round(part * largest),
            )
            for i, size in enumerate(drawn_shapes(kind, count, most, seed, least)):
                found.append(((i + 0.5) / count, (dtype, kind, size)))
    return [shape for _, shape in sorted(found, key=lambda x: x[0])]


def main(arguments: Sequence[str]) -> int:
    """Measure the shapes that are not on record; return the exit code."""
    began, options = time.monotonic(), parsed_options(arguments)
    if options.config:
        os.environ["FMM_CONFIG"] = str(options.config)
        files.clear_config_cache()
    processor = "cpu" if options.device == "cpu" else "cuda"
    paths = files.search_path(os.environ.get("FMM_CONFIG", ""))
    path = next((found for found in paths if found.exists()), paths[0])
    if not path.exists() or settings.tuning_mode() == "off":
        print(f"there is no tuned config {path}: run `fmm-tune --device {options.device}` first", file=sys.stderr)
        return 2
    number = config_number(path)
    seed = number if options.seed is None else options.seed
    recorded_machine = machine_of(options.device)
    if not recorded_machine.on_gpu:
        check_blas_kernel(options)
    folder = options.output or recorded_machine.folder
    folder.mkdir(parents=True, exist_ok=True)
    recorded = recorded_rows(folder / HELD_OUT_FILE_NAME, number)
    done = {(row.dtype, row.kind, row.size) for row in recorded}
    wanted = wanted_shapes(options, processor, seed)
    missing = [x for x in wanted if x not in done]
    machine = Cpu() if processor == "cpu" else Gpu()
    if isinstance(machine, Gpu):
        compile_kernels(machine, missing, options.compiling, options.all)
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    with (folder / HELD_OUT_FILE_NAME).open("a", encoding="utf-8") as file:
        _write_line(file, {"environment": recorded_machine.environment(), "settings": {"seed": seed, "config": number}})
        for row in measure_shapes(machine, missing, options, began + options.time_limit):
            recorded.append(replace(row, config=number))
            _write_line(file, asdict(recorded[-1]))
            if row.is_poor:
                print(row, flush=True)
    print(*summary_lines([row for row in recorded if (row.dtype, row.kind, row.size) in set(wanted)]), sep="\n")
    return 0


def _write_line(file: Any, what: Mapping[str, Any]) -> None:
    file.write(json.dumps(what) + "\n")
    file.flush()

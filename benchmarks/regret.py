"""Regret on held-out shapes: `python -m benchmarks regret [--device 0] [--dtype float32] [--time-limit 300]`.

After a tuning, `fmm.matmul`'s default call competes with the best of all tried plans and with the vendor, all through
the public call. Shapes are drawn by a seed of the tuned config itself, after the model is frozen (`--seed` gives
another seed, and pages say so): `middle` (sides from 1024 to 4096), `thin` (one side of 128 to 1024), `large` (3000 to
8192 on a CPU, where plans have something to gain, 1024 to 20000 on a GPU) and, on a CPU, `gram` (real matrices by
their transposes, sides as of large ones); every second shape is odd. On a CPU the sides of large complex shapes are
0.63 times as long, since each product is four times the work. `float32-ieee` and `float64-ieee` are these types with
FMM_EMULATION=0.

Of every *family* (products at each level, and the leaf) the plan with the least predicted time is tried, unless it is
far above the best of all; of the first family two more. `--all` tries every candidate. Each shape is a line of
results/<device>/held-out.jsonl; shapes on record under the same config are not measured again, so that a stopped run
goes on, and has measured the same share of each type and kind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import fmm
from benchmarks.harness import benchmark_parser, check_blas_kernel, machine_of
from benchmarks.held_out import (
    CALLS,
    COUNTS,
    FILE,
    HALVES,
    LARGEST,
    LEAST,
    LEAST_LARGE,
    TYPES,
    Row,
    config_number,
    drawn_shapes,
    recorded_rows,
    summaries,
)
from benchmarks.timed_machines import Cpu, Gpu, Machine, Shape
from benchmarks.tried_plans import element_type, tried_plans
from fmm.config import environment as settings
from fmm.config import files
from fmm.dtypes import DTYPES

SAMPLE = 3e-3  # seconds of a sample, at least
WARM = 4  # calls before short products are timed: by then a recurring one is a graph
CLOSE = 1.15  # a plan slower than this multiple of the best in the first round is dropped
COMPILING = 25.0  # longest wait for compilers before the first shape, in seconds
SHORTER = 4 ** (-1 / 3)  # ratio of sides of complex and real products of the same work
DIGITS = 5  # significant digits of a sample


# Measuring


def measured(machine: Machine, processor: str, shape: Shape, rounds: int, whole: bool) -> Row:
    """Time the default call, the vendor's and the tried plans in shuffled rounds; far slower plans are dropped."""
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
    names = [x for x, own in samples.items() if x in (*CALLS, str(decision.plan)) or own[0] <= CLOSE * best]
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in random.sample(names, len(names)):
            found[name].append(rounded(machine.seconds(calls[name], repeats)))
    others = {name: own for name, own in samples.items() if name not in found}
    return Row(0, dtype, kind, size, str(decision.plan), decision.source, {**found, **others}, untried)


def first_samples(
    machine: Machine, calls: Mapping[str, Callable[[], object]]
) -> tuple[dict[str, list[float]], tuple[str, ...]]:
    """Warm all calls up; return one sample of each, and the names of the calls that had no time.

    Short calls are timed several at a time: the time of a single one would include the host's part.
    """
    samples: dict[str, list[float]] = {}
    began = time.monotonic()
    for name, call in calls.items():
        if name not in CALLS and time.monotonic() - began > machine.patience:
            break
        try:
            call()
            repeats = WARM if machine.seconds(call, 1) < SAMPLE else 1
            if repeats > 1:
                machine.seconds(call, repeats)
            samples[name] = [rounded(machine.seconds(call, repeats))]
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
    """Yield the rows of these shapes until the time is up."""
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


# The command


def parsed_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = benchmark_parser("regret", __doc__, time_limit=300, device="cpu")
    parser.add_argument("--dtype", action="append", help="only this type (may be repeated)")
    parser.add_argument("--kind", choices=COUNTS["cpu"], action="append", help="only these shapes (may be repeated)")
    parser.add_argument("--count", type=int, help="shapes of each kind and type")
    parser.add_argument("--largest", type=int, help="side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--all", action="store_true", help="try every candidate on every shape")
    parser.add_argument("--seed", type=int, help="of the shapes (default: the config's own number)")
    parser.add_argument("--compiling", type=float, default=COMPILING, help="longest wait for compilers, in seconds")
    parser.add_argument("--config", type=Path, help="the tuned config (the one that fmm reads)")
    return parser.parse_args(arguments)


def wanted_shapes(options: argparse.Namespace, processor: str, seed: int) -> list[Shape]:
    """Return types and kinds in turn, so that a run that is cut short has the same share of each."""
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
    place = machine_of(options.device)
    if not place.on_gpu:
        check_blas_kernel(options)
    folder = options.output or place.folder
    folder.mkdir(parents=True, exist_ok=True)
    recorded = recorded_rows(folder / FILE, number)
    done = {(row.dtype, row.kind, row.size) for row in recorded}
    wanted = wanted_shapes(options, processor, seed)
    missing = [x for x in wanted if x not in done]
    machine: Machine = Cpu() if processor == "cpu" else Gpu()
    machine.make_ready(missing, options.compiling, options.all)
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    with (folder / FILE).open("a", encoding="utf-8") as file:
        _write(file, {"environment": place.environment(), "settings": {"seed": seed, "config": number}})
        for row in measured_rows(machine, missing, options, began + options.time_limit):
            recorded.append(replace(row, config=number))
            _write(file, asdict(recorded[-1]))
            if row.poor:
                print(row, flush=True)
    print(*summaries([row for row in recorded if (row.dtype, row.kind, row.size) in set(wanted)]), sep="\n")
    return 0


def _write(file: Any, what: Mapping[str, Any]) -> None:
    file.write(json.dumps(what) + "\n")
    file.flush()

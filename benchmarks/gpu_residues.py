"""Products by residues on a GPU: `python -m benchmarks gpu_residues [--quick] [--sides 4096,8192] [--plans "P;P"]`.

Whole calls of fmm.matmul, by its own choice and by named plans, against cupy.matmul; their errors on normal and uniform
data; and the time of each launch of a leaf alone, with the rate of its products of bytes. GEMMul8 runs beside them if
FMM_GEMMUL8 names a checkout. Samples, in milliseconds, go to results/<device>/residues.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import cupy

import fmm
from benchmarks.gpu_complex import milliseconds
from benchmarks.gpu_emulation import error_of, gemmul8_calls
from benchmarks.harness import (
    Row,
    benchmark_parser,
    free_gpu_memory,
    gpu_seconds,
    machine_of,
    paired_speedup,
    run_cases,
    shuffled_rounds,
)
from benchmarks.matrices import random_matrix
from fmm.kernels.cuda.launch.player import Addresses
from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.plans.levels.residue_planes import STRASSEN_PRODUCTS
from fmm.kernels.plans.levels.residues import residue_leaves
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, record_for_device

SIDES, QUICK_SIDES = (4096, 8192, 16384, 24576), (4096, 8192)
USUAL_PLANS = {
    "float64": (
        *(f"residues({moduli}) > bytes" for moduli in (13, 14, 15)),
        *(f"residues(14) > {level} > bytes" for level in ("strassen", "strassen^2")),
    ),
    "complex128": (
        "3m > residues(14) > bytes",
        "3m > residues(14) > strassen > bytes",
        "3m.batched > residues(14) > strassen > bytes",
    ),
}
LONG = 12288  # side from which on a call takes a tenth of a second and more
ROUNDS, QUICK_ROUNDS = 9, 3


@dataclass(frozen=True)
class Selection:
    """What is measured of each side."""

    dtype: str
    plans: tuple[str, ...]
    rounds: int
    data: tuple[str, ...]
    modes: tuple[str, ...]  # of GEMMul8
    plans_only: bool = False  # leave fmm's own choice out
    whole_only: bool = False  # whole calls, no launches by themselves


def launch_times(dtype: str, side: int, leaf: str, repeats: int) -> dict[str, float]:
    """Return the milliseconds of each kind of launch of a plan, every launch repeated by itself."""
    a, b = (random_matrix("cupy", (side, side), dtype, seed=seed) for seed in (1, 2))
    c = cupy.empty_like(a)
    recorded = record_for_device(Plan.parse(leaf), Problem(side, side, side, dtype))
    workspace = cupy.empty(recorded.workspace, cupy.uint8)
    addresses = Addresses(a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr)
    player = DeviceBackend().player(recorded, addresses)
    stream = cupy.cuda.get_current_stream().ptr
    player.play(addresses, stream)
    calls, give_back = player.prepared_product(addresses, stream)
    launches = [step for step in recorded.steps if isinstance(step, Launch)]
    times: dict[str, float] = {}
    for launch, call in zip(launches, calls, strict=True):
        gpu_seconds(call, 1)
        name = launch.label.split(",")[0]
        times[name] = times.get(name, 0.0) + 1e3 * median(gpu_seconds(call, 1) for _ in range(repeats))
    give_back()
    return times


def bytes_rate(side: int, leaf: str, times: dict[str, float]) -> float:
    """Return the TOPS of the products of residue planes, counted as if no multiplication were saved."""
    ending = residue_leaves()[leaf]
    spent = sum(ms for label, ms in times.items() if label.startswith("gemm_residues"))
    products = ending.level.moduli * STRASSEN_PRODUCTS**ending.depth
    return float(products * 2 * (side / 2**ending.depth) ** 3 / spent / 1e9)


def measured(side: int, chosen: Selection) -> Row:
    """Measure one side; all calls share one C, so that large sides fit into memory."""
    errors: dict[str, dict[str, float]] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for data in chosen.data:
        calls.clear()  # the calls hold the matrices of the other kind of data
        a, b = (random_matrix("cupy", (side, side), chosen.dtype, data, seed) for seed in (3, 4))
        c = cupy.empty_like(a)
        calls["vendor"] = partial(cupy.matmul, a, b, out=c)
        calls |= {} if chosen.plans_only else {"fmm": partial(fmm.matmul, a, b, out=c)}
        calls |= {plan: partial(fmm.matmul, a, b, out=c, plan=plan) for plan in chosen.plans}
        calls |= gemmul8_calls(a, b, c, chosen.modes)
        errors[data] = {name: error_of(call, a, b, c, lower=False) for name, call in calls.items()}
    fmm_plan = str(fmm.explain(a, b, out=c).plan)
    if side >= LONG:  # each call is warm and long enough by itself
        samples = {name: [1e3 * x for x in found] for name, found in shuffled_rounds(calls, chosen.rounds).items()}
    else:
        samples = milliseconds(calls, chosen.rounds)
    calls.clear()
    del a, b, c
    free_gpu_memory()
    endings = [plan for plan in dict.fromkeys((*chosen.plans, fmm_plan)) if plan in residue_leaves()]
    stages = {leaf: launch_times(chosen.dtype, side, leaf, chosen.rounds) for leaf in endings if not chosen.whole_only}
    free_gpu_memory()
    return {
        "dtype": chosen.dtype,
        "side": side,
        "chosen": fmm_plan,
        "errors": errors,
        "speedups": {name: paired_speedup(samples["vendor"], found) for name, found in samples.items()},
        "samples": samples,
        "stages": stages,
        "tops": {leaf: bytes_rate(side, leaf, times) for leaf, times in stages.items()},
    }


def text_lines(row: Row) -> str:
    """Return the lines that a terminal shows for a row, one for each call."""
    lines = []
    for name, ratio in row["speedups"].items():
        errors = ", ".join(f"{data} {found[name] / found['vendor']:.2f}" for data, found in row["errors"].items())
        plan = row["chosen"] if name == "fmm" else name
        parts = " + ".join(f"{ms:.3f}" for ms in row["stages"].get(plan, {}).values())
        rate = f"{row['tops'][plan]:.0f} TOPS; ms: {parts}" if plan in row["tops"] else ""
        rate = f"by {plan}; {rate}" if name == "fmm" else rate
        spent = f"{median(row['samples'][name]):9.3f} ms {ratio:5.2f}"
        lines.append(f"{row['dtype']} {row['side']:6} {name:20} {spent}  error {errors}; {rate}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("gpu_residues", __doc__, quick="two sides and three rounds")
    add = parser.add_argument
    add("--dtype", default="float64")
    add("--sides", default="", help="separated by commas")
    add("--plans", help="separated by semicolons; empty: fmm's own choice alone")
    add("--rounds", type=int)
    add("--data", default="normal,uniform", help="normal, uniform, or both separated by a comma")
    add("--modes", default="fast,accurate", help="of GEMMul8")
    add("--plans-only", action="store_true", help="leave fmm's own choice out")
    add("--whole-only", action="store_true", help="whole calls, no launches by themselves")
    options = parser.parse_args(arguments)
    sides = tuple(map(int, options.sides.split(","))) if options.sides else QUICK_SIDES if options.quick else SIDES
    named = USUAL_PLANS.get(options.dtype, ()) if options.plans is None else filter(None, options.plans.split(";"))
    plans = tuple(str(Plan.parse(plan)) for plan in named)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    data, modes = (tuple(filter(None, x.split(","))) for x in (options.data, options.modes))
    chosen = Selection(options.dtype, plans, rounds, data, modes, options.plans_only, options.whole_only)
    measure = partial(measured, chosen=chosen)
    run_cases(options, machine_of("0"), "residues.json", sides, measure, text_lines, key="cases")
    return 0

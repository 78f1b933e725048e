"""Products by residues on a GPU: `python -m benchmarks.gpu_residues [--quick] [--sides 4096,8192] [--plans PLAN]`.

Whole calls of fmm.matmul, by what it chooses itself and by plans that are named, everything inside, against
cupy.matmul, in shuffled rounds; the error of each on normal and uniform data against extended precision; and the time
of each launch of a leaf alone, with the rate of the products of bytes. GEMMul8 beside them, if FMM_GEMMUL8 names a
checkout. float64, unless `--dtype` names another type. Raw samples go to results/<device>/residues.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import cupy
import numpy as np

import fmm
from benchmarks import gemmul8
from benchmarks.gpu_complex import paired_samples, speedup
from benchmarks.harness import gpu_environment, gpu_folder, gpu_seconds
from fmm.kernels.cuda.launch.player import Addresses
from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.plans.levels.residue_room import PRODUCTS
from fmm.kernels.plans.levels.residues import residue_endings
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, record_for_device

SIDES, QUICK_SIDES = (4096, 8192, 16384, 24576), (4096, 8192)
USUAL = {
    "float64": (
        "residues(13) > bytes",
        "residues(14) > bytes",
        "residues(14) > strassen > bytes",
        "residues(14) > strassen^2 > bytes",
        "residues(15) > bytes",
    ),
    "complex128": (
        "3m > residues(14) > bytes",
        "3m > residues(14) > strassen > bytes",
        "3m.batched > residues(14) > strassen > bytes",
    ),
}
LONG = 12288  # a side from which a call takes a tenth of a second and more
ROUNDS, QUICK_ROUNDS = 9, 3
SAMPLED = 8, 128  # rows and columns of C that are compared with a product in higher precision
KINDS = "normal", "uniform"


def numbers(kind: str, dtype: str, side: int, seed: int) -> Any:
    """A square matrix of random numbers; of complex ones both parts are such."""
    rng = cupy.random.default_rng(seed)
    real = {"complex128": "float64", "complex64": "float32"}.get(dtype, dtype)
    draw = partial(rng.standard_normal if kind == "normal" else rng.random, (side, side), dtype=real)
    if real == dtype:
        return draw()
    found = cupy.empty((side, side), dtype)
    found.real, found.imag = draw(), draw()
    return found


def relative_error(c: Any, a: Any, b: Any) -> float:
    """In the Frobenius norm, of a few rows and columns, against NumPy in extended precision."""
    rows, cols = SAMPLED
    wide, usual = (np.clongdouble, complex) if a.dtype.kind == "c" else (np.longdouble, float)
    left, right = (x.get().astype(wide) for x in (a[-rows:], b[:, -cols:]))
    expected = left @ right
    off = c[-rows:, -cols:].get() - expected
    return float(np.linalg.norm(off.astype(usual)) / np.linalg.norm(expected.astype(usual)))


def stages(dtype: str, side: int, leaf: str, repeats: int) -> dict[str, float]:
    """Milliseconds of each launch of a plan, each repeated by itself."""
    a, b = (numbers("normal", dtype, side, seed) for seed in (1, 2))
    c = cupy.empty_like(a)
    found = record_for_device(Plan.parse(leaf), Problem(side, side, side, dtype))
    work = cupy.empty(found.workspace, cupy.uint8)
    addresses = Addresses(a.data.ptr, b.data.ptr, c.data.ptr, work.data.ptr)
    player = DeviceBackend().player(found, addresses)
    stream = cupy.cuda.get_current_stream().ptr
    player.play(addresses, stream)
    calls, give_back = player.prepared_product(addresses, stream)
    launches = [step for step in found.steps if isinstance(step, Launch)]
    times: dict[str, float] = {}
    for launch, call in zip(launches, calls, strict=True):
        gpu_seconds(call, 1)
        name = launch.label.split(",")[0]
        times[name] = times.get(name, 0.0) + 1e3 * median(gpu_seconds(call, 1) for _ in range(repeats))
    give_back()
    return times


def bytes_rate(side: int, leaf: str, times: dict[str, float]) -> float:
    """TOPS of the products of planes, as if none were saved."""
    found = residue_endings()[leaf]
    moduli, levels = found.level.moduli, found.depth
    spent = sum(ms for label, ms in times.items() if label.startswith("gemm_residues"))
    return float(moduli * PRODUCTS**levels * 2 * (side / 2**levels) ** 3 / spent / 1e9)


def peers(a: Any, b: Any, c: Any, modes: Sequence[str]) -> dict[str, Callable[[], object]]:
    """GEMMul8 in these of its modes, where there is a checkout of it (benchmarks/gemmul8.py)."""
    if not gemmul8.checkout() or str(a.dtype) not in gemmul8.MODULI:
        return {}

    def run(product: gemmul8.Gemmul8Product) -> object:
        product()
        return c

    return {f"GEMMul8 {mode}": partial(run, gemmul8.Gemmul8Product(a, b, c, mode == "fast")) for mode in modes}


def long_samples(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """As paired_samples, of calls that take long and were made before: each once in a round."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            samples[name].append(1e3 * gpu_seconds(calls[name], 1))
    return samples


@dataclass(frozen=True)
class Wanted:
    """What is measured of a side."""

    dtype: str
    plans: tuple[str, ...]
    rounds: int
    kinds: tuple[str, ...]
    modes: tuple[str, ...]  # of GEMMul8
    alone: bool = False  # only by these plans, not by what fmm chooses
    whole: bool = False  # whole calls only, no launches


def measured(side: int, wanted: Wanted) -> dict[str, Any]:
    """One C for all, so that memory is enough for large sides."""
    errors: dict[str, dict[str, float]] = {}
    calls: dict[str, Callable[[], object]] = {}
    for kind in wanted.kinds:
        calls.clear()  # and what they keep
        a, b = (numbers(kind, wanted.dtype, side, seed) for seed in (3, 4))
        c = cupy.empty_like(a)
        calls["vendor"] = partial(cupy.matmul, a, b, out=c)
        calls |= {} if wanted.alone else {"fmm": partial(fmm.matmul, a, b, out=c)}
        calls |= {plan: partial(fmm.matmul, a, b, out=c, plan=plan) for plan in wanted.plans}
        calls |= peers(a, b, c, wanted.modes)
        errors[kind] = {name: relative_error(call(), a, b) for name, call in calls.items()}
    chosen = str(fmm.explain(a, b, out=c).plan)
    samples = (long_samples if side >= LONG else paired_samples)(calls, wanted.rounds)
    calls.clear()  # for the next matrices
    del a, b, c
    cupy.get_default_memory_pool().free_all_blocks()
    alone = [plan for plan in dict.fromkeys((*wanted.plans, chosen)) if plan in residue_endings() and not wanted.whole]
    found = {leaf: stages(wanted.dtype, side, leaf, wanted.rounds) for leaf in alone}
    return {
        "dtype": wanted.dtype,
        "side": side,
        "chosen": chosen,
        "errors": errors,
        "speedups": {name: speedup(samples, name) for name in samples},
        "samples": samples,
        "stages": found,
        "tops": {leaf: bytes_rate(side, leaf, times) for leaf, times in found.items()},
    }


def table(row: dict[str, Any]) -> str:
    lines = []
    for name, ratio in row["speedups"].items():
        errors = ", ".join(f"{kind} {found[name] / found['vendor']:.2f}" for kind, found in row["errors"].items())
        plan = row["chosen"] if name == "fmm" else name
        parts = " + ".join(f"{ms:.3f}" for ms in row["stages"].get(plan, {}).values())
        rate = f"{row['tops'][plan]:.0f} TOPS; ms: {parts}" if plan in row["tops"] else ""
        rate = f"by {plan}; {rate}" if name == "fmm" else rate
        spent = f"{median(row['samples'][name]):9.3f} ms {ratio:5.2f}"
        lines.append(f"{row['dtype']} {row['side']:6} {name:20} {spent}  error {errors}; {rate}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--sides", default="")
    parser.add_argument("--plans", help="with ; between; none: what fmm chooses alone")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--modes", default="fast,accurate", help="of GEMMul8")
    parser.add_argument("--alone", action="store_true", help="only by the plans that are named")
    parser.add_argument("--whole", action="store_true", help="whole calls only, no launches")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    sides = tuple(map(int, given.sides.split(","))) if given.sides else QUICK_SIDES if given.quick else SIDES
    named = USUAL.get(given.dtype, ()) if given.plans is None else filter(None, given.plans.split(";"))
    plans = tuple(str(Plan.parse(plan)) for plan in named)
    rounds = given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS)
    kinds, modes = (tuple(filter(None, x.split(","))) for x in (given.kinds, given.modes))
    wanted = Wanted(given.dtype, plans, rounds, kinds, modes, given.alone, given.whole)
    rows, out = [], given.out or gpu_folder() / "residues.json"
    for side in sides:
        rows.append(measured(side, wanted))
        cupy.get_default_memory_pool().free_all_blocks()
        print(table(rows[-1]), flush=True)
        out.write_text(json.dumps({"environment": gpu_environment(), "cases": rows}) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

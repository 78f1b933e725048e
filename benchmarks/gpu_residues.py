"""float64 by residues on a GPU: `python -m benchmarks.gpu_residues [--quick] [--sides 4096,8192] [--leaves oz14]`.

Whole calls of fmm.matmul with each leaf of residues, everything inside, against cupy.matmul, in shuffled rounds; the
error of each on normal and uniform data against extended precision; and the time of each launch alone, with the rate
of the products of bytes. GEMMul8 beside them, if FMM_GEMMUL8 names a checkout. Raw samples go to
results/<device>/residues.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import cupy
import numpy as np

import fmm
from benchmarks import gemmul8
from benchmarks.clock import elapsed
from benchmarks.gpu import environment, results_folder
from benchmarks.gpu_complex import paired_samples, speedup
from fmm.kernels.cuda.launch.player import Addresses
from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.cuda.products.residue_planes import LEAVES, PRODUCTS
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, recorded_for_device

SIDES, QUICK_SIDES = (4096, 8192, 16384, 24576), (4096, 8192)
USUAL = ("oz13", "oz14", "oz14x7", "oz14x49", "oz15")
ROUNDS, QUICK_ROUNDS = 9, 3
SAMPLED = 8, 128  # rows and columns of C that are compared with a product in higher precision
KINDS: dict[str, Callable[[int, int], Any]] = {
    "normal": lambda side, seed: cupy.random.default_rng(seed).standard_normal((side, side)),
    "uniform": lambda side, seed: cupy.random.default_rng(seed).random((side, side)),
}


def relative_error(c: Any, a: Any, b: Any) -> float:
    """In the Frobenius norm, of a few rows and columns, against NumPy in extended precision."""
    rows, cols = SAMPLED
    left, right = (x.get().astype(np.longdouble) for x in (a[-rows:], b[:, -cols:]))
    expected = left @ right
    return float(
        np.linalg.norm((c[-rows:, -cols:].get() - expected).astype(float)) / np.linalg.norm(expected.astype(float))
    )


def stages(side: int, leaf: str, repeats: int = 5) -> dict[str, float]:
    """Milliseconds of each launch of a plan, each repeated by itself."""
    a, b = (KINDS["normal"](side, seed) for seed in (1, 2))
    c = cupy.empty_like(a)
    found = recorded_for_device(Plan.parse(leaf), Problem(side, side, side))
    work = cupy.empty(found.workspace, cupy.uint8)
    addresses = Addresses(a.data.ptr, b.data.ptr, c.data.ptr, work.data.ptr)
    player = DeviceBackend().player(found, addresses)
    stream = cupy.cuda.get_current_stream().ptr
    player.play(addresses, stream)
    calls, give_back = player.prepared_product(addresses, stream)
    launches = [step for step in found.steps if isinstance(step, Launch)]
    times: dict[str, float] = {}
    for launch, call in zip(launches, calls, strict=True):
        elapsed(call, 1)
        name = launch.label.split(",")[0]
        times[name] = times.get(name, 0.0) + 1e3 * median(elapsed(call, 1) for _ in range(repeats))
    give_back()
    return times


def bytes_rate(side: int, leaf: str, times: dict[str, float]) -> float:
    """TOPS of the products of planes, as if none were saved."""
    moduli, levels = LEAVES[leaf]
    spent = sum(ms for label, ms in times.items() if label.startswith("gemm_residues"))
    return float(moduli * PRODUCTS**levels * 2 * (side / 2**levels) ** 3 / spent / 1e9)


def peers(a: Any, b: Any) -> dict[str, Callable[[], object]]:
    """GEMMul8 in both of its modes, where there is a checkout of it (benchmarks/gemmul8.py)."""
    if not gemmul8.checkout():
        return {}
    c = cupy.empty_like(a)

    def run(product: gemmul8.Gemmul8Product) -> object:
        product()
        return c

    modes = {"GEMMul8 fast": True, "GEMMul8 accurate": False}
    return {name: partial(run, gemmul8.Gemmul8Product(a, b, c, fast)) for name, fast in modes.items()}


def measured(side: int, leaves: tuple[str, ...], rounds: int) -> dict[str, Any]:
    errors: dict[str, dict[str, float]] = {}
    calls: dict[str, Callable[[], object]] = {}
    for kind, made in KINDS.items():
        a, b = made(side, 3), made(side, 4)
        calls = {"vendor": partial(cupy.matmul, a, b)}
        calls |= {leaf: partial(fmm.matmul, a, b, plan=leaf) for leaf in leaves}
        calls |= peers(a, b)
        errors[kind] = {name: relative_error(call(), a, b) for name, call in calls.items()}
    samples = paired_samples(calls, rounds)
    found = {leaf: stages(side, leaf) for leaf in leaves}
    return {
        "side": side,
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
        spent = " + ".join(f"{ms:.3f}" for ms in row["stages"].get(name, {}).values())
        rate = f"{row['tops'][name]:.0f} TOPS; ms: {spent}" if name in row["tops"] else ""
        lines.append(
            f"{row['side']:6} {name:16} {median(row['samples'][name]):9.3f} ms {ratio:5.2f}  error {errors}; {rate}"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sides", default="")
    parser.add_argument("--leaves", default=",".join(USUAL))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    sides = tuple(map(int, options.sides.split(","))) if options.sides else QUICK_SIDES if options.quick else SIDES
    leaves = tuple(options.leaves.split(","))
    rows, out = [], options.out or results_folder() / "residues.json"
    for side in sides:
        rows.append(measured(side, leaves, QUICK_ROUNDS if options.quick else ROUNDS))
        cupy.get_default_memory_pool().free_all_blocks()
        print(table(rows[-1]), flush=True)
        out.write_text(json.dumps({"environment": environment(), "cases": rows}) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Never slower, on a GPU: `python -m benchmarks.gpu_random` times fmm.matmul on random shapes against the vendor.

With `--workspace 0` it may take no memory besides C; `--sizes 3072 4096x8192x4096` names the shapes (m, or m x k x n).

Whole calls as a user makes them, allocation and choice included, on whatever stands in the configs: CuPy's arrays, and
torch's tensors for bfloat16. Sides are spread evenly by logarithm; half of the shapes have odd sides.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import cupy

import fmm
from benchmarks.harness import gpu_environment, gpu_folder, gpu_seconds

TYPES = ("float32", "float64", "bfloat16", "float16", "tf32")
LARGEST, ASPECT = 20000, 64
LEAST = 4.0  # milliseconds of a sample
SECONDS = 0.25  # of a shape's samples, about


def shapes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """Random sides from 1 to LARGEST, none more than ASPECT times another."""
    rng = random.Random(seed)
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        size = tuple(int(LARGEST ** rng.random()) for _ in range(3))
        if max(size) <= ASPECT * min(size):
            even = len(found) % 2
            found.append(tuple(max(x - x % 2, 2) if even else x | 1 for x in size))  # type: ignore[arg-type]
    return found


def operands(size: tuple[int, int, int], dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
    """Random normal matrices, and the product of the library that they belong to."""
    m, k, n = size
    if dtype == "bfloat16":
        import torch

        a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
        return a, b, torch.matmul
    kind = "float32" if dtype in ("tf32", "float16") else dtype
    a, b = (cupy.random.standard_normal(shape, dtype=kind) for shape in ((m, k), (k, n)))
    return (a.astype(cupy.float16), b.astype(cupy.float16), cupy.matmul) if dtype == "float16" else (a, b, cupy.matmul)


def named(text: str) -> tuple[int, int, int]:
    sides = [int(x) for x in text.split("x")]
    m, k, n = sides * 3 if len(sides) == 1 else sides
    return m, k, n


def measured(
    size: tuple[int, int, int], dtype: str, limits: dict[str, Any], seconds: float = SECONDS
) -> dict[str, Any]:
    a, b, vendor = operands(size, dtype)
    samples = paired_samples(partial(vendor, a, b), partial(fmm.matmul, a, b, **limits), seconds)
    return {"dtype": dtype, "size": size, **compared(samples, fmm.explain(a, b, **limits))}


def paired_samples(
    vendor: Callable[[], object], own: Callable[[], object], seconds: float = SECONDS
) -> dict[str, list[float]]:
    """Milliseconds of both in shuffled rounds, after both have run."""
    calls = {"vendor": vendor, "fmm": own}
    for call in calls.values():
        gpu_seconds(call, 2)
    single = max(1e3 * gpu_seconds(vendor, 1), 1e-3)
    repeats = max(int(LEAST / single), 1)
    rounds = max(min(15, int(1000 * seconds / (2 * single * repeats))), 5)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), 2):
            samples[name].append(1e3 * gpu_seconds(calls[name], repeats))
    return samples


def compared(samples: dict[str, list[float]], decision: Any) -> dict[str, Any]:
    """What a row says of them: the median of the paired ratios, and which plan it was."""
    ratio = median(v / f for v, f in zip(samples["vendor"], samples["fmm"], strict=True))
    return {"ratio": ratio, "plan": str(decision.plan), "step": decision.source, **samples}


def in_digits(value: Any, digits: int = 5) -> Any:
    """Numbers as exactly as a clock tells them."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [in_digits(x, digits) for x in value]
    return {name: in_digits(x, digits) for name, x in value.items()} if isinstance(value, dict) else value


def write_rows(path: Path, gpu_environment: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """A line for each row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(in_digits(row)) for row in rows)
    path.write_text(f'{{"environment": {json.dumps(gpu_environment)},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="shapes of each type")
    parser.add_argument("--dtype", choices=TYPES, action="append", help="only this type (may be repeated)")
    parser.add_argument("--sizes", nargs="+", type=named, help="these shapes instead of random ones")
    parser.add_argument("--workspace", type=int, help="bytes that fmm.matmul may take (no limit unless given)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=100, help="seconds after which no shape is begun")
    parser.add_argument("--output", type=Path, help="where to write (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    env = {**gpu_environment(), "command": " ".join(["python -m benchmarks.gpu_random", *arguments])}
    began, rows = time.perf_counter(), []
    limits = {} if options.workspace is None else {"workspace": options.workspace}
    for size in options.sizes or shapes(options.count, options.seed):
        for dtype in options.dtype or TYPES:
            if time.perf_counter() - began > options.time_limit:
                break
            if dtype == "tf32":
                cupy._core.set_compute_type(cupy.float32, 7)
            try:
                rows.append(measured(size, dtype, limits))
            finally:
                cupy._core.set_compute_type(cupy.float32, 1)
        cupy.get_default_memory_pool().free_all_blocks()
    name = "workspace.json" if limits else "random.json"
    write_rows((options.output or gpu_folder()) / name, env, rows)
    for row in sorted(rows, key=lambda r: r["ratio"])[:30]:
        shape, took = " x ".join(map(str, row["size"])), f"{median(row['vendor']):9.4f} ms"
        print(f"{row['dtype']:9}{shape:24}{row['ratio']:7.3f} {took}  {row['plan']}  ({row['step']})")
    for dtype in options.dtype or TYPES:
        found = sorted(r["ratio"] for r in rows if r["dtype"] == dtype)
        fast = sum(r["plan"] != "vendor" for r in rows if r["dtype"] == dtype)
        if found:
            text = f"worst {found[0]:.3f}, median {median(found):.3f}, best {found[-1]:.3f}"
            print(f"{dtype:9} {len(found)} shapes, {fast} by fast plans: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Complex products, and products that are added, on a GPU: `python -m benchmarks.gpu_complex [--quick]`.

Whole calls of fmm.matmul as a user makes them, splitting and joining inside, against cupy.matmul, in shuffled rounds;
beside what fmm chooses by the configs in force, plans that are named here (the level 3m above plans of real numbers),
the three real products alone, which bound what 3m can gain, and cuBLAS's own complex product by three real ones. With
`--update`, fmm.gemm in place (beta 1) against cuBLAS's gemm. Raw samples go to results/<device>/complex.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import cupy
import numpy as np

import fmm
from benchmarks.harness import gpu_environment, gpu_folder, gpu_seconds

ROUNDS, QUICK_ROUNDS = 11, 5
LEAST = 10.0  # milliseconds of a sample
SAMPLED = 4, 256  # rows and columns of C that are compared with a product in higher precision
REAL = {"complex64": "float32", "complex128": "float64"}


class Case(NamedTuple):
    """A product of square matrices, and plans beside the one that fmm chooses."""

    dtype: str
    side: int
    plans: tuple[str, ...]
    target: float  # of fmm.matmul's speed against cupy.matmul's
    quick: bool = False


ONE, TWO = "3m(strassen.pad16) > vendor", "3m(strassen^2.pad16) > vendor"  # with a level of each product, in one pass
B1, B2, B3 = (f"strassen{power}.batched.pad16 > vendor" for power in ("", "^2", "^3"))
OUTER = f"strassen.overlapped.pad16 > {B3}"
CASES = (
    Case("complex64", 2048, ("3m.batched > vendor", ONE, f"3m > {B1}"), 1.25, quick=True),
    Case("complex64", 4096, (ONE, TWO, f"3m > {B3}", f"3m.overlapped > {B3}"), 1.55, quick=True),
    Case("complex64", 8192, (TWO, f"3m > {B3}", f"3m.overlapped > {B3}"), 1.70, quick=True),
    Case("complex64", 16384, (f"3m.overlapped > {B3}", f"3m > {OUTER}", f"3m.sequential > {OUTER}"), 2.02),
    Case("complex128", 2048, ("3m.batched > vendor", "3m > vendor", ONE), 1.20, quick=True),
    Case("complex128", 4096, (ONE, TWO, f"3m > {B2}", f"3m.overlapped > {B3}"), 1.48, quick=True),
    Case("complex128", 8192, (f"3m > {B3}", f"3m.overlapped > {B3}", f"3m > {OUTER}"), 1.75),
    Case("complex128", 12288, (f"3m.overlapped > {B3}", f"3m > {OUTER}", f"3m.sequential > {B3}"), 1.92),
)
UPDATES = (("float32", 8192), ("float64", 8192), ("bfloat16", 8192), ("complex64", 8192), ("float32", 2048))


def random_normal(side: int, dtype: str) -> Any:
    if dtype in REAL:
        parts = [cupy.random.standard_normal((side, side), dtype=REAL[dtype]) for _ in range(2)]
        return parts[0] + cupy.asarray(1j, dtype) * parts[1]
    return cupy.random.standard_normal((side, side), dtype=dtype)


def paired_samples(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every call in every round, the calls of a round in random order."""
    for call in calls.values():
        gpu_seconds(call, 2)
    repeats = {name: max(int(LEAST / max(1e3 * gpu_seconds(call, 1), 1e-3)), 1) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            samples[name].append(1e3 * gpu_seconds(calls[name], repeats[name]))
    return samples


def speedup(samples: Mapping[str, list[float]], name: str, base: str = "vendor") -> float:
    return median(v / x for v, x in zip(samples[base], samples[name], strict=True))


def three_real_products(side: int, dtype: str) -> Callable[[], object]:
    """What 3m leaves to be multiplied, by fmm.matmul."""
    x, y = (cupy.random.standard_normal((side, side), dtype=REAL[dtype]) for _ in range(2))
    out = cupy.empty_like(x)

    def run() -> None:
        for _ in range(3):
            fmm.matmul(x, y, out)

    return run


def relative_error(c: Any, a: Any, b: Any) -> float:
    """In norm, of a few rows and columns, against NumPy in extended precision."""
    rows, cols = SAMPLED
    left, right = (x.get().astype(np.clongdouble) for x in (a[:rows], b[:, :cols]))
    expected = left @ right
    found = c[:rows, :cols].get()
    return float(np.linalg.norm((found - expected).astype(complex)) / np.linalg.norm(expected.astype(complex)))


def chosen_without_emulation(a: Any, b: Any) -> str:
    """The plan that fmm.matmul takes where FMM_EMULATION=0."""
    before = os.environ.get("FMM_EMULATION")
    os.environ["FMM_EMULATION"] = "0"
    try:
        return str(fmm.explain(a, b).plan)
    finally:
        del os.environ["FMM_EMULATION"]
        os.environ |= {} if before is None else {"FMM_EMULATION": before}


def measured_product(case: Case, rounds: int, beside: bool = True) -> dict[str, Any]:
    """What fmm chooses, and, if they are to be `beside` it, the plans that the case names."""
    a, b = (random_normal(case.side, case.dtype) for _ in range(2))
    plans = (*case.plans, "vendor3m") if beside else ()
    calls: dict[str, Callable[[], object]] = {"vendor": partial(cupy.matmul, a, b), "fmm": partial(fmm.matmul, a, b)}
    calls |= {plan: partial(fmm.matmul, a, b, plan=plan) for plan in plans}
    alone = chosen_without_emulation(a, b)
    calls["without emulation"] = partial(fmm.matmul, a, b, plan=alone)
    errors = {name: relative_error(call(), a, b) for name, call in calls.items()}
    if beside:
        calls["three real products"] = three_real_products(case.side, case.dtype)
    samples = paired_samples(calls, rounds)
    chosen = fmm.explain(a, b)
    return {
        "kind": "product",
        "chosen_without_emulation": alone,
        **case._asdict(),
        "chosen": str(chosen.plan),
        "answered": chosen.source,
        "errors": errors,
        "speedups": {name: speedup(samples, name) for name in samples},
        "samples": samples,
    }


def measured_update(dtype: str, side: int, rounds: int) -> dict[str, Any]:
    """C = 1.5 A B + C in place; by torch for bfloat16, which CuPy has no name for."""
    a, b, c, vendor = _torch_update(side) if dtype == "bfloat16" else _cupy_update(side, dtype)
    own = partial(fmm.gemm, a, b, c, alpha=1.5, beta=1, out=c)
    calls: dict[str, Callable[[], object]] = {"vendor": vendor, "fmm": own}
    samples = paired_samples(calls, rounds)
    chosen = fmm.explain_gemm(a, b, c, alpha=1.5, beta=1, out=c)
    named = {"kind": "update", "dtype": dtype, "side": side, "chosen": str(chosen.plan), "answered": chosen.source}
    return {**named, "speedups": {"fmm": speedup(samples, "fmm")}, "samples": samples}


def _cupy_update(side: int, dtype: str) -> tuple[Any, Any, Any, Callable[[], object]]:
    a, b, c = (random_normal(side, dtype) for _ in range(3))
    return a, b, c, partial(fmm.gemm, a, b, c, alpha=1.5, beta=1, out=c, plan="vendor")


def _torch_update(side: int) -> tuple[Any, Any, Any, Callable[[], object]]:
    import torch

    a, b, c = (torch.randn((side, side), device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return a, b, c, partial(torch.addmm, c, a, b, alpha=1.5, beta=1, out=c)


def printed(row: Mapping[str, Any]) -> str:
    """A line for the terminal."""
    found = ", ".join(f"{name} {ratio:.3f}" for name, ratio in row["speedups"].items() if name != "vendor")
    target = f", target {row['target']}" if "target" in row else ""
    return f"{row['kind']} {row['dtype']} {row['side']}: {found}{target}; chosen {row['chosen']} ({row['answered']})"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds")
    parser.add_argument("--update", action="store_true", help="fmm.gemm instead of fmm.matmul")
    parser.add_argument("--only", default="", help="cases whose 'type side ' contains one of these")
    parser.add_argument("--chosen", action="store_true", help="what fmm chooses alone, with and without emulation")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS}, with --quick {QUICK_ROUNDS}, unless given")
    parser.add_argument("--output", type=Path, help="where to write (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    rows: list[dict[str, Any]] = []
    if options.update:
        tasks = [partial(measured_update, *x, rounds) for x in (UPDATES[:2] if options.quick else UPDATES)]
    else:
        asked = [x for x in CASES if any(text in f"{x.dtype} {x.side} " for text in options.only.split(","))]
        found = [case for case in asked if case.quick or not options.quick]
        tasks = [partial(measured_product, case, rounds, not options.chosen) for case in found]
    folder = options.output or gpu_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("update.json" if options.update else "complex.json")
    for task in tasks:
        rows.append(task())
        print(printed(rows[-1]), flush=True)
        path.write_text(json.dumps({"environment": gpu_environment(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
        cupy.get_default_memory_pool().free_all_blocks()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

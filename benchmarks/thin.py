"""Thin products on a GPU: `python -m benchmarks thin [--device 0] [--quick]`.

Each product has a short side: 40 to 512 rows or columns of C with an inner side of up to 100,000, or an inner side of
16 to 128 with a large C. `fmm.matmul`'s default call, `f16x3` and other named plans compete with `cupy.matmul`. The
table shows every call's speed as a multiple of `cupy.matmul`'s. Samples go to results/<device>/thin.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import mean

import fmm
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    free_gpu_memory,
    has_failures,
    machine_of,
    paired_samples,
    paired_speedup,
    quick_cases,
    recorded_failure,
    run_cases,
)
from benchmarks.held_out import Size
from benchmarks.matrices import library_product, random_matrix, relative_error
from fmm.kernels.plans.plan import Plan
from fmm.tuner.devices.compile_ahead import compile_jobs_of_calls, run_compile_workers

# The calls that compete in each element type, besides the vendor's and the default one.
PLANS: Mapping[str, Sequence[str]] = {"float32": ("f16x3", "tile"), "complex64": ("3m > f16x3", "3m.batched > f16x3")}
ROUNDS, SAMPLE_SECONDS, WARM_UP_CALLS = 5, 3e-3, 3
COMPILE_SECONDS = 30.0  # longest wait for compilers before the first case
GOAL_SPEEDUP = 0.98
TOLERANCE = 1e-5  # largest relative error, in norm, of a right float32 product


@dataclass(frozen=True)
class Case:
    """A thin product: its element type and its sides m, k and n."""

    dtype: str
    size: Size
    quick: bool = False


FEW_ROWS: Sequence[Size] = (
    (40, 8192, 6144), (64, 20000, 4096), (96, 36864, 3072), (128, 4096, 8192), (128, 65536, 2048), (160, 50000, 1500),
    (200, 100000, 1024), (256, 36864, 2048), (301, 14001, 5003), (384, 65536, 1024), (512, 30000, 2048),
)  # fmt: skip
FEW_ROWS_AND_COLUMNS: Sequence[Size] = (
    (512, 100000, 512), (256, 100000, 256), (384, 50000, 640), (768, 40000, 768), (1024, 65536, 896),
)  # fmt: skip
NARROW: Sequence[Size] = (  # 64 to 127 rows or columns, with a long other side
    (13089, 18060, 66), (30884, 6621, 110), (7534, 3908, 82), (29670, 5796, 73), (39761, 1553, 81), (15470, 4552, 91),
    (66, 18060, 13089), (110, 6621, 30884), (82, 3908, 7534), (91, 4552, 15470),
)  # fmt: skip
FEW_COLUMNS: Sequence[Size] = (
    (6144, 8192, 40), (4096, 20000, 64), (3072, 36864, 96), (8192, 4096, 128), (2048, 65536, 128), (1500, 50000, 160),
    (1024, 100000, 200), (2048, 36864, 256), (5003, 14001, 301), (1024, 65536, 384), (2048, 30000, 512),
)  # fmt: skip
SHORT_INNER_SIDE: Sequence[Size] = (
    (8192, 16, 8192), (6144, 32, 12288), (10000, 64, 10000), (4096, 80, 4096), (8192, 96, 4096), (8192, 128, 8192),
)  # fmt: skip
COMPLEX: Sequence[Size] = (
    (128, 8192, 4096), (4096, 8192, 128), (160, 30000, 2048), (2048, 30000, 160), (240, 36864, 1024),
    (1024, 36864, 240), (4096, 96, 4096), (6144, 160, 6144),
)  # fmt: skip
REAL_SIZES = (*FEW_ROWS, *FEW_ROWS_AND_COLUMNS, *FEW_COLUMNS, *NARROW, *SHORT_INNER_SIDE)
CASES = tuple(
    Case(dtype, size, i % 8 == 0)
    for dtype, sizes in (("float32", REAL_SIZES), ("complex64", COMPLEX))
    for i, size in enumerate(sizes)
)


def compile_kernels(cases: Sequence[Case]) -> None:
    """Compile the kernels of the named plans in all cases, for at most COMPILE_SECONDS."""
    calls = [(case.dtype, Plan.parse(name), case.size) for case in cases for name in PLANS[case.dtype]]
    with run_compile_workers(0, list(compile_jobs_of_calls(calls))) as ahead:
        ahead.wait_for_all(COMPILE_SECONDS)


def measure_case(case: Case) -> Row:
    """Check the plans' results, then time all calls in shuffled rounds."""
    m, k, n = case.size
    a, b = (random_matrix("cupy", shape, case.dtype, seed=seed) for seed, shape in ((1, (m, k)), (2, (k, n))))
    calls: dict[str, Call] = {"vendor": partial(library_product("cupy"), a, b), "default": partial(fmm.matmul, a, b)}
    calls |= {name: partial(fmm.matmul, a, b, plan=name) for name in PLANS[case.dtype]}
    for name, call in calls.items():
        if name != "vendor" and not (error := relative_error(a, b, call())) < TOLERANCE:
            raise RuntimeError(f"wrong result of {name}: relative error {error:.3g}")
    chosen = fmm.explain(a, b)
    samples = paired_samples(calls, ROUNDS, SAMPLE_SECONDS, warm=WARM_UP_CALLS)
    del a, b, calls
    free_gpu_memory()
    return {
        "dtype": case.dtype,
        "size": case.size,
        "chosen": str(chosen.plan),
        "predicted_speedup": round(chosen.speedup, 3),
        "microseconds": {name: [float(f"{1e6 * x:.4g}") for x in own] for name, own in samples.items()},
    }


def speedups_of(row: Row) -> dict[str, float]:
    """Return the speed of each call as a multiple of the vendor's."""
    samples = row["microseconds"]
    return {name: paired_speedup(samples["vendor"], own) for name, own in samples.items() if name != "vendor"}


def share_of_best(row: Row) -> float:
    """Return the default call's speed as a share of the fastest call's."""
    speedups = speedups_of(row)
    return min(float(speedups["default"] / max(1.0, *speedups.values())), 1.0)


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    head = f"{row['dtype']:9} {' x '.join(map(str, row['size'])):20}"
    if row["failure"]:
        return f"{head} {row['failure'][:90]}"
    speedups = "  ".join(f"{name} {x:.2f}" for name, x in speedups_of(row).items())
    return f"{head} {speedups}  chosen {row['chosen']} (predicted {row['predicted_speedup']:.2f})"


def summary_line(rows: Sequence[Row]) -> str:
    """Return the mean and least share of the best call's speed, and the slowest default call."""
    timed = [row for row in rows if not row["failure"]]
    if not timed:
        return "no product was timed"
    shares, speedups = [share_of_best(row) for row in timed], [speedups_of(row)["default"] for row in timed]
    slow, slowest = (
        sum(x < GOAL_SPEEDUP for x in speedups),
        min(zip(speedups, (row["size"] for row in timed), strict=True)),
    )
    return (
        f"{len(timed)} products: {mean(shares):.3f} of the best call's speed, {min(shares):.3f} at least; {slow} below "
        f"{GOAL_SPEEDUP} of cupy.matmul's; slowest: {slowest[0]:.3f} at {slowest[1]}"
    )


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("thin", __doc__, time_limit=300, device="0", quick="few products")
    options = parser.parse_args(arguments)
    machine, cases = machine_of(options.device), quick_cases(CASES, options.quick)
    compile_kernels(cases)
    rows = run_cases(options, machine, "thin.json", cases, recorded_failure(measure_case, asdict), text_line)
    print(summary_line(rows))
    return has_failures(rows)

"""Stacks of products on a GPU, never slower than torch.bmm: `python -m benchmarks stacks [--device 0] [--random 100]`.

fmm.matmul of two stacks, and fmm.gram of one, beside torch.bmm in shuffled rounds of whole calls: the stacks of NAMED,
then random ones of each type. A short call takes as long as the host needs to launch it. So calls below HOST_SECONDS
are also timed while the host is ahead of the device ("device"). The error is the largest difference from torch.bmm,
relative to the largest entry. Samples go to results/<device>/stacks.json.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import fmm
from benchmarks.harness import (
    Clock,
    Row,
    benchmark_parser,
    compared_with_torch,
    free_gpu_memory,
    gpu_seconds,
    has_failures,
    machine_of,
    paired_speedup,
    recorded_failure,
    rounded_samples,
    run_cases,
    shuffled_rounds,
)
from fmm.dtypes import DTYPES

# function, type, number of matrices, m, k and n
NAMED = (
    ("matmul", "float32", 64, 1024, 1024, 1024),
    ("matmul", "float32", 16, 2048, 2048, 2048),
    ("matmul", "float32", 512, 256, 256, 256),
    ("matmul", "float32", 1000, 100, 100, 100),
    ("matmul", "float32", 8, 4096, 64, 4096),
    ("matmul", "float64", 16, 2048, 2048, 2048),
    ("matmul", "float64", 8, 4096, 4096, 4096),
    ("matmul", "complex64", 64, 512, 512, 512),
    *(("gram", dtype, *size) for dtype in ("bfloat16", "float32") for size in (
        (64, 512, 512, 512), (24, 768, 3072, 768), (512, 256, 256, 256), (1000, 100, 100, 100),
    )),
)  # fmt: skip
RANDOM_TYPES = ("float32", "float64", "complex64", "bfloat16")
SHORTEST, LONGEST, LARGEST_COUNT = 16, 2048, 1024  # sides of random matrices, and matrices of a random stack
MAX_BYTES, MAX_MULTIPLY_ADDS = 1 << 29, 1 << 37  # of a random stack
ROUNDS, SAMPLE_SECONDS = 7, 0.002
HOST_SECONDS = 1e-3  # samples of whole calls that are shorter include the host's time
# the same calls on the device alone: rounds, the most calls in a sample, and the time by which the host is ahead
DEVICE_ROUNDS, MAX_DEVICE_REPEATS, AHEAD_SECONDS = 5, 30, 0.0025
CASES_A_FILE = 8  # cases after which the file of results is written again


@dataclass(frozen=True)
class Case:
    """A function of fmm, an element type, the number of products, and their size."""

    function: str
    dtype: str
    count: int
    m: int
    k: int
    n: int
    random: bool = False


def random_cases(number: int) -> list[Case]:
    """Return random stacks of each type; every second has sides that are multiples of 8, every third is a gram."""
    rng = random.Random(1)
    found: list[Case] = []
    for dtype in RANDOM_TYPES:
        while sum(case.dtype == dtype for case in found) < number:
            count = int(2 * (LARGEST_COUNT / 2) ** rng.random())
            m, k, n = (int(SHORTEST * (LONGEST / SHORTEST) ** rng.random()) for _ in "mkn")
            if len(found) % 2:
                m, k, n = (side - side % 8 for side in (m, k, n))
            nbytes = count * (m * k + k * n + m * n) * DTYPES[dtype].itemsize
            if nbytes <= MAX_BYTES and count * m * k * n <= MAX_MULTIPLY_ADDS:
                is_gram = len(found) % 3 == 0 and not DTYPES[dtype].is_complex
                sizes = ("gram", dtype, count, m, k, m) if is_gram else ("matmul", dtype, count, m, k, n)
                found.append(Case(*sizes, random=True))
    return found


def torch_gram(a: Any) -> Any:
    """Return A A^T of every matrix by torch.bmm; the transposed view is made in each call, as in fmm.gram."""
    return a.bmm(a.mT)


def measure_case(case: Case, clock: Clock) -> Row:
    """Return the plan, the error and the samples of both calls."""
    import torch

    torch.manual_seed(case.m)
    options = {"device": "cuda", "dtype": getattr(torch, case.dtype)}
    a = torch.randn(case.count, case.m, case.k, **options)
    if case.function == "gram":
        theirs, own = partial(torch_gram, a), partial(fmm.gram, a, rows=True)
        decision = fmm.explain_gram(a, rows=True)
    else:
        b = torch.randn(case.count, case.k, case.n, **options)
        theirs, own, decision = partial(torch.bmm, a, b), partial(fmm.matmul, a, b), fmm.explain(a, b)
    expected = theirs()
    error = float((own() - expected).abs().max() / expected.abs().max())
    for _ in range(3):  # a call whose addresses recur becomes a graph
        own()
    compared = compared_with_torch(theirs, own, ROUNDS, SAMPLE_SECONDS, clock, warm=2)
    row: Row = {**asdict(case), "plan": str(decision.plan), "error": float(f"{error:.2g}"), **compared}
    seconds = median(row["samples"]["torch"])
    if seconds < HOST_SECONDS:
        ahead, repeats = partial(gpu_seconds, ahead=AHEAD_SECONDS), min(MAX_DEVICE_REPEATS, int(2e-3 / seconds))
        samples = shuffled_rounds({"torch": theirs, "fmm": own}, DEVICE_ROUNDS, ahead, repeats)
        row["device"] = rounded_samples(samples)
    return row


def device_speedup(row: Row) -> float:
    """Return torch's time on the device over fmm's; a call that is longer than the host's time is timed as a whole."""
    samples = row["device"] if "device" in row else row["samples"]
    return paired_speedup(samples["torch"], samples["fmm"])


def lost_microseconds(row: Row) -> float:
    """Return the time that fmm's whole call takes longer than torch's, in microseconds."""
    return float(1e6 * median(own - theirs for theirs, own in zip(*row["samples"].values(), strict=True)))


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    head = f"{row['function']:7}{row['dtype']:10}{row['count']:5} x {row['m']} x {row['k']} x {row['n']}"
    if row["failure"]:
        return f"{head}  {row['failure'][:90]}"
    times = ", ".join(f"{name} {1e6 * median(seconds):.0f} us" for name, seconds in row["samples"].items())
    speedups = f"{row['speedup']:6.2f} (device {device_speedup(row):.2f})"
    return f"{head:44}{speedups}  {times}; {row['plan']}, error {row['error']:.1e}"


def slowest_text(dtype: str, rows: Sequence[Row]) -> str:
    """Return the slowest of the random stacks of a type, and the largest time that a declined stack lost, as text."""
    measured = [row for row in rows if not row["failure"]]
    if not measured:
        return f"{dtype}: no random stacks"
    slowest, on_device = min(measured, key=lambda row: float(row["speedup"])), min(measured, key=device_speedup)
    lost = [lost_microseconds(row) for row in measured if row["plan"] == "vendor"] or [0.0]
    return (
        f"{dtype}: {len(measured)} random stacks; slowest {text_line(slowest)}; on the device {text_line(on_device)};"
        f" {len(lost)} declined, which lost {median(lost):.1f} us, at most {max(lost):.1f} us"
    )


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("stacks", __doc__, time_limit=1e9, device="0")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="random stacks of each type")
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    cases = [*(Case(*case) for case in NAMED), *random_cases(options.random)]
    measure = recorded_failure(lambda case: measure_case(case, machine.clock), asdict)

    def measure_several(some: Sequence[Case]) -> list[Row]:
        free_gpu_memory()
        return [measure(case) for case in some]

    parts = [cases[i : i + CASES_A_FILE] for i in range(0, len(cases), CASES_A_FILE)]
    rows = run_cases(options, machine, "stacks.json", parts, measure_several, text_line)
    for dtype in RANDOM_TYPES if options.random else ():
        print(slowest_text(dtype, [row for row in rows if row["random"] and row["dtype"] == dtype]))
    return has_failures(rows)

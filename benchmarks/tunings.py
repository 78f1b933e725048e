"""Many tunings, and fresh shapes for each: `python -m benchmarks tunings [--count 20] [--shapes 40]`.

Each tuning is a run of `fmm-tune` into a config of its own. Then fmm.matmul's default call by this config meets the
vendor on shapes that this config's checksum draws. A shape that fmm leaves to the vendor is not timed. A plan that
seems slower than SLOW times the vendor is timed again with more rounds, and these rounds count. Every shape is a row of
results/<device>/tunings.json; the last line names the slowest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import fmm
from benchmarks.harness import Row, benchmark_parser, environment_variable, machine_of, rounded_samples, run_cases
from benchmarks.held_out import Shape, config_number, drawn_shapes
from benchmarks.timed_machines import Cpu, Gpu
from fmm.config import files
from fmm.kernels.cpu.compiled_sums import is_compiler_usable
from fmm.kernels.plans.plan import VENDOR
from fmm.tuner.trials.paired import PairedRoundLimits, measure_paired_rounds

SLOW = 0.98  # the least speedup that a chosen plan should have
ROUNDS = PairedRoundLimits(5, 15, 4.0)
MORE_ROUNDS = PairedRoundLimits(15, 41, 12.0)
TYPES = ("float64", "float32")
EFFORTS = ("quick", "default")
SIDES = {"cpu": (2500, 8192), "cuda": (1024, 16384)}  # of middle and large shapes: plans are chosen in this range


class Tuning(NamedTuple):
    """One run of fmm-tune."""

    number: int
    effort: str


def tune(tuning: Tuning, device: str, types: Sequence[str], config: Path) -> None:
    """Run fmm-tune in another process and write `config`."""
    options = ("--device", device, "--effort", tuning.effort, "--dtype", ",".join(types), "--output", str(config))
    command = [sys.executable, "-m", "fmm_tune", *options, "--fresh", "--quiet"]
    subprocess.run(command, check=True, env={**os.environ, "FMM_CONFIG": str(config)}, stdout=subprocess.DEVNULL)


def fresh_shapes(config: Path, count: int, types: Sequence[str], processor: str) -> Iterator[Shape]:
    """Yield shapes that the config's checksum draws, the types in turn; every fourth one has a thin side."""
    least, most = SIDES[processor]
    seed = config_number(config)
    large, thin = (drawn_shapes(kind, count, most, seed, least) for kind in ("large", "thin"))
    for i, sizes in enumerate(zip(large, thin, strict=True)):
        kind = "thin" if i % 4 == 3 else "large"
        yield types[i % len(types)], kind, sizes[kind == "thin"]


def measure_shape(machine: Cpu, tuning: Tuning, shape: Shape) -> Row:
    """Time the default call and the vendor's, unless the default call is the vendor's."""
    dtype, kind, size = shape
    a, b, vendor = machine.operands(size, dtype)
    into = machine.result_arguments(a, b)
    decision = fmm.explain(a, b, **into)
    row: Row = {**tuning._asdict(), "dtype": dtype, "kind": kind, "size": size, "plan": str(decision.plan)}
    if decision.plan == VENDOR:
        return {**row, "speedup": 1.0, "samples": {}}
    both = partial(vendor, a, b, **into), partial(fmm.matmul, a, b, **into)
    found = measure_paired_rounds(*both, ROUNDS)
    if found.median_speedup < SLOW:
        found = measure_paired_rounds(*both, MORE_ROUNDS)
    samples = rounded_samples({"vendor": found.vendor, "fmm": found.candidate})
    return {**row, "speedup": round(found.median_speedup, 4), "samples": samples}


def measure_tuning(tuning: Tuning, device: str, types: Sequence[str], count: int) -> list[Row]:
    """Tune, and return a row for each shape."""
    processor = "cpu" if device == "cpu" else "cuda"
    machine = Cpu() if processor == "cpu" else Gpu()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        tune(tuning, device, types, config)
        rows = []
        with environment_variable("FMM_CONFIG", str(config)):
            files.clear_config_cache()
            for shape in fresh_shapes(config, count, types, processor):
                rows.append(measure_shape(machine, tuning, shape))
                machine.free_memory()
        files.clear_config_cache()
        return rows


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    size = " x ".join(map(str, row["size"]))
    speedup = "" if row["plan"] == str(VENDOR) else f"{row['speedup']:.3f}"
    return f"{row['number']:>3} {row['effort']:8} {row['dtype']:9} {size:>22} {speedup:>6}  {row['plan']}"


def summary_line(rows: Sequence[Row]) -> str:
    """Return how many shapes run by plans, how many of these are slower than SLOW, and the slowest."""
    planned = [row for row in rows if row["samples"]]
    slow = sum(row["speedup"] < SLOW for row in planned)
    slowest = f"; slowest: {text_line(min(planned, key=lambda row: row['speedup'])).strip()}" if planned else ""
    return f"{len(rows)} shapes, {len(planned)} by plans, {slow} below {SLOW} times the vendor{slowest}"


def main(arguments: Sequence[str]) -> int:
    """Run the tunings; return 1 if a chosen plan is slower than SLOW times the vendor."""
    parser = benchmark_parser("tunings", __doc__, time_limit=1e9, device="cpu")
    parser.add_argument("--count", type=int, default=20, help="tunings (20)")
    parser.add_argument("--shapes", type=int, default=40, help="shapes of each tuning (40)")
    parser.add_argument("--effort", choices=EFFORTS, help="of all tunings (default: each in turn)")
    parser.add_argument("--dtype", action="append", help=f"only this type (may be repeated; {', '.join(TYPES)})")
    parser.add_argument("--file", default="tunings.json", help="name of the file in the folder")
    options = parser.parse_args(arguments)
    tunings = [Tuning(i, options.effort or EFFORTS[i % len(EFFORTS)]) for i in range(options.count)]
    types = options.dtype or TYPES
    measure = partial(measure_tuning, device=options.device, types=types, count=options.shapes)
    rows = run_cases(
        options,
        machine_of(options.device),
        options.file,
        tunings,
        measure,
        text_line,
        compiled_sums=is_compiler_usable(),
    )
    print(summary_line(rows))
    return int(any(row["speedup"] < SLOW for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

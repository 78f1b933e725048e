"""Programs of others, plain and under `python -m fmm`: `python -m benchmarks programs [--device 0|cpu] [--quick]`.

Each program runs in processes of its own: plain, under `python -m fmm --report`, and plain in float64. The processes
run one step at a time, in shuffled rounds. A row has the seconds of the steps, the differences of both results from
float64, the products that fmm's report counted, and the share of each kind of kernel in a plain step on the GPU. A
program of a missing package is skipped and named. Samples go to results/<device>/programs.json.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import (
    ROOT,
    Row,
    benchmark_parser,
    has_failures,
    machine_of,
    paired_speedup,
    recorded_failure,
    rounded_samples,
    run_cases,
    shuffled_rounds,
)
from fmm.tuner.trials.environment import command_line_words, environment_record

SERVED = Path(__file__).parent / "served.py"
ROUNDS, QUICK_ROUNDS, WARM_STEPS = 7, 2, 2
STEP_SECONDS = 12  # no round begins after this many seconds
SHOWN_KERNELS = 3  # kernels that are no products, and are named in a row
# parts of the names of kernels that multiply matrices
PRODUCT_KERNELS = ("gemm", "cutlass", "xmma", "nvjet", "splitk", "fmm_", "wgmma")


@dataclass(frozen=True)
class Case:
    """A program of this folder: its module, the package that it needs, and its type."""

    module: str
    title: str
    package: str  # name of the package to import
    distribution: str  # name under which the package is installed
    dtype: str
    on_gpu: bool = True
    quick: bool = False


CASES = (
    Case("gpt2", "GPT-2, a training step", "transformers", "transformers", "float32", quick=True),
    Case("vit", "ViT-L/16, inference", "timm", "timm", "float32"),
    Case("gaussian_process", "exact Gaussian process, a gradient", "gpytorch", "gpytorch", "float32"),
    Case("gaussian_process", "exact Gaussian process, a gradient", "gpytorch", "gpytorch", "float64"),
    Case("hartree_fock", "Hartree-Fock, a step", "cupy", "cupy-cuda13x", "float64"),
    Case("pca", "principal components", "sklearn", "scikit-learn", "float64", on_gpu=False, quick=True),
    Case("ridge", "ridge regression", "sklearn", "scikit-learn", "float64", on_gpu=False),
)


class ServedProgram:
    """A process of served.py; `ask` sends a command and returns the answer."""

    def __init__(self, case: Case, dtype: str, is_small: bool, errors: Path, options: Sequence[str] = ()) -> None:
        words = [sys.executable, *options, str(SERVED), case.module, dtype, *["small"] * is_small]
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment, pipe = {**os.environ, "PYTHONPATH": paths}, subprocess.PIPE
        self.errors = errors
        with errors.open("w") as stderr:
            self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=stderr, text=True, env=environment)

    def __enter__(self) -> ServedProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process; its program is over when its input ends."""
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()

    def answer(self) -> Any:
        """Return the next answer; RuntimeError with the end of the standard error if the process has ended."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return json.loads(line)
        self.process.wait()
        raise RuntimeError(f"the process ended: {' '.join(self.errors.read_text().split())[-300:]}")

    def ask(self, command: str) -> Any:
        """Send a command and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()


def measure_case(case: Case, rounds: int, is_small: bool) -> Row:
    """Return a row for a program: seconds of steps, differences from float64, products, kernels."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        under_fmm = ("-m", "fmm", f"--report={report}")
        processes: dict[str, ServedProgram] = {}
        with ExitStack() as stack:
            for name, dtype, options in _process_options(case, under_fmm):
                errors = Path(folder) / f"{name}.stderr"
                processes[name] = stack.enter_context(ServedProgram(case, dtype, is_small, errors, options))
            for process in processes.values():
                process.answer()  # has imported its libraries
            differences = result_differences(processes, Path(folder))
            timed = {name: processes[name] for name in ("plain", "fmm")}
            for process in (*timed.values(),) * WARM_STEPS:
                process.ask("step")
            samples = shuffled_rounds(timed, rounds, lambda process, _: float(process.ask("step")), 1, STEP_SECONDS)
            kernels = processes["plain"].ask("profile")
        products = json.loads(report.read_text("utf-8"))
    samples = rounded_samples(samples)
    return {
        **case_fields(case),
        "version": version(case.distribution),
        "speedup": round(paired_speedup(samples["plain"], samples["fmm"]), 4),
        "samples": samples,
        "differences": differences,
        "products": product_summary(products),
        "kernels": kernel_shares(kernels),
    }


def _process_options(case: Case, under_fmm: Sequence[str]) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield the name, type and options of Python for each process; a float64 program is its own reference."""
    yield "plain", case.dtype, ()
    yield "fmm", case.dtype, under_fmm
    if case.dtype != "float64":
        yield "float64", "float64", ()


def result_differences(processes: dict[str, ServedProgram], folder: Path) -> dict[str, float]:
    """Prepare all programs; return the distance of each result from float64's, relative to its norm.

    The process in float64 ends here, and frees its memory.
    """
    results = {}
    for name, process in processes.items():
        process.ask("prepare")
        process.ask(f"result {folder / name}.npy")
        results[name] = np.load(folder / f"{name}.npy")
    exact = results.pop("float64", results["plain"])
    if "float64" in processes:
        processes["float64"].end()
    return {
        name: float(f"{np.linalg.norm(found - exact) / np.linalg.norm(exact):.3g}") for name, found in results.items()
    }


def product_summary(report: Mapping[str, Any]) -> Row:
    """Return the totals of fmm's report, and the largest kinds of products with their plans."""
    largest = [
        {name: kind[name] for name in ("times", "where", "left", "right", "dtype", "plan", "reason")}
        for kind in report["products"][:4]
    ]
    return {**{name: report[name] for name in ("calls", "by_plans", "share")}, "largest": largest}


def kernel_shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the share of matrix products in the time of all kernels, and of the longest other kernels."""
    shares: defaultdict[str, float] = defaultdict(float)
    total = sum(seconds.values())
    if not total:  # no kernel, or only calls of the driver
        return {}
    for name, value in seconds.items():
        shares["products" if is_product_kernel(name) else short_kernel_name(name)] += value / total
    longest = sorted(shares.keys() - {"products"}, key=lambda name: -shares[name])[:SHOWN_KERNELS]
    return {name: round(shares[name], 3) for name in ("products", *longest)}


def short_kernel_name(name: str) -> str:
    """Return a kernel's name without its namespaces and parameters.

    Some libraries name all kernels `kernel`, with the function as the first parameter: this parameter is returned.
    """
    bare = re.sub(r"^void |\(anonymous namespace\)::", "", name).removeprefix("kernel<")
    return re.split(r"[<(,]", bare)[0].rpartition("::")[2].strip() or name[:40]


def is_product_kernel(name: str) -> bool:
    """Return True if a kernel's name is that of a matrix product."""
    return any(part in name.lower() for part in PRODUCT_KERNELS)


def case_fields(case: Case) -> Row:
    """Return the fields that name a program in a row."""
    where = "GPU" if case.on_gpu else "host"
    return {"program": case.title, "package": case.distribution, "dtype": case.dtype, "where": where}


def available_cases(on_gpu: bool, quick: bool, modules: Sequence[str] = ()) -> list[Case]:
    """Return the programs whose packages are installed; print the names of the others."""
    cases = [case for case in CASES if on_gpu or not case.on_gpu]
    cases = [x for x in cases if not modules or {x.module, f"{x.module}:{x.dtype}"} & {*modules}]
    missing = {case.package for case in cases if not find_spec(case.package)}
    for package in sorted(missing):
        titles = ", ".join(f"{case.title} ({case.dtype})" for case in cases if case.package == package)
        print(f"skipped: {titles}; {package} is not installed")
    return [case for case in cases if case.package not in missing and (case.quick or not quick)]


def text_line(row: Row) -> str:
    """Return the lines that a terminal shows for a row."""
    head = f"{row['program']:36}{row['dtype']:8}"
    if row["failure"]:
        return f"{head}  {row['failure']}"
    times = ", ".join(f"{name} {1e3 * median(seconds):.1f} ms" for name, seconds in row["samples"].items())
    differences = ", ".join(f"{name} {value:.1e}" for name, value in row["differences"].items())
    products = row["products"]
    lines = [f"{head}{row['speedup']:6.2f}  {times}; from float64: {differences}"]
    lines.append(f"    {products['by_plans']} of {products['calls']} products by plans, {products['share']:.0%}")
    if row["kernels"]:
        lines.append("    kernels: " + ", ".join(f"{name} {share:.0%}" for name, share in row["kernels"].items()))
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a program failed."""
    parser = benchmark_parser("programs", __doc__, time_limit=1e9, device="0", quick="few and small programs")
    modules = ", ".join(dict.fromkeys(case.module for case in CASES))
    some = f"some of {modules}, or one with its type (gaussian_process:float64), separated by commas"
    parser.add_argument("--programs", default="", metavar="NAMES", help=f"{some} (all)")
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    cases = available_cases(machine.on_gpu, options.quick, list(filter(None, options.programs.split(","))))
    measure = recorded_failure(lambda case: measure_case(case, rounds, options.quick), case_fields)
    record = environment_record(command_line_words())
    host = f"{record['processor']}, {record['blas_threads']} threads"
    return has_failures(run_cases(options, machine, "programs.json", cases, measure, text_line, host=host))

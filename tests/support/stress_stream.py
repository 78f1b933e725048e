"""Threads that share one CUDA stream: results are checked while graphs are replayed with changing operands.

    python -m tests.support.stress_stream [--seconds 600] [--threads 8] [--products 24] [--rounds 6]
                                          [--processes 1] [--output FILE]

The threads multiply, in torch, matrices at alternating addresses by plans that are captured and replayed.
Each thread ends after some rounds of products (soon with `--products 4 --rounds 1`), and the next one takes
over its graphs. Another thread drops graphs and lets new ones be captured all the time. In the first half of
the time all threads share a new stream, in the second half the default stream. Several processes do the same
on one device, since some crashes of the driver show only there. The exit status is 1 if a result is wrong or
a process crashed. FILE gets each process's counts.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PLANS = ("f16x3", "strassen.batched.pad16 > vendor", "winograd > vendor", "strassen^2.batched.pad16 > tile", "tile")
SIDES = (64, 256, 384, 512, 640)
OPERANDS = 5  # pairs of matrices of each side, so that graphs are given other addresses at every call
TOLERANCE = 1e-4  # of ||C - A B|| / ||A B|| in float32


class Case(NamedTuple):
    """Two matrices and their product in float64."""

    a: Any
    b: Any
    expected: Any


class Stress:
    """The operands, the expected products, and the errors so far."""

    def __init__(self, products: int, rounds: int) -> None:
        import torch

        import fmm

        self.torch: Any = torch
        self.fmm = fmm
        self.ends = 0.0
        self.products_per_round, self.rounds = products, rounds
        self.cases: dict[int, list[Case]] = {}
        for side in SIDES:
            pairs = [[torch.randn(side, side, device="cuda") for _ in "ab"] for _ in range(OPERANDS)]
            self.cases[side] = [Case(a, b, a.double() @ b.double()) for a, b in pairs]
        torch.cuda.synchronize()
        self.products = self.threads = self.evictions = 0
        self.errors: list[str] = []
        self.lock = threading.Lock()  # sizes around the four above

    def goes_on(self) -> bool:
        return time.monotonic() < self.ends and not self.errors

    def start_threads(self, seed: int, stream: Any) -> None:
        """Run threads that multiply on the stream, one after the other, until the time is over."""
        while self.goes_on():
            seed += 1000
            thread = threading.Thread(target=self.multiply, args=(seed, stream))
            thread.start()
            thread.join()

    def multiply(self, seed: int, stream: Any) -> None:
        """Multiply matrices of random sides by random plans, and check the results."""
        rng = random.Random(seed)
        try:
            with self.torch.cuda.stream(stream):
                for _ in range(self.rounds):
                    if self.goes_on():
                        self.check_products(rng.choice(PLANS), rng.choice(SIDES), rng)
        except Exception as error:
            self.note(0, f"{type(error).__name__}: {error}")
        with self.lock:
            self.threads += 1

    def check_products(self, plan: str, side: int, rng: random.Random) -> None:
        """Compute several products before the first is checked, so that other threads' calls come in between."""
        results = []
        for case in rng.choices(self.cases[side], k=self.products_per_round):
            out = self.torch.empty_like(case.a) if rng.random() < 0.5 else None
            results.append((case, self.fmm.matmul(case.a, case.b, out, plan=plan)))
        for case, c in results:
            error = float((c.double() - case.expected).norm() / case.expected.norm())
            self.note(1, "" if error < TOLERANCE else f"{plan}, n = {side}: error {error}")

    def note(self, products: int, error: str) -> None:
        with self.lock:
            self.products += products
            self.errors += [error] if error else []

    def evict(self) -> None:
        """Drop all graphs at intervals, and let calls that came three times be captured."""
        from fmm.kernels.cuda.launch.graphs import CALLS_BEFORE_CAPTURE
        from fmm.runtime.run_device import GRAPH_CACHE

        rng = random.Random(0)
        while self.goes_on():
            time.sleep(rng.random() / 50)
            GRAPH_CACHE.calls_before_capture = CALLS_BEFORE_CAPTURE
            if rng.random() < 0.1:
                self.evictions += GRAPH_CACHE.clear()


def run_half(stress: Stress, threads: int, stream: Any) -> None:
    """Let threads share this stream until the time is over."""
    running = [threading.Thread(target=stress.start_threads, args=(i, stream)) for i in range(threads)]
    running.append(threading.Thread(target=stress.evict))
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def run_stress(options: argparse.Namespace) -> dict[str, Any]:
    """Multiply in this process until the time is over; return its counts."""
    stress = Stress(options.products, options.rounds)
    cuda = stress.torch.cuda
    for stream in (cuda.Stream(), cuda.default_stream()):
        stress.ends = time.monotonic() + options.seconds / 2
        run_half(stress, options.threads, stream)
    counts = {"products": stress.products, "threads": stress.threads, "dropped_graphs": stress.evictions}
    return {**counts, "errors": stress.errors}


def stress_numbers(options: argparse.Namespace) -> dict[str, float]:
    """Return the options that every process of the stress has."""
    return {name: getattr(options, name) for name in ("seconds", "threads", "products", "rounds")}


def run_processes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the same stress in several processes at the same time; return the counts and exit status of each."""
    command = [sys.executable, "-m", "tests.support.stress_stream", "--json"]
    command += [word for name, value in stress_numbers(options).items() for word in (f"--{name}", str(value))]
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(options.processes)]
    ends = [(*process.communicate(), process.returncode) for process in running]
    return [{"status": status, **(json.loads(out) if out else {"errors": [log[-2000:]]})} for out, log, status in ends]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--products", type=int, default=24, help="products of one plan and side between two checks")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of products in one thread's life")
    parser.add_argument("--processes", type=int, default=1, help="processes on the device at the same time")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON file of each process's counts")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    sys.setswitchinterval(1e-6)
    found = run_processes(options) if options.processes > 1 else [{"status": 0, **run_stress(options)}]
    if options.output:
        options.output.write_text(json.dumps({**stress_numbers(options), "processes": found}) + "\n", encoding="utf-8")
    errors = [error for process in found for error in process["errors"]]
    totals = {name: sum(process.get(name, 0) for process in found) for name in ("products", "threads")}
    crashed = sum(process["status"] not in (0, 1) for process in found)
    if options.json:
        print(json.dumps(found[0]))
    else:
        print(f"{totals['products']} products by {totals['threads']} threads in {len(found)} processes")
        print(f"{len(errors)} errors, {crashed} crashed", *errors, sep="\n")
    return 1 if errors or crashed or not totals["products"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

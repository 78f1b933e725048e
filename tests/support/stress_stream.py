"""Threads that share one CUDA stream: results are checked while plans are replayed with changing operands.

    python -m tests.support.stress_stream [--seconds 600] [--threads 8]

Every thread multiplies, in torch, matrices of alternating addresses by plans that are captured and replayed, on the one
stream that all threads share. It exits with 1 if a result is wrong; a crash shows as a signal's status.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import threading
import time
from typing import Any

PLANS = ("f16x3", "strassen.batched.pad16 > vendor", "winograd > vendor", "strassen^2.batched.pad16 > tile", "tile")
SIDES = (256, 384, 512, 640)
OPERANDS = 5  # more than one set per side, so that graphs are given other addresses at every call


class Stress:
    """The operands, the expected products, and what went wrong so far."""

    def __init__(self, seconds: float) -> None:
        import torch

        self.torch: Any = torch
        self.ends = time.monotonic() + seconds
        self.stream = torch.cuda.Stream()
        self.cases: list[tuple[Any, Any, Any]] = []
        for side in SIDES:
            for _ in range(OPERANDS):
                a, b = (torch.randn(side, side, device="cuda") for _ in "ab")
                self.cases.append((a, b, (a.double() @ b.double())))
        torch.cuda.synchronize()
        self.products = 0
        self.errors: list[str] = []

    def work(self, seed: int) -> None:
        """Multiply random cases by random plans until the time is over, and check each result."""
        import fmm

        rng = random.Random(seed)
        with self.torch.cuda.stream(self.stream):
            while time.monotonic() < self.ends and not self.errors:
                plan = rng.choice(PLANS)
                for a, b, expected in rng.choices(self.cases, k=24):
                    out = self.torch.empty_like(expected, dtype=a.dtype) if rng.random() < 0.5 else None
                    c = fmm.matmul(a, b, out, plan=plan)
                    error = float((c.double() - expected).norm() / expected.norm())
                    self.products += 1
                    if not error < 1e-4:
                        self.errors.append(f"{plan}, n = {len(a)}: error {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    faulthandler.enable()
    sys.setswitchinterval(1e-6)
    stress = Stress(options.seconds)
    threads = [threading.Thread(target=stress.work, args=(i,)) for i in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{stress.products} products by {options.threads} threads, {len(stress.errors)} wrong", *stress.errors)
    return 1 if stress.errors or not stress.products else 0


if __name__ == "__main__":
    raise SystemExit(main())

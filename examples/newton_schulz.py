"""Newton-Schulz orthogonalisation, as the Muon family of optimizers runs it, with half of two of its three products.

    python examples/newton_schulz.py [--rows 4096 --cols 4096 --steps 5]

Each step replaces X by a X + (b S + c S^2) X with S = X X^T: both S and its polynomial are symmetric, so that fmm.gram
computes one half of each, alpha and beta in the same call. Compared and timed against the same steps in plain torch;
in bfloat16 on a CUDA device, in float32 without one. Needs torch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import fmm

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("examples/newton_schulz.py needs torch: pip install torch") from None

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c: Muon's
Step = Callable[[Any], Any]


def scaled(x: Any) -> Any:
    """Flat, and with no singular value above 1."""
    x = x.mT.contiguous() if x.shape[-2] > x.shape[-1] else x
    return x / (x.norm() * 1.01 + 1e-7)


def step_by_fmm(x: Any) -> Any:
    """One step, by two halves and torch's own whole product, which adds as it goes."""
    a, b, c = COEFFICIENTS
    s = fmm.gram(x, rows=True)
    polynomial = fmm.gram(s, s, s.clone(), alpha=c, beta=b)  # c S S + b S
    return torch.addmm(x, polynomial, x, beta=a)


def step_by_torch(x: Any) -> Any:
    """The same, by three whole products."""
    a, b, c = COEFFICIENTS
    s = x @ x.mT
    return torch.addmm(x, torch.addmm(s, s, s, beta=b, alpha=c), x, beta=a)


def orthogonalised(x: Any, steps: int = 5, step: Step = step_by_fmm) -> Any:
    """A matrix with about the same singular vectors and singular values near 1."""
    turned, y = x.shape[-2] > x.shape[-1], scaled(x)
    for _ in range(steps):
        y = step(y)
    return y.mT if turned else y


def seconds(call: Callable[[], Any], device: str) -> float:
    """Of one call, until the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compared(rows: int, cols: int, steps: int, rounds: int, device: str) -> dict[str, Any]:
    """Seconds of both ways in turns, and by how much their results differ from one another and from orthogonality."""
    torch.manual_seed(0)
    x = torch.randn(rows, cols, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    ways = {"fmm": step_by_fmm, "torch": step_by_torch}
    found = {name: orthogonalised(x, steps, step).double() for name, step in ways.items()}
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, step in ways.items():
            samples[name].append(seconds(lambda step=step: orthogonalised(x, steps, step), device))  # type: ignore[misc]
    values = {name: torch.linalg.svdvals(y[:256, :256].float() if rows > 2048 else y) for name, y in found.items()}
    difference = float((found["fmm"] - found["torch"]).norm() / found["torch"].norm())
    largest = {name: float(v.max()) for name, v in values.items()}
    return {"size": (rows, cols), "steps": steps, "samples": samples, "difference": difference, "largest": largest}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("--rows", 0), ("--cols", 0), ("--steps", 5), ("--rounds", 7)):
        parser.add_argument(name, type=int, default=usual)
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    usual = 4096 if device == "cuda" else 1024
    size = options.rows or usual, options.cols or usual
    found = compared(*size, options.steps, options.rounds, device)
    by_fmm, by_torch = (median(found["samples"][name]) for name in ("fmm", "torch"))
    print(f"{size[0]} x {size[1]}, {options.steps} steps on {device}: {by_fmm:.4f} s, torch {by_torch:.4f} s")
    print(f"speedup {by_torch / by_fmm:.2f}, results differ by {found['difference']:.1e} of their norm")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

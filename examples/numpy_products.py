"""Products of NumPy's arrays: what fmm would do and why, how long it takes beside NumPy, and how much it errs.

    python examples/numpy_products.py [--side 4096 --dtype float32]

Needs NumPy alone. Nothing is gained below a few thousand a side, where fmm leaves products to NumPy, and says so; what
to expect of this machine, `fmm-tune` measures once, and `fmm-tune show` tells.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fmm


def seconds(multiply: Callable[[], Any], rounds: int = 3) -> float:
    """The least of several, behind one that does not count: it takes fresh memory."""
    multiply()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        multiply()
        found.append(time.perf_counter() - begin)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((options.side, options.side)).astype(options.dtype) for _ in range(2))
    print(fmm.explain(a, b))
    c = fmm.matmul(a, b)  # with fmm.install("numpy"), so do np.matmul and `@`
    own, usual = seconds(lambda: fmm.matmul(a, b, out=c)), seconds(lambda: np.matmul(a, b, out=c))
    print(f"\nfmm.matmul {own:.3f} s, np.matmul {usual:.3f} s: {usual / own:.2f} times as fast")
    rows = a[:16].astype(np.longdouble) @ b.astype(np.longdouble)
    errors = [np.abs(product[:16] - rows).max() for product in (fmm.matmul(a, b), np.matmul(a, b))]
    print(f"largest error of the first rows: {errors[0]:.2e}, NumPy's {errors[1]:.2e}")


if __name__ == "__main__":
    main()

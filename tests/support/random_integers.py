"""Compares random products of integers with Python's own: `python -m tests.support.random_integers [--device
0]`. Shapes, types, ranges and memory orders are random, and some results go to arrays of the caller. Extreme
numbers are among them: all the lowest, alternating signs, powers of two and their neighbours. Every product
is compared with NumPy's, which wraps. All entries of small products, and some of large ones, are also
compared with Python's unbounded integers. At the first difference the program prints how to repeat it, and
exits with status 1.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import fmm
from fmm.dtypes import INTEGERS, RING_TYPES
from fmm.kernels.plans.levels.residues import TYPES_WITH_LEVEL_BELOW
from tests.support.integers import Array, draw_integers, python_product, with_layout

SIDES = 1, 2, 3, 15, 16, 17, 48, 64, 129, 160
PLANS = {
    "cpu": ("digits", "winograd > digits", "quarters > digits"),
    "cuda": ("residues > bytes", "residues > strassen > bytes", "quarters > residues > bytes"),
}
TYPES = {
    "winograd > digits": RING_TYPES,
    "residues > strassen > bytes": TYPES_WITH_LEVEL_BELOW,
}  # types of plans that do not multiply all integers
SMALL, ENTRIES = (
    20_000,
    40,
)  # multiplications by Python: all entries of a product that needs at most this number, else some entries
LONG_INNER_DIMENSION = 131072  # an inner dimension that is too long for one sum in 32 bits


class RandomProduct(NamedTuple):
    """A random product: its operands, their memory layouts, and the layout of `out`, if the caller passes
    it."""

    dtype: str
    a: Array
    b: Array
    layouts: tuple[int, int]
    out: int | None

    def __str__(self) -> str:
        (m, k), n = self.a.shape, self.b.shape[1]
        return f"{self.dtype} {m} x {k} x {n}, laid out {self.layouts}, out {self.out}"


def draw_product(seed: int) -> RandomProduct:
    choose, draw = random.Random(seed), np.random.default_rng(seed)
    m, k, n = (choose.choice([*SIDES, choose.randint(1, 200)]) for _ in range(3))
    rare = choose.random()
    if rare < 0.01:
        m, k, n = min(m, 4), LONG_INNER_DIMENSION + choose.randint(0, 999), min(n, 4)
    elif rare < 0.05:
        m, k, n = min(m, 64), choose.randint(200, 4000), min(n, 64)
    dtype = choose.choice(INTEGERS)
    a, b = draw_integers(draw, dtype, (m, k)), draw_integers(draw, dtype, (k, n))
    return RandomProduct(
        dtype, a, b, (choose.randint(0, 2), choose.randint(0, 2)), choose.choice([None, None, 0, 1, 2])
    )


def expected_product(x: RandomProduct) -> Array:
    """Return NumPy's product, whose sums wrap."""
    if x.dtype == "bool":
        return np.asarray(x.a.astype(np.float64) @ x.b.astype(np.float64) > 0)
    wide = f"u{x.a.itemsize}"
    a, b = (v.view(wide).astype(np.uint64) for v in (x.a, x.b))
    return np.asarray((a @ b).astype(wide).view(x.dtype))


def differs_from_python(x: RandomProduct, found: Array, seed: int) -> bool:
    """Return True if an entry differs from Python's integers; of a large product only some entries are
    compared."""
    (m, k), n = x.a.shape, x.b.shape[1]
    if m * k * n <= SMALL:
        return not np.array_equal(found, python_product(x.a, x.b))
    choose = random.Random(seed)
    places = [(choose.randrange(m), choose.randrange(n)) for _ in range(ENTRIES if k < LONG_INNER_DIMENSION else 1)]
    return any(found[i, j] != python_product(x.a[i : i + 1], x.b[:, j : j + 1])[0, 0] for i, j in places)


def multiply_on_host(x: RandomProduct, plan: str) -> Array:
    a, b = (with_layout(v, how) for v, how in zip((x.a, x.b), x.layouts, strict=True))
    out = None if x.out is None else with_layout(np.ones((len(a), b.shape[1]), x.dtype), x.out)
    return np.asarray(fmm.matmul(a, b, out=out, plan=plan))


def multiply_on_device(x: RandomProduct, plan: str) -> Array:
    import cupy

    def moved(v: Array, how: int) -> Any:
        """Return the same numbers in this memory order or with gaps."""
        found = cupy.asarray(np.ascontiguousarray(v))
        if how == 2:
            return cupy.repeat(cupy.repeat(found, 2, 0), 3, 1)[::2, ::3]
        return cupy.asfortranarray(found) if how else found

    a, b = (moved(v, how) for v, how in zip((x.a, x.b), x.layouts, strict=True))
    out = None if x.out is None else moved(np.ones((len(a), b.shape[1]), x.dtype), x.out)
    return np.asarray(fmm.matmul(a, b, out=out, plan=plan).get())


def first_difference(seed: int, multiply: Callable[[RandomProduct, str], Array], device: str) -> str:
    """Return a message if a product is wrong, else ""."""
    x = draw_product(seed)
    plans = PLANS[device]
    plan = next(plan for plan in (plans[seed % len(plans)], plans[0]) if x.dtype in TYPES.get(plan, INTEGERS))
    found, expected = multiply(x, plan), expected_product(x)
    if found.dtype != x.dtype or not np.array_equal(found, expected):
        return f"seed {seed}: {x} by {plan} differs from NumPy's product"
    if differs_from_python(x, found, seed):
        return f"seed {seed}: {x} by {plan} differs from Python's integers"
    return ""


def run_processes(options: argparse.Namespace) -> int:
    """Divide the seeds among several processes and return the largest exit status."""
    each = -(-options.count // options.workers)
    command = [sys.executable, "-m", "tests.support.random_integers", "--device", options.device]
    command += ["--count", str(each), "--seconds", str(options.seconds), "--seed"]
    seeds = range(options.seed, options.seed + each * options.workers, each)
    parts = [subprocess.Popen([*command, str(seed)]) for seed in seeds]
    return max([part.wait() for part in parts])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="0", help="cpu, or the number of a CUDA device")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first product")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the products")
    options = parser.parse_args(arguments)
    if options.workers > 1:
        return run_processes(options)
    kind, multiply = ("cpu", multiply_on_host) if options.device == "cpu" else ("cuda", multiply_on_device)
    if kind == "cuda":
        import cupy

        cupy.cuda.Device(int(options.device)).use()
    end, done = time.monotonic() + options.seconds, 0
    for seed in range(options.seed, options.seed + options.count):
        if time.monotonic() > end:
            break
        if said := first_difference(seed, multiply, kind):
            print(said)
            return 1
        done += 1
    print(f"{done} random products of integers, all equal to Python's", flush=True)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

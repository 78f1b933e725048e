"""Never slower, of structured products on this processor: `python -m benchmarks.cpu_structured_random [--quick]`.

Random shapes of each kind against NumPy's own product into one place each: x times its adjoint by fmm.gram, x @ x.T as
a user writes it, and complex products. Whole calls, by whatever the configs in force or the model choose. What is below
the goal is measured once more at the end, longer and on other numbers: real is what is below it twice.

Raw samples are appended to random-structured.jsonl in results/<device>/, a line for each shape; a run goes on where
the last one ended. (Wants a machine with nothing else to do.)
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import fmm
from benchmarks.harness import RESULTS
from benchmarks.structured_shapes import COUNT, GOAL, QUICK_COUNT, random_sides, summary
from fmm.tuner.trials.environment import device_folder, environment, typed_command

FILE = "random-structured.jsonl"
REAL, COMPLEX = ("float64", "float32"), ("complex128", "complex64")
KINDS = (*(f"gram {t}" for t in (*REAL, *COMPLEX)), *(f"x @ x.T {t}" for t in REAL), *COMPLEX)
LARGEST = 3000  # side
LEAST = 0.002  # seconds of a sample: shorter calls are repeated
ROUNDS, AGAIN = 7, 21
TOO_FAR = {"float32": 1e-4, "complex64": 1e-4}  # relative error, in norm, of a wrong result; of others:
TOO_FAR_DOUBLE = 1e-11

Call = Callable[[], Any]


class Calls(NamedTuple):
    """NumPy's and fmm's, and what fmm decided."""

    vendor: Call
    own: Call
    plan: str


def numbers(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Any:
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype in COMPLEX else x).astype(dtype)


def calls_of(kind: str, size: tuple[int, ...], seed: int) -> Calls:
    """Of one shape, on fresh numbers."""
    what, _, dtype = kind.rpartition(" ")
    rng = np.random.default_rng([seed, *size])
    if not what:
        m, k, n = size
        a, b = numbers((m, k), dtype, rng), numbers((k, n), dtype, rng)
        theirs, ours = (np.empty((m, n), dtype) for _ in range(2))
        plan = fmm.explain(a, b, out=ours).plan
        return Calls(partial(np.matmul, a, b, theirs), partial(fmm.matmul, a, b, ours), str(plan))
    x = numbers(size, dtype, rng)
    theirs, ours = (np.empty((len(x), len(x)), dtype) for _ in range(2))
    if what == "x @ x.T":
        plan = fmm.explain(x, x.T, out=ours).plan
        return Calls(lambda: np.matmul(x, x.T, theirs), lambda: fmm.matmul(x, x.T, ours), str(plan))
    adjoint: Call = (
        (lambda: np.matmul(x, x.conj().T, theirs)) if dtype in COMPLEX else lambda: np.matmul(x, x.T, theirs)
    )
    given: dict[str, Any] = {"rows": True, "out": ours}
    return Calls(adjoint, partial(fmm.gram, x, **given), str(fmm.explain_gram(x, **given).plan))


def checked(kind: str, calls: Calls) -> None:
    """RuntimeError for a wrong result; both have run then."""
    expected, found = calls.vendor(), calls.own()
    distance = float(np.linalg.norm(found - expected)) / max(float(np.linalg.norm(expected)), 1e-300)
    if not distance < TOO_FAR.get(kind.rpartition(" ")[2], TOO_FAR_DOUBLE):
        raise RuntimeError(f"wrong result: NumPy's is {distance:.3g} away")


def seconds(call: Call, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def paired(calls: Calls, rounds: int) -> dict[str, Any]:
    """Milliseconds of both, which take turns, each first in every second round; four digits are kept."""
    repeat = max(round(LEAST / max(seconds(calls.vendor, 1), 1e-7)), 1)
    vendor, own = list[float](), list[float]()
    turns = [(calls.vendor, vendor), (calls.own, own)]
    for _ in range(rounds):
        for call, samples in turns:
            samples.append(float(f"{1e3 * seconds(call, repeat):.4g}"))
        turns.reverse()
    ratio = median(v / f for v, f in zip(vendor, own, strict=True))
    return {"ratio": round(ratio, 4), "plan": calls.plan, "repeat": repeat, "vendor": vendor, "fmm": own}


def measured(kind: str, size: tuple[int, ...], rounds: int, again: bool) -> dict[str, Any]:
    """A row; one that fails says why."""
    name: dict[str, Any] = {"kind": kind, "size": list(size), **({"again": True} if again else {})}
    try:
        calls = calls_of(kind, size, 1 + again)
        checked(kind, calls)
        return {**name, **paired(calls, rounds)}
    except Exception as error:  # whatever may go wrong: the next shape is measured
        return {**name, "failure": f"{type(error).__name__}: {error}"}


# ---- what was measured before


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The rows of earlier runs, packed ones first; a torn last line is none."""
    packed, plain = folder / f"{FILE}.gz", folder / FILE
    text = gzip.decompress(packed.read_bytes()).decode() if packed.exists() else ""
    text += plain.read_text(encoding="utf-8") if plain.exists() else ""
    return [row for line in text.splitlines() if (row := _row(line))]


def _row(line: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return found if "kind" in found else {}


def latest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each shape the better of its two looks."""
    best: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = _key(row["kind"], row["size"])
        if key not in best or row.get("ratio", 0) > best[key].get("ratio", 0):
            best[key] = row
    return list(best.values())


def _key(kind: str, size: Any) -> tuple[str, ...]:
    return (kind, *map(str, size))


def wanted(count: int, only: str, seed: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Kind and size, shape after shape: what a time limit leaves has as many of each kind."""
    pairs, triples = (random_sides(count, number, LARGEST, seed) for number in (2, 3))
    for pair, triple in zip(pairs, triples, strict=True):
        yield from ((kind, triple if kind in COMPLEX else pair) for kind in KINDS if only in kind)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_COUNT} shapes of each kind instead of {COUNT}")
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=200, help="seconds after which no shape is begun")
    parser.add_argument("--output", type=Path, help="folder to write to (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    folder, began = options.output or RESULTS / device_folder(), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    rows = recorded(folder)
    looked = {(_key(r["kind"], r["size"]), r.get("again", False)) for r in rows}
    shapes = list(wanted(QUICK_COUNT if options.quick else COUNT, options.only, options.seed))
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"environment": environment(typed_command())}) + "\n")
        for again in (False, True):
            slow = {_key(r["kind"], r["size"]) for r in rows if r.get("ratio", 0) < GOAL}
            for kind, size in shapes:
                key = _key(kind, size)
                if (key, again) in looked or (again and key not in slow):
                    continue
                if time.perf_counter() - began > options.time_limit:
                    break
                rows.append(measured(kind, size, AGAIN if again else ROUNDS, again))
                file.write(json.dumps(rows[-1], separators=(",", ":")) + "\n")
                file.flush()
    print(*summary(latest(rows), KINDS), sep="\n")
    return int(any("failure" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

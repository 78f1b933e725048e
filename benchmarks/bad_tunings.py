"""Bad tunings of this CPU: `python -m benchmarks.bad_tunings [--tunings 30] [--shapes 20] [--largest 6000]`.

Each tuning has a random effort and time limit, and random other work beside it for some of its time: loops that spin,
products on all processors, copies of large arrays. When that work has ended, random shapes that no tuning saw are
decided by the config that came out, if any did; where a plan is chosen, fmm.matmul is timed against numpy.matmul in
shuffled rounds. No plan may reach less than 0.98 of the vendor's speed.

A tuning is a line of results/FOLDER/bad_tunings.jsonl, appended when it is done: what was interrupted is gone on with.
With `--keep FOLDER` the configs stay there, and `--only-tune` makes no more than them: on a machine that others use
they are all the worse, and their shapes are timed later, by the same command without it, when it is quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fmm
from fmm.config import files
from fmm.kernels.plans.plan import VENDOR
from fmm.tuner.trials.environment import device_folder, environment, typed_command
from fmm.tuner.trials.paired import Rounds, paired_rounds

ROOT = Path(__file__).parents[1]
LEAST = 0.98
NOTE = "tuning.json"  # beside a config that is kept: what its tuning said
TYPES = ("float64", "float32", "complex128", "complex64")
LOOPS = {
    "spin": "while True: pass",
    "multiply": "import numpy as np; a = np.ones((1500, 1500))\nwhile True: a @ a",
    "copy": "import numpy as np; a, b = np.ones((2, 8 << 20))\nwhile True: b[:] = a",
}


def random_case(index: int, most: float) -> dict[str, Any]:
    """What is tuned, with how much time, and beside which work."""
    rng = random.Random(1000 + index)
    limit = rng.uniform(2, most)
    busy = rng.sample(sorted(LOOPS), rng.randint(0, 2))
    begin, end = sorted(rng.uniform(-0.3, 1.3) * limit for _ in range(2))
    return {
        "tuning": index,
        "dtype": rng.choice(TYPES),
        "effort": rng.choice(("coarse", "quick")),
        "limit": round(limit, 1),
        "beside": [[name, rng.randint(1, 2), round(max(begin, 0.0), 1), round(end, 1)] for name in busy],
    }


def random_sizes(index: int, count: int, largest: int) -> Iterator[tuple[int, int, int]]:
    """Sides spread evenly by logarithm, from a sixth of the largest on."""
    rng = random.Random(2000 + index)
    for _ in range(count):
        m, k, n = (round(largest * 6 ** -rng.random()) for _ in range(3))
        yield m, k, n


@contextmanager
def other_work(beside: Sequence[Sequence[Any]]) -> Iterator[None]:
    """Processes that work from then to then, and not a moment longer than this is open."""
    started: list[subprocess.Popen[bytes]] = []
    ended = threading.Event()

    def work(name: str, count: int, begin: float, end: float) -> None:
        if ended.wait(begin):
            return
        mine = [subprocess.Popen([sys.executable, "-c", LOOPS[name]]) for _ in range(count)]
        started.extend(mine)
        ended.wait(max(end - begin, 0.0))
        for process in mine:
            process.kill()
            process.wait()

    threads = [threading.Thread(target=work, args=tuple(x)) for x in beside]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def tune_badly(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The tuning's exit code and last words, and what speaks against what it wrote."""
    command = [sys.executable, "-m", "fmm.tuner.cli", "--device", "cpu", "--quiet", "--output", str(folder)]
    command += ["--dtype", case["dtype"], "--effort", case["effort"], "--time-limit", str(case["limit"])]
    with other_work(case["beside"]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stderr.strip().replace(f"{folder}{os.sep}", "")
    path = folder / "config.json"
    sections = [raw for types in files.read_config(path).values() for raw in types.values()] if path.exists() else []
    known = [{name: raw[name] for name in ("noise", "doubts")} for raw in sections]
    return {"code": done.returncode, "said": said.splitlines()[-1:], "sections": known}


def judged_shapes(dtype: str, sizes: Iterator[tuple[int, int, int]], rounds: Rounds) -> Iterator[dict[str, Any]]:
    """What is chosen for each shape by the config in force and, where that is a plan, how fast it is."""
    rng = np.random.default_rng(3)
    for size in sizes:
        m, k, n = size
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
        c = np.empty((m, n), dtype)
        decision = fmm.explain(a, b, out=c)
        row: dict[str, Any] = {"size": size, "plan": str(decision.plan), "answered_by": decision.step}
        if decision.plan != VENDOR:
            row |= paired_rounds(partial(np.matmul, a, b, out=c), partial(fmm.matmul, a, b, out=c), rounds).as_dict()
        yield row


def tuned_case(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One tuning into a folder; if it was made before, what is noted there of it."""
    note = folder / NOTE
    if not note.exists():
        folder.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        found = {**case, **tune_badly(case, folder), "seconds": round(time.monotonic() - start, 1)}
        note.write_text(json.dumps(found))
    return dict(json.loads(note.read_text()))


def measured_case(case: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One tuning, and its choices."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.keep or name) / str(case["tuning"])
        found = tuned_case(case, folder)
        if options.only_tune:
            return found
        time.sleep(options.pause)
        sizes = random_sizes(case["tuning"], options.shapes, options.largest)
        with config_in_force(folder / "config.json"):
            found["shapes"] = list(judged_shapes(case["dtype"], sizes, Rounds(5, 15, options.seconds)))
    return found


@contextmanager
def config_in_force(path: Path) -> Iterator[None]:
    """This config, there or not, and no other."""
    before = os.environ.get("FMM_CONFIG")
    os.environ["FMM_CONFIG"] = str(path)
    files.clear_config_cache()
    try:
        yield
    finally:
        os.environ.pop("FMM_CONFIG")
        if before is not None:
            os.environ["FMM_CONFIG"] = before
        files.clear_config_cache()


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """How many tunings were trusted, what they chose, and the worst."""
    shapes = [shape for row in rows for shape in row["shapes"]]
    plans = [shape for shape in shapes if shape["plan"] != "vendor"]
    trusted = sum(any(not s["doubts"] for s in row["sections"]) for row in rows)
    worst = min((shape["speedup"] for shape in plans), default=1.0)
    return (
        f"{len(rows)} tunings, {trusted} of them trusted; {len(shapes)} shapes, a plan for {len(plans)} of them; "
        f"the slowest reaches {worst:.3f} of the vendor's speed"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunings", type=int, default=30)
    parser.add_argument("--shapes", type=int, default=20, help="of each")
    parser.add_argument("--largest", type=int, default=6000, help="side of those shapes")
    parser.add_argument("--limit", type=float, default=90, help="the longest time limit, in seconds")
    parser.add_argument("--seconds", type=float, default=4, help="of rounds a shape")
    parser.add_argument("--pause", type=float, default=2, help="seconds of rest before the shapes")
    parser.add_argument("--output", type=Path, default=ROOT / "results")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of the configs")
    parser.add_argument("--only-tune", action="store_true", help="the shapes are timed by a later run")
    options = parser.parse_args(arguments)
    if options.only_tune:
        if options.keep is None:
            parser.error("--only-tune makes nothing but configs: --keep FOLDER says where")
        for index in range(options.tunings):
            print(measured_case(random_case(index, options.limit), options), flush=True)
        return 0
    path = options.output / device_folder() / "bad_tunings.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rows = [row for row in known if "tuning" in row]
    if not known:
        _append(path, {"environment": environment(typed_command())})
    for index in range(options.tunings):
        if index not in {row["tuning"] for row in rows}:
            rows.append(measured_case(random_case(index, options.limit), options))
            _append(path, rows[-1])
            print(summary(rows), flush=True)
    print(summary(rows))
    return int(any(shape.get("speedup", 1.0) < LEAST for row in rows for shape in row["shapes"]))


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    sys.exit(main())

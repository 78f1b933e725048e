"""The checks that need a device: `python -m benchmarks.gpu_check [--steps NAME,...] [arguments of benchmarks.gpu]`.

The kernels of the tests are compiled ahead, each once, into a cache that can be taken along (benchmarks.compile_ahead).
Then every test marked gpu, a minute of interrupts, threads and faults, 2,000 random products of integers or as many as
there is time for, a few launches under compute-sanitizer where it is on PATH, and the benchmark; where there are
several devices, their tests and benchmark too (with `--gpus N` those alone, on N devices, into
results/<device>-xN/). What was run, and how it ended, is written to results/<device>/checks.json beside the environment
and the commit (the environment variable FMM_COMMIT names it in a copy of the tree). With `--steps` only those are run,
and what is known of the others stays: each says of which commit it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.compile_ahead import processes, with_cache

PYTEST = (sys.executable, "-m", "pytest", "-v", "-m", "gpu")  # names as they end: a test that hangs hides none
# Tests that measure: they have the device to themselves.
TIMED = "tests/tuner/stages/test_gpu_tuner.py"
KERNELS = "tests/kernels/cuda"
# A sanitizer makes launches a hundred times slower, and a race or a stray access shows in few of them.
WITH_FEW = (f"{KERNELS}/test_gpu_kernels.py", *(f"{KERNELS}/products/test_gpu_{x}.py" for x in ("tiled", "halves")))
FEW = (*PYTEST, "-k", "few_launches", *WITH_FEW)
SEVERAL = "tests/integrations/test_gpu_sharded.py"
# Racecheck does not follow gates (mbarriers): it calls every sum that such a kernel reads behind one a race.
GATED = (f"{KERNELS}/products/test_gpu_tma.py", f"{KERNELS}/products/test_gpu_wgmma.py")
SANITIZER = "compute-sanitizer"
TOOLS = {"memcheck": (*FEW, *GATED), "racecheck": FEW}
RANDOM = ("--workers", "8", "--seconds", "40")
WORKERS = 14  # processes that test at the same time, each with a context on the device


class Step(NamedTuple):
    name: str
    command: tuple[str, ...]
    missing: str = ""  # what it needs and is not there


def side_by_side() -> tuple[str, ...]:
    """pytest's options for many processes, if pytest-xdist is there."""
    return processes(cores=max(min((os.cpu_count() or 1) - 2, WORKERS), 1))


def steps(arguments: list[str], sanitizer: str | None, together: tuple[str, ...] = ()) -> Iterator[Step]:
    yield Step("kernels", (sys.executable, "-m", "benchmarks.compile_ahead"))
    yield Step("tests", (*PYTEST, *together, f"--ignore={TIMED}", f"--ignore={SEVERAL}", "tests"))
    yield Step("timed tests", (*PYTEST, TIMED))
    yield Step("hostile use", (sys.executable, "-m", "tests.support.hostile_device", "--seconds", "60"))
    yield Step("random integers", (sys.executable, "-m", "tests.support.random_integers", *RANDOM))
    missing = "" if sanitizer else f"{SANITIZER} is not on PATH"
    for tool, command in TOOLS.items():
        yield Step(tool, (sanitizer or SANITIZER, "--tool", tool, "--error-exitcode", "1", *command), missing)
    yield Step("benchmark", (sys.executable, "-m", "benchmarks.gpu", *arguments))


def several_steps(gpus: int, folder: str) -> Iterator[Step]:
    """What needs several devices."""
    missing = "" if gpus > 1 else "there is one device"
    run = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))
    yield Step("several devices' tests", (*PYTEST, SEVERAL), missing)
    out = f"{folder}/distributed.json"
    yield Step("several devices' benchmark", (*run, "-m", "benchmarks.distributed", "--out", out), missing)


def outcome(step: Step, run: Callable[[tuple[str, ...]], int]) -> dict[str, Any]:
    """Run a step, all of whose output goes to the terminal, and say how it ended."""
    if step.missing:
        print(f"{step.name}: left out: {step.missing}", flush=True)
        return {"step": step.name, "outcome": f"left out: {step.missing}"}
    began = time.perf_counter()
    code = run(step.command)
    seconds = round(time.perf_counter() - began, 1)
    found = "passed" if code == 0 else f"failed with status {code}"
    print(f"{step.name}: {found} in {seconds} s", flush=True)
    return {"step": step.name, "outcome": found, "seconds": seconds, "command": " ".join(step.command[1:])}


def joined(known: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All checks in the order of the steps, the new ones instead of the old."""
    by_name = {check["step"]: check for check in (*known, *found)}
    order = [step.name for step in (*steps([], None), *several_steps(1, ""))]
    return sorted(by_name.values(), key=lambda check: order.index(check["step"]))


def main(arguments: list[str]) -> int:
    from benchmarks.gpu import device_count, environment, results_folder

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="", help="names, with commas between; all unless given")
    parser.add_argument("--gpus", type=int, default=0, help="what needs several devices, on so many, and nothing else")
    options, others = parser.parse_known_args(arguments)
    os.environ.update(with_cache(os.environ))
    folder = results_folder()
    several = folder.with_name(f"{folder.name}-x{options.gpus or device_count()}")
    planned = [] if options.gpus else list(steps(others, shutil.which(SANITIZER), side_by_side()))
    planned += several_steps(options.gpus or device_count(), str(several))
    names = [name.strip() for name in options.steps.split(",") if name.strip()] or [step.name for step in planned]
    if unknown := set(names) - {step.name for step in planned}:
        parser.error(f"unknown steps {', '.join(sorted(unknown))}; valid: {', '.join(step.name for step in planned)}")
    path = (several if options.gpus else folder) / "checks.json"
    for each in (path.parent, several) if device_count() > 1 else (path.parent,):
        each.mkdir(parents=True, exist_ok=True)
    about = environment()
    found = []
    for step in planned:
        if step.name in names:
            found.append({**outcome(step, subprocess.call), "commit": about["commit"]})
            # Read as late as this: other steps may have been run beside this one.
            known = json.loads(path.read_text(encoding="utf-8"))["checks"] if options.steps and path.exists() else []
            text = json.dumps({"environment": about, "checks": joined(known, found)}, indent=1)
            path.write_text(text + "\n", encoding="utf-8")
    return int(any(check["outcome"].startswith("failed") for check in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

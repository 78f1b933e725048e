"""The checks that need a device: `python -m benchmarks.gpu_check [--time-limit S] [--steps NAME,...] [...]`.

First the kernels of the tests are compiled, each once, into a portable cache (benchmarks.compile_ahead). Then several
checks run at the same time: every test marked gpu; a minute of interrupts, threads and faults; up to 2,000 random
products of integers; a few launches under compute-sanitizer if it is on PATH; and the tests of torch and CuPy if
FMM_TORCH_TESTS and FMM_CUPY_TESTS name checkouts. Then run, one after the other: benchmarks, and the missing figures of
the papers. With several devices, their tests and benchmark follow (with `--gpus N` these alone, on N devices, into
results/<device>-xN/).

The outcome of each step is written to results/<device>/checks.json, with the environment and the commit (the
variable FMM_COMMIT names it in a copy of the tree). The same command again runs the steps that this code has
not run: a step that ended, well or not, is not repeated (except with `--anew`, or if it is named), and a
stopped step continues, if it can. So with `--time-limit` the check runs in pieces. The exit status is 3 while
steps are left, 1 if a step failed, else 0. A failed step does not prevent later steps.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.compile_ahead import with_cache
from benchmarks.gpu_steps import (
    SANITIZER,
    TIME_UP_TEXT,
    CheckFolders,
    EndedStep,
    Step,
    last_lines,
    parallel_pytest_options,
    run_together,
    several_device_steps,
    single_device_steps,
)
from benchmarks.harness import recorded_command

ROOT = Path(__file__).parents[1]
NOTES_FOLDER = ROOT / ".test-cache" / "gpu-check"  # holds the output of the steps, and the list of ended tests
CODE_FOLDERS = "fmm", "tests", "benchmarks"
EXIT_STEPS_LEFT = 3  # exit status while steps are left
Check = dict[str, Any]
RunTogether = Callable[[Sequence[Step], float, Path], list[EndedStep]]


def code_digest(root: Path = ROOT) -> str:
    """Return a digest of all code that runs. (A commit says less: new results make the tree dirty.)"""
    found = hashlib.sha256()
    for folder in CODE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def merged_checks(recorded: Iterable[Check], found: Iterable[Check], order: Sequence[str]) -> list[Check]:
    """Return all checks in the order of the steps; new ones replace old ones."""
    by_name = {check["step"]: check for check in (*recorded, *found)}
    place = {name: i for i, name in enumerate(order)}
    return sorted(by_name.values(), key=lambda check: place.get(check["step"], len(place)))


def step_batches(planned: Iterable[Step]) -> Iterator[list[Step]]:
    """Yield each step that runs alone, and the groups of steps between them."""
    for alone, found in groupby(planned, key=lambda step: step.alone):
        together = list(found)
        yield from ([step] for step in together) if alone else [together]


def _checks_in(path: Path) -> list[Check]:
    return list(json.loads(path.read_text(encoding="utf-8"))["checks"]) if path.exists() else []


@dataclass
class Checks:
    """The file of outcomes; `about`: the environment, `code`: the digest of the checked code."""

    path: Path
    about: Check
    code: str
    order: Sequence[str]
    notes: Path  # holds a copy of the outcomes, in case the file is replaced
    copy_to: Path | None = None
    began: float = field(default_factory=time.time)

    @property
    def recorded(self) -> list[Check]:
        return merged_checks(_checks_in(self.path), _checks_in(self._copied_path), self.order)

    @property
    def _copied_path(self) -> Path:
        return self.notes / f"{self.path.parent.name}-{self.path.name}"

    def ended(self, name: str) -> Check | None:
        """Return the outcome of a step that this code has run, else None."""
        for check in self.recorded:
            if check["step"] == name and check.get("code") == self.code:
                return None if check["outcome"].startswith((TIME_UP_TEXT, "left out")) else check
        return None

    def record_outcome(self, step: Step, outcome: str, seconds: float | None = None) -> None:
        """Write and print the outcome of a step."""
        ran = {} if seconds is None else {"seconds": round(seconds, 1), "command": recorded_command(step.command[1:])}
        row = {"step": step.name, "outcome": outcome, **ran, "commit": self.about["commit"], "code": self.code}
        rows = merged_checks(self.recorded, [row], self.order)
        ours = [row for row in rows if row.get("code") == self.code]
        for path, checks in ((self.path, rows), (self._copied_path, ours)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"environment": self.about, "checks": checks}, indent=1) + "\n", "utf-8")
        print(f"{step.name}: {outcome}" + ("" if seconds is None else f" ({seconds:.1f} s)"), flush=True)

    def copy(self, *folders: Path) -> None:
        """Copy to --copy-to all files that were written since this call began."""
        for folder in folders if self.copy_to else ():
            for path in folder.rglob("*"):
                if self.copy_to and path.is_file() and path.stat().st_mtime >= self.began:
                    to = self.copy_to / folder.name / path.relative_to(folder)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, to)


def run_steps(
    planned: Sequence[Step],
    checks: Checks,
    places: CheckFolders,
    limit: float,
    run: RunTogether,
    more_results: Sequence[Path] = (),
) -> list[str]:
    """Run these steps within the time limit; return the names of the steps that are left.

    `more_results` are further folders into which steps write.
    """
    until, left, first = time.monotonic() + limit, list[str](), True
    for batch in step_batches(planned):
        for step in (step for step in batch if step.missing):
            checks.record_outcome(step, f"left out: {step.missing}")
        here = [step for step in batch if not step.missing]
        seconds = until - time.monotonic()
        begun = [step for step in here if first or seconds >= step.min_seconds]
        left += [step.name for step in here if step not in begun]
        first = first and not begun
        for ended in run(begun, seconds, places.notes) if begun else ():
            outcome = ended.outcome(limit)
            checks.record_outcome(ended.step, outcome, ended.seconds)
            if ended.step.alone or outcome != "passed":
                print(f"{last_lines(ended.log)}\n    (all of it: {ended.log})", flush=True)
            left += [ended.step.name] if outcome.startswith(TIME_UP_TEXT) else []
        checks.copy(places.results, *more_results, places.notes)
    return left


def chosen_steps(planned: Sequence[Step], names: Sequence[str], anew: bool, checks: Checks) -> list[Step]:
    """Return the named steps; without names, the steps that this code has not run."""
    if names:
        return [step for step in planned if step.name in names]
    return [step for step in planned if anew or checks.ended(step.name) is None]


def parsed_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--steps", default="", help="names, separated by commas; these run whether done or not (default: all)")
    add("--anew", action="store_true", help="all steps, even if this code has run them")
    add("--time-limit", type=float, default=inf, metavar="S", help="seconds; the same command again runs the rest")
    add("--gpus", type=int, default=0, help="the steps that need several devices alone, on N devices", metavar="N")
    add("--list", action="store_true", help="list the steps to run, and the outcomes so far")
    add("--copy-to", type=Path, metavar="DIR", help="copy what steps write to this folder, after each step")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the chosen steps; return the exit status."""
    from benchmarks.harness import gpu_count, gpu_environment, gpu_folder

    options = parsed_options(arguments)
    os.environ.update(with_cache(os.environ))
    folder, count = gpu_folder(), options.gpus or gpu_count()
    code = code_digest()
    places = CheckFolders(folder, NOTES_FOLDER / code)
    several = places._replace(results=folder.with_name(f"{folder.name}-x{count}"))
    all_steps = [
        *single_device_steps(shutil.which(SANITIZER), places, parallel_pytest_options()),
        *several_device_steps(count, several),
    ]
    planned = list(several_device_steps(count, several)) if options.gpus else all_steps
    names = [name.strip() for name in options.steps.split(",") if name.strip()]
    if unknown := set(names) - {step.name for step in planned}:
        valid = ", ".join(step.name for step in planned)
        print(f"unknown steps {', '.join(sorted(unknown))}; valid: {valid}", file=sys.stderr)
        return 2
    for each in (folder, several.results) if count > 1 else (folder,):
        each.mkdir(parents=True, exist_ok=True)
    path = (several if options.gpus else places).results / "checks.json"
    checks = Checks(path, gpu_environment(), code, [step.name for step in all_steps], places.notes, options.copy_to)
    wanted = chosen_steps(planned, names, options.anew, checks)
    if options.list:
        left = [step.name for step in wanted if not step.missing]
    else:
        if options.anew or "tests" in names:
            places.ended_tests.unlink(missing_ok=True)
        left = run_steps(wanted, checks, places, options.time_limit, run_together, (several.results,))
    return report_outcomes(planned, left, checks)


def report_outcomes(planned: Sequence[Step], left: Sequence[str], checks: Checks) -> int:
    """Print the table of steps; return the exit status."""
    rows = [(step, checks.ended(step.name)) for step in planned]
    width = max((len(step.name) for step in planned), default=0)
    print(f"\n{checks.path}, code {checks.code}:")
    for step, check in rows:
        outcome = check["outcome"] if check else f"left out: {step.missing}" if step.missing else "left"
        print(f"  {step.name:{width}}  {outcome}")
    if left:
        print(f"left: {', '.join(left)}; the same command again runs them")
    failed = any(check is not None and check["outcome"] != "passed" for _, check in rows)
    return EXIT_STEPS_LEFT if left else int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

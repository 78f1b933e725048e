"""fmm-tune without a command: tune devices, write their config, say what was found."""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fmm.config import files, store
from fmm.tuner.device_registry import UnknownDeviceError, chosen_devices
from fmm.tuner.devices.device import EFFORTS, Device
from fmm.tuner.progress import shown_progress
from fmm.tuner.stages import shapes
from fmm.tuner.stages.shapes import ShapesError
from fmm.tuner.trials.record import COARSE, Trials
from fmm.tuner.tune import INTERRUPTED, Job, trials_path, tune_job

__all__ = ["INTERRUPTED", "add_options", "output_path", "run", "trials_path"]

NEEDED = ("scipy", "optuna", "tqdm")  # of the extra; asked for before minutes are spent on measuring


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", metavar="0|1|all|cpu", help="what to tune (GPU 0 if one answers, else the CPU)")
    add("--dtype", metavar="TYPES", help="element types, separated by commas (all)")
    add("--shapes", type=Path, metavar="FILE", help="certify these shapes: lines of M K N, and a type if you like")
    add("--effort", choices=tuple(EFFORTS), default="default", help="how much to measure (default: default)")
    add("--time-limit", type=float, metavar="S", help="stop measuring after so many seconds; types share them")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on where the last such tuning was interrupted")
    again.add_argument("--fresh", action="store_true", help="measure all anew (what happens without --resume)")
    add("--output", type=Path, metavar="PATH", help="the config to write (the one that fmm reads)")
    add("--json", action="store_true", help="print JSON: a list, at the end, a section for each type")
    add("--quiet", action="store_true", help="no progress, no summary but that of --json")
    add("--dry-run", action="store_true", help="say what would be measured, and measure nothing")


def run(options: argparse.Namespace) -> int:
    """Tune; the exit code is 2 for bad arguments, 1 if something asked for was not written, 130 after Ctrl-C."""
    try:
        jobs = list(_jobs(options))
        if not jobs:
            raise BadChoiceError(f"{options.shapes} has no shapes of the types that would be tuned")
        path = output_path(options.output)
    except (UnknownDeviceError, ShapesError, BadChoiceError) as error:
        print(f"fmm-tune: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:  # no home folder
        return _cannot_write(Path(files.FILE), error)
    if options.dry_run:
        return _dry_run(jobs, path, options)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(f"fmm-tune: {missing[0]} is not installed; pip install 'fmm-tune[tune]'", file=sys.stderr)
        return 1
    try:
        with store.writer_lock(path):
            pass  # better now than after minutes of measuring
        files.expect_config(path)
        return _all(jobs, path, options)
    except OSError as error:
        return _cannot_write(path, error)


Known = tuple[str, str]  # a device's key and a type


def _all(jobs: Sequence[Job], path: Path, options: argparse.Namespace) -> int:
    """Every job in turn; with --json, what came last of each type is one list at the end, however that comes."""
    told = dict[Known, dict[str, Any]]()
    try:
        return _in_turn(jobs, path, options, told)
    finally:
        if options.json:
            print(json.dumps(list(told.values()), indent=1))


def _in_turn(jobs: Sequence[Job], path: Path, options: argparse.Namespace, told: dict[Known, dict[str, Any]]) -> int:
    """At the end it is said for which types nothing was found that can be used."""
    if options.resume:
        jobs = _unfinished(jobs, Trials(trials_path(path))) or jobs
    left, lacking, planned = options.time_limit, dict[Known, str](), [job.expected for job in jobs]
    with ExitStack() as stack:
        for device in {id(job.device): job.device for job in jobs}.values():
            stack.enter_context(device.ahead([job.dtype for job in jobs if job.device is device]))
        progress = stack.enter_context(shown_progress(planned, left, not options.quiet))
        queue, late = deque(jobs), list[Job]()
        while queue:
            job = queue.popleft()
            known = job.device.identity.key, job.dtype
            progress.to_come(sum(other.expected for other in (*queue, *late)))
            same_pass = 1 + sum(other.effort == job.effort for other in queue)
            end = tune_job(job, path, options, None if left is None else left / same_pass, progress)
            if end.told is not None:
                told[known] = end.told
            if end.code:
                return end.code
            lacking[known] = end.why_not if lacking.get(known, "none yet") else ""  # the first pass's counts too
            if job.goes_on_later(end):
                late.append(replace(job, again=True))
            if late and (not queue or queue[0].effort != COARSE):
                queue.extendleft(reversed(late))  # by now the kernels of a GPU are compiled
                late.clear()
            if left is not None:
                left = max(left - end.seconds, 0.0)
    for (_, dtype), why in lacking.items():
        if why:
            print(f"fmm-tune: {dtype}: nothing was found that fmm.matmul will use. Why: {why}", file=sys.stderr)
    return int(any(lacking.values()))


def _unfinished(jobs: Sequence[Job], trials: Trials) -> list[Job]:
    """Those that were interrupted, and those that they kept from beginning."""
    last = [job.last_tuning(trials) for job in jobs]
    return [job for job, tuning in zip(jobs, last, strict=True) if tuning is None or not tuning.finished]


class BadChoiceError(ValueError):
    """A value that the command does not take."""


def output_path(given: Path | None) -> Path:
    """What is given names the config as FMM_CONFIG would."""
    return files.default_path() if given is None else files.config_file(given)


def _jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Several types have a coarse pass each before the first is refined: who stops early has something for each. (A
    quick tuning of a CPU is no more than that.)"""
    if options.time_limit is not None and not options.time_limit > 0:
        raise BadChoiceError(f"--time-limit must be a positive number of seconds, not {options.time_limit:g}")
    found = [job for device in chosen_devices(options.device) for job in _jobs_of(device, options)]
    if len(found) > 1 and not options.shapes:
        first = [(replace(job, effort=COARSE), job) for job in found]
        yield from (coarse for coarse, job in first if coarse.planned != job.planned)
    yield from found


def _jobs_of(device: Device, options: argparse.Namespace) -> Iterator[Job]:
    for name in dict.fromkeys(options.dtype.split(",") if options.dtype else device.dtypes):
        if name not in device.dtypes:
            raise BadChoiceError(f"unknown dtype {name!r}; valid: {', '.join(device.dtypes)}")
        wanted = shapes.read_shapes(options.shapes, name) if options.shapes else []
        if wanted or not options.shapes:
            yield Job(device, name, tuple(wanted), options.effort)


def _cannot_write(path: Path, error: BaseException) -> int:
    reason = getattr(error, "strerror", None) or error
    print(f"fmm-tune: cannot write {path}: {reason}; --output PATH names another file", file=sys.stderr)
    return 1


def _dry_run(jobs: Sequence[Job], path: Path, options: argparse.Namespace) -> int:
    plan = [
        {
            "device": job.device.identity.key,
            "name": job.device.identity.name,
            "dtype": job.dtype,
            "effort": job.effort,
            "seconds": job.planned.seconds,
            "held_out_shapes": job.planned.held_out,
            "shapes": [list(size) for size in job.wanted] or "the usual squares that the effort affords",
            "candidates": [str(p) for p in job.device.candidates()],
            "config": str(path),
        }
        for job in jobs
    ]
    print(json.dumps(plan, indent=1) if options.json else "\n".join(_planned(row) for row in plan))
    return 0


def _planned(row: dict[str, Any]) -> str:
    return (
        f"{row['name']} ({row['device']}), {row['dtype']}, effort {row['effort']}: about {row['seconds']:.0f} s, "
        f"{len(row['candidates'])} candidate plans, {row['held_out_shapes']} held-out shapes; writes {row['config']}"
    )

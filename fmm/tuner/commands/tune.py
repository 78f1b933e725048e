"""fmm-tune without a command: tune devices, write their config, say what was found."""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fmm.config import files, locate, schema, store
from fmm.tuner import shapes
from fmm.tuner.conclude import concluded_section
from fmm.tuner.devices.choose import UnknownDeviceError, chosen_devices
from fmm.tuner.devices.device import Device
from fmm.tuner.effort import EFFORTS, Effort
from fmm.tuner.environment import source_commit, typed_command
from fmm.tuner.journal import Journal
from fmm.tuner.shapes import ShapesError, Size
from fmm.tuner.stages import Outcome, tune_type
from fmm.tuner.trials import Header, Trials, Tuning

INTERRUPTED = 130
NEEDED = ("scipy", "optuna", "tqdm")  # of the extra; asked for before minutes are spent on measuring


@dataclass(frozen=True)
class Job:
    """One element type of one device."""

    device: Device
    dtype: str
    wanted: tuple[Size, ...]

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        """What makes two tunings the same, so that one can go on where the other was interrupted."""
        return {"dtype": self.dtype, "effort": options.effort, "shapes": [list(size) for size in self.wanted]}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", metavar="0|1|all|cpu", help="what to tune (GPU 0 if one answers, else the CPU)")
    add("--dtype", metavar="TYPES", help="element types, separated by commas (the device's usual ones)")
    add("--shapes", type=Path, metavar="FILE", help="certify these shapes: lines of M K N, and a type if you like")
    add("--effort", choices=tuple(EFFORTS), default="default", help="how much to measure (default: default)")
    add("--time-limit", type=float, metavar="S", help="stop measuring after so many seconds; types share them")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on where the last such tuning was interrupted")
    again.add_argument("--fresh", action="store_true", help="measure all anew (what happens without --resume)")
    add("--output", type=Path, metavar="PATH", help="the config to write (the one that fmm reads)")
    add("--json", action="store_true", help="print JSON")
    add("--quiet", action="store_true", help="no progress, no summary but that of --json")
    add("--dry-run", action="store_true", help="say what would be measured, and measure nothing")


def run(options: argparse.Namespace) -> int:
    """Tune; the exit code is 2 for bad arguments, 1 if nothing can be written, 130 after Ctrl-C."""
    try:
        jobs = list(_jobs(options))
        if not jobs:
            raise BadChoiceError(f"{options.shapes} has no shapes of the types that would be tuned")
        path = output_path(options.output)
    except (UnknownDeviceError, ShapesError, BadChoiceError) as error:
        print(f"fmm-tune: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:  # no home folder
        return _cannot_write(Path(locate.FILE), error)
    if options.dry_run:
        return _dry_run(jobs, path, options)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(f"fmm-tune: {missing[0]} is not installed; pip install 'fmm-tune[tune]'", file=sys.stderr)
        return 1
    try:
        with store.writer_lock(path):
            pass  # better now than after minutes of measuring
    except OSError as error:
        return _cannot_write(path, error)
    return _all(jobs, path, options)


def _all(jobs: Sequence[Job], path: Path, options: argparse.Namespace) -> int:
    left = options.time_limit
    with ExitStack() as stack:
        for device in {id(job.device): job.device for job in jobs}.values():
            stack.enter_context(device.ahead([job.dtype for job in jobs if job.device is device]))
        for done, job in enumerate(jobs):
            code, took = _tuned(job, path, options, None if left is None else left / (len(jobs) - done))
            if code:
                return code
            if left is not None:
                left = max(left - took, 0.0)
    return 0


class BadChoiceError(ValueError):
    """A value that the command does not take."""


def output_path(given: Path | None) -> Path:
    if given is None:
        return locate.default_path()
    return given if given.suffix == ".json" else given / locate.FILE


def trials_path(path: Path) -> Path:
    """The trials lie beside the config that they led to."""
    return path.with_name("trials.jsonl")


def _jobs(options: argparse.Namespace) -> Iterator[Job]:
    if options.time_limit is not None and not options.time_limit > 0:
        raise BadChoiceError(f"--time-limit must be a positive number of seconds, not {options.time_limit:g}")
    for device in chosen_devices(options.device):
        names = dict.fromkeys(options.dtype.split(",") if options.dtype else device.dtypes[: device.usual])
        for name in names:
            if name not in device.dtypes:
                raise BadChoiceError(f"unknown dtype {name!r}; valid: {', '.join(device.dtypes)}")
            wanted = shapes.read_shapes(options.shapes, name) if options.shapes else []
            if wanted or not options.shapes:
                yield Job(device, name, tuple(wanted))


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
            "effort": options.effort,
            "seconds": job.device.efforts[options.effort].seconds,
            "held_out_shapes": job.device.efforts[options.effort].held_out,
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
        f"{row['name']} ({row['device']}), {row['dtype']}: about {row['seconds']:.0f} s, "
        f"{len(row['candidates'])} candidate plans, {row['held_out_shapes']} held-out shapes; writes {row['config']}"
    )


# ---- one job


def _tuned(job: Job, path: Path, options: argparse.Namespace, left: float | None) -> tuple[int, float]:
    """Tune one type and write what was found, however it ended; the exit code and the seconds it took."""
    trials = Trials(trials_path(path))
    past = _interrupted(trials, job, options) if options.resume else None
    header = past.header if past else _header(job, options)
    effort = job.device.efforts[options.effort]
    before = max((t.elapsed for t in past.trials), default=0.0) if past else 0.0
    limit = min(before + (float("inf") if left is None else left), effort.most)
    with _progress(job, effort, options) as on_sample:
        journal = Journal(header.run, job.device, past.trials if past else (), trials.add, limit)
        journal.on_sample = on_sample
        try:
            if not past:
                trials.header(header)
            outcome = tune_type(journal, job.dtype, effort, job.wanted)
            if not outcome.stopped:
                trials.finish(header.run, journal.elapsed)
        except OSError as error:
            outcome = Outcome(concluded_section(journal, job.dtype), f"{trials.path}: {error.strerror or error}")
        finally:
            trials.close()
    if outcome.stopped and _checks(outcome.section) == 0 and _checks(_present(job, path)):
        outcome = replace(outcome, section=None)  # what is there is better known than what was just begun
    code = _write(job, path, header, outcome)
    if options.json or not options.quiet:
        print(_reported(job, path, outcome, options))
    if outcome.stopped:
        print(f"fmm-tune: {job.dtype}: {outcome.stopped}; {_kept(code, outcome, path)}", file=sys.stderr)
    failed = code or (INTERRUPTED if outcome.stopped == "interrupted" else 0)
    return failed or int(outcome.stopped.startswith(str(trials.path))), journal.elapsed - before


def _present(job: Job, path: Path) -> Any:
    """The section that the config holds already."""
    try:
        return files.read_config(path).get(job.device.identity.key, {}).get(job.dtype)
    except schema.ConfigError:
        return None


def _checks(section: Any) -> int:
    """On how many held-out pairs a section's model was checked."""
    try:
        return int(section["error"]["speedup"]["count"])
    except (KeyError, TypeError, ValueError):
        return 0


def _kept(code: int, outcome: Outcome, path: Path) -> str:
    if code or outcome.section is None:
        return "nothing was written; --resume goes on from the trials"
    return f"the best so far is in {path}; --resume goes on"


def _header(job: Job, options: argparse.Namespace) -> Header:
    identity = job.device.identity
    now = datetime.now(UTC).isoformat(timespec="seconds")
    settings, conditions = job.settings(options), {**job.device.conditions, "commit": source_commit()}
    return Header(
        uuid.uuid4().hex[:12],
        identity.key,
        dict(identity.versions),
        conditions,
        settings,
        " ".join(typed_command()),
        now,
    )


def _interrupted(trials: Trials, job: Job, options: argparse.Namespace) -> Tuning | None:
    """The last tuning like this one, if it was not finished."""
    identity, settings = job.device.identity, job.settings(options)
    for tuning in reversed(trials.tunings()):
        header = tuning.header
        if header.device == identity.key and header.settings == settings and header.versions == identity.versions:
            return None if tuning.finished else tuning
    return None


def _write(job: Job, path: Path, header: Header, outcome: Outcome) -> int:
    if outcome.section is None:
        return 0
    how = {"effort": header.settings["effort"], "command": header.command, "run": header.run}
    tuned = {**outcome.section["tuned"], **how}
    try:
        store.merge_section(path, job.device.identity.key, job.dtype, {**outcome.section, "tuned": tuned})
    except OSError as error:
        return _cannot_write(path, error)
    except schema.ConfigError as error:
        print(f"fmm-tune: {error}", file=sys.stderr)
        return 1
    return 0


# ---- what the user sees


@contextmanager
def _progress(job: Job, effort: Effort, options: argparse.Namespace) -> Iterator[Any]:
    """A bar on stderr: the stage, and the seconds that are left of what was planned."""
    if options.quiet or not sys.stderr.isatty():
        yield lambda stage, elapsed: None
        return
    from tqdm import tqdm

    total = effort.seconds
    form = "{desc} {percentage:3.0f}%|{bar}| {n:.0f} of about {total:.0f} s"
    with tqdm(total=total, bar_format=form, file=sys.stderr, leave=False) as bar:

        def show(stage: str, elapsed: float) -> None:
            bar.total = max(total, elapsed)
            bar.n = elapsed
            bar.set_description_str(f"{job.dtype}: {stage}")

        yield show


def _reported(job: Job, path: Path, outcome: Outcome, options: argparse.Namespace) -> str:
    found = {"device": job.device.identity.key, "dtype": job.dtype, "config": str(path), "stopped": outcome.stopped}
    if options.json:
        return json.dumps({**found, "section": outcome.section})
    head = f"{job.device.identity.name} ({found['device']}), {job.dtype}"
    if outcome.section is None:
        return f"{head}\n  too little was measured"
    return "\n".join([head, *described(outcome.section), f"  written to {path}"])


def described(section: dict[str, Any]) -> Iterator[str]:
    """A section in a few lines."""
    if section["calibration"]:
        rates, error = section["calibration"], section["error"]
        first, second, *_ = section["thresholds"]["recursion_points"]
        yield f"  products at {rates['rate']['flops'] / 1e9:.4g} Gflop/s, sums at {rates['stream'] / 1e9:.4g} GB/s"
        yield f"  one level pays from about {first:.0f}, two from {second:.0f}; noise floor {section['noise']:.1%}"
        yield (
            f"  model on {error['speedup']['count']} held-out pairs: time off by {error['time']['median']:.1%} "
            f"(95 %: {error['time']['p95']:.1%}), speedup by {error['speedup']['median']:.1%}"
            if error["speedup"]["count"]
            else "  model not checked: there was no time for held-out shapes"
        )
    for raw in section["entries"]:
        entry = schema.checked_entry(raw, "entry")
        trusted = "" if entry.verified else " (unverified)"
        yield f"  {' x '.join(map(str, entry.size))}: {entry.plan}, {entry.text}{trusted}"

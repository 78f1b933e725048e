"""fmm-tune without a command: tune devices, write their config, say what was found."""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fmm.config import files, schema, store
from fmm.tuner.device_registry import UnknownDeviceError, chosen_devices
from fmm.tuner.devices.device import EFFORTS, Device, Effort
from fmm.tuner.findings.advice import RESUMES
from fmm.tuner.findings.conclude import concluded_section
from fmm.tuner.findings.described import described
from fmm.tuner.progress import Progress, shown_progress
from fmm.tuner.stages import shapes
from fmm.tuner.stages.shapes import ShapesError
from fmm.tuner.trials.environment import source_commit, typed_command
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import COARSE, Header, Size, Trial, Trials, Tuning, first_look_before
from fmm.tuner.tune_type import Outcome, tune_type

__all__ = ["INTERRUPTED", "add_options", "output_path", "run_tune", "trials_path"]

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


def run_tune(options: argparse.Namespace) -> int:
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


INTERRUPTED = 130
SAMPLED = 0.75  # the share of a tuning's time in which samples are taken; the rest warms up, checks, fits
PLANNED = "planned_seconds"  # among a tuning's conditions: of its stages, within what time there was
COMPILING = 20.0  # seconds in which a host with several processors compiles what a first pass needs of all types
PATIENCE = 0.1  # seconds that a first pass waits for kernels, before it is another type's turn


@dataclass(frozen=True)
class Job:
    """One element type of one device, with an effort."""

    device: Device
    dtype: str
    wanted: tuple[Size, ...]
    effort: str
    again: bool = False  # does it go on where the same one was stopped a moment ago?

    @property
    def planned(self) -> Effort:
        return self.device.efforts[self.effort]

    @property
    def expected(self) -> float:
        """Seconds that it will take, as far as can be said before it has begun."""
        return min(self.planned.seconds / SAMPLED, self.planned.most)

    @property
    def waits_for_kernels(self) -> bool:
        """Is it a first pass, on a GPU, which may meet kernels that are still being compiled?"""
        return self.effort == COARSE and not self.again and self.device.chip is not None

    def goes_on_later(self, end: End) -> bool:
        """Did a first pass end before its model was checked, so that it goes on before anything is refined?"""
        unchecked = self.effort == COARSE and not self.again and bool(end.why_not)
        return unchecked and (end.stopped or self.waits_for_kernels)

    @property
    def waiting(self) -> float:
        """Seconds for which it may wait for the compiler beside its own: of a first pass when all others had theirs."""
        if self.effort == COARSE:
            return COMPILING if self.again else 0.0
        return self.planned.most

    @property
    def settings(self) -> dict[str, Any]:
        """What makes two tunings the same, so that one can go on where the other was interrupted."""
        return {"dtype": self.dtype, "effort": self.effort, "shapes": [list(size) for size in self.wanted]}

    def last_tuning(self, trials: Trials) -> Tuning | None:
        """The last one like this that is recorded."""
        identity = self.device.identity
        for tuning in reversed(trials.tunings()):
            header = tuning.header
            same = header.versions == identity.versions and header.settings == self.settings
            if same and header.device == identity.key:
                return tuning
        return None


@dataclass(frozen=True)
class End:
    """How a job ended: the exit code, if nothing more is to be done; whether the config now holds its result, or why
    not; how long it took; was the time up before it had measured all; and what --json says of it, if it is told."""

    code: int
    why_not: str
    seconds: float
    stopped: bool = False
    told: dict[str, Any] | None = None


def tune_job(job: Job, path: Path, options: argparse.Namespace, left: float | None, progress: Progress) -> End:
    """Tune one type and write what was found, however it ended."""
    trials = Trials(trials_path(path))
    past = job.last_tuning(trials) if options.resume or job.again else None
    past = None if past is None or past.finished else past
    before = max((t.elapsed for t in past.trials), default=0.0) if past else 0.0
    limit = before + min(float("inf") if left is None else left, job.planned.most)
    waits = job.waiting if left is None else 0.0  # the user's own limit is one
    seconds = SAMPLED * limit
    if past and job.again:  # the same shapes as a moment ago
        seconds = past.header.conditions.get(PLANNED, seconds)
    effort = job.planned.within(seconds)
    header = past.header if past else _header(job, effort)
    patience = PATIENCE if job.waits_for_kernels else float("inf")
    known = past.trials if past else ()
    first = _first_look(job, trials, header)
    journal = Journal(
        header.run, job.device, known, trials.add, limit, waits=waits, patience=patience, first_look=first
    )
    progress.begin(f"{job.dtype} ({job.effort}):", job.expected)
    journal.on_sample = progress.sample
    journal.on_finding = lambda: progress.gained_so_far(job.dtype, partial(concluded_section, journal, job.dtype))
    outcome, full = _measured(journal, job, effort, trials, None if past else header)
    progress.gained(job.dtype, outcome.section)
    why_not = _why_not(job, path, outcome)
    if not why_not:
        try:
            _write(job, path, header, outcome)
        except schema.ConfigError as error:
            print(f"fmm-tune: {error}", file=sys.stderr)
            return End(1, str(error), journal.elapsed - before)
    doubts = (outcome.section or {}).get("doubts") or []
    code = INTERRUPTED if outcome.stopped == "interrupted" else int(full)
    end = End(code, why_not or "; ".join(doubts), journal.elapsed - before, bool(outcome.stopped))
    if not code and job.goes_on_later(end):
        return end  # all is said then
    _say(job, path, options, outcome, why_not)
    return replace(end, told=_fields(job, path, outcome, why_not))


def trials_path(path: Path) -> Path:
    """The trials lie beside the config that they led to."""
    return path.with_name("trials.jsonl")


def _first_look(job: Job, trials: Trials, header: Header) -> tuple[Trial, ...]:
    """What the first look before this tuning measured; nothing where that cannot be read."""
    if job.effort != COARSE:
        with suppress(OSError):
            return first_look_before(trials.tunings(), header)
    return ()


def _header(job: Job, effort: Effort) -> Header:
    identity = job.device.identity
    now = datetime.now(UTC).isoformat(timespec="seconds")
    conditions = {**job.device.conditions, "commit": source_commit(), PLANNED: effort.seconds}
    run, command = uuid.uuid4().hex[:12], " ".join(typed_command())
    return Header(run, identity.key, dict(identity.versions), conditions, job.settings, command, now)


def _measured(
    journal: Journal, job: Job, effort: Effort, trials: Trials, header: Header | None
) -> tuple[Outcome, bool]:
    """What came out, and whether the trials could not be written."""
    try:
        if header:
            trials.header(header)
        outcome = tune_type(journal, job.dtype, effort, job.wanted)
        if not outcome.stopped:
            trials.finish(journal.run, journal.elapsed)
        return outcome, False
    except OSError as error:
        stopped = f"{trials.path}: {error.strerror or error}"
        return Outcome(concluded_section(journal, job.dtype), stopped), True
    finally:
        trials.close()


# ---- is it better than what is there?


def _why_not(job: Job, path: Path, outcome: Outcome) -> str:
    """Why the config is left as it is; empty if the section is to be written.

    A section replaces one that is better known only if it was finished, without doubts, and more than a first pass.
    """
    if outcome.section is None:
        return "too little was measured"
    firm = not outcome.stopped and not outcome.section["doubts"] and job.effort != COARSE
    if firm or _knowledge(outcome.section) >= _knowledge(_present(job, path)):
        return ""
    doubts = outcome.section["doubts"]
    stays = f"the earlier tuning in {path} stays, which was checked better"
    return f"{doubts[0]}; {stays}" if doubts else stays


def _knowledge(section: Any) -> tuple[bool, int]:
    """Is a section's model trusted, and on how many held-out pairs was it checked?"""
    try:
        return not section.get("doubts"), int(section["error"]["speedup"]["count"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return False, 0


def _present(job: Job, path: Path) -> Any:
    """The section that the config holds already, if it was made with the same libraries and driver."""
    try:
        found = files.read_config(path).get(job.device.identity.key, {}).get(job.dtype)
    except schema.ConfigError:
        return None
    same = isinstance(found, dict) and found.get("versions") == dict(job.device.identity.versions)
    return found if same else None


def _others(job: Job, path: Path) -> dict[str, Any]:
    """The sections of the device's other types in the config."""
    try:
        found = files.read_config(path).get(job.device.identity.key, {})
    except schema.ConfigError:
        return {}
    return {dtype: section for dtype, section in found.items() if isinstance(section, dict)}


def _write(job: Job, path: Path, header: Header, outcome: Outcome) -> None:
    assert outcome.section is not None
    how = {"effort": header.settings["effort"], "command": header.command, "run": header.run}
    tuned = {**outcome.section["tuned"], **how}
    store.merge_section(path, job.device.identity.key, job.dtype, {**outcome.section, "tuned": tuned})


# ---- what the user sees


def _say(job: Job, path: Path, options: argparse.Namespace, outcome: Outcome, why_not: str) -> None:
    if not options.json and not options.quiet:
        print(_reported(job, path, outcome, why_not))
    if outcome.stopped:
        kept = f"the best so far is in {path}; {RESUMES}"
        if why_not:
            stands = _knowledge(_present(job, path))[0]
            kept = f"what was in {path} before stands" if stands else "nothing was written"
            kept += f"; {RESUMES} from the trials"
        elif outcome.section and outcome.section["doubts"]:
            kept = f"what was measured is in {path}, and fmm.matmul does not use it yet; {RESUMES}"
        print(f"fmm-tune: {job.dtype}: {outcome.stopped}; {kept}", file=sys.stderr)


def _fields(job: Job, path: Path, outcome: Outcome, why_not: str) -> dict[str, Any]:
    """As JSON has it."""
    found = {"device": job.device.identity.key, "dtype": job.dtype, "config": str(path), "stopped": outcome.stopped}
    return {**found, "not_written": why_not, "section": outcome.section}


def _reported(job: Job, path: Path, outcome: Outcome, why_not: str) -> str:
    key = job.device.identity.key
    lines: Sequence[str] = [f"{job.device.identity.name} ({key}), {job.dtype}, effort {job.effort}"]
    if outcome.section is not None:
        lines = [*lines, *described(outcome.section, job.dtype, key, _others(job, path))]
    return "\n".join([*lines, f"  not written: {why_not}" if why_not else f"  written to {path}"])

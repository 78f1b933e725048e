"""Tuning one element type of one device: measured, resumed, concluded; written if it is better than what is there."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fmm.config import files, schema, store
from fmm.tuner.devices.device import Device, Effort
from fmm.tuner.findings.advice import RESUMES
from fmm.tuner.findings.conclude import concluded_section
from fmm.tuner.findings.described import described
from fmm.tuner.progress import Progress
from fmm.tuner.trials.environment import source_commit, typed_command
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import COARSE, Header, Size, Trial, Trials, Tuning, first_look_before
from fmm.tuner.tune_type import Outcome, tune_type

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
            if same and header.is_of(identity.key, self.device.conditions):
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

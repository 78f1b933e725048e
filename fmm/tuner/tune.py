"""Run fmm-tune without a subcommand: tune the element types of devices one after the other, and write a config.

`run_tune` checks the arguments and creates one job for each device and element type. `run_jobs` runs the jobs one after
the other. `tune_job` measures by fmm.tuner.tune_type, and replaces the config's present section unless that section is
better. At the end `run_jobs` prints one table for each device.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from fmm.config import files, schema, store
from fmm.kernels.cpu.blas_kernel import slow_kernel_warning
from fmm.runtime.source_commit import source_commit
from fmm.tuner.device_registry import UnknownDeviceError, select_devices
from fmm.tuner.devices.device import CPU_EFFORTS, Effort, TunableDevice
from fmm.tuner.findings.conclude import conclude_section
from fmm.tuner.findings.device_summary import is_config_in_force, print_summary, summarize_device
from fmm.tuner.findings.model_in_use import model_in_use
from fmm.tuner.findings.summary import RESUME_NOTE, SectionText, TypeSummary
from fmm.tuner.progress import TuningProgress, open_progress
from fmm.tuner.stages.shapes_file import ShapesFile, ShapesFileError, read_shapes_file
from fmm.tuner.trials.environment import command_line_words
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import (
    FIRST_LOOK_EFFORT,
    GPU_UUID_KEY,
    ProductSize,
    RecordedTuning,
    Trial,
    TrialFile,
    TuningHeader,
    first_look_trials,
)
from fmm.tuner.tune_type import TIME_UP_TEXT, TuningOutcome, tune_type

# packages that a tuning needs; a missing package ends the command before the measurements
REQUIRED_PACKAGES = ("scipy", "optuna", "tqdm")
EXIT_INTERRUPTED = 130
# The fraction of a tuning's time in which samples are measured: the first number for a CPU, the second for a GPU. The
# tuner needs the rest of the time to create operands, to warm up, to check results and to fit the model.
CPU_SAMPLING_SHARE, GPU_SAMPLING_SHARE = 0.75, 0.33
# key of the planned seconds of all stages in the conditions that a tuning records
PLANNED_SECONDS_KEY = "planned_seconds"
COMPILE_SECONDS = 20.0  # seconds that several CPU cores need to compile the kernels of all first looks
# Seconds to fit the model, check the fit and write the section, after the measurements of a first look and of a longer
# tuning, as measured on the hosts of an H100 and an H200. From the second element type on, the tuner takes the longest
# duration that it has measured, if this is more.
FIRST_LOOK_CONCLUSION_SECONDS, CONCLUSION_SECONDS = 1.5, 3.0
TABLE_SECONDS = 0.25  # seconds that the table at the end takes for each element type
QUICK_EFFORT = "quick"
# if kernels are not ready after this number of seconds, the first look at the next element type begins
KERNEL_WAIT_SECONDS = 0.1


# ---- arguments


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options of a tuning to the parser."""
    add = parser.add_argument
    add("--device", metavar="0|1|all|cpu", help="the device to tune (GPU 0 if there is one, else the CPU)")
    add("--dtype", metavar="TYPES", help="element types, separated by commas (all)")
    shapes = parser.add_mutually_exclusive_group()
    what = "certify these shapes: lines of M K N, or M K N TYPE; or PyTorch's tunableop_untuned*.csv"
    shapes.add_argument("--shapes", type=path_argument, metavar="FILE", help=what)
    what = "certify what a program multiplied: FMM_REPORT=run.json, or python -m fmm --report=run.json"
    shapes.add_argument("--report", dest="shapes", type=path_argument, metavar="run.json", help=what)
    add("--effort", choices=tuple(CPU_EFFORTS), default="default", help="how much to measure (default: default)")
    add("--time-limit", type=float, metavar="S", help="stop measuring after this many seconds; types share them")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="continue the last interrupted tuning with these options")
    again.add_argument("--fresh", action="store_true", help="measure everything again (the default without --resume)")
    add("--output", type=path_argument, metavar="PATH", help="the config to write (the one that fmm reads)")
    add("--json", action="store_true", help="print JSON: at the end a list with a section for each type")
    add("--verbose", action="store_true", help="print every table of each type too")
    add("--quiet", action="store_true", help="no progress and no table; --json still prints")
    add("--dry-run", action="store_true", help="print what would be measured, and measure nothing")


class InvalidOptionError(ValueError):
    """Raised for an option with an invalid value."""


def run_tune(options: argparse.Namespace) -> int:
    """Run the tuning that the options describe, and return the exit code.

    The exit code is 0 if fmm.matmul can use the result of at least one element type. The exit code is 1 if no element
    type has a usable result or a file cannot be written, 2 for invalid arguments, and 130 after Ctrl-C.
    """
    try:
        jobs = list(_tuning_jobs(options))
        if not jobs:
            raise InvalidOptionError(
                f"{options.shapes} has no shapes of the types that would be tuned, large enough for a plan"
            )
        path = output_path(options.output)
    except (UnknownDeviceError, ShapesFileError, InvalidOptionError) as error:
        print(f"fmm-tune: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:  # raised if Python cannot determine the home folder
        return _report_write_error(Path(files.CONFIG_FILE_NAME), error)
    if options.dry_run:
        return _print_dry_run(jobs, path, options)
    if missing := [name for name in REQUIRED_PACKAGES if find_spec(name) is None]:
        print(f"fmm-tune: {missing[0]} is not installed; pip install '.[tune]' in fmm's clone", file=sys.stderr)
        return 1
    if any(job.device.identity.key.startswith("cpu") for job in jobs):
        _warn_of_slow_blas(getattr(options, "ignored_variables", {}))
    results = dict[DeviceAndType, dict[str, Any]]()
    try:
        store.check_writable(path)  # a path that cannot be written ends the command before the measurements
        files.suppress_missing_config_warning(path)
        try:
            return run_jobs(jobs, path, options, results)
        finally:
            if options.json:
                print(json.dumps(list(results.values()), indent=1))
    except schema.ConfigError as error:
        print(f"fmm-tune: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None:
            raise  # an OSError without a file name is an error of stdout, which `main` reports
        return _report_write_error(path, error)


def _warn_of_slow_blas(ignored: Mapping[str, str]) -> None:
    """Print a warning if OpenBLAS runs a slow kernel, and list the ignored environment variables."""
    if warning := slow_kernel_warning():
        print(f"fmm-tune: {warning}", file=sys.stderr)
    if ignored:
        values = ", ".join(f"{name}={value}" for name, value in ignored.items())
        print(
            f"fmm-tune: {values} is ignored while measuring: it slows NumPy down; unset it for your programs too",
            file=sys.stderr,
        )


def path_argument(text: str) -> Path:
    """Return an argument as a path; raise ArgumentTypeError for an empty argument."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; leave the argument out for the default")
    return Path(text)


def output_path(path: Path | None) -> Path:
    """Return the path of the config that an argument names; without an argument, the tuner's default path."""
    if path is not None:
        return files.config_file(path)
    try:
        return files.default_path()
    except RuntimeError as error:
        raise RuntimeError(f"{str(error).rstrip('.')}: set HOME, or FMM_CONFIG to the config") from None


def trials_path(path: Path) -> Path:
    """Return the path of the file of trials, which is in the folder of the config."""
    return path.with_name("trials.jsonl")


def _tuning_jobs(options: argparse.Namespace) -> Iterator[TuningJob]:
    """Yield the jobs of a command; if there are several element types, the first looks at all types come first.

    After the first looks, every element type has a result, even if the tuning is then stopped. On a GPU, a tuning of
    several element types with the effort `quick` has only the first looks.
    """
    if options.time_limit is not None and not options.time_limit > 0:
        raise InvalidOptionError(f"--time-limit must be a positive number of seconds, not {options.time_limit:g}")
    wanted = read_shapes_file(options.shapes) if options.shapes else None
    found = [job for device in select_devices(options.device) for job in _jobs_of_device(device, wanted, options)]
    if wanted and not options.quiet:
        _warn_of_left_out_shapes(wanted, found)
    if len(found) > 1 and not wanted:
        first = [(replace(job, effort=FIRST_LOOK_EFFORT), job) for job in found]
        yield from (coarse for coarse, job in first if coarse.planned_effort != job.planned_effort)
        found = [job for job in found if job.effort != QUICK_EFFORT or job.device.chip is None]
    yield from found


def _jobs_of_device(
    device: TunableDevice, wanted: ShapesFile | None, options: argparse.Namespace
) -> Iterator[TuningJob]:
    for name in dict.fromkeys(device.dtypes if options.dtype is None else options.dtype.split(",")):
        if name not in device.dtypes:
            raise InvalidOptionError(f"unknown dtype {name!r}; valid: {', '.join(device.dtypes)}")
        shapes = wanted.shapes_of_type(name, on_gpu=device.chip is not None) if wanted else []
        if shapes or not wanted:
            yield TuningJob(device, name, tuple(shapes), options.effort)


def _warn_of_left_out_shapes(wanted: ShapesFile, jobs: Sequence[TuningJob]) -> None:
    """Print how many of a program's shapes no job certifies."""
    certified = {(size, job.dtype) for job in jobs for size in job.wanted}
    left_out = sum(shape not in certified for shape in wanted.recorded)
    if left_out:
        print(
            f"fmm-tune: {left_out} of the {len(wanted.recorded)} shapes in {wanted.path} are not tuned: "
            "too small for a plan, or of another type",
            file=sys.stderr,
        )


def _report_write_error(path: Path, error: BaseException) -> int:
    reason = getattr(error, "strerror", None) or error
    print(f"fmm-tune: cannot write {path}: {reason}; --output PATH names another file", file=sys.stderr)
    return 1


def _print_dry_run(jobs: Sequence[TuningJob], path: Path, options: argparse.Namespace) -> int:
    plan: list[dict[str, Any]] = [
        {
            "device": job.device.identity.key,
            "name": job.device.identity.name,
            "dtype": job.dtype,
            "effort": job.effort,
            "seconds": job.planned_effort.seconds,
            "held_out_shapes": job.planned_effort.held_out,
            "shapes": [list(size) for size in job.wanted] or "the usual squares that the effort affords",
            "candidates": [str(p) for p in job.device.candidate_plans()],
            "config": str(path),
        }
        for job in jobs
    ]
    lines = (
        f"{row['name']} ({row['device']}), {row['dtype']}, effort {row['effort']}: about {row['seconds']:.0f} s, "
        f"{len(row['candidates'])} candidate plans, {row['held_out_shapes']} held-out shapes"
        f"{_listed_shapes_text(job.wanted)}; writes {row['config']}"
        for row, job in zip(plan, jobs, strict=True)
    )
    print(json.dumps(plan, indent=1) if options.json else "\n".join(lines))
    return 0


def _listed_shapes_text(wanted: Sequence[ProductSize]) -> str:
    """Return, for a dry run, a text with the number of shapes that the user listed, and the first of these shapes."""
    if not wanted:
        return ""
    first = ", ".join("x".join(map(str, size)) for size in wanted[:3])
    return f"; certifies {len(wanted)} shapes: {first}{', ...' if len(wanted) > 3 else ''}"


# ---- all jobs


@dataclass(frozen=True)
class TuningJob:
    """A job of the command: tune one element type on one device with one effort."""

    device: TunableDevice
    dtype: str
    wanted: tuple[ProductSize, ...]
    effort: str
    again: bool = False  # True if the job continues a job of the same command that stopped early

    @property
    def planned_effort(self) -> Effort:
        """The effort of the job on its device, with seconds, rounds and shapes."""
        return self.device.efforts_by_name[self.effort]

    @property
    def expected_seconds(self) -> float:
        """The expected duration of the job in seconds."""
        return min(self.planned_effort.seconds / self.sampling_share, self.planned_effort.most)

    @property
    def sampling_share(self) -> float:
        """The fraction of the job's time that samples take."""
        return CPU_SAMPLING_SHARE if self.device.chip is None else GPU_SAMPLING_SHARE

    @property
    def waits_for_kernel_compilation(self) -> bool:
        """True if the job is a first look at a GPU while the GPU's kernels are being compiled."""
        return self.effort == FIRST_LOOK_EFFORT and not self.again and self.device.chip is not None

    def needs_continuation(self, end: JobResult) -> bool:
        """Return True if another job must continue this first look, which stopped before its model was checked."""
        unchecked = self.effort == FIRST_LOOK_EFFORT and not self.again and bool(end.why_not)
        return unchecked and (bool(end.stopped) or self.waits_for_kernel_compilation)

    @property
    def device_and_type(self) -> DeviceAndType:
        """The key of the job's results in a run of the command."""
        return id(self.device), self.dtype

    @property
    def settings_required_to_resume(self) -> dict[str, Any]:
        """Settings of the job; a recorded tuning can be resumed only if its settings are the same."""
        return {"dtype": self.dtype, "effort": self.effort, "shapes": [list(size) for size in self.wanted]}

    @property
    def _gpu_uuid(self) -> Any:
        return self.device.measurement_conditions.get(GPU_UUID_KEY)

    def last_tuning(self, trials: TrialFile) -> RecordedTuning | None:
        """Return the last recorded tuning with the job's device, libraries and settings; None if there is none.

        A tuning of another GPU with the same key is not returned: the UUIDs differ.
        """
        identity = self.device.identity
        for tuning in reversed(trials.read_tunings()):
            header = tuning.header
            same = header.versions == identity.versions and header.settings == self.settings_required_to_resume
            if same and header.device == identity.key and header.gpu_uuid == self._gpu_uuid:
                return tuning
        return None


class JobTimeLimit(NamedTuple):
    """The time limit of a job in seconds, of which `conclusion` seconds are needed after the measurements.

    The job may wait `compiler_wait` seconds for the compiler in addition.
    """

    limit: float
    conclusion: float = 0.0
    compiler_wait: float = 0.0

    @property
    def measurement_end_seconds(self) -> float:
        """Seconds after which the measurements end."""
        return self.limit - min(self.conclusion, self.limit / 4)


class CommandTimeBudget:
    """Divides the time limit of a command among its jobs; starting the command and printing tables also use this time.

    If `limit` is None, the command has as much time as the efforts of its jobs need together. `began` is the value of
    time.monotonic() when the command began.
    """

    def __init__(self, jobs: Sequence[TuningJob], limit: float | None, began: float, prints_table: bool) -> None:
        most = [job.planned_effort.most for job in jobs]
        # a command with one element type has nothing to measure while the kernels of this type compile
        waits = COMPILE_SECONDS if len(jobs) == 1 and jobs[0].device.chip is not None else 0.0
        self.limit = sum(most) + waits if limit is None else limit
        types = {(job.device.identity.key, job.dtype) for job in jobs}
        self.left = self.limit - (monotonic() - began) - (TABLE_SECONDS * len(types) if prints_table else 0.0)
        self._is_shared = limit is not None
        self._used = dict[DeviceAndType, float]()  # seconds that the last job of a type has used
        self._conclusions = {True: FIRST_LOOK_CONCLUSION_SECONDS, False: CONCLUSION_SECONDS}

    def job_time_limit(self, job: TuningJob, others: Sequence[TuningJob]) -> JobTimeLimit:
        """Return the time limit of a job; `others` are the jobs that begin after this job.

        The remaining seconds of the command are divided among the jobs of an effort in proportion to the seconds that
        each job needs. The time limit of a first look is at most the limit of the effort `coarse`. A continued first
        look and the last job may also wait for the compiler, as long as enough seconds remain for all later jobs.
        """
        left, most = max(self.left, 0.0), job.planned_effort.most
        needed = self._needed_seconds(job)
        limit = left * needed / (needed + sum(self._needed_seconds(x) for x in others if x.effort == job.effort))
        if job.effort == FIRST_LOOK_EFFORT or not self._is_shared:
            limit = min(limit, most)
        wait = 0.0
        if job.again or not others:
            wait = max(left - limit - sum(other.planned_effort.most for other in others), 0.0)
        return JobTimeLimit(limit, self._conclusions[job.effort == FIRST_LOOK_EFFORT], wait)

    def _needed_seconds(self, job: TuningJob) -> float:
        """Return the seconds that a job needs at most, less the seconds that its first look has already used."""
        most = job.planned_effort.most
        return max(most - self._used.get(job.device_and_type, 0.0), most / 4) if job.again else most

    def subtract_job_seconds(self, job: TuningJob, seconds: float, concluding: float) -> None:
        """Subtract a job's seconds from the remaining seconds, and record how long its fit, checks and writing took."""
        self.left -= seconds
        self._used[job.device_and_type] = seconds
        kind = job.effort == FIRST_LOOK_EFFORT
        self._conclusions[kind] = max(self._conclusions[kind], concluding)


# (id of the device, element type); the key of the device is not enough, since two equal GPUs have the same key
DeviceAndType = tuple[int, str]


def run_jobs(
    jobs: Sequence[TuningJob], path: Path, options: argparse.Namespace, results: dict[DeviceAndType, dict[str, Any]]
) -> int:
    """Run the jobs one after the other; return the exit code, and store the last result of each type in `results`.

    At the end, print one table for each device. The table names each element type without a usable result, and the
    reason. The exit code is 1 only if no element type has a usable result. For a type with a rejected tuning,
    fmm.matmul decides as for an untuned type.
    """
    began = monotonic() if options.began is None else options.began
    if options.resume:
        jobs = _unfinished_jobs(jobs, TrialFile(trials_path(path))) or jobs
    has_table, planned = not (options.json or options.quiet), [job.expected_seconds for job in jobs]
    time = CommandTimeBudget(jobs, options.time_limit, began, has_table)
    lacking, stopped, code = dict[DeviceAndType, str](), dict[DeviceAndType, str](), 0
    with ExitStack() as stack:
        for device in {id(job.device): job.device for job in jobs}.values():
            stack.enter_context(device.compile_ahead([job.dtype for job in jobs if job.device is device]))
        progress = stack.enter_context(open_progress(planned, time.limit, not options.quiet))
        queue, late = deque(jobs), list[TuningJob]()
        while queue and not code:
            job = queue.popleft()
            name = job.device_and_type
            progress.set_remaining_seconds(sum(other.expected_seconds for other in (*queue, *late)))
            job_began = monotonic()
            end = tune_job(job, path, options, time.job_time_limit(job, [*queue, *late]), progress)
            if end.result is not None:
                results[name] = end.result
            code = end.code
            usable = not end.why_not or end.earlier_is_used
            # an element type has a usable result if its first look or its longer tuning has a usable result
            lacking[name] = end.why_not if lacking.get(name, "none yet") and not usable else ""
            stopped[name] = f"{end.stopped_by}; {RESUME_NOTE}" if end.stopped_by else ""
            if job.needs_continuation(end):
                late.append(replace(job, again=True))
            if late and (not queue or queue[0].effort != FIRST_LOOK_EFFORT):
                queue.extendleft(reversed(late))  # the GPU's kernels are compiled by now
                late.clear()
            # the simulated seconds of a test may exceed the seconds that have really elapsed
            time.subtract_job_seconds(job, max(end.seconds, monotonic() - job_began), end.concluding)
    reasons = {name: "; ".join(filter(None, (lacking[name], why))) for name, why in stopped.items()}
    failures = {name: why for name, why in reasons.items() if why}
    in_tables = _print_tables(jobs, path, failures, began) if has_table else set()
    devices = {id(job.device): job.device for job in jobs}
    for (number, dtype), why in lacking.items():
        if why and not code and devices[number].identity.key not in in_tables:
            where = f"--device {devices[number].option_value}: " if len(devices) > 1 else ""
            print(f"fmm-tune: {where}{dtype}: no result that fmm.matmul can use: {why}", file=sys.stderr)
    return code or int(bool(lacking) and all(lacking.values()))


def _print_tables(
    jobs: Sequence[TuningJob], path: Path, failures: Mapping[DeviceAndType, str], began: float
) -> set[str]:
    """Print a table for each device key that has a section in the config, and return these keys.

    Equal GPUs have one key, one section for each type, and one table. `began` is the value of time.monotonic() when
    the command began.
    """
    printed = set[str]()
    for job in {job.device.identity.key: job for job in jobs}.values():
        key, sections = job.device.identity.key, _device_sections(job, path)
        equal = [other for other in jobs if other.device.identity.key == key]
        dtypes = [other.dtype for other in equal]
        if not sections.keys() & set(dtypes):
            continue
        own = {other.dtype: failures[other.device_and_type] for other in equal if other.device_and_type in failures}
        failed = [other for other in equal if other.device_and_type in failures] or equal
        found = summarize_device(
            key,
            sections,
            path,
            in_force=is_config_in_force(path),
            dtypes=dtypes,
            failures=own,
            option_values={other.device.option_value for other in failed},
        )
        print_summary(found, sys.stdout, began)
        printed.add(key)
    return printed


def _unfinished_jobs(jobs: Sequence[TuningJob], trials: TrialFile) -> list[TuningJob]:
    """Return the jobs without a recorded tuning, and the jobs with an unfinished last tuning."""
    last = [job.last_tuning(trials) for job in jobs]
    return [job for job, tuning in zip(jobs, last, strict=True) if tuning is None or not tuning.finished]


# ---- one job


@dataclass(frozen=True)
class JobResult:
    """The result of a job: the exit code, the duration, and whether fmm.matmul can use the config section."""

    code: int  # exit code if the job ends the command; 0 if the command continues
    why_not: str  # why fmm.matmul cannot use the result; empty if the result is usable
    seconds: float
    concluding: float = 0.0  # seconds between the measurements and the end of the job
    stopped: str = ""  # why the measurements ended early, and what became of the section
    stopped_by: str = ""  # why the measurements ended early, as a short reason
    # True if the config still has an earlier section, because that section is trusted and has more held-out speedups
    # than the new one
    earlier_is_used: bool = False
    result: dict[str, Any] | None = None  # the dictionary that --json prints for the job


def tune_job(
    job: TuningJob, path: Path, options: argparse.Namespace, time: JobTimeLimit, progress: TuningProgress
) -> JobResult:
    """Tune one element type within its time limit, and write its config section, even after an interruption."""
    trials = TrialFile(trials_path(path))
    past = job.last_tuning(trials) if options.resume or job.again else None
    past = None if past is None or past.finished else past
    before = max((t.elapsed for t in past.trials), default=0.0) if past else 0.0
    limit = before + time.measurement_end_seconds
    seconds = job.sampling_share * limit
    if past:  # a resumed tuning measures the same shapes as before
        seconds = past.header.conditions.get(PLANNED_SECONDS_KEY, seconds)
    effort = job.planned_effort.effort_within_seconds(seconds)
    header = past.header if past else _new_header(job, effort)
    journal = Journal(
        header.run,
        job.device,
        past.trials if past else (),
        trials.add_trial,
        limit,
        compiler_wait_seconds=time.compiler_wait,
        kernel_wait_seconds=KERNEL_WAIT_SECONDS if job.waits_for_kernel_compilation else inf,
        first_look=_load_first_look(job, trials, header),
    )
    progress.begin_element_type(f"{job.dtype} ({job.effort}):", job.expected_seconds)
    journal.on_sample = progress.show_sample
    journal.on_finding = lambda: progress.show_speedup_so_far(job.dtype, partial(conclude_section, journal, job.dtype))
    outcome, full = _measure_and_record(journal, job, effort, trials, None if past else header)
    progress.end_element_type(job.dtype, outcome.section)
    why_not = _reason_not_written(job, path, outcome)
    if not why_not:
        try:
            _write_section(job, path, header, outcome)
        except schema.ConfigError as error:
            print(f"fmm-tune: {error}", file=sys.stderr)
            return JobResult(
                1, str(error), journal.elapsed_seconds - before, journal.elapsed_seconds - journal.measurements_end
            )
    diagnostics = (outcome.section or {}).get("doubts") or []
    code = EXIT_INTERRUPTED if outcome.stopped == "interrupted" else int(full)
    limit_text = f"effort {job.effort}" if options.time_limit is None else "--time-limit"
    stopped = _early_stop_text(job, path, outcome, why_not, f"{journal.elapsed_seconds:.0f} s of {limit_text}")
    end = JobResult(
        code,
        why_not or "; ".join(diagnostics),
        journal.elapsed_seconds - before,
        journal.elapsed_seconds - journal.measurements_end,
        stopped,
        outcome.stopped,
    )
    if why_not and outcome.section is not None:
        end = replace(end, earlier_is_used=_section_quality(_section_in_config(job, path))[0])
    if not code and job.needs_continuation(end):
        return end  # details are printed by the job that continues this job
    if options.verbose and not options.json and not options.quiet:
        _print_details(job, path, outcome)
    if stopped and (code or options.json or options.quiet):
        print(f"fmm-tune: {job.dtype}: {stopped}", file=sys.stderr)
    return replace(end, result=_json_result(job, path, outcome, why_not)) if options.json else end


def _load_first_look(job: TuningJob, trials: TrialFile, header: TuningHeader) -> tuple[Trial, ...]:
    """Return the trials of the first look before this tuning; an empty tuple if the file of trials cannot be read."""
    if job.effort != FIRST_LOOK_EFFORT:
        with suppress(OSError, schema.ConfigError):
            return first_look_trials(trials.read_tunings(), header)
    return ()


def _new_header(job: TuningJob, effort: Effort) -> TuningHeader:
    identity = job.device.identity
    now = datetime.now(UTC).isoformat(timespec="seconds")
    conditions = {**job.device.measurement_conditions, "commit": source_commit(), PLANNED_SECONDS_KEY: effort.seconds}
    run, command = uuid.uuid4().hex[:12], " ".join(command_line_words())
    return TuningHeader(
        run, identity.key, dict(identity.versions), conditions, job.settings_required_to_resume, command, now
    )


def _measure_and_record(
    journal: Journal, job: TuningJob, effort: Effort, trials: TrialFile, header: TuningHeader | None
) -> tuple[TuningOutcome, bool]:
    """Measure, and return the outcome of the tuning and a flag: True if the trials could not be written."""
    try:
        if header:
            trials.add_header(header)
        outcome = tune_type(journal, job.dtype, effort, job.wanted)
        if outcome.is_complete:
            trials.mark_finished(journal.run, journal.elapsed_seconds)
        return outcome, False
    except OSError as error:
        stopped = f"{trials.path}: {error.strerror or error}"
        return TuningOutcome(conclude_section(journal, job.dtype), stopped), True
    finally:
        trials.close()


# ---- writing the section


def _reason_not_written(job: TuningJob, path: Path, outcome: TuningOutcome) -> str:
    """Return why the config's present section is not replaced; empty if the new section may be written.

    The section of a finished tuning without diagnostics is always written, unless the tuning is a first look. The
    section of an unfinished tuning, of a first look or of a tuning with diagnostics is written only if
    `_section_quality` is at least that of the present section.
    """
    if outcome.section is None:
        return "too little was measured"
    diagnostics = outcome.section["doubts"]
    firm = not outcome.stopped and not diagnostics and job.effort != FIRST_LOOK_EFFORT
    if firm or _section_quality(outcome.section) >= _section_quality(_section_in_config(job, path)):
        return ""
    stays = f"the present tuning in {path} has a better check and is unchanged"
    return f"{diagnostics[0]}; {stays}" if diagnostics else stays


def _section_quality(section: Any) -> tuple[bool, int]:
    """Return the quality of a section, for comparisons: (True if its model is trusted, number of held-out speedups)."""
    try:
        return not section.get("doubts"), int(section["error"]["speedup"]["count"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return False, 0


def _device_sections(job: TuningJob, path: Path) -> Mapping[str, Any]:
    """Return the sections of the job's device in the config, by element type; empty for a damaged config."""
    try:
        found = files.read_config(path).get(job.device.identity.key, {})
    except schema.ConfigError:
        return {}
    return {dtype: section for dtype, section in found.items() if isinstance(section, dict)}


def _section_in_config(job: TuningJob, path: Path) -> Any:
    """Return the config's section for the job; None for a section from other library or driver versions."""
    found = _device_sections(job, path).get(job.dtype)
    return found if found and found.get("versions") == dict(job.device.identity.versions) else None


def _write_section(job: TuningJob, path: Path, header: TuningHeader, outcome: TuningOutcome) -> None:
    assert outcome.section is not None
    how = {"effort": header.settings["effort"], "command": header.command, "run": header.run}
    tuned = {**outcome.section["tuned"], **how}
    store.merge_section(path, job.device.identity.key, job.dtype, {**outcome.section, "tuned": tuned})


# ---- what is printed


def _print_details(job: TuningJob, path: Path, outcome: TuningOutcome) -> None:
    """Print every table of the config section that the job has measured."""
    key = job.device.identity.key
    print(f"{job.device.identity.name} ({key}), {job.dtype}, effort {job.effort}")
    if outcome.section is not None:
        for line in SectionText(outcome.section, job.dtype, key, _device_sections(job, path)).text_lines:
            print(line)


def _early_stop_text(job: TuningJob, path: Path, outcome: TuningOutcome, why_not: str, limit_text: str) -> str:
    """Return a text that says why the measurements ended early and what was written; empty for a finished tuning."""
    if not outcome.stopped:
        return ""
    reason = f"{outcome.stopped} ({limit_text})" if outcome.stopped == TIME_UP_TEXT else outcome.stopped
    result = f"the best result so far is in {path}; {RESUME_NOTE}"
    if why_not:
        trusted, _ = _section_quality(_section_in_config(job, path))
        result = f"the present section in {path} is unchanged" if trusted else "nothing was written"
        result += f"; {RESUME_NOTE} from the trials"
    elif outcome.section and outcome.section["doubts"]:
        result = f"the section is in {path}, and fmm.matmul rejects it so far; {RESUME_NOTE}"
    return f"{reason}; {result}"


def _json_result(job: TuningJob, path: Path, outcome: TuningOutcome, why_not: str) -> dict[str, Any]:
    """Return the dictionary that --json prints for a job."""
    found = {"device": job.device.identity.key, "dtype": job.dtype, "config": str(path), "stopped": outcome.stopped}
    answers = None
    if outcome.section is not None:
        sections = {**_device_sections(job, path), job.dtype: outcome.section}
        answers = TypeSummary(job.dtype, model_in_use(job.device.identity.key, job.dtype, sections)).json_fields
    return {**found, "not_written": why_not, "section": outcome.section, "fmm.matmul": answers}

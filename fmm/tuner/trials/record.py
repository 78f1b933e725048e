"""Read and write trials.jsonl, the file of trials, which has a line of JSON for each sample of a tuning.

An incomplete last line of the file is ignored: an interrupted tuning may leave such a line. If there is a compressed
file trials.jsonl.gz, its lines are read first.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fmm.config.environment import log_once
from fmm.config.reader import (
    ConfigError,
    JsonCheck,
    check_text,
    check_text_values,
    choice_check,
    integer_check,
    number_check,
    optional_number_check,
    read_fields,
    wrong_value_error,
)
from fmm.config.schema import check_size
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.problem import OPERATIONS, Operation, Problem
from fmm.tuner.devices.device import TimedRun

ProductSize = tuple[int, int, int]  # (m, k, n)
DEFAULT_OPERATION: Operation = "product"  # the operation of a trial that has no field "op"


@dataclass(frozen=True)
class Trial:
    """One timed sample of a run, or the reason why the run failed; a line in the file of trials."""

    run: str  # identifier of the tuning
    stage: str
    size: ProductSize
    dtype: str
    plan: str
    part: str
    twin: int
    seed: int  # seed of the random operands
    elapsed: float  # seconds since the tuning began
    seconds: float | None = None
    failed: str | None = None
    op: Operation = DEFAULT_OPERATION
    proposer: str = ""  # who proposed the plan of a search: "optuna", or "" for the model

    @property
    def problem(self) -> Problem:
        """Return the problem on which the run was timed."""
        return Problem(*self.size, self.dtype, op=self.op)

    @property
    def timed_run(self) -> TimedRun:
        """Return the run that was timed: a whole plan, or only its sums or its leaf products."""
        return TimedRun(Plan.parse(self.plan), self.part, self.twin)


@dataclass(frozen=True)
class TuningHeader:
    """The first line of a tuning in the file of trials: its device, library versions, conditions and settings."""

    run: str
    device: str
    versions: Mapping[str, str]
    conditions: Mapping[str, Any]
    settings: Mapping[str, Any]
    command: str
    started: str

    @property
    def gpu_uuid(self) -> Any:
        """The UUID of the GPU on which the tuning ran; None if the conditions have no UUID."""
        return self.conditions.get(GPU_UUID_KEY)


GPU_UUID_KEY = "uuid"  # key of a GPU's UUID in the conditions that a tuning records


@dataclass(frozen=True)
class RecordedTuning:
    """The header and the trials of one tuning, as read from the file of trials."""

    header: TuningHeader
    trials: tuple[Trial, ...]
    finished: bool


class TrialFile:
    """A file of trials, in which lines of several tunings may alternate."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = -1

    def append_record(self, kind: str, record: Mapping[str, Any]) -> None:
        """Append a line of JSON to the file, by a single system call.

        Since the line is written by a single call, concurrent tunings cannot mix parts of their lines, and a killed
        process truncates at most the last line. OSError is raised for a pipe.
        """
        line = json.dumps({kind: record}, allow_nan=False).encode() + b"\n"
        if self._handle < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_fifo():  # opening a pipe would wait for a reader
                raise OSError(errno.EINVAL, "it is a pipe", str(self.path))
            truncated = self._is_last_line_truncated()
            self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            line = b"\n" * truncated + line
        if os.write(self._handle, line) != len(line):
            raise OSError(errno.ENOSPC, f"no space left for {self.path}")

    def add_header(self, header: TuningHeader) -> None:
        """Append the header of a tuning."""
        self.append_record("tuning", asdict(header))

    def add_trial(self, trial: Trial) -> None:
        """Append a trial; fields with their default value are left out."""
        usual = ("op", DEFAULT_OPERATION), ("proposer", "")
        self.append_record("trial", {k: v for k, v in asdict(trial).items() if v is not None and (k, v) not in usual})

    def mark_finished(self, run: str, elapsed: float) -> None:
        """Append a line that marks a tuning as finished."""
        self.append_record("finished", {"run": run, "elapsed": elapsed})

    def close(self) -> None:
        """Close the file; a later append opens the file again."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _is_last_line_truncated(self) -> bool:
        """Return True if the file does not end with a line break."""
        try:
            with open(self.path, "rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
        except OSError:
            return False

    def read_tunings(self) -> tuple[RecordedTuning, ...]:
        """Return all tunings in the file, the oldest first; damaged lines are skipped, with a warning in the log."""
        headers: dict[str, TuningHeader] = {}
        trials: dict[str, list[Trial]] = {}
        finished, damage = set(), list[ConfigError]()
        for kind, record in self._read_records():
            try:
                if kind == "tuning":
                    header = TuningHeader(**read_fields(record, kind, HEADER_FIELD_CHECKS))
                    headers[header.run] = header
                elif kind == "trial":
                    trial = _parse_trial(record)
                    trials.setdefault(trial.run, []).append(trial)
                elif kind == "finished":
                    finished.add(check_text(record.get("run"), "run"))
            except ConfigError as error:
                damage.append(error)
        if damage:
            log_once(f"{len(damage)} damaged lines of {self.path} are skipped; the first one: {damage[0]}")
        return tuple(RecordedTuning(h, tuple(trials.get(run, ())), run in finished) for run, h in headers.items())

    @property
    def existing_files(self) -> tuple[Path, ...]:
        """Return the paths of the trials that exist: the uncompressed file, the compressed file, both or none."""
        return tuple(file for file in (self.path, self.gzip_path) if file.is_file())

    @property
    def gzip_path(self) -> Path:
        """Return the path of the compressed file, trials.jsonl.gz."""
        return self.path.with_name(f"{self.path.name}.gz")

    def _read_records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (kind, JSON fields) of every complete line; the kind is "tuning", "trial" or "finished"."""
        for line in (*_file_lines(self.gzip_path), *_file_lines(self.path)):
            try:
                ((kind, record),) = json.loads(line).items()
            except (ValueError, AttributeError, RecursionError):
                continue  # the line is damaged, or incomplete: its writer was killed
            if isinstance(record, dict):
                yield kind, record


def _file_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, decompressed if its name ends in .gz; ConfigError if the file cannot be read.

    No lines are returned if the path is no regular file, since reading a pipe may never end.
    """
    if not path.is_file():
        return []
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
    except (OSError, EOFError, zlib.error) as error:  # gzip raises an OSError for a file that is not compressed
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def first_look_trials(tunings: Sequence[RecordedTuning], header: TuningHeader) -> tuple[Trial, ...]:
    """Return the trials of the first look (coarse tuning) before a tuning, for the fit of the tuning.

    The first look and the tuning must have the same type, device and library versions. Without the option --resume, the
    same run of fmm-tune must have recorded the first look and the tuning. If several first looks match, the trials of
    the last one are returned. If the tuning is itself a first look, no trials are returned.
    """
    found: tuple[Trial, ...] = ()
    for tuning in tunings:
        if tuning.header.run == header.run:
            break
        if _is_usable_first_look(tuning.header, header):
            found = tuning.trials
    return found


FIRST_LOOK_EFFORT = "coarse"  # name of the effort of a first look


def _is_usable_first_look(first: TuningHeader, tuning: TuningHeader) -> bool:
    """Return True if `first` is a first look, and its trials may be used by this tuning."""
    same_device = (first.device, first.versions, first.gpu_uuid) == (tuning.device, tuning.versions, tuning.gpu_uuid)
    efforts = first.settings.get("effort") == FIRST_LOOK_EFFORT != tuning.settings.get("effort")
    continues = first.command == tuning.command or "--resume" in tuning.command.split()
    same_type = first.settings.get("dtype") == tuning.settings.get("dtype")
    return same_device and efforts and continues and same_type


def _check_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_value_error(where, "an object", value)
    return value


def _check_long_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise wrong_value_error(where, "a text", value)
    return value


def _check_plan_text(value: Any, where: str) -> str:
    try:
        Plan.parse(check_text(value, where))
    except PlanError as error:
        raise ConfigError(f"{where}: {error}") from None
    return str(value)


HEADER_FIELD_CHECKS: Mapping[str, JsonCheck] = {
    **dict.fromkeys(("run", "device", "started"), check_text),
    "versions": check_text_values,
    **dict.fromkeys(("conditions", "settings"), _check_object),
    "command": _check_long_text,
}
TRIAL_FIELD_CHECKS: Mapping[str, JsonCheck] = {
    **dict.fromkeys(("run", "stage", "part"), check_text),
    "size": check_size,
    "dtype": choice_check(*DTYPES),
    "plan": _check_plan_text,
    "twin": integer_check(0, 1 << 30),
    "seed": integer_check(-(1 << 63), 1 << 64),
    "elapsed": number_check(-1e12, 1e12),
    "seconds": optional_number_check(0, 1e12),
    "failed": _check_long_text,
    "op": choice_check(*OPERATIONS),
    "proposer": _check_long_text,
}
OPTIONAL_TRIAL_FIELDS = frozenset({"seconds", "failed", "op", "proposer"})


def _parse_trial(record: dict[str, Any]) -> Trial:
    """Return the trial in the JSON fields of a line; fields that this version of fmm does not have are ignored."""
    own = {name: value for name, value in record.items() if name in TRIAL_FIELD_CHECKS}
    return Trial(**read_fields(own, "trial", TRIAL_FIELD_CHECKS, OPTIONAL_TRIAL_FIELDS))


def tuning_of_section(
    tunings: Sequence[RecordedTuning], device: str, dtype: str, section: Mapping[str, Any]
) -> RecordedTuning | None:
    """Return the recorded tuning that produced a config section; None if `tunings` has none of its type and device.

    The field `tuned` of the section names the tuning. If this tuning is not among `tunings`, the last tuning of the
    same type and device is returned.
    """
    of_type = [t for t in tunings if t.header.settings.get("dtype") == dtype]
    own = [t for t in of_type if t.header.device == device]
    run = section["tuned"].get("run") if isinstance(section["tuned"], dict) else None
    return next((t for t in own if t.header.run == run), own[-1] if own else None)


def frame(path: Path | str) -> Any:
    """Return a file of trials as a pandas DataFrame with one row for each trial.

    Parameters
    ----------
    path
        The file `trials.jsonl`, or the folder that contains the file.

    Returns
    -------
    pandas.DataFrame
        The columns are the fields of a trial, with `m`, `k` and `n` instead of `size`, and the `device`, `effort` and
        `started` of the trial's tuning.
    """
    import pandas

    where = Path(path)
    rows = [
        {**_header_columns(tuning.header), **_trial_columns(trial)}
        for tuning in TrialFile(where if where.suffix == ".jsonl" else where / "trials.jsonl").read_tunings()
        for trial in tuning.trials
    ]
    return pandas.DataFrame(rows, columns=TRIAL_FRAME_COLUMNS).astype({"plan": "category", "stage": "category"})


TRIAL_FRAME_COLUMNS = [
    *("run", "device", "effort", "started"),
    *("m", "k", "n"),
    *(f.name for f in fields(Trial) if f.name not in ("size", "run")),
]


def _header_columns(header: TuningHeader) -> dict[str, Any]:
    """Return the values of a DataFrame row that come from the header of the tuning."""
    effort = header.settings.get("effort", "")
    return {"run": header.run, "device": header.device, "effort": effort, "started": header.started}


def _trial_columns(trial: Trial) -> dict[str, Any]:
    """Return the values of a DataFrame row that come from the trial."""
    m, k, n = trial.size
    found = {name: value for name, value in vars(trial).items() if name not in ("size", "run")}
    return {"m": m, "k": k, "n": n, **found}

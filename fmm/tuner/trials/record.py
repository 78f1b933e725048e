"""The file of trials: every sample of a tuning is one appended line; a torn last line is ignored.

What was packed since (`gzip trials.jsonl`) is read beside it: trials.jsonl.gz first, then what trials.jsonl added.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fmm.kernels.plans.plan import Plan
from fmm.problem import Operation, Problem
from fmm.tuner.devices.device import Run

Size = tuple[int, int, int]
DEFAULT_OPERATION: Operation = "product"  # the operation of most trials, which is not written down


@dataclass(frozen=True)
class Trial:
    """One sample, or the reason of its failure."""

    run: str  # the tuning that it belongs to
    stage: str
    size: Size
    dtype: str
    plan: str
    part: str
    twin: int
    seed: int  # of the operands
    elapsed: float  # seconds since the tuning began
    seconds: float | None = None
    failed: str | None = None
    op: Operation = DEFAULT_OPERATION

    @property
    def problem(self) -> Problem:
        return Problem(*self.size, self.dtype, op=self.op)

    @property
    def what(self) -> Run:
        return Run(Plan.parse(self.plan), self.part, self.twin)


@dataclass(frozen=True)
class Header:
    """The first line of a tuning: device, libraries, conditions, settings."""

    run: str
    device: str
    versions: Mapping[str, str]
    conditions: Mapping[str, Any]
    settings: Mapping[str, Any]
    command: str
    started: str


@dataclass(frozen=True)
class RecordedTuning:
    """The records of one tuning."""

    header: Header
    trials: tuple[Trial, ...]
    finished: bool


class TrialFile:
    """The file; lines of several tunings may be mixed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = -1

    def append(self, kind: str, record: Mapping[str, Any]) -> None:
        """One write of one line: lines of tunings that run at once do not mix, and a kill tears at most the last."""
        line = json.dumps({kind: record}, allow_nan=False).encode() + b"\n"
        if self._handle < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = self._torn()
            self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            line = b"\n" * torn + line
        if os.write(self._handle, line) != len(line):
            raise OSError(28, f"no room for {self.path}")

    def header(self, header: Header) -> None:
        self.append("tuning", asdict(header))

    def add(self, trial: Trial) -> None:
        found = asdict(trial)
        self.append("trial", {k: v for k, v in found.items() if v is not None and (k, v) != ("op", DEFAULT_OPERATION)})

    def finish(self, run: str, elapsed: float) -> None:
        self.append("finished", {"run": run, "elapsed": elapsed})

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _torn(self) -> bool:
        """Return True if the last line is torn."""
        try:
            with open(self.path, "rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
        except OSError:
            return False

    def tunings(self) -> tuple[RecordedTuning, ...]:
        """Return all tunings of the file, the oldest first."""
        headers: dict[str, Header] = {}
        trials: dict[str, list[Trial]] = {}
        finished = set()
        for kind, record in self._records():
            if kind == "tuning":
                headers[record["run"]] = Header(**record)
            elif kind == "trial":
                trials.setdefault(record["run"], []).append(_trial(record))
            elif kind == "finished":
                finished.add(record["run"])
        return tuple(RecordedTuning(h, tuple(trials.get(run, ())), run in finished) for run, h in headers.items())

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that there are: the plain one, and the packed one."""
        return tuple(file for file in (self.path, self.packed) if file.is_file())

    @property
    def packed(self) -> Path:
        return self.path.with_name(f"{self.path.name}.gz")

    def _records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in (*_packed(self.packed), *_plain(self.path)):
            try:
                ((kind, record),) = json.loads(line).items()
            except (ValueError, AttributeError):
                continue  # torn by a kill
            if isinstance(record, dict):
                yield kind, record


def _plain(path: Path) -> list[bytes]:
    """The lines of a plain file; none of anything else (a device, say, could be read for ever)."""
    return path.read_bytes().splitlines() if path.is_file() else []


def _packed(path: Path) -> list[bytes]:
    try:
        return gzip.decompress(path.read_bytes()).splitlines()
    except FileNotFoundError:
        return []
    except (EOFError, zlib.error) as error:
        raise OSError(f"{path} is damaged: {error}") from None


def first_look_trials(tunings: Sequence[RecordedTuning], header: Header) -> tuple[Trial, ...]:
    """What the last first look at the same type of the same device, with the same libraries, measured before a tuning:
    it counts as that tuning's own. None of a first look itself; and where all is measured anew, that is without
    --resume, none of an earlier command."""
    found: tuple[Trial, ...] = ()
    for tuning in tunings:
        if tuning.header.run == header.run:
            break
        if _is_first_look_of(tuning.header, header):
            found = tuning.trials
    return found


FIRST_LOOK_EFFORT = "coarse"  # the effort of a first look


def _is_first_look_of(first: Header, then: Header) -> bool:
    own, settings = first.settings, then.settings
    alike = (first.versions, _card(first)) == (then.versions, _card(then))
    alike = alike and first.device == then.device
    efforts = own.get("effort") == FIRST_LOOK_EFFORT != settings.get("effort")
    goes_on = first.command == then.command or "--resume" in then.command.split()
    return alike and efforts and goes_on and own.get("dtype") == settings.get("dtype")


def _card(header: Header) -> Any:
    """Which of several cards of one kind it is, where that is known."""
    return header.conditions.get("uuid")


TRIAL_FIELDS = frozenset(f.name for f in fields(Trial))


def _trial(record: dict[str, Any]) -> Trial:
    known = {k: v for k, v in record.items() if k in TRIAL_FIELDS}
    return Trial(**{**known, "size": tuple(record["size"]), "plan": record["plan"]})


def tuning_of(
    tunings: Sequence[RecordedTuning], device: str, dtype: str, section: Mapping[str, Any]
) -> RecordedTuning | None:
    """The tuning that a section of a config was concluded from, by the name of its run in `tuned`; the last one of this
    type and device where that does not tell."""
    of_type = [t for t in tunings if t.header.settings.get("dtype") == dtype]
    own = [t for t in of_type if t.header.device == device]
    run = section["tuned"].get("run") if isinstance(section["tuned"], dict) else None
    return next((t for t in own if t.header.run == run), own[-1] if own else None)


def frame(path: Path | str) -> Any:
    """Every sample of a file of trials as a pandas DataFrame, a row each; `path` may be the folder that it is in.

    Beside a trial's own fields it has `device`, `effort` and `started` of its tuning; `size` is `m`, `k` and `n`.
    """
    import pandas

    where = Path(path)
    rows = [
        {**_header_columns(tuning.header), **_trial_columns(trial)}
        for tuning in TrialFile(where if where.suffix == ".jsonl" else where / "trials.jsonl").tunings()
        for trial in tuning.trials
    ]
    return pandas.DataFrame(rows, columns=FRAME_COLUMNS).astype({"plan": "category", "stage": "category"})


FRAME_COLUMNS = [
    *("run", "device", "effort", "started"),
    *("m", "k", "n"),
    *(f.name for f in fields(Trial) if f.name not in ("size", "run")),
]


def _header_columns(header: Header) -> dict[str, Any]:
    effort = header.settings.get("effort", "")
    return {"run": header.run, "device": header.device, "effort": effort, "started": header.started}


def _trial_columns(trial: Trial) -> dict[str, Any]:
    m, k, n = trial.size
    found = {name: value for name, value in vars(trial).items() if name not in ("size", "run")}
    return {"m": m, "k": k, "n": n, **found}

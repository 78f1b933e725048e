"""Trials as a pandas DataFrame, for people: a row for each sample."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from fmm.tuner.trials.record import Header, Trial, Trials


def frame(path: Path | str) -> Any:
    """Every sample of a file of trials as a pandas DataFrame, a row each; `path` may be the folder that it is in.

    Beside a trial's own fields it has `device`, `effort` and `started` of its tuning; `size` is `m`, `k` and `n`.
    """
    import pandas

    where = Path(path)
    rows = [
        {**_header_columns(tuning.header), **_trial_columns(trial)}
        for tuning in Trials(where if where.suffix == ".jsonl" else where / "trials.jsonl").tunings()
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

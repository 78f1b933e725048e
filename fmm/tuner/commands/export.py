"""Configs and trials as pandas DataFrames: for `fmm-tune export`, the report, notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from fmm.config.schema import Entry, Raw, Spread, Thresholds, Tuned
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from fmm.tuner.devices.device import Run, cached_work, formula_seconds

Sections = Mapping[tuple[str, str], Tuned]  # by device and type
ENTRY_COLUMNS = ["device", "dtype", "m", "k", "n", *(f.name for f in fields(Entry) if f.name != "size")]


def json_rows(table: Any) -> list[dict[str, Any]]:
    """A table as JSON has it: all digits, and null for what is not there. (pandas' own JSON has ten decimals.)"""
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict(orient="records")
    return rows


def entries_table(sections: Sections) -> Any:
    """A row for each entry of a config."""
    import pandas

    rows = [
        _entry_row(key, dtype, entry) for (key, dtype), known in sections.items() for entry in known.entries.values()
    ]
    return pandas.DataFrame(rows, columns=ENTRY_COLUMNS)


def _entry_row(key: str, dtype: str, entry: Entry) -> dict[str, Raw]:
    m, k, n = entry.size
    return {"device": key, "dtype": dtype, "m": m, "k": k, "n": n, **asdict(entry)}


def thresholds_table(sections: Sections) -> Any:
    """A row for each section: the thresholds, those with a spread in three columns, 95 % intervals in two."""
    import pandas

    rows = []
    for (key, dtype), known in sections.items():
        row: dict[str, Raw] = {"device": key, "dtype": dtype}
        if known.thresholds:
            row |= dict(_threshold_cells(known.thresholds))
        rows.append(row)
    return pandas.DataFrame(rows)


def _threshold_cells(found: Thresholds) -> Iterator[tuple[str, Raw]]:
    for name, value in vars(found).items():
        if isinstance(value, Spread):
            yield from ((name, value.value), (f"{name}_low", value.low), (f"{name}_high", value.high))
        elif not isinstance(value, Mapping):
            yield name, value
    for name, (low, high) in found.intervals.items():
        yield from ((f"{name}_95_low", low), (f"{name}_95_high", high))
    yield from ((f"{name}_without_emulation", side) for name, side in found.without_emulation.items())


def with_predictions(trials: Any, sections: Sections) -> Any:
    """A frame of trials with a column `predicted`: the seconds by the config's calibration, where it has one."""
    known = {key: found.calibration for key, found in sections.items()}

    def predicted(row: Any) -> float | None:
        calibration = known.get((row.device, row.dtype))
        if calibration is None:
            return None
        run, problem = Run(Plan.parse(row.plan), row.part, row.twin), Problem(row.m, row.k, row.n, row.dtype, op=row.op)
        return formula_seconds(run, problem, cached_work(run.plan, problem), calibration)

    return trials.assign(predicted=[predicted(row) for row in trials.itertuples()])

"""Tables of the model's choices on shapes that no fit saw (`python -m benchmarks regret`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.held_out import (
    HELD_OUT_FILE_NAME,
    Row,
    Run,
    group_rows,
    packed_path,
    recorded_runs,
    representative_run,
    rows_summary,
)
from benchmarks.tables.markdown import LongTable, short_commits, short_name, table_lines

RATIO_COLUMNS = ("of the best plan: mean, least", "of the vendor: mean, least", "poor choices")


def _recorded_runs(results: Path) -> Iterator[tuple[str, str, list[Run]]]:
    """Yield the machine, the file and the runs of each recorded file."""
    for path in sorted({found.with_name(HELD_OUT_FILE_NAME) for found in results.glob(f"*/{HELD_OUT_FILE_NAME}*")}):
        runs = [run for run in recorded_runs(path) if run.rows]
        if not runs:
            continue
        environment = runs[-1].environment
        name = environment.get("device") or environment["processor"]
        file = path if path.exists() else packed_path(path)
        yield short_name(name), f"results/{path.parent.name}/{file.name}", runs


def _ratio_cells(rows: Sequence[Row]) -> Sequence[object]:
    s = rows_summary(rows)
    best = f"{s['mean_share_of_best']:.1%}, {s['least_share_of_best']:.1%}"
    return s["shapes"], s["by_plans"], best, f"{s['mean_speedup']:.2f}, {s['least_speedup']:.2f}", s["poor"]


def _all_rows(results: Path) -> Iterator[Sequence[object]]:
    for name, file, runs in _recorded_runs(results):
        for run in runs:
            for dtype, kind, rows in group_rows(run.rows):
                sources = ", ".join(dict.fromkeys(row.step for row in rows))
                yield (
                    name,
                    run.shapes_origin,
                    dtype,
                    kind,
                    sources,
                    *_ratio_cells(rows),
                    file,
                    short_commits(run.environment["commit"]),
                )


HELD_OUT = LongTable(
    "held-out",
    ("on", "run", "type", "shapes", "decided by", "count", "by plans", *RATIO_COLUMNS),
    _all_rows,
)


def held_out_choices(results: Path) -> Iterator[str]:
    """Yield a row for each machine and kind of shape, of the machine's representative run."""
    rows: list[Sequence[object]] = []
    notes: list[str] = []
    for name, _, runs in _recorded_runs(results):
        run = representative_run(runs)
        by_kind = sorted(run.rows, key=lambda row: row.kind)
        for kind, found in groupby(by_kind, key=lambda row: row.kind):
            rows.append((name, kind, *_ratio_cells(list(found))))
        notes.append(f"- {name}: {run.shapes_origin}, run {1 + runs.index(run)} of {len(runs)}")
    yield from table_lines(("on", "shapes", "count", "by plans", *RATIO_COLUMNS), rows)
    yield ""
    yield from notes
    yield ""
    yield f"Every run, by type: {HELD_OUT.link}."

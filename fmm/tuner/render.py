"""Tables for people, spreadsheets and programs: aligned text, CSV and JSON from the same rows."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction
from textwrap import fill

from fmm.perfmodel.table import Cell, Table


def text(table: Table) -> str:
    """Title, aligned columns, and the notes below, wrapped."""
    cells = [[spelled(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    numeric = [all(not isinstance(row[i], str) for row in table.rows) for i in range(len(table.columns))]
    lines = [
        "  ".join(
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    rule = "  ".join("-" * w for w in widths)
    notes = [fill(note, 110, initial_indent="* ", subsequent_indent="  ") for note in table.notes]
    return "\n".join([f"{table.name}: {table.title}", "", lines[0], rule, *lines[1:], *([""] if notes else []), *notes])


def as_csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([spelled(cell) for cell in row] for row in table.rows)
    return out.getvalue().rstrip("\n")


def as_json(table: Table) -> str:
    rows = [dict(zip(table.columns, map(_plain, row), strict=True)) for row in table.rows]
    content = {"name": table.name, "title": table.title, "rows": rows, "notes": list(table.notes)}
    return json.dumps(content, indent=1)


def spelled(cell: Cell) -> str:
    """A cell as text: yes and no, empty for nothing, six significant digits."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def _plain(cell: Cell) -> str | int | float | bool | None:
    return str(cell) if isinstance(cell, Fraction) else cell

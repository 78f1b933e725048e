"""Write a table of the papers as aligned text, HTML, CSV or JSON."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from fractions import Fraction
from html import escape
from textwrap import fill
from typing import Any

from fmm.perfmodel.papers.table import Cell, PaperTable


def table_as_text(table: PaperTable) -> str:
    """Return a table as text: title, aligned columns and wrapped notes; without rows, the text says "no rows"."""
    notes = [fill(note, 110, initial_indent="* ", subsequent_indent="  ") for note in table.notes]
    if not table.rows:
        return "\n".join([f"{table.name}: {table.title}", "", "no rows", *([""] if notes else []), *notes])
    cells = [[cell_text(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    numeric = _numeric_columns(table)
    lines = [
        "  ".join(
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    rule = "  ".join("-" * w for w in widths)
    return "\n".join([f"{table.name}: {table.title}", "", lines[0], rule, *lines[1:], *([""] if notes else []), *notes])


def table_as_html(table: PaperTable) -> str:
    """Return a table's rows as an HTML table; powers have superscripts, and columns of numbers are right-aligned."""
    sides = ["right" if numeric else "left" for numeric in _numeric_columns(table)]
    lines = [_html_row("th", table.columns, sides)]
    lines += [_html_row("td", [cell_text(cell) for cell in row], sides) for row in table.rows]
    return "\n".join(["<table>", *lines, "</table>"])


def _html_row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    """Return a table row as HTML; `tag` is `th` or `td`, and `sides` is `left` or `right` for each cell."""
    styled = [
        f'<{tag} style="text-align: {side}">{_escape_with_powers(c)}</{tag}>'
        for c, side in zip(cells, sides, strict=True)
    ]
    return f"<tr>{''.join(styled)}</tr>"


def _escape_with_powers(text: str) -> str:
    """Return a text escaped for HTML, with superscripts for powers such as n^3 or 2^(l-1)."""
    return re.sub(r"\^(\d+|[a-z]\b|\([^)]*\))", r"<sup>\1</sup>", escape(text, quote=False))


def notes_as_html(tables: Sequence[PaperTable]) -> str:
    """Return the notes of several tables as HTML lists; a note that several tables have appears once."""
    lines, seen = [], set[str]()
    for table in tables:
        if new := [note for note in table.notes if note not in seen]:
            items = "".join(f"<li>{_escape_with_powers(note)}</li>" for note in new)
            lines.append(f"<p><b>{_escape_with_powers(table.title)}</b></p>\n<ul>{items}</ul>")
        seen.update(new)
    return "\n".join(lines)


def _numeric_columns(table: PaperTable) -> list[bool]:
    """Return a list with True for each column that has no text in its cells."""
    return [all(not isinstance(row[i], str) for row in table.rows) for i in range(len(table.columns))]


def table_as_csv(table: PaperTable) -> str:
    """Return the columns' names and the rows as CSV; floating-point numbers have all digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([repr(cell) if isinstance(cell, float) else cell_text(cell) for cell in row] for row in table.rows)
    return out.getvalue().rstrip("\n")


def table_json_fields(table: PaperTable) -> dict[str, Any]:
    """Return the fields of a table for JSON; fractions are written as text, since a JSON number would be rounded."""
    rows = [dict(zip(table.columns, map(_json_cell, row), strict=True)) for row in table.rows]
    return {"name": table.name, "title": table.title, "rows": rows, "notes": list(table.notes)}


def cell_text(cell: Cell) -> str:
    """Return a cell as text: yes or no for booleans, "" for None, six significant digits for floats."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def _json_cell(cell: Cell) -> str | int | float | bool | None:
    return str(cell) if isinstance(cell, Fraction) else cell

"""Tables of hardware facts: a CSV file read as a list of frozen records, a column for each field."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import fields
from importlib import resources
from typing import Any, TypeVar

Record = TypeVar("Record")


# Annotations are strings here (from __future__), so the column types are keyed by their spelling.
_READERS: dict[str, Callable[[str], object]] = {
    "str": str,
    "int": int,
    "float": float,
    "float | None": lambda text: float(text) if text else None,
}


def read_records(record: type[Record], package: str, file: str) -> list[Record]:
    """A table's rows as records, column by column of the same name."""
    text = (resources.files(package) / file).read_text(encoding="utf-8")
    columns: Any = fields(record)  # type: ignore[arg-type]
    rows = csv.DictReader(text.splitlines(), strict=True)
    return [record(**{c.name: _READERS[str(c.type)](row[c.name]) for c in columns}) for row in rows]

"""Define the table that compares numbers printed in a paper with computed numbers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

Cell = str | int | float | Fraction | bool | None


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of rows under named columns; None is an empty cell, such as a number that the paper does not print."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.name}: row {row} does not fit the columns {self.columns}")

    def column_cells(self, name: str) -> tuple[Cell, ...]:
        """Return the cells of a column from top to bottom; raise ValueError for an unknown name."""
        if name not in self.columns:
            raise ValueError(f"table {self.name} has no column {name!r}; it has {', '.join(self.columns)}")
        index = self.columns.index(name)
        return tuple(row[index] for row in self.rows)

"""What is told of a tuning, part by part: each has a label (empty: it belongs to the one above) and a sentence or a
table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

LABEL = 10  # letters of the labels, so that the lines are aligned
WIDE = 107  # letters of a line behind its label


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first one is the head."""

    rows: tuple[tuple[str, ...], ...]

    @property
    def lines(self) -> Iterator[str]:
        """Aligned by spaces."""
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        for row in self.rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


Part = tuple[str, str | Table]


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return Table((tuple(head), *map(tuple, rows)))


def labelled_rows(parts: Iterable[Part]) -> Iterator[tuple[str, str]]:
    """The same with a table's lines one by one."""
    for label, part in parts:
        lines = part.lines if isinstance(part, Table) else iter((part,))
        yield from ((label if i == 0 else "", line) for i, line in enumerate(lines))


def told_lines(parts: Iterable[Part]) -> Iterator[str]:
    """As they are printed: long sentences in several lines, long rows of tables in one."""
    for label, part in parts:
        lines = list(part.lines) if isinstance(part, Table) else _wrapped(part)
        yield f"  {label:{LABEL}} {lines[0]}"
        yield from (f"  {'':{LABEL}} {line}" for line in lines[1:])


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDE, break_long_words=False, break_on_hyphens=False)

"""An experiment measures; a figure is one view of what an experiment measured, beside what a paper printed.

An experiment's results are rows: what a row is about (its keys), and its quantities, each a number or the samples of
one. Sizes and thresholds that belong to a size are those of the paper, scaled to the device: a row keeps the paper's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from fmm.perfmodel.papers.table import Cell, Table
from fmm.tuner.laboratory.bench import Bench

Key = tuple[str | int | float, ...]
Numbers = Mapping[Key, float]
Row = dict[str, Any]  # "key": the key as a list, and the quantities


@dataclass(frozen=True)
class Experiment:
    """What is run, once for all figures that show it; its samples are in results/<device>/paper/<name>.json."""

    name: str
    keys: tuple[str, ...]
    side: int  # the largest of the paper
    measure: Callable[[Bench, float], Iterator[Row]]  # scale: of the sides that are run beside the paper's


@dataclass(frozen=True)
class Results:
    """An experiment's rows, as measured now or as kept in a file."""

    environment: Mapping[str, Any]
    scale: float
    rows: Mapping[Key, Row]

    def numbers(self, quantity: str) -> Numbers:
        """One quantity by key, the median of its samples; rows without it (a plan failed) are left out."""
        found = {key: row.get(quantity) for key, row in self.rows.items()}
        return {key: median(x) if isinstance(x, list) else x for key, x in found.items() if x is not None}


Columns = Mapping[str, Callable[[Results], Numbers]]


@dataclass(frozen=True)
class Figure:
    """One figure or table of a paper, or one question of our own: a row of the registry."""

    name: str  # li-fig30
    title: str
    experiment: Experiment
    measured: Columns  # columns of the table that come from results
    says: str  # what agrees, what does not, and why
    published: Numbers = field(default_factory=dict)
    computed: Mapping[str, Callable[[], Numbers]] = field(default_factory=dict)
    keys: tuple[str, ...] = ()  # where they are not the experiment's: a figure may show ratios of its rows
    x: str = "n"  # the key along the axis; one curve for each value of the others
    unit: str = ""  # what the numbers are
    logarithmic: bool = True
    notes: tuple[str, ...] = ()
    draw: Callable[[Any, Results], None] | None = None  # where curves over x would not be read: on these axes

    @property
    def key_names(self) -> tuple[str, ...]:
        return self.keys or self.experiment.keys


def quantity(name: str) -> Callable[[Results], Numbers]:
    """The column that is one quantity of the rows."""
    return lambda results: results.numbers(name)


def measured_now(experiment: Experiment, bench: Bench, side: int, command: list[str]) -> Results:
    """Run it with the paper's largest side scaled to this one, and all others with it."""
    scale = min(side / experiment.side, 1.0)
    rows = {tuple(row["key"]): row for row in experiment.measure(bench, scale)}
    bench.free()
    return Results(bench.environment(command), scale, rows)


def write_results(results: Results, experiment: Experiment, path: Path) -> None:
    """As JSON, a row a line."""
    head = {"experiment": experiment.name, "environment": dict(results.environment), "scale": results.scale}
    rows = ",\n".join(json.dumps(row) for row in results.rows.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{json.dumps(head)[:-1]}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def read_results(path: Path) -> Results:
    """From such a file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return Results(found["environment"], found["scale"], {tuple(row["key"]): row for row in found["rows"]})


# ---- a table


def figure_table(figure: Figure, results: Results | None = None) -> Table:
    """Published beside computed beside measured; without results, what there is without a device."""
    columns: dict[str, Numbers] = {"published": figure.published} if figure.published else {}
    columns |= {name: make() for name, make in figure.computed.items()}
    if results is not None:
        columns |= {name: find(results) for name, find in figure.measured.items()}
    keys = dict.fromkeys(key for numbers in columns.values() for key in numbers)
    rows = tuple((*key, *(_cell(numbers.get(key)) for numbers in columns.values())) for key in keys)
    title = f"{figure.title}{f' ({figure.unit})' if figure.unit else ''}"
    return Table(figure.name, title, (*figure.key_names, *columns), rows, (*_said(results), figure.says, *figure.notes))


def _cell(x: float | None) -> Cell:
    return None if x is None else float(x)


def _said(results: Results | None) -> tuple[str, ...]:
    """Where it was measured, and at which sizes."""
    if results is None:
        return ()
    where = results.environment.get("device") or results.environment.get("processor", "")
    if results.scale == 1:
        return (f"measured on {where}, at these sizes.",)
    return (f"measured on {where}, at {results.scale:.4g} of these sizes, thresholds of sizes likewise.",)


# ---- a picture

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#999999")
STYLES: Mapping[str, Mapping[str, Any]] = {
    "published": {"linestyle": "none", "marker": "o", "markerfacecolor": "none", "markersize": 6},
    "measured": {"linestyle": "-", "marker": "o", "markersize": 3.5, "linewidth": 1.2},
}
OTHER: Mapping[str, Any] = {"linestyle": "--", "linewidth": 0.9}


def draw_figure(figure: Figure, results: Results | None = None) -> Any:
    """The table drawn by Matplotlib: a colour for each curve; rings are published, dots measured, dashes computed."""
    from matplotlib.figure import Figure as Canvas

    made = Canvas(figsize=(8.2, 4.4), layout="constrained")
    draw_on(made.subplots(), figure, results)
    return made


def draw_on(axes: Any, figure: Figure, results: Results | None = None) -> None:
    """The same on axes that there are."""
    if figure.draw is not None and results is not None:
        figure.draw(axes, results)
        axes.set_title(f"{figure.name}: {figure.title}", fontsize=9)
        return
    table = figure_table(figure, results)
    keys = len(figure.key_names)
    at = figure.key_names.index(figure.x)
    curves = list(dict.fromkeys(_curve(row[:keys], at) for row in table.rows))
    labels = list(dict.fromkeys(row[at] for row in table.rows))
    places = {x: x if _is_number(x) else i for i, x in enumerate(labels)}
    for i, curve in enumerate(curves):
        rows = [row for row in table.rows if _curve(row[:keys], at) == curve]
        named = False
        for column, name in enumerate(table.columns[keys:], keys):
            points = [(places[row[at]], row[column]) for row in rows if row[column] is not None]
            label = None if named or not points else ", ".join(map(str, curve))
            named = named or bool(points)
            style = STYLES.get(name, STYLES["measured"] if name in figure.measured else OTHER)
            axes.plot(*zip(*points, strict=True) if points else ((), ()), color=COLOURS[i % 8], label=label, **style)
    if not all(map(_is_number, labels)):
        axes.set_xticks(list(places.values()), [str(x) for x in labels], rotation=30, ha="right", fontsize=7)
    elif figure.x in LOGARITHMIC and len(labels) > 1:
        axes.set_xscale("log", base=2)
        axes.set_xticks(labels, [str(x) for x in labels], fontsize=8)
        axes.minorticks_off()
    axes.set(xlabel=figure.x, ylabel=figure.unit, title=f"{figure.name}: {figure.title}")
    if figure.logarithmic:
        axes.set_yscale("log")
    if len(curves) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=7, frameon=False)


LOGARITHMIC = frozenset({"n", "k", "m=n", "tau2"})


def _curve(key: Sequence[Cell], at: int) -> tuple[Cell, ...]:
    return tuple(x for i, x in enumerate(key) if i != at)


def _is_number(x: Cell) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)

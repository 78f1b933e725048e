"""A figure shows what an experiment measured and what a paper printed: as a table and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.papers.experiment import Experiment, Key, Numbers, Results
from fmm.perfmodel.papers.table import Cell, PaperTable

Columns = Mapping[str, Callable[[Results], Numbers]]


@dataclass(frozen=True)
class Figure:
    """One figure or table of a paper, or one question of fmm's own."""

    name: str  # for example li-fig30
    title: str
    experiment: Experiment
    measured: Columns  # columns of the table that are computed from results
    commentary: str  # text: what agrees with the paper, what differs, and why
    published: Numbers = field(default_factory=dict)
    computed: Mapping[str, Callable[[], Numbers]] = field(default_factory=dict)
    keys: tuple[str, ...] = ()  # names of the keys, if they differ from the experiment's
    x: str = "n"  # the key along the axis; each value of the other keys is a curve
    unit: str = ""  # the unit of the numbers
    logarithmic: bool = True
    notes: tuple[str, ...] = ()
    draw: Callable[[Any, Results], None] | None = None  # draws a picture that is not made of curves over x
    is_drawn: Callable[[Key], bool] = lambda key: True  # selects the rows of a picture
    lowest: float | None = None  # lower end of the picture's axis; smaller values are cut off
    result_notes: Callable[[Results], Sequence[str]] = lambda results: ()  # returns notes on these results

    @property
    def key_names(self) -> tuple[str, ...]:
        return self.keys or self.experiment.keys


def quantity_column(name: str) -> Callable[[Results], Numbers]:
    """Return the column of one quantity of the rows."""
    return lambda results: results.numbers(name)


# ---- a table


def figure_table(figure: Figure, *recorded: Results) -> PaperTable:
    """Return the published, computed and measured columns; without results, the first two.

    With the results of several devices, the name of each measured column ends with the device.
    """
    columns: dict[str, Numbers] = {"published": figure.published} if figure.published else {}
    columns |= {name: make() for name, make in figure.computed.items()}
    for results in recorded:
        device = f", {short_device_name(results)}" if len(recorded) > 1 else ""
        own = {f"{name}{device}": find(results) for name, find in figure.measured.items()}
        columns |= {name: numbers for name, numbers in own.items() if numbers or not device}
        if results.scale != 1 and figure.x in LOGARITHMIC:
            columns[f"{figure.x} measured{device}"] = measured_sides(figure, results, own.values())
    keys = list(dict.fromkeys(key for numbers in columns.values() for key in numbers))
    if all(len(key) == 1 and _is_number(key[0]) for key in keys):
        keys.sort()
    rows = tuple((*key, *(_number_cell(numbers.get(key)) for numbers in columns.values())) for key in keys)
    title = f"{figure.title}{f' ({figure.unit})' if figure.unit else ''}"
    notes = (
        *(() if rows else (_no_rows_note(figure),)),
        *(note for results in recorded for note in _measurement_notes(figure, results)),
        figure.commentary,
        *figure.notes,
    )
    return PaperTable(figure.name, title, (*figure.key_names, *columns), rows, notes)


def short_device_name(results: Results) -> str:
    """Return the device's name without the vendor's; for a processor, its first words and its number of threads."""
    environment = results.environment
    if name := environment.get("device"):
        return str(name).removeprefix("NVIDIA ")
    words = str(environment.get("processor", "")).replace("(R)", "").split()
    return f"{' '.join(words[:2])}, {environment.get('blas_threads')} threads"


def measured_sides(figure: Figure, results: Results, columns: Iterable[Numbers]) -> Numbers:
    """Return the sides that were measured in place of the paper's, by the keys of the measured numbers."""
    at = figure.key_names.index(figure.x)
    keys = dict.fromkeys(key for numbers in columns for key in numbers)
    return {key: round(float(key[at]) * results.scale) for key in keys if _is_number(key[at])}


def _no_rows_note(figure: Figure) -> str:
    """Return where the numbers of a figure without published and computed ones are."""
    command = f"python -m benchmarks papers {figure.name}"
    return (
        "The numbers of this figure are measured, neither published nor computed, and no samples are recorded. "
        f"`{command} --measure` takes some."
    )


def _number_cell(x: float | None) -> Cell:
    return None if x is None else float(x)


def _measurement_notes(figure: Figure, results: Results) -> tuple[str, ...]:
    """Return the device and the sizes of the measurement, the agreement with the paper, and the results' notes."""
    where = results.environment.get("device") or results.environment.get("processor", "")
    if results.scale == 1:
        sizes = "at these sizes"
    else:
        sizes = f"at {results.scale:.4g} of these sizes, thresholds of sizes likewise"
    agreement = "".join(_agreement_texts(figure, results))
    return (f"measured on {where}, {sizes}.{agreement}", *figure.result_notes(results))


def _agreement_texts(figure: Figure, results: Results) -> Iterator[str]:
    """Yield a sentence for each column that was measured at the published sizes: the range of measured / published."""
    for name, find in figure.measured.items() if results.scale == 1 else ():
        numbers = find(results)
        ratios = [numbers[key] / x for key, x in figure.published.items() if x > 0 and numbers.get(key, 0) > 0]
        if len(ratios) > 1:
            ends = f"{min(ratios):.2g} to {max(ratios):.2g}"
            yield f" {name} / published: {ends}, median {median(ratios):.3g} ({len(ratios)} numbers)."


# ---- a picture

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#999999")
MARKERS = ("o", "s", "^", "v")  # of the first curve of each colour, of the second, and so on
STYLES: Mapping[str, Mapping[str, Any]] = {
    "published": {"linestyle": "none", "marker": "o", "markerfacecolor": "none", "markersize": 6},
    "measured": {"linestyle": "-", "marker": "o", "markersize": 3.5, "linewidth": 1.2},
}
OTHER_STYLE: Mapping[str, Any] = {"linestyle": "--", "linewidth": 0.9}


def draw_figure(figure: Figure, results: Results | None = None) -> Any:
    """Draw a figure with Matplotlib: a colour per curve; rings are published, dots measured, dashes computed."""
    from matplotlib.figure import Figure as Canvas

    made = Canvas(figsize=(8.2, 4.4), layout="constrained")
    draw_on(made.subplots(), figure, results)
    return made


def draw_on(axes: Any, figure: Figure, results: Results | None = None) -> None:
    """Draw a figure on these axes."""
    if figure.draw is not None and results is not None:
        figure.draw(axes, results)
        axes.set_title(f"{figure.name}: {figure.title}", fontsize=9)
        return
    table = figure_table(figure, *([] if results is None else [results]))
    keys = len(figure.key_names)
    at = figure.key_names.index(figure.x)
    rows = [row for row in table.rows if figure.is_drawn(row[:keys])]  # type: ignore[arg-type]
    labels = list(dict.fromkeys(row[at] for row in rows))
    places = {x: x if _is_number(x) else i for i, x in enumerate(labels)}
    curves = list(dict.fromkeys(_curve_points(row[:keys], at) for row in rows))
    for i, curve in enumerate(curves):
        own = [row for row in rows if _curve_points(row[:keys], at) == curve]
        named = False
        for column, name in enumerate(table.columns[keys:], keys):
            points = [(places[row[at]], row[column]) for row in own if row[column] is not None]
            label = None if named or not points else ", ".join(map(str, curve))
            named = named or bool(points)
            style = dict(STYLES.get(name, STYLES["measured"] if name in figure.measured else OTHER_STYLE))
            if "marker" in style:
                style["marker"] = MARKERS[i // len(COLOURS) % len(MARKERS)]
            axes.plot(
                *zip(*points, strict=True) if points else ((), ()),
                color=COLOURS[i % len(COLOURS)],
                label=label,
                **style,
            )
    axes.set(xlabel=figure.x, ylabel=figure.unit)
    axes.set_title(f"{figure.name}: {figure.title}", fontsize=9, wrap=True)
    _label_axis(axes, figure, labels)
    if figure.logarithmic:
        axes.set_yscale("log")
    if figure.lowest is not None:
        highest = max((x for row in rows for x in row[keys:] if isinstance(x, float)), default=0.0)
        axes.set_ylim(figure.lowest, highest + 0.1 * (highest - figure.lowest))
    if len(curves) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=7, frameon=False)


def _label_axis(axes: Any, figure: Figure, labels: Sequence[Cell]) -> None:
    """Label an axis of names, or of sizes as powers of two."""
    if not all(map(_is_number, labels)):
        few = len(labels) <= MAX_LABELS
        texts = [str(x) for x in labels] if few else []
        axes.set_xticks(range(len(texts)), texts, rotation=30, ha="right", fontsize=7)
    elif figure.x in LOGARITHMIC and len(labels) > 1:
        axes.set_xscale("log", base=2)
        axes.set_xticks(labels, [str(x) for x in labels], fontsize=8)
        axes.minorticks_off()


MAX_LABELS = 24  # most names along an axis; more names are omitted
LOGARITHMIC = frozenset({"n", "k", "m=n", "tau2"})


def _curve_points(key: Sequence[Cell], at: int) -> tuple[Cell, ...]:
    return tuple(x for i, x in enumerate(key) if i != at)


def _is_number(x: Cell) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)

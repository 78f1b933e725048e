"""What all figures of the report use: colours, sizes, labels that do not overlap, and saving as PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log2
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any

import numpy as np

from fmm.config.store import write_file
from fmm.kernels.plans.plan import Plan

# Okabe and Ito's colours, which colour-blind readers can distinguish
BLUE, ORANGE, GREEN, RED, PURPLE, SKY_BLUE, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#222222",
)  # fmt: skip
DARK_YELLOW, VIOLET = "#8A6D00", "#5D3A9B"
PLAN_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY_BLUE, DARK_YELLOW, VIOLET)
# Matplotlib markers; each plan or element type in a figure has its own marker
POINT_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY, BEIGE, LIGHT_GREY = "#999999", "#d0c8b8", "#eeeeee"
FIGURE_STYLE: Any = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fmm",  # with a fixed salt, the same figure always gives the same SVG file
}
MAX_TICKS = 6  # largest number of ticks on a logarithmic axis
DOTS_PER_INCH = 150  # resolution of PNG files, in dots per inch
LEGEND_ROW_INCHES = 0.165  # height of a row of a legend, in inches
MAX_LEGEND_ROW_LETTERS = 72  # number of characters that fit in a row of a legend
# width and height of a figure, in inches; on a screen, two figures of this size fit side by side
DETAIL_FIGURE_INCHES = (5.2, 3.4)
TEXT_LINE_HEIGHT_SHARE = 0.045  # height of a line of small text, as a share of the figure's height
MAX_LABEL_LETTERS = 32  # largest number of characters in a line of a label beside the axes


def new_figure(
    width: float = DETAIL_FIGURE_INCHES[0], height: float = DETAIL_FIGURE_INCHES[1], columns: int = 1
) -> tuple[Any, Any]:
    """Return a new Matplotlib figure and its axes; if `columns` is larger than 1, an array of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def plan_legend_name(plan: Plan) -> str:
    """Return a plan's text for a legend, without ` > vendor`, `.batched.pad16` and `.pad16`, which most plans have."""
    return str(plan).removesuffix(" > vendor").replace(".batched.pad16", "").replace(".pad16", "")


def add_legend_below(figure: Any, *parts: Any) -> None:
    """Add a legend below the axes, and enlarge the figure by the height of the legend.

    The legend has two columns if all names are short.
    """
    handles, names = ([x for axes in parts for x in axes.get_legend_handles_labels()[i]] for i in (0, 1))
    columns = 2 if 2 * max(map(len, names), default=0) < MAX_LEGEND_ROW_LETTERS else 1
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW_INCHES * -(-len(names) // columns))
    figure.legend(handles, names, loc="outside lower left", ncols=columns, fontsize=7.5, columnspacing=1.2)


def save_figure(figure: Any, stem: Path) -> tuple[list[Path], str]:
    """Write a figure as a PNG and an SVG file; return both paths and the SVG's text.

    `Figure.savefig` is not called: for two files, it would compute the layout twice.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    png, svg = (stem.parent / f"{stem.name}.{kind}" for kind in ("png", "svg"))
    figure.set_dpi(DOTS_PER_INCH)
    pixels = io.BytesIO()
    FigureCanvasAgg(figure).print_png(pixels)  # type: ignore[no-untyped-call]
    write_file(png, pixels.getvalue())
    figure.set_layout_engine("none")  # keeps the layout of the PNG file
    text = svg_text(figure, stem.name)
    write_file(svg, text)
    return [png, svg], text


def svg_text(figure: Any, salt: str) -> str:
    """Return the figure as SVG text; element ids begin with `salt`, so that they are unique on the HTML page."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with rc_context({"svg.hashsalt": salt}):
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    text = out.getvalue()
    return (
        text[text.index("<svg") :]
        .replace('id="', f'id="{salt}-')
        .replace('href="#', f'href="#{salt}-')
        .replace("url(#", f"url(#{salt}-")
    )


def add_labels_at_right(
    axes: Any, points: Sequence[tuple[float, float, str]], colours: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Add labels in a column to the right of the axes; each (x, y, text) has a line to its point (x, y)."""
    if not points:
        return
    axes.autoscale_view()  # sets the final limits of the axes, which the transformation below needs
    ordered = sorted(points, key=lambda x: (x[1], -x[0]))
    names = [
        "\n".join(wrap(name, MAX_LABEL_LETTERS, break_long_words=False, break_on_hyphens=False)) for *_, name in ordered
    ]
    heights = axes.transAxes.inverted().transform(axes.transData.transform([p[:2] for p in ordered]))[:, 1]
    places = _spread_label_heights(heights, [1 + name.count("\n") for name in names])
    for (x, y, plain), name, height in zip(ordered, names, places, strict=True):
        look = {"color": colours.get(plain, GREY), "linewidth": 1.2 if plain in colours else 0.5}
        line = {"arrowstyle": "-", "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5), **look}
        where = {"xytext": (1.04, height), "textcoords": "axes fraction", "va": "center", "fontsize": 7.5}
        axes.annotate(name, (x, y), arrowprops=line, **where)


def _spread_label_heights(heights: Any, lines: Sequence[int]) -> Any:
    """Return a height for each label near its wanted height, so that labels with `lines` lines do not overlap.

    Heights are from 0 (bottom of the axes) to 1 (top).
    """
    gaps = np.array([0.0, *((a + b) / 2 for a, b in pairwise(lines))])
    steps = np.cumsum(gaps) * min(TEXT_LINE_HEIGHT_SHARE, 1 / max(gaps.sum(), 1.0))
    lowest = np.maximum.accumulate(heights - steps)
    highest = np.minimum.accumulate((heights - steps)[::-1])[::-1]
    return np.clip((lowest + highest) / 2, 0, 1 - steps[-1]) + steps


def set_power_of_two_ticks(axes: Any, most: int = MAX_TICKS) -> None:
    """Set at most `most` ticks on each logarithmic axis, all at powers of two."""
    from matplotlib.ticker import FixedLocator, NullLocator

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            ticks = [
                float(2**e) for e in range(max(int(log2(max(low, 1))), 0), int(log2(high)) + 1) if low <= 2**e <= high
            ]
            axis.set_major_locator(FixedLocator(ticks[:: -max(-(-len(ticks) // most), 1)]))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(lambda value, place: f"{value:.0f}")

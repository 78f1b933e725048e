"""What all pictures share: colours, sizes, labels that do not cross, and files."""

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

from fmm.kernels.plans.plan import Plan

# Okabe and Ito's colours, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#222222",
)  # fmt: skip
PLAN_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, "#8A6D00", "#5D3A9B")  # yellow, darker, and violet at the end
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # beside colours: for prints in grey, and where points overlap
GREY, PALE, LIGHT = "#999999", "#d0c8b8", "#eeeeee"
STYLE: Any = {
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
    "svg.hashsalt": "fmm",  # the same picture is the same file
}
MOST_TICKS = 6
DOTS = 150  # an inch, of a PNG file
ROW = 0.165  # inches, of a legend
LETTERS = 72  # of small text, beside each other in a picture of two columns
DETAIL = (5.2, 3.4)  # inches of a picture of which two stand side by side on a screen, and one on a phone
LINE = 0.045  # a line of small text, as a share of a picture's height
BROAD = 32  # letters of a name beside the axes, which goes on in a next line if it is longer


def new_figure(width: float = DETAIL[0], height: float = DETAIL[1], columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    return made, made.subplots(1, columns)


def legend_name(plan: Plan) -> str:
    """A plan's text for a legend: without the leaf and the fringe that almost all share."""
    return str(plan).removesuffix(" > vendor").replace(".batched.pad16", "").replace(".pad16", "")


def legend_below(made: Any, *parts: Any) -> None:
    """The legend of the axes outside of them, where it covers no point: in two columns, if the names are so short. The
    picture becomes as much higher."""
    handles, names = ([x for axes in parts for x in axes.get_legend_handles_labels()[i]] for i in (0, 1))
    columns = 2 if 2 * max(map(len, names), default=0) < LETTERS else 1
    made.set_figheight(made.get_figheight() + ROW * -(-len(names) // columns))
    made.legend(handles, names, loc="outside lower left", ncols=columns, fontsize=7.5, columnspacing=1.2)


def saved_picture(made: Any, stem: Path) -> tuple[list[Path], str]:
    """Written as PNG and SVG: their names, and the SVG's text. By matplotlib's canvases: `savefig` draws everything
    twice, and finds the layout of each file anew, which takes as long."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    png, svg = (stem.parent / f"{stem.name}.{kind}" for kind in ("png", "svg"))
    made.set_dpi(DOTS)
    FigureCanvasAgg(made).print_png(png)  # type: ignore[no-untyped-call]
    made.set_layout_engine("none")  # it stays as it is
    text = svg_text(made, stem.name)
    svg.write_text(text, encoding="utf-8")
    return [png, svg], text


def svg_text(made: Any, salt: str) -> str:
    """The figure as SVG, with ids that do not clash with another's on the same page."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with rc_context({"svg.hashsalt": salt}):
        FigureCanvasSVG(made).print_svg(out, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    text = out.getvalue()
    return (
        text[text.index("<svg") :]
        .replace('id="', f'id="{salt}-')
        .replace('href="#', f'href="#{salt}-')
        .replace("url(#", f"url(#{salt}-")
    )


def named_at_right(
    axes: Any, points: Sequence[tuple[float, float, str]], colours: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Names in a column at the right, in the order of the heights of their points, with a line to each, in its colour
    if it has one. (Lines may cross points of others, but not each other's names.)"""
    if not points:
        return
    axes.autoscale_view()  # the limits are needed now
    ordered = sorted(points, key=lambda x: (x[1], -x[0]))
    names = ["\n".join(wrap(name, BROAD, break_long_words=False, break_on_hyphens=False)) for *_, name in ordered]
    heights = axes.transAxes.inverted().transform(axes.transData.transform([p[:2] for p in ordered]))[:, 1]
    places = _spread(heights, [1 + name.count("\n") for name in names])
    for (x, y, plain), name, height in zip(ordered, names, places, strict=True):
        look = {"color": colours.get(plain, GREY), "linewidth": 1.2 if plain in colours else 0.5}
        line = {"arrowstyle": "-", "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5), **look}
        where = {"xytext": (1.04, height), "textcoords": "axes fraction", "va": "center", "fontsize": 7.5}
        axes.annotate(name, (x, y), arrowprops=line, **where)


def _spread(heights: Any, lines: Sequence[int]) -> Any:
    """Heights in rising order, moved apart as little as so many lines of text need, within 0 and 1."""
    gaps = np.array([0.0, *((a + b) / 2 for a, b in pairwise(lines))])
    steps = np.cumsum(gaps) * min(LINE, 1 / max(gaps.sum(), 1.0))
    lowest = np.maximum.accumulate(heights - steps)
    highest = np.minimum.accumulate((heights - steps)[::-1])[::-1]
    return np.clip((lowest + highest) / 2, 0, 1 - steps[-1]) + steps


def plain_sides(axes: Any, most: int = MOST_TICKS) -> None:
    """Ticks at powers of two, as whole numbers, on the logarithmic axes of sides: so many at most that none touch."""
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

"""Draw the pages' figures from recorded samples: `python -m benchmarks pages --figure`.

docs/speedup.svg shows default calls over the size, docs/error-against-time.svg fmm beside its peers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

from benchmarks.tables.markdown import Row, median_ratio

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLES = {"float32": ("#0072b2", "o"), "float64": ("#d55e00", "s"), "bfloat16": ("#009e73", "^")}


def square_rows(document: dict[str, Any], dtype: str) -> list[Row]:
    """Return the recorded default calls of one type on squares, by size."""
    rows = [row for row in document["rows"] if row["dtype"] == dtype and len(set(row["size"])) == 1]
    return sorted((row for row in rows if not row["failure"]), key=lambda row: row["size"][0])


def draw_curves(axis: Axes, document: dict[str, Any], title: str, value: Callable[[Row], float]) -> None:
    """Draw a curve per type, the unaligned size as a separate point, and the vendor's line at 1."""
    sizes = sorted({row["size"][0] for dtype in STYLES for row in square_rows(document, dtype)})
    for dtype, (colour, marker) in STYLES.items():
        rows = square_rows(document, dtype)
        even, odd = ([r for r in rows if r["size"][0] % 2 == parity] for parity in (0, 1))
        axis.plot([r["size"][0] for r in even], [value(r) for r in even], color=colour, marker=marker, label=dtype)
        points = [r["size"][0] for r in odd], [value(r) for r in odd]
        label = f"{dtype}, n = 8191" if odd else None
        axis.plot(*points, color=colour, marker=marker, linestyle="", markerfacecolor="white", label=label)
    axis.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axis.set_xscale("log", base=2)
    ticks = [n for n in sizes if n & (n - 1) == 0]
    axis.set_xticks(ticks, [str(n) for n in ticks])
    axis.set_xlabel("n (square matrices)")
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.3)


def draw_speedup(samples: Path, output: Path) -> None:
    """Draw the recorded default calls of gpu_calls into an SVG file."""
    document = json.loads(samples.read_text("utf-8"))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.0), layout="constrained")
    title = f"speed of fmm.matmul, cuBLAS = 1 ({document['environment']['device']})"
    draw_curves(left, document, title, lambda row: median_ratio(row["vendor_seconds"], row["seconds"]))
    draw_curves(right, document, "error (Frobenius norm), cuBLAS = 1", lambda row: float(row["error"]))
    left.set_ylim(0, 7.5)
    right.set_yscale("log")
    left.legend(frameon=False, fontsize=8, ncol=3, loc="upper center")
    _save_svg(figure, output)


# Each peer's colour and marker in the figure of errors against times.
PEER_STYLES = {
    "cublas": ("black", "x"),
    "fmm": ("#0072b2", "o"),
    "fmm, accurate": ("#56b4e9", "D"),
    "TF32": ("#d55e00", "s"),
    "3xTF32": ("#e69f00", "s"),
    "cuBLAS emulated": ("#d55e00", "P"),
    "GEMMul8 fast": ("#009e73", "^"),
    "GEMMul8 accurate": ("#009e73", "v"),
}
COMPARED_SIDES = (4096, 8192, 16384)


def draw_error_against_time(samples: Path, output: Path) -> None:
    """Draw the errors and times of fmm and its peers, recorded by gpu_emulation, into an SVG file."""
    document = json.loads(samples.read_text("utf-8"))
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
    for axis, dtype in zip(axes, ("float32", "float64"), strict=True):
        rows = square_rows(document, dtype)
        _draw_peers(axis, [row for row in rows if row["size"][0] in COMPARED_SIDES])
        axis.set_title(f"{dtype} ({document['environment']['device']})", fontsize=10)
    axes[0].set_ylabel("error on normal numbers, cuBLAS = 1")
    _save_svg(figure, output)


def _draw_peers(axis: Axes, rows: list[Row]) -> None:
    """Draw one line per peer through its points at the sizes of the rows; larger marks are larger sizes."""
    for name, (colour, marker) in PEER_STYLES.items():
        found = [row for row in rows if name in row["samples"]]
        if not found:
            continue
        times = [median(row["samples"][name]) / median(row["samples"]["cublas"]) for row in found]
        errors = [row["errors"]["normal"][name] for row in found]
        label = "cuBLAS" if name == "cublas" else name
        axis.plot(times, errors, color=colour, linewidth=0.8)
        sizes = [12 * (1 + COMPARED_SIDES.index(row["size"][0])) for row in found]
        axis.scatter(times, errors, s=sizes, color=colour, marker=marker, label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ticks = [0.125, 0.25, 0.5, 1, 2, 4]
    axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axis.set_xlabel("time, cuBLAS = 1")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=7)


def _save_svg(figure: Figure, output: Path) -> None:
    """Write the figure so that equal figures are equal files."""
    matplotlib.rcParams["svg.hashsalt"] = "fmm"
    figure.savefig(output, metadata={"Date": None})

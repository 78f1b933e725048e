"""Draw the README's figure, docs/speedup.svg: speedup and error of default calls over the size, from recorded samples.

python -m benchmarks.figure [--results results/nvidia-h200/calls.json] [--output docs/speedup.svg]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "nvidia-h200" / "calls.json"
OUTPUT = ROOT / "docs" / "speedup.svg"
STYLES = {"float32": ("#0072b2", "o"), "float64": ("#d55e00", "s"), "bfloat16": ("#009e73", "^")}


def square_rows(document: dict[str, Any], dtype: str) -> list[dict[str, Any]]:
    """Return the recorded default calls of one type on squares, by size."""
    rows = [row for row in document["rows"] if row["dtype"] == dtype and len(set(row["size"])) == 1]
    return sorted((row for row in rows if not row["failure"]), key=lambda row: row["size"][0])


def speedup(row: dict[str, Any]) -> float:
    """Return the median of the paired ratios vendor / fmm."""
    return float(median(vendor / own for vendor, own in zip(row["vendor_seconds"], row["seconds"], strict=True)))


def draw_axis(axis: Axes, document: dict[str, Any], title: str, value: Any) -> None:
    """Draw one curve per type, and the vendor's line at 1."""
    sizes = sorted({row["size"][0] for dtype in STYLES for row in square_rows(document, dtype)})
    for dtype, (colour, marker) in STYLES.items():
        rows = square_rows(document, dtype)
        even, odd = ([r for r in rows if r["size"][0] % 2 == parity] for parity in (0, 1))
        axis.plot([r["size"][0] for r in even], [value(r) for r in even], color=colour, marker=marker, label=dtype)
        points = [r["size"][0] for r in odd], [value(r) for r in odd]  # unaligned rows: not on the curve
        label = f"{dtype}, n = 8191" if odd else None
        axis.plot(*points, color=colour, marker=marker, linestyle="", markerfacecolor="white", label=label)
    axis.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axis.set_xscale("log", base=2)
    ticks = [n for n in sizes if n & (n - 1) == 0]
    axis.set_xticks(ticks, [str(n) for n in ticks])
    axis.set_xlabel("n (square matrices)")
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="samples of benchmarks.gpu_calls")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    document = json.loads(options.results.read_text("utf-8"))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.0), layout="constrained")
    device = document["environment"].get("device", "this GPU")
    draw_axis(left, document, f"speed of fmm.matmul, cuBLAS = 1 ({device})", speedup)
    draw_axis(right, document, "error (Frobenius norm), cuBLAS = 1", lambda row: row["error"])
    left.set_ylim(0, 7.5)
    right.set_yscale("log")
    left.legend(frameon=False, fontsize=8, ncol=3, loc="upper center")
    matplotlib.rcParams["svg.hashsalt"] = "fmm"
    figure.savefig(options.output, metadata={"Date": None})


if __name__ == "__main__":
    main()

"""The measured numbers of README.md: the example, the table and the peers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.tables.markdown import (
    Row,
    duration_text,
    gibibytes_text,
    load_result,
    machine_name,
    median_ratio,
    rounded_text,
    size_text,
    speedup_text,
    table_lines,
)
from benchmarks.tables.products import is_measured

GPU_FOLDER, CPU_FOLDER = "nvidia-h200", "cpu-intel-r-xeon-r-processor-2t"  # folders of results/
# Type and size on the GPU. The last row is a loss.
GPU_ROWS = (
    ("float32", (16384,) * 3),
    ("float32-ieee", (16384,) * 3),
    ("float64", (16384,) * 3),
    ("bfloat16", (8191,) * 3),
    ("float64-ieee", (30000, 3000, 3000)),
)
CPU_ROW = ("float64", (8192,) * 3)
PEER_NAMES = {"TF32": "TF32", "GEMMul8 fast": "GEMMul8 (int8 emulation)", "fmm": "fmm"}
PEER_SIZE = (16384,) * 3


def _gpu_row(results: Path, dtype: str, size: Sequence[int]) -> tuple[Row, Row]:
    """Return the environment and the default call of this type and size."""
    environment, rows = load_result(results / GPU_FOLDER / "calls.json")
    wanted = (row for row in rows if (row["dtype"], tuple(row["size"])) == (dtype, tuple(size)))
    return environment, next(row for row in wanted if is_measured(row))


def _cpu_row(results: Path) -> tuple[Row, Row]:
    environment, rows = load_result(results / CPU_FOLDER / "speed.json")
    return environment, next(row for row in rows if (row["dtype"], tuple(row["size"])) == CPU_ROW)


def example_block(results: Path) -> Iterator[str]:
    """Yield a Python block with a product, and its recorded times, error and workspace as comments."""
    on_cpu, host = _cpu_row(results)
    on_gpu, card = _gpu_row(results, *GPU_ROWS[0])
    n, m = host["size"][0], card["size"][0]
    own, vendor = (duration_text(median(host[name])) for name in ("candidate", "vendor"))
    yield from (
        "```python",
        "import numpy as np",
        "import fmm",
        "",
        f"a = np.random.standard_normal(({n}, {n}))  # CuPy arrays and torch tensors too",
        f"b = np.random.standard_normal(({n}, {n}))",
        "c = fmm.matmul(a, b)  # instead of np.matmul(a, b)",
        f"# {machine_name(on_cpu)}: {own}, np.matmul {vendor}; workspace {gibibytes_text(host['workspace'])}",
    )
    own, vendor = (duration_text(median(card[name])) for name in ("seconds", "vendor_seconds"))
    yield f"# {machine_name(on_gpu)}, CuPy arrays in {card['dtype']}, n = {m}: {own}, cp.matmul {vendor};"
    yield f"#     error {card['error']:.2f} times cuBLAS's; workspace {gibibytes_text(card['workspace'])}"
    yield "print(fmm.explain(a, b))  # the plan, the reason, kernels, workspace, expected error, the other candidates"
    yield "```"


def product_shortlist(results: Path) -> Iterator[str]:
    """Yield six products, one of them a loss."""
    rows: list[Sequence[object]] = []
    for dtype, size in GPU_ROWS:
        environment, row = _gpu_row(results, dtype, size)
        cells = _short_cells(environment, row, row["vendor_seconds"], row["seconds"], f"{row['error']:.2f}")
        rows.append(cells)
    environment, row = _cpu_row(results)
    rows.insert(-1, _short_cells(environment, row, row["vendor"], row["candidate"], "not measured"))
    yield from table_lines(("on", "type", "m x k x n", "vendor", "fmm", "speedup", "error", "workspace"), rows)


def _short_cells(
    environment: Row, row: Row, vendor: Sequence[float], own: Sequence[float], error: str
) -> Sequence[object]:
    both = duration_text(median(vendor)), duration_text(median(own))
    head = machine_name(environment), row["dtype"], size_text(row["size"])
    return *head, *both, speedup_text(vendor, own), error, gibibytes_text(row["workspace"])


def peer_sentence(results: Path) -> Iterator[str]:
    """Yield a sentence that compares float32 by fmm with its peers: speed and error as multiples of SGEMM's."""
    environment, rows = load_result(results / GPU_FOLDER / "emulation.json")
    row = next(row for row in rows if tuple(row["size"]) == PEER_SIZE and row["dtype"] == "float32" and not row["half"])
    found = []
    for name, words in PEER_NAMES.items():
        ratio = median_ratio(row["samples"]["cublas"], row["samples"][name])
        found.append(f"{words} {ratio:.1f} times with {rounded_text(row['errors']['normal'][name], 2)} times the error")
    where = f"{row['dtype']}, n = {PEER_SIZE[0]} on the {machine_name(environment)}, in the same run"
    sentence = f"**Peers**, {where}, as multiples of SGEMM's speed and error: {'; '.join(found)}."
    yield from textwrap.wrap(sentence, 120)

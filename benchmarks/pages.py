"""Writes the measured numbers of README.md and docs/ from results/: `python -m benchmarks.pages [--check]`.

A page marks the place of a table with `<!-- results: NAME -->` and `<!-- end -->`; what stands between is replaced.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.held_out import IEEE
from benchmarks.tables import cpu, everywhere, gpu, shortest, tunings
from benchmarks.tables.markdown import Row, digits, load, loaded, paired, space, table, times

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# The few rows of the README: type and size, on every GPU and on every CPU.
ON_GPU = [
    ("float32", [4096] * 3),
    ("float32", [16384] * 3),
    (IEEE, [16384] * 3),
    ("float64", [16384] * 3),
    ("bfloat16", [16384] * 3),
    ("bfloat16", [8191] * 3),
]
ON_CPU = [("float64", [8192] * 3)]
EXAMPLE_ON_GPU = ("float32", [16384] * 3)


def pages() -> list[Path]:
    """The README, and whatever page of docs/ has marks."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [path for path in found if MARK.search(path.read_text(encoding="utf-8"))]


def filled(page: str, results: Path) -> str:
    """The page with every marked section written anew."""
    return MARK.sub(lambda m: m[1] + "\n".join(SECTIONS[m[2]](results)).strip() + "\n" + m[3], page)


# ---- the README's own sections


def example(results: Path) -> Iterator[str]:
    """Two sentences: a product on the first CPU, and one on the last GPU."""
    for environment, row in list(_on_cpu(results))[:1]:
        ours, theirs = median(row["candidate"]), median(row["vendor"])
        where = f"{environment['processor']}, {environment['blas_threads']} threads"
        yield f"On {where}: NumPy {theirs:.2f} s, fmm **{ours:.2f} s**."
    on_gpu = [(e, row) for e, row in _on_gpu(results) if (row["dtype"], row["size"]) == EXAMPLE_ON_GPU]
    for environment, row in on_gpu[-1:]:
        ours, theirs = (digits(1e3 * median(row[who])) for who in ("seconds", "vendor_seconds"))
        what = f"{row['dtype']}, n = {row['size'][0]}"
        yield f"On {environment['device']}, {what}: cuBLAS {theirs} ms, fmm **{ours} ms**."


def shortlist(results: Path) -> Iterator[str]:
    """A row for each product of the lists above."""
    columns = ("on", "type", "m x k x n", "vendor", "fmm", "speedup", "workspace")
    rows = [_short_row(e["device"], row, row["vendor_seconds"], row["seconds"]) for e, row in _on_gpu(results)]
    for e, row in _on_cpu(results):
        where = f"{e['processor']}, {e['blas_threads']} threads"
        rows.append(_short_row(where, row, row["vendor"], row["candidate"]))
    yield from table(columns, iter(rows))


def _short_row(where: str, row: Row, theirs: Sequence[float], ours: Sequence[float]) -> Sequence[object]:
    unit, scale = ("s", 1.0) if median(theirs) > 1 else ("ms", 1e3)
    both = (f"{digits(scale * median(x))} {unit}" for x in (theirs, ours))
    speedup = f"**{paired(theirs, ours):.2f}**"
    return where, row["dtype"], times(row["size"]), *both, speedup, space(row["workspace"])


def _on_gpu(results: Path) -> Iterator[tuple[Row, Row]]:
    """Environment and default call of each product of the list."""
    for _, environment, rows in loaded(results, "*/calls.json"):
        found = {(row["dtype"], str(row["size"])): row for row in rows if row["seconds"] and not row["failure"]}
        yield from ((environment, found[dtype, str(size)]) for dtype, size in ON_GPU if (dtype, str(size)) in found)


def _on_cpu(results: Path) -> Iterator[tuple[Row, Row]]:
    for folder in cpu.cpu_folders(results):
        environment, rows = load(folder / "speed.json")
        yield from ((environment, row) for row in rows if (row["dtype"], row["size"]) in ON_CPU)


SECTIONS: dict[str, Callable[[Path], Iterator[str]]] = {
    "example": example,
    "shortlist": shortlist,
    **{make.__name__: make for make in (
        cpu.cpu, gpu.gpu, gpu.no_workspace, gpu.own_kernel, gpu.host, tunings.tuned, tunings.held_out,
        gpu.calls, gpu.large, gpu.integers, gpu.emulation, gpu.halves, gpu.complex_products,
        gpu.structured, gpu.residues, everywhere.several_gpus, everywhere.gained, everywhere.outside,
        shortest.ring_products, shortest.minplus_bound, shortest.minplus_products, shortest.shortest_paths,
        shortest.paths_on_cpu, shortest.whole_calls,
    )},
}  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something would change")
    options = parser.parse_args(arguments)
    changed = 0
    for path in pages():
        old = path.read_text(encoding="utf-8")
        new = filled(old, ROOT / "results")
        changed += old != new
        if not options.check:
            path.write_text(new, encoding="utf-8")
    return int(bool(options.check and changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What a call costs the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.tables.markdown import Row, loaded, paired, short, table

WAYS = {
    "vendor": "the library's own product",
    "launches": "a one-level plan, launched kernel by kernel",
    "replay": "the same, replayed as a CUDA graph",
    "moved": "the same graph, told of other arrays at every call",
}


def host(results: Path) -> Iterator[str]:
    """Microseconds from Python to the last launch, and what a small product's call takes more than the library's."""
    for path, environment, rows in loaded(results, "*/host.json"):
        where = f"`results/{path.parent.name}/`, commit {short(environment['commit'])}"
        yield f"**{environment['device']}**, torch {environment['torch']}, CuPy {environment['cupy']} ({where})"
        yield ""
        yield from _host_table([r for r in rows if r["table"] == "host"])
        yield ""
        yield from _small_table([r for r in rows if r["table"] == "small"])


def _host_table(rows: list[Row]) -> Iterator[str]:
    keys = sorted({(r["library"], r["n"]) for r in rows})
    found = {(r["way"], r["library"], r["n"]): f"{median(r['microseconds']):.0f} µs" for r in rows}
    columns = ("the host's time for a call, float32", *(f"{library}, n = {n}" for library, n in keys))
    yield from table(columns, ((words, *(found[way, *key] for key in keys)) for way, words in WAYS.items()))


def _small_table(rows: list[Row]) -> Iterator[str]:
    """The spread over the element types."""
    libraries = sorted({r["library"] for r in rows})

    def extra(n: int, library: str) -> str:
        own = [r for r in rows if (r["n"], r["library"]) == (n, library)]
        more = [median(f - v for f, v in zip(r["fmm"], r["vendor"], strict=True)) for r in own]
        ratio = [paired(r["vendor"], r["fmm"]) for r in own]
        return f"{min(more):+.1f} to {max(more):+.1f} µs, ratio {min(ratio):.2f} to {max(ratio):.2f}"

    columns = ("a small product, whole calls: n", *(f"fmm beyond {library}, all types" for library in libraries))
    sizes = sorted({r["n"] for r in rows})
    yield from table(columns, ((n, *(extra(n, library) for library in libraries)) for n in sizes))

"""What fmm.matmul does when nothing is asked but a product: named ones, the largest, integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.tables.cpu import machine
from benchmarks.tables.markdown import Row, digits, heading, loaded, paired, space, table, times


def calls(results: Path) -> Iterator[str]:
    """Default calls on named products."""
    columns = ("type", "m x k x n", "library", "fmm", "speedup", "error", "workspace", "answered by", "plan")
    for path, environment, rows in loaded(results, "*/calls.json"):
        yield from heading(path, environment)
        found = ((r["dtype"], times(r["size"]), *_call(r), r["step"], f"`{r['plan']}`") for r in rows if _whole(r))
        yield from table(columns, found)


def large(results: Path) -> Iterator[str]:
    """The largest products, alone on the device and beside others."""
    columns = ("type", "m x k x n", "taken", "library", "fmm", "speedup", "error", "workspace", "plan")
    for path, environment, rows in loaded(results, "*/large*.json"):
        yield from heading(path, environment)
        found = (
            (r["dtype"], times(r["size"]), f"{r['taken']:.0%}", *_call(r), f"`{r['plan']}`") for r in rows if _whole(r)
        )
        yield from table(columns, found)


def _whole(row: Row) -> bool:
    return bool(row["seconds"]) and not row["failure"]


def _call(row: Row) -> Sequence[str]:
    """Milliseconds of both, speedup, error and workspace."""
    theirs, ours = (f"{digits(1e3 * median(row[x]))} ms" for x in ("vendor_seconds", "seconds"))
    speedup = f"**{paired(row['vendor_seconds'], row['seconds']):.2f}**"
    return theirs, ours, speedup, f"{row['error']:.2f}", space(row["workspace"])


def integers(results: Path) -> Iterator[str]:
    """Exact products of integers, whole calls, on CPUs and GPUs."""
    columns = ("type", "n", "numbers", "library", "fmm", "speedup", "workspace", "plan")
    for path, environment, rows in loaded(results, "*/integers.json"):
        name = environment.get("device") or machine(environment)
        yield f"**{name}** (`results/{path.parent.name}/{path.name}`, commit {environment['commit']})"
        yield ""
        yield from table(columns, (_integer_row(row) for row in rows if row["equal"]))
        yield ""


def _integer_row(row: Row) -> Sequence[object]:
    """The library's product may have been timed on some rows only, each of which takes as long."""
    theirs, ours = median(row["vendor"]) * row["side"] / row["rows"], median(row["candidate"])
    numbers = f"below 2^{row['bits']}" if row["bits"] else "the whole range"
    seconds = (f"{digits(1e3 * x)} ms" for x in (theirs, ours))
    return (
        row["dtype"],
        row["side"],
        numbers,
        *seconds,
        f"**{theirs / ours:.1f}**",
        space(row["workspace"]),
        f"`{row['plan']}`",
    )

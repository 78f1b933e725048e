"""Products with a structure: halves, other structured ones, complex ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.tables.markdown import Row, digits, heading, loaded, paired, range_of_ratios, table, times

HALVES = {
    "syrk": "lower half, against syrk",
    "matmul": "`x @ x.T`, against the library's",
    "newton-schulz": "five steps",
    "plan": "all of it, the best plan named",
}


def halves(results: Path) -> Iterator[str]:
    """A matrix times its transpose, whole calls."""
    for path, environment, rows in loaded(results, "*/gram*.json"):
        yield from heading(path, environment)
        found = (
            (
                HALVES[r["kind"]],
                r["dtype"] + ", without emulation" * r.get("ieee", False),
                times(r["size"]),
                digits(median(r["candidate"])),
                f"**{paired(r['vendor'], r['candidate']):.2f}**",
                f"`{r['plan']}`",
            )
            for r in rows
            if r["kind"] in HALVES and not r["failure"] and (r["kind"] != "plan" or r is _best_named(r, rows))
        )
        yield from table(("what", "type", "size", "ms", "speedup", "plan"), found)


def _best_named(row: Row, rows: list[Row]) -> Row:
    """Of the plans that were named for the same product."""
    same = [r for r in rows if not r["failure"] and all(r[x] == row[x] for x in ("kind", "dtype", "size"))]
    return max(same, key=lambda r: paired(r["vendor"], r["candidate"]))


def structured(results: Path) -> Iterator[str]:
    """Structured products of random shapes, whole calls, and on CPUs those of the benchmark's list."""
    for path, environment, rows in loaded(results, "*/structured.json"):
        yield from heading(path, {"device": environment.get("processor"), **environment})
        if "ratio" in rows[0] or "failure" in rows[0]:
            yield from _structured_shapes([r for r in rows if "ratio" in r])
        else:
            columns = ("what", "type", "side", "speedup (95 % interval)", "plan")
            yield from table(columns, (_structured_row(r) for r in rows))


def _structured_row(row: Row) -> Sequence[object]:
    interval = f"**{row['speedup']:.2f}** ({row['low']:.3f} to {row['high']:.3f})"
    return f"`{row['kind']}`", row["dtype"], row["side"], interval, f"`{row['plan']}`"


def _structured_shapes(rows: list[Row]) -> Iterator[str]:
    """Kind by kind."""
    for kind in dict.fromkeys(r["kind"] for r in rows):
        found = [r for r in rows if r["kind"] == kind]
        fast = sum(r["plan"] != "vendor" for r in found)
        yield f"- {kind}: {len(found)} shapes, {fast} by fast plans: {range_of_ratios(found, 'those')}."


def complex_products(results: Path) -> Iterator[str]:
    """Complex squares, whole calls, and the fastest of the plans that were named."""
    for path, environment, rows in loaded(results, "*/complex.json"):
        yield from heading(path, environment)
        found = []
        for r in rows:
            plans = {plan: r["speedups"][plan] for plan in r["plans"] if plan in r["speedups"]}
            if "without emulation" in r["speedups"]:
                plans[r["chosen_without_emulation"]] = r["speedups"]["without emulation"]
            named = max(plans, key=plans.__getitem__)
            own = (
                f"**{r['speedups']['fmm']:.2f}**",
                f"`{r['chosen']}`",
                f"{r['errors']['fmm'] / r['errors']['vendor']:.2f}",
            )
            found.append((r["dtype"], r["side"], *own, f"{plans[named]:.2f}", f"`{named}`"))
        yield from table(("type", "side", "speedup", "plan", "error", "named", "plan"), iter(found))

"""Products on a CPU against NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.tables.markdown import Row, load, space, table, times


def cpu_folders(results: Path) -> list[Path]:
    return sorted(path.parent for path in results.glob("*/speed.json"))


def machine(environment: Row) -> str:
    return "{processor}, {blas_threads} threads, NumPy {numpy}, {blas}".format(**environment)


def cpu(results: Path) -> Iterator[str]:
    """Large products and what the other suites found, machine by machine."""
    for folder in cpu_folders(results):
        environment, rows = load(folder / "speed.json")
        yield f"**{machine(environment)}** (`results/{folder.name}/`, commit {environment['commit']})"
        yield ""
        columns = ("m x k x n", "type", "NumPy", "fmm", "speedup (95 % interval)", "workspace", "plan")
        yield from table(columns, map(_cpu_row, rows))
        yield ""
        yield from _suites(folder)
        yield ""


def _cpu_row(row: Row) -> Sequence[object]:
    theirs, ours = (f"{median(row[who]):.3g} s" for who in ("vendor", "candidate"))
    interval = f"**{row['speedup']:.2f}** ({row['low']:.3f} to {row['high']:.3f})"
    return times(row["size"]), row["dtype"], theirs, ours, interval, space(row["workspace"]), f"`{row['plan']}`"


def _suites(folder: Path) -> Iterator[str]:
    """One line for each of the other suites that were run, worst cases first."""
    for suite, sentence in SENTENCES.items():
        if (folder / f"{suite}.json").exists():
            yield f"- {sentence(load(folder / f'{suite}.json')[1])}."


def _never_slower(rows: list[Row]) -> str:
    ratios = [r["speedup"] for r in rows]
    return f"{len(ratios)} random shapes, sides up to 6000: median ratios from {min(ratios):.3f} to {max(ratios):.3f}"


def _small_calls(rows: list[Row]) -> str:
    calls = (f"{r['extra_microseconds']:.2f} µs at {r['side']} x {r['side']}" for r in rows)
    return f"A small call costs more by {', '.join(calls)}"


def _errors(rows: list[Row]) -> str:
    worst = max(rows, key=lambda r: float(r["ratio"]))
    where = f"{worst['dtype']}, {worst['data']}, n = {worst['side']}"
    return f"Largest error: {worst['ratio']:.1f} times NumPy's ({where})"


SENTENCES: dict[str, Callable[[list[Row]], str]] = {
    "never_slower": _never_slower,
    "small_calls": _small_calls,
    "errors": _errors,
    "memory": lambda rows: f"Peak memory over what the plan said: {max(r['ratio'] for r in rows):.4f}",
    "guard": lambda rows: f"The check for overflow takes at most {max(r['share'] for r in rows):.2%} of a product",
}

"""What tunings are worth: the models' errors, and default calls on shapes that no fit saw."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from benchmarks.held_out import FILE, Run, grouped, packed, recorded_runs, representative_run, summary
from benchmarks.held_out import Row as HeldOut
from benchmarks.tables.markdown import Row, heading, short, table


def tuned(results: Path) -> Iterator[str]:
    """What the model of every tuning is off by on its held-out shapes, config by config."""
    columns = ("config", "device, type", "held-out pairs", "time off by (95 %)", "speedup off by", "noise floor")
    yield from table(columns, _tuned_rows(results))


def _tuned_rows(results: Path) -> Iterator[Sequence[object]]:
    for path in sorted((*results.glob("*/config.json"), *results.glob("*/*/config.json"))):
        (types,) = json.loads(path.read_text(encoding="utf-8"))["devices"].values()
        for dtype, section in types.items():
            name = f"{section['conditions']['device']}, {dtype}"
            yield f"`{_from(results, path.parent)}`", name, *_model_error(section), _share(section["noise"])


def _from(results: Path, folder: Path) -> str:
    return f"results/{folder.relative_to(results)}"


def _model_error(section: Row) -> tuple[object, ...]:
    time, speedup = section["error"]["time"], section["error"]["speedup"]
    if not speedup["count"]:
        return 0, "not measured", "not measured"
    return speedup["count"], f"{time['median']:.1%} ({time['p95']:.1%})", f"{speedup['median']:.1%}"


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1%}"


def held_out(results: Path) -> Iterator[str]:
    """Default calls on shapes that no fit saw, beside the best of the plans that were tried: a run, and in a line each
    the others of the same device."""
    columns = (
        "type", "shapes", "how many", "by plans", "answered by", "of the best plan: mean, least",
        "of the vendor: mean, least", "poor choices",
    )  # fmt: skip
    for path in sorted({x.with_name(FILE) for x in results.glob(f"*/{FILE}*")}):
        runs = recorded_runs(path)
        content = representative_run(runs)
        environment = {"device": content.environment.get("processor", ""), **content.environment}
        yield from heading(path if path.exists() else packed(path), environment, content.drawn)
        yield from table(columns, (_held_out_row(*found) for found in grouped(content.rows)))
        others = [_other_run(run) for run in runs if run is not content and run.rows]
        yield from ("", *others) if others else ()


def _other_run(run: Run) -> str:
    shares, poor = [row.share_of_best for row in run.rows], sum(row.poor for row in run.rows)
    return (
        f"- Another run (commit {short(run.environment['commit'])}, {run.drawn}): {len(shares)} shapes, "
        f"{mean(shares):.1%} of the best plan's speed on average, {min(shares):.1%} at least; {poor} poor choices."
    )


def _held_out_row(dtype: str, kind: str, rows: Sequence[HeldOut]) -> Sequence[object]:
    s = summary(rows)
    best = f"{s['mean_share_of_best']:.1%}, {s['least_share_of_best']:.1%}"
    vendor = f"{s['mean_speedup']:.2f}, {s['least_speedup']:.2f}"
    steps = ", ".join(dict.fromkeys(row.step for row in rows))
    return dtype, kind, s["shapes"], s["by_plans"], steps, best, vendor, s["poor"]

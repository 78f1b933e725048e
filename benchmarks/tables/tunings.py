"""What tunings are worth: the models' errors, and default calls on shapes that no fit saw."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.held_out import FILE, environment_of, grouped, packed, summary, told_rows
from benchmarks.held_out import Row as HeldOut
from benchmarks.tables.markdown import Row, heading, table


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
    """Default calls on shapes that no fit saw, beside the best of the plans that were tried."""
    columns = (
        "type", "shapes", "how many", "by plans", "answered by", "of the best plan: mean, least",
        "of the vendor: mean, least", "poor choices",
    )  # fmt: skip
    for path in sorted({x.with_name(FILE) for x in results.glob(f"*/{FILE}*")}):
        rows = told_rows(path)
        environment = environment_of(path, rows[0].config)
        yield from heading(
            path if path.exists() else packed(path), {"device": environment.get("processor", ""), **environment}
        )
        yield from table(columns, (_held_out_row(*found) for found in grouped(rows)))


def _held_out_row(dtype: str, kind: str, rows: Sequence[HeldOut]) -> Sequence[object]:
    s = summary(rows)
    best = f"{s['mean_share_of_best']:.1%}, {s['least_share_of_best']:.1%}"
    vendor = f"{s['mean_speedup']:.2f}, {s['least_speedup']:.2f}"
    steps = ", ".join(dict.fromkeys(row.step for row in rows))
    return dtype, kind, s["shapes"], s["by_plans"], steps, best, vendor, s["poor"]

"""Sections, configs and small tunings of a fake device, which the tests of configs and of the tuner share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fmm.config import reader, schema
from fmm.config.schema import Entry, JsonValue
from fmm.tuner.devices.device import Effort

SMALL = Effort(seconds=4, most=60, rounds=3, held_out=3, trials=2, enqueued=1, certify=6)
VERSIONS = {"numpy": "1", "blas": "test 1"}


def entry(size: tuple[int, int, int] = (96, 96, 96), plan: str = "winograd > vendor", **more: Any) -> Entry:
    known: dict[str, Any] = {"speedup": 1.1, "low": 1.05, "high": 1.2, "rounds": 9, "seconds": 1.0}
    return Entry(size, plan, **{**known, "vendor_seconds": 1.1, "noise": 0.01, **more})


def section(*entries: Entry, **more: Any) -> dict[str, JsonValue]:
    """Return a section in which products are slow and sums cost nothing, so that the model chooses plans for
    all products."""
    free: dict[str, JsonValue] = {
        **schema.empty_section(VERSIONS),
        "calibration": {"stream": 1e18, "margin": 0.02, "rate": {"flops": 1e6, "fill": 0.0, "pipe": 0.0}},
        "entries": [e.json_fields | {"size": list(e.size)} for e in entries],
    }
    return {**free, **more}


def write(path: Path, key: str, dtype: str = "float64", found: dict[str, JsonValue] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(reader.config_text({key: {dtype: found or section(entry())}}), encoding="utf-8")
    return path


def raw_thresholds(taus: Mapping[str, float | None], **others: Any) -> dict[str, Any]:
    """Return the thresholds of a section with these values of tau1 to tau3; measured ones only if `others`
    has them."""
    spreads = {name: {"value": side, "low": side, "high": side} for name, side in taus.items()}
    mappings: dict[str, Any] = {"block_strategy": {}, "one_level": {}, "intervals": {}, "without_emulation": {}}
    return {"n1_measured": None, "epsilon": None, **mappings, **spreads, **others}

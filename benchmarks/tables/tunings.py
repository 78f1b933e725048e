"""The table of a recorded tuning, as `fmm-tune show` prints it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from fmm.config import files
from fmm.tuner.findings.device_summary import summarize_device

CONFIG = Path("nvidia-h100-80gb-hbm3", "config.json")  # a recorded tuning of all types, relative to results/


def tuned_device(results: Path) -> Iterator[str]:
    """Yield the command that prints the recorded tuning, and its output of 80 columns."""
    shown = Path("results") / CONFIG
    yield from ("```", f"$ FMM_CONFIG={shown} fmm-tune show", *_table_lines(results / CONFIG, shown), "```")


@lru_cache
def _table_lines(path: Path, shown: Path) -> tuple[str, ...]:
    """Return the lines of the table of the config's device; `shown` is the path that the table prints."""
    ((key, sections),) = files.read_config(path).items()
    return tuple(summarize_device(key, sections, shown, in_force=True).text_lines())

"""The table of a recorded tuning, as `fmm-tune show` prints it, and its prediction of one product."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from benchmarks.harness import ROOT
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


PREDICTED_PRODUCT = ("--dtype", "float64", "8192")
PREDICTED_COLUMNS, SHOWN_RUNNERS_UP = 120, 5


def explained_product(results: Path) -> Iterator[str]:
    """Yield the command that explains a product on the tuned device, and its output down to the fifth runner-up."""
    (key,) = files.read_config(results / CONFIG)
    command = ("fmm-tune", "predict", "--device", key, *PREDICTED_PRODUCT)
    config = str(Path("results") / CONFIG)
    yield from ("```", f"$ FMM_CONFIG={config} {' '.join(command)}")
    yield from _predicted_lines(results / CONFIG, command[1:])
    yield from ("  ...", "```")


@lru_cache
def _predicted_lines(config: Path, arguments: tuple[str, ...]) -> tuple[str, ...]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FMM_")}
    environment |= {"FMM_CONFIG": str(config), "COLUMNS": str(PREDICTED_COLUMNS)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "fmm_tune.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("runners-up"))
    return tuple(line.rstrip() for line in lines[: end + 2 + SHOWN_RUNNERS_UP])

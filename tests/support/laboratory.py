"""Experiments on this processor at a small size, and the recorded samples of experiments."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from benchmarks.papers.bench import HostBench
from benchmarks.papers.experiment import Results, has_results, measured_now
from benchmarks.papers.figures import EXPERIMENTS
from tests.support import ROOT

BENCH = HostBench()
SAMPLES = ROOT / "results"


@lru_cache(maxsize=16)
def measure_small(name: str, side: int = 64) -> Results:
    return measured_now(EXPERIMENTS[name], BENCH, side, ["a test"])


def sample_files(name: str) -> list[Path]:
    """Return the files of an experiment's samples; compressed files have the name of the uncompressed
    file."""
    return [folder / f"{name}.json" for folder in SAMPLES.glob("*/paper") if has_results(folder / f"{name}.json")]

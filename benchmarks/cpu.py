"""The CPU benchmark: `python -m benchmarks.cpu [OPTIONS of fmm-tune suites]`, in full, written to results/<device>/."""

from __future__ import annotations

import sys
from pathlib import Path

from fmm.tuner.cli import main

RESULTS = Path(__file__).parents[1] / "results"

if __name__ == "__main__":
    sys.exit(main(["suites", "--effort", "full", "--output", str(RESULTS), *sys.argv[1:]]))

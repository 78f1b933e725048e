"""Run one benchmark: `python -m benchmarks NAME [OPTION ...]`; without a name, list them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

# The module of each benchmark has a function main(arguments) that returns the exit code.
BENCHMARKS = {
    "papers": "benchmarks.papers.command",
    "compare": "benchmarks.compare_tunings",
    "cpu": "benchmarks.cpu",
}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the first argument names; return its exit code."""
    name, *others = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(f"usage: python -m benchmarks NAME [--help] [OPTION ...]\n\n{__doc__}\nnames: {', '.join(BENCHMARKS)}")
        return 0
    if name not in BENCHMARKS:
        print(f"benchmarks: no benchmark {name!r}; valid: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    try:
        return int(import_module(BENCHMARKS[name]).main(others))
    except KeyboardInterrupt:
        print(f"benchmarks {name}: interrupted; finished results are written", file=sys.stderr)
        return 128 + 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

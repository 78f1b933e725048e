"""The command fmm-tune."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fmm
from fmm.tuner import papers, predictions
from fmm.tuner.environment import command, device_folder, environment

SUITE_NAMES = ("speed", "never_slower", "small_calls", "memory", "errors", "guard")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except KeyboardInterrupt:
        print("fmm-tune: interrupted; what was finished is kept", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fmm-tune", description="Measure what fmm gains on this machine, and explain its choices."
    )
    parser.add_argument("--version", action="version", version=f"fmm-tune {fmm.__version__}")
    parser.add_argument("--effort", choices=("quick", "full"), default="quick", help="how much to measure")
    parser.add_argument("--suite", action="append", choices=SUITE_NAMES, help="only this suite (may be repeated)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write the results below this folder")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON lines instead of tables")
    parser.set_defaults(run=_measure)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    papers.add_parser(commands)
    predictions.add_parser(commands)
    return parser


def _measure(options: argparse.Namespace) -> int:
    from fmm.tuner.suites import EFFORTS, SUITES  # NumPy's random generators and threads, only when measuring

    where = environment(command())
    if not options.json:
        print(f"{where['processor']}, {where['blas_threads']} threads, numpy {where['numpy']}, {where['blas']}")
    for name in options.suite or SUITES:
        suite = SUITES[name]
        rows: list[dict[str, Any]] = []
        for row in suite(EFFORTS[options.effort]):
            rows.append(row)
            print(json.dumps({"suite": name, **row}) if options.json else _line(name, row), flush=True)
        if options.output:
            write(options.output / device_folder() / f"{name}.json", {"environment": where, "rows": rows})
    return 0


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a result whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join("  " + json.dumps(row) for row in content["rows"])
    text = f'{{\n"environment": {json.dumps(content["environment"], indent=1)},\n"rows": [\n{rows}\n]\n}}\n'
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _line(suite: str, row: dict[str, Any]) -> str:
    size = "x".join(map(str, row["size"])) if "size" in row else str(row.get("side"))
    return f"{suite:13}{size:>16}  {row.get('dtype', ''):8} {_VERDICTS[suite](row)}"


_VERDICTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "speed": lambda r: f"{r['speedup']:.3f} times numpy [{r['low']:.3f}, {r['high']:.3f}]  {r['plan']}",
    "never_slower": lambda r: f"{r['speedup']:.3f} times numpy [{r['low']:.3f}, {r['high']:.3f}]  {r['plan']}",
    "small_calls": lambda r: f"{r['extra_microseconds']:+.2f} microseconds a call",
    "memory": lambda r: f"peak {r['peak_bytes'] / 2**20:.1f} MiB, {r['ratio']:.4f} of what the plan said",
    "errors": lambda r: f"{r['ratio']:.2f} times numpy's error ({r['data']}; expected {r['expected_growth']:.1f})",
    "guard": lambda r: f"the overflow check takes {r['share']:.2%} of the time",
}


if __name__ == "__main__":
    sys.exit(main())

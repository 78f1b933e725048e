"""fmm-tune predict: the plan that the model would choose for a product on a device, and the runners-up."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from fmm.kernels.explain import spelled_bytes, table
from fmm.kernels.threads import blas_threads
from fmm.perfmodel.calibration import Calibration, cpu, datasheet
from fmm.perfmodel.choose import Candidate, Choice, Limits, choose
from fmm.perfmodel.cost import cost
from fmm.perfmodel.devices import device, device_names
from fmm.perfmodel.predict import LEAVES_OUT, predict
from fmm.perfmodel.problem import ELEMENTS, Problem

NO_LIMIT = 1 << 62


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("predict", help="predict the best plan for an M x K by K x N product")
    for side in ("m", "k", "n"):
        parser.add_argument(side, type=int, metavar=side.upper())
    parser.add_argument("--dtype", default="float32", help=", ".join(ELEMENTS))
    parser.add_argument("--device", default="cpu", help=f"cpu, {', '.join(n.lower() for n in device_names())}")
    parser.add_argument("--workspace", type=int, metavar="BYTES", help="the most temporaries may take")
    parser.add_argument("--max-error-growth", type=float, default=10.0, metavar="X", help="default 10")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the choice; exit code 2 and one line if the arguments are off."""
    try:
        problem = Problem(options.m, options.k, options.n, options.dtype)
        if not min(problem.size):
            raise ValueError(f"sizes must be positive, not {options.m} {options.k} {options.n}")
        calibration = _calibration(options.device)
        calibration.rate(problem.dtype)
    except ValueError as error:
        print(f"fmm-tune predict: {error}", file=sys.stderr)
        return 2
    limits = Limits(_memory(options, problem), options.max_error_growth)
    choice = choose(problem, calibration, limits)
    print(json.dumps(_fields(choice, calibration), indent=1) if options.json else _text(choice, calibration))
    return 0


def _calibration(name: str) -> Calibration:
    return cpu(blas_threads()) if name == "cpu" else datasheet(name)


def _memory(options: argparse.Namespace, problem: Problem) -> int:
    """The limit given, or what the device has left beside the operands."""
    if options.workspace is not None:
        return int(options.workspace)
    if options.device == "cpu":
        return NO_LIMIT
    m, k, n = problem.size
    return int(device(options.device).memory_gb * 1e9) - (m * k + k * n + m * n) * problem.itemsize


def _row(candidate: Candidate, calibration: Calibration) -> dict[str, Any]:
    exact = predict(candidate.plan, candidate.prediction.problem, calibration)
    return {
        "plan": str(candidate.plan),
        "seconds": exact.seconds,
        "relative": candidate.time,
        "tflops": exact.effective_flops / 1e12,
        "dominant": exact.dominant,
        "workspace": candidate.workspace,
        "error_growth": candidate.error_growth,
    }


def _fields(choice: Choice, calibration: Calibration) -> dict[str, Any]:
    problem = choice.best.prediction.problem
    counts = cost(choice.best.plan, *problem.size, problem.itemsize)
    return {
        "device": calibration.name,
        "size": problem.size,
        "dtype": problem.dtype,
        "reason": choice.reason,
        "traffic_bytes": counts.bytes,
        "chosen": _row(choice.best, calibration),
        "candidates": [_row(candidate, calibration) for candidate in choice.considered],
        "leaves_out": LEAVES_OUT,
    }


def _text(choice: Choice, calibration: Calibration) -> str:
    problem = choice.best.prediction.problem
    counts = cost(choice.best.plan, *problem.size, problem.itemsize)
    lines = [
        f"{'x'.join(map(str, problem.size))} {problem.dtype} on {calibration.name} ({calibration.source})",
        f"plan: {choice.best.plan}",
        f"why: {choice.reason}",
        "",
        table(choice.best.plan, *problem.size, problem.itemsize),
        f"traffic {spelled_bytes(counts.bytes)}, {counts.launches} launches, "
        f"expected error {choice.best.error_growth:.1f} times the vendor's",
        f"left out: {LEAVES_OUT}",
        "",
        f"{'predicted':>12}{'speedup':>9}{'TFLOPS':>9}{'workspace':>12}{'error':>7}  mostly    plan",
    ]
    for row in (_row(candidate, calibration) for candidate in choice.considered):
        lines.append(
            f"{row['seconds']:>10.4g} s{1 / row['relative']:>9.2f}{row['tflops']:>9.3g}"
            f"{spelled_bytes(row['workspace']):>12}{row['error_growth']:>7.1f}  {row['dominant']:<9} {row['plan']}"
        )
    return "\n".join(lines)

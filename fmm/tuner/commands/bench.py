"""fmm-tune bench: time fmm's plan for one product against the vendor's product, in paired rounds."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from fmm.config import certification, files
from fmm.dtypes import FLOAT_TYPES
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.choose import Limits, default_error_growth_limit
from fmm.problem import Problem
from fmm.runtime import devices
from fmm.runtime.decisions.decide import decide_plan
from fmm.tuner.commands.config_file import add_json_option
from fmm.tuner.device_registry import UnknownDeviceError, select_devices
from fmm.tuner.devices.device import TimedRun, TunableDevice
from fmm.tuner.findings.summary import make_table
from fmm.tuner.findings.thresholds import li_threshold_plan
from fmm.tuner.trials.journal import Journal, RoundLimits, SampleSeconds, median_paired_speedup

# Arguments of --plan that name the recursive algorithms of Li, Ranka and Sahni's Figures 16 and 23. Both
# algorithms use the thresholds tau1 and tau2 from this device's tuning.
LI_CODE_PATTERN = re.compile(r"(strassen|winograd)\(tau1, *tau2\)(?: *> *(\S+))?")
LI_CODES_HELP = "'strassen(tau1, tau2)' and 'winograd(tau1, tau2)' are Li's codes with the tuned thresholds"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to the commands of fmm-tune."""
    parser = commands.add_parser("bench", help="time fmm's choice for an M x K by K x N product against the vendor")
    parser.add_argument("m", type=int, metavar="M", help="M alone is a square, M K N an M x K by K x N product")
    for side in ("k", "n"):
        parser.add_argument(side, type=int, nargs="?", metavar=side.upper())
    plan_help = f"time this plan too (may be repeated); {LI_CODES_HELP}"
    parser.add_argument("--plan", action="append", default=[], help=plan_help)
    parser.add_argument("--dtype", default="float64", help=", ".join(FLOAT_TYPES))
    parser.add_argument("--device", default=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=9)
    add_json_option(parser)
    parser.set_defaults(run=run_bench)


def run_bench(options: argparse.Namespace) -> int:
    """Time the plans and print a row for each; return exit code 2 for bad arguments, 1 if a plan failed, else 0."""
    try:
        device = select_devices(options.device)[0]
        if options.dtype not in device.dtypes:
            raise ValueError(f"unknown dtype {options.dtype!r}; valid: {', '.join(device.dtypes)}")
        if options.rounds < 1:
            raise ValueError(f"--rounds must be 1 or more, not {options.rounds}")
        if (options.k is None) != (options.n is None):
            raise ValueError(f"M alone is a square, M K N a product, not {options.m} {options.k}")
        size = (options.m,) * 3 if options.k is None else (options.m, options.k, options.n)
        if min(size) < 1:
            raise ValueError(f"sizes must be positive, not {' '.join(map(str, size))}")
        problem = Problem(*size, options.dtype)
        plans = [parse_plan_or_li_code(text, device, problem) for text in options.plan]
    except (UnknownDeviceError, PlanError, ValueError) as error:
        print(f"fmm-tune bench: {error}", file=sys.stderr)
        return 2
    rows = list(time_plans(device, problem, plans, options.rounds))
    print(json.dumps(rows, indent=1) if options.json else "\n".join(_result_lines(problem, rows)))
    return int(any("failed" in row for row in rows))


def parse_plan_or_li_code(text: str, device: TunableDevice, problem: Problem) -> Plan:
    """Return the plan of a plan text, or of one of Li's recursive algorithms; raise PlanError for an invalid text."""
    code = LI_CODE_PATTERN.fullmatch(text.strip())
    if code is None:
        return Plan.parse(text)
    tuned = files.active_configs().find_tuning(device.identity, problem.dtype)
    if tuned is None or tuned.thresholds is None:
        raise PlanError(f"{text!r}: {device.identity.name} has no tau1 and tau2 for {problem.dtype}; tune it first")
    return li_threshold_plan(code[1], max(problem.size), tuned.thresholds, code[2] or VENDOR.leaf)


def time_plans(device: TunableDevice, problem: Problem, plans: Sequence[Plan], rounds: int) -> Iterator[dict[str, Any]]:
    """Time the vendor, fmm's decision and `plans` in paired rounds; yield a row of results for each plan."""
    limits = Limits(device.memory_bytes, default_error_growth_limit(device.untuned_model().batches))
    decision = decide_plan(problem, limits, devices.Device(device.identity, device.untuned_model()))
    runs = list(dict.fromkeys([TimedRun(), TimedRun(decision.plan), *map(TimedRun, plans)]))
    journal = Journal("bench", device)
    with journal.open_problem("bench", problem) as timed:
        samples = timed.sample_rounds(runs, RoundLimits(rounds))
    for run in runs:
        if samples[run]:
            source = decision.source if run.plan == decision.plan else "vendor" if run == TimedRun() else "given"
            yield _bench_row(problem, run, samples, source)
    for trial in journal.recorded:
        if trial.failed:
            yield {"plan": trial.plan, "failed": trial.failed}


def _bench_row(problem: Problem, run: TimedRun, samples: SampleSeconds, source: str) -> dict[str, Any]:
    """Return the results of one plan as a row; `source` says what chose the plan: the tuning, the model or the user."""
    low, high = certification.median_interval(
        certification.paired_ratios(samples[TimedRun()][: len(samples[run])], samples[run])
    )
    seconds = median(samples[run])
    return {
        "plan": str(run.plan),
        "answered_by": source,
        "seconds": seconds,
        "gflops": problem.flops / seconds / 1e9,
        "speedup": median_paired_speedup(samples, TimedRun(), run),
        "low": low,
        "high": high,
        "samples": samples[run],
    }


def _result_lines(problem: Problem, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table of results, then a line for each failed plan."""
    timed = [
        (
            *(f"{row['seconds']:.4g}", f"{row['gflops']:.4g}", f"{row['speedup']:.3f}"),
            *(f"[{row['low']:.3f}, {row['high']:.3f}]", row["answered_by"], row["plan"]),
        )
        for row in rows
        if "failed" not in row
    ]
    columns = "seconds", "Gflop/s", "speedup", "95 % interval", "source", "plan"
    yield from make_table(f"{' x '.join(map(str, problem.size))} {problem.dtype}", columns, timed).text_lines
    yield from (f"failed: {row['failed']}  {row['plan']}" for row in rows if "failed" in row)

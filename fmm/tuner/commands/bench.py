"""fmm-tune bench: time fmm's plan for one product against the vendor's product, in paired rounds.

If a tuning has searched the product's shape, the model's first choice and Optuna's best plan are timed, too. Without a
shape, the command prints how much faster Optuna's best plan was than the model's first choice in each search of the
recorded tunings.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

from fmm.config import certification, environment, files
from fmm.config.reader import ConfigError
from fmm.dtypes import FLOAT_TYPES
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.choose import Limits, default_error_growth_limit
from fmm.problem import Problem
from fmm.runtime import devices
from fmm.runtime.decisions.decide import decide_plan
from fmm.tuner.commands.config_file import add_json_option
from fmm.tuner.device_registry import UnknownDeviceError, select_devices
from fmm.tuner.devices.cpu import CpuDevice
from fmm.tuner.devices.device import TimedRun, TunableDevice
from fmm.tuner.findings.search_gains import SearchGain, search_gains_of_device
from fmm.tuner.findings.summary import text_table
from fmm.tuner.findings.thresholds import li_threshold_plan
from fmm.tuner.trials.journal import Journal, RoundLimits, SampleSeconds, median_paired_speedup
from fmm.tuner.trials.record import TrialFile
from fmm.tuner.tune import trials_path

# Arguments of --plan that name the recursive algorithms of Li, Ranka and Sahni's Figures 16 and 23. The algorithms of
# Li, Ranka and Sahni use the thresholds tau1 and tau2 from this device's tuning.
LI_CODE_PATTERN = re.compile(r"(strassen|winograd)\(tau1, *tau2\)(?: *> *(\S+))?")
MODEL_SOURCE, OPTUNA_SOURCE = "model's first choice", "Optuna's best"  # sources of the two plans of a search
LI_CODES_HELP = "'strassen(tau1, tau2)' and 'winograd(tau1, tau2)' are Li's codes with the tuned thresholds"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to the commands of fmm-tune."""
    parser = commands.add_parser("bench", help="time fmm's choice for an M x K by K x N product against the vendor")
    sides_help = "M alone is a square, M K N an M x K by K x N product; without M, what Optuna added to each search"
    parser.add_argument("m", type=int, nargs="?", metavar="M", help=sides_help)
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
        if options.m is None:
            return print_search_gains(recorded_search_gains(device), options.json)
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
    searched = next(
        (x for x in recorded_search_gains(device) if (x.dtype, x.size) == (problem.dtype, problem.size)), None
    )
    rows = list(time_plans(device, problem, plans, options.rounds, searched))
    print(json.dumps(rows, indent=1) if options.json else "\n".join(_result_lines(problem, rows)))
    return int(any("failed" in row for row in rows))


def recorded_search_gains(device: TunableDevice) -> list[SearchGain]:
    """Return the gains by Optuna in the searches of this device, from the trials of the configs that fmm reads."""
    paths = dict.fromkeys(map(trials_path, files.search_path(environment.environment_value("FMM_CONFIG"))))
    for path in paths:
        with suppress(OSError, ConfigError):  # a trials file that cannot be read has no searches
            if found := search_gains_of_device(TrialFile(path).read_tunings(), device.identity.key):
                return found
    return []


def print_search_gains(found: Sequence[SearchGain], as_json: bool) -> int:
    """Print a row for each searched shape, and return exit code 0."""
    rows = [
        {
            "dtype": x.dtype,
            "size": list(x.size),
            "model_plan": str(x.model_plan),
            "model_speedup": x.model_speedup,
            "optuna_plan": str(x.optuna_plan),
            "optuna_speedup": x.optuna_speedup,
            "gain": x.gain,
            "proposals": x.proposals,
        }
        for x in found
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
    elif not found:
        print("no recorded tuning of this device has timed a plan from Optuna; fmm-tune writes the trials")
    else:
        columns = "type", "m x k x n", "model's first", "Optuna's best", "gain", "proposals", "Optuna's plan"
        cells = [
            (
                *(x.dtype, " x ".join(map(str, x.size)), f"{x.model_speedup:.3f}", f"{x.optuna_speedup:.3f}"),
                *(f"{x.gain:.3f}", str(x.proposals), str(x.optuna_plan)),
            )
            for x in found
        ]
        title = "speedup over the vendor of the model's first choice, and of the best of Optuna's proposals"
        print("\n".join(text_table(title, columns, cells).text_lines))
    return 0


def parse_plan_or_li_code(text: str, device: TunableDevice, problem: Problem) -> Plan:
    """Return the plan of a plan text, or of one of Li's recursive algorithms; raise PlanError for an invalid text."""
    code = LI_CODE_PATTERN.fullmatch(text.strip())
    if code is None:
        return Plan.parse(text)
    tuned = files.active_configs().find_tuning(device.identity, problem.dtype)
    if tuned is None or tuned.thresholds is None:
        raise PlanError(f"{text!r}: {device.identity.name} has no tau1 and tau2 for {problem.dtype}; tune it first")
    return li_threshold_plan(code[1], max(problem.size), tuned.thresholds, code[2] or VENDOR.leaf)


def decision_device(device: TunableDevice) -> devices.Device:
    """Return the device for `decide_plan`; on an untuned CPU, the decision probes the rates, as fmm.matmul's does."""
    if isinstance(device, CpuDevice):
        return devices.cpu_device(device.threads)
    return devices.Device(device.identity, device.untuned_model())


def time_plans(
    device: TunableDevice, problem: Problem, plans: Sequence[Plan], rounds: int, searched: SearchGain | None = None
) -> Iterator[dict[str, Any]]:
    """Time the vendor, fmm's decision and `plans` in paired rounds; yield a row of results for each plan.

    If a tuning has searched the shape, the model's first choice and Optuna's best plan, both in `searched`, are timed,
    too.
    """
    limits = Limits(device.memory_bytes, default_error_growth_limit(device.untuned_model().batches))
    decision = decide_plan(problem, limits, decision_device(device))
    by_search = {} if searched is None else {searched.model_plan: MODEL_SOURCE, searched.optuna_plan: OPTUNA_SOURCE}
    runs = list(dict.fromkeys([TimedRun(), *map(TimedRun, (decision.plan, *by_search, *plans))]))
    journal = Journal("bench", device)
    with journal.open_timed_problem("bench", problem) as timed:
        samples = timed.sample_rounds(runs, RoundLimits(rounds))
    for run in runs:
        if samples[run]:
            source = decision.source if run.plan == decision.plan else "vendor" if run == TimedRun() else "given"
            sources = [source] if source != "given" or run.plan not in by_search else []
            sources += [by_search[run.plan]] if run.plan in by_search else []
            yield _bench_row(problem, run, samples, ", ".join(sources))
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
    yield from text_table(f"{' x '.join(map(str, problem.size))} {problem.dtype}", columns, timed).text_lines
    yield from (f"failed: {row['failed']}  {row['plan']}" for row in rows if "failed" in row)

"""fmm-tune bench | canary: measurements beside the tuning."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from fmm.config import certify, files, schema, store
from fmm.config.schema import Entry
from fmm.dtypes import FLOATS
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.choose import Limits, default_error_growth
from fmm.problem import Problem
from fmm.runtime import devices
from fmm.runtime.decisions.decide import decide_plan
from fmm.tuner.commands.config_file import add_json, add_output, config_sections, one_line_errors
from fmm.tuner.device_registry import UnknownDeviceError, chosen_devices
from fmm.tuner.devices.device import Device, Run
from fmm.tuner.findings.thresholds import li_plan
from fmm.tuner.trials.journal import Journal, RoundLimits, Samples, paired_speedup
from fmm.tuner.tune import output_path

LI_HELP = "'strassen(tau1, tau2)' and 'winograd(tau1, tau2)' are Li's codes with the tuned thresholds"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    # Options that stand before the command too have no default of their own here, so that either place holds.
    bench = commands.add_parser("bench", help="time fmm's choice for an M x K by K x N product against the vendor")
    for side in ("m", "k", "n"):
        bench.add_argument(side, type=int, metavar=side.upper())
    bench.add_argument("--plan", action="append", default=[], help=f"this plan too (may be repeated); {LI_HELP}")
    bench.add_argument("--dtype", default="float64", help=", ".join(FLOATS))
    bench.add_argument("--device", default=argparse.SUPPRESS)
    bench.add_argument("--rounds", type=int, default=9)
    add_json(bench)
    bench.set_defaults(run=_bench)
    canary = commands.add_parser("canary", help="measure a few certified entries again after an update, in a second")
    canary.add_argument("--device", default=argparse.SUPPRESS)
    add_output(canary, "the config to test (the one that fmm reads)")
    canary.set_defaults(run=one_line_errors(_canary))


# ---- bench

# Li, Ranka and Sahni's recursive codes, Figures 16 and 23, with the thresholds of this device's tuning.
LI_CODE = re.compile(r"(strassen|winograd)\(tau1, *tau2\)(?: *> *(\S+))?")


def given_plan(text: str, device: Device, problem: Problem) -> Plan:
    """A plan by its text; PlanError says what is wrong with it."""
    code = LI_CODE.fullmatch(text.strip())
    if code is None:
        return Plan.parse(text)
    tuned = files.active_configs().tuned(device.identity, problem.dtype)
    if tuned is None or tuned.thresholds is None:
        raise PlanError(f"{text!r}: {device.identity.name} has no tau1 and tau2 for {problem.dtype}; tune it first")
    return li_plan(code[1], max(problem.size), tuned.thresholds, code[2] or VENDOR.leaf)


def _bench(options: argparse.Namespace) -> int:
    try:
        device = chosen_devices(options.device)[0]
        if options.dtype not in device.dtypes:
            raise ValueError(f"unknown dtype {options.dtype!r}; valid: {', '.join(device.dtypes)}")
        if options.rounds < 1:
            raise ValueError(f"--rounds must be 1 or more, not {options.rounds}")
        problem = Problem(options.m, options.k, options.n, options.dtype)
        if not min(problem.size):
            raise ValueError(f"sizes must be positive, not {options.m} {options.k} {options.n}")
        plans = [given_plan(text, device, problem) for text in options.plan]
    except (UnknownDeviceError, PlanError, ValueError) as error:
        print(f"fmm-tune bench: {error}", file=sys.stderr)
        return 2
    rows = list(benched(device, problem, plans, options.rounds))
    print(json.dumps(rows, indent=1) if options.json else "\n".join(map(_benched_line, rows)))
    return int(any("failed" in row for row in rows))


def benched(device: Device, problem: Problem, plans: list[Plan], rounds: int) -> Iterator[dict[str, Any]]:
    """fmm's own choice and the given plans, in rounds with the vendor."""
    limits = Limits(device.memory, default_error_growth(device.untuned().batches))
    decision = decide_plan(problem, limits, devices.Device(device.identity, device.untuned()))
    runs = list(dict.fromkeys([Run(), Run(decision.plan), *map(Run, plans)]))
    journal = Journal("bench", device)
    with journal.open("bench", problem) as timed:
        samples = timed.rounds(runs, RoundLimits(rounds))
    for run in runs:
        if samples[run]:
            step = decision.source if run.plan == decision.plan else "given"
            yield _bench_row(problem, run, samples, step if run != Run() or run.plan == decision.plan else "vendor")
    for trial in journal.recorded:
        if trial.failed:
            yield {"plan": trial.plan, "failed": trial.failed}


def _bench_row(problem: Problem, run: Run, samples: Samples, step: str) -> dict[str, Any]:
    low, high = certify.median_interval(certify.paired_ratios(samples[Run()][: len(samples[run])], samples[run]))
    seconds = median(samples[run])
    return {
        "plan": str(run.plan),
        "answered_by": step,
        "seconds": seconds,
        "gflops": problem.flops / seconds / 1e9,
        "speedup": paired_speedup(samples, Run(), run),
        "low": low,
        "high": high,
        "samples": samples[run],
    }


def _benched_line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}  {row['plan']}"
    times = f"{row['seconds']:.4g} s, {row['gflops']:.4g} Gflop/s"
    return f"{times}, {row['speedup']:.3f} [{row['low']:.3f}, {row['high']:.3f}]  {row['plan']} ({row['answered_by']})"


# ---- canary

CANARY_SECONDS = 1.0
CANARY_ROUNDS = 3


def _canary(options: argparse.Namespace) -> int:
    try:
        devices = chosen_devices(options.device)
    except UnknownDeviceError as error:
        print(f"fmm-tune canary: {error}", file=sys.stderr)
        return 2
    path, code = output_path(options.output), 0
    known = list(config_sections(path))
    for device in devices:
        own = [(dtype, raw) for key, dtype, raw in known if key == device.identity.key]
        if not own:
            raise schema.ConfigError(f"{path} says nothing of {device.identity.key}; `fmm-tune` measures it")
        for dtype, raw in own:
            code = max(code, _tested(path, device, dtype, raw))
    return code


def _tested(path: Path, device: Device, dtype: str, raw: Any) -> int:
    try:
        found = schema.read_section(raw, f"{device.identity.key}.{dtype}", device.identity, dtype)
    except schema.ConfigError as error:
        print(f"fmm-tune canary: {path}: {error}", file=sys.stderr)
        return 1
    holds, said = canary(Journal("canary", device), dtype, list(found.entries.values()))
    entries = [asdict(replace(e, verified=holds)) for e in found.entries.values()]
    store.merge_section(
        path, device.identity.key, dtype, {**raw, "versions": dict(device.identity.versions), "entries": entries}
    )
    print(f"{device.identity.key}, {dtype}: {said}")
    return int(not holds)


def canary(journal: Journal, dtype: str, entries: list[Entry]) -> tuple[bool, str]:
    """Do the entries hold, to judge by the cheapest few that a second allows? A gain that is gone condemns all."""
    fast = sorted((e for e in entries if e.plan != "vendor"), key=lambda e: e.vendor_seconds)
    if not fast:
        return True, "no gain is certified, so that there was nothing to measure"
    left, tried = CANARY_SECONDS, 0
    for entry in fast:
        cost = (entry.vendor_seconds + entry.seconds) * (CANARY_ROUNDS + 1)
        if tried and cost > left:
            break
        run = Run(Plan.parse(entry.plan))
        with journal.open("canary", Problem(*entry.size, dtype, op=entry.op)) as timed:
            samples = timed.rounds([Run(), run], RoundLimits(CANARY_ROUNDS if cost <= left else 1))
        left, tried = left - cost, tried + 1
        gain = paired_speedup(samples, Run(), run) if samples[run] else 0.0
        if gain < max(1.0, entry.low - entry.noise - 0.02):
            return False, f"{entry.size} gains {gain:.3f}, was {entry.text}: entries stay set aside; tune again"
    return True, f"{tried} of {len(fast)} gains measured again: all entries are trusted"

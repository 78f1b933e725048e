"""fmm-tune predict: the plan that the model would choose for a product on a device, and the runners-up."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from fmm.config import environment, files, identity
from fmm.config.identity import Identity
from fmm.config.schema import Tuned
from fmm.dtypes import DTYPES, INTEGERS
from fmm.hardware.datasheets import device, device_names
from fmm.kernels.cpu.threads.thread_pool import blas_threads
from fmm.kernels.plans.explain import explained_table, spelled_bytes
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import CPU_GROWTH, GPU_GROWTH, Candidate, Choice, Limits, choose, usual_growth
from fmm.perfmodel.cost import cost
from fmm.perfmodel.predict import LEAVES_OUT, predict
from fmm.perfmodel.untuned.built_in import cpu, with_integers
from fmm.perfmodel.untuned.datasheet import datasheet
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import completed_calibration
from fmm.runtime.decisions.decide import SMALLEST_EXACT_SIDE
from fmm.tuner.commands.options import add_json
from fmm.tuner.findings.described import instead
from fmm.tuner.findings.model_in_use import device_name, guess_of
from fmm.tuner.findings.outcome import spelled_growth, vendors_name

NO_LIMIT = 1 << 62
DEVICES = ("cpu", *device_names())
GROWTH_HELP = f"default {CPU_GROWTH:g}, on a GPU {GPU_GROWTH:g}"
NOMINAL = "nominal, 10 GB/s of sums a thread: only the ratios of times mean something"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("predict", help="predict the best plan for an M x K by K x N product")
    for side in ("m", "k", "n"):
        parser.add_argument(side, type=int, metavar=side.upper())
    parser.add_argument("--dtype", default="float64", help=", ".join(DTYPES))
    parser.add_argument("--device", default=argparse.SUPPRESS, help=", ".join(DEVICES))
    parser.add_argument("--workspace", type=int, metavar="BYTES", help="the most temporaries may take")
    parser.add_argument("--max-error-growth", type=float, metavar="X", help=GROWTH_HELP)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the choice; exit code 2 and one line if the arguments are off."""
    try:
        problem = _problem(options)
        calibration = _calibration("cpu" if options.device is None else options.device, problem.dtype)
        calibration.rate(problem.dtype)
        limits = _limits(options, problem, usual_growth(calibration.batches))
    except ValueError as error:
        print(f"fmm-tune predict: {error}", file=sys.stderr)
        return 2
    found = printed_fields(_choice(problem, calibration, limits), calibration, limits)
    name = "cpu" if options.device is None else options.device
    found["not_used"] = _not_used(name, problem.dtype)
    found["tuned_elsewhere"] = _tuned_elsewhere(name, problem.dtype)
    found["measured"] = _measured(name, problem)
    print(json.dumps(found, indent=1) if options.json else _text(found))
    return 0


def _problem(options: argparse.Namespace) -> Problem:
    problem = Problem(options.m, options.k, options.n, options.dtype)
    if not min(problem.size):
        raise ValueError(f"sizes must be positive, not {options.m} {options.k} {options.n}")
    return problem


def _choice(problem: Problem, calibration: Calibration, limits: Limits) -> Choice:
    """The model's, but for integers with a short side on the host, which fmm.matmul leaves to NumPy unasked."""
    choice = choose(problem, calibration, limits)
    if calibration.batches or not problem.type.exact or min(problem.size) >= SMALLEST_EXACT_SIDE:
        return choice
    numpys = next(candidate for candidate in choice.considered if candidate.plan == VENDOR)
    why = f"fmm.matmul leaves integers with a side shorter than {SMALLEST_EXACT_SIDE} to NumPy"
    return replace(choice, best=numpys, reason=why)


def _identity(name: str) -> Identity:
    """Of a device by its key in the configs in force ("cpu": this one), with the name that it has there."""
    if name.casefold() == "cpu":
        return identity.cpu_identity(blas_threads())
    for devices in files.configs_in_force().files.values():
        for section in devices.get(name, {}).values():
            return Identity(name, device_name(name, section))
    return Identity(name, name)


def _tuned(name: str, dtype: str) -> Tuned | None:
    """What the configs in force say of such a device."""
    own = "float64" if name.casefold() == "cpu" and dtype in INTEGERS else dtype  # integers are not tuned themselves
    return None if environment.tuning_mode() == "off" else files.configs_in_force().tuned(_identity(name), own)


def _trusted(name: str, dtype: str) -> Calibration | None:
    """The model by which fmm.matmul chooses there, by a tuning that is used."""
    tuned, known = _tuned(name, dtype), _identity(name)
    real = _tuned(name, DTYPES[dtype].real) if DTYPES[dtype].real else None
    return completed_calibration(tuned, real, guess_of(known.key, known.name)) if tuned else None


def _not_used(name: str, dtype: str) -> str:
    """Why fmm.matmul sets a tuning aside, and so do we."""
    tuned = _tuned(name, dtype)
    if not tuned or not tuned.doubts:
        return ""
    return f"the tuning here is not used: {tuned.doubts[0]}; {instead(tuned.identity, dtype)}"


def _measured(name: str, problem: Problem) -> str:
    """What was measured of exactly this product, by which fmm.matmul goes rather than by the model."""
    tuned = None if problem.type.exact else _tuned(name, problem.dtype)
    known = tuned.entry(problem.size) if tuned else None
    return f"fmm.matmul goes by what was measured of this size: {known[0].plan}, {known[0].text}" if known else ""


def _tuned_elsewhere(name: str, dtype: str) -> str:
    """Under which key the configs in force know cards of that name, by which fmm.matmul goes on them."""
    if name.casefold() not in map(str.casefold, device_names()) or environment.tuning_mode() == "off":
        return ""
    gpu = device(name)
    key = identity.gpu_key(gpu.capability, gpu.sms)
    known = _identity(key)
    named = guess_of(key, known.name)
    if named is None or named.name != gpu.name or _trusted(key, dtype) is None:
        return ""
    return f"on a {known.name} fmm.matmul goes by a tuning of such a card: `--device {key}` tells what it chooses"


def _calibration(name: str, dtype: str) -> Calibration:
    """Of a device whose tuning is used, else of a datasheet."""
    here = name.casefold() == "cpu"
    exact = here and dtype in INTEGERS
    if (known := _trusted(name, dtype)) is not None:
        return with_integers(known) if exact else known
    if here:
        return with_integers(cpu(blas_threads())) if exact else cpu(blas_threads())
    try:
        return datasheet(name)
    except ValueError:
        keys = [key for devices in files.configs_in_force().files.values() for key in devices]
        raise ValueError(f"unknown device {name!r}; valid: {', '.join((*DEVICES, *keys))}") from None


def _limits(options: argparse.Namespace, problem: Problem, usual: float) -> Limits:
    """The limits given; never more workspace than the device has left beside the operands."""
    workspace = NO_LIMIT if options.workspace is None else options.workspace
    if workspace < 0:
        raise ValueError(f"--workspace must be 0 or more, not {workspace}")
    growth = usual if options.max_error_growth is None else options.max_error_growth
    if not growth > 0:  # nan too
        raise ValueError(f"--max-error-growth must be a number above 0, not {growth}")
    name = "cpu" if options.device is None else options.device
    left = _left(name, problem) if name.casefold() in map(str.casefold, device_names()) else NO_LIMIT
    return Limits(min(workspace, left), growth)


def _left(name: str, problem: Problem) -> int:
    (m, k, n), gpu = problem.size, device(name)
    memory, operands = int(gpu.memory_gb * 1e9), (m * k + k * n + m * n) * problem.itemsize
    if operands > memory:
        raise ValueError(f"A, B and C take {spelled_bytes(operands)}, {gpu.name} has {spelled_bytes(memory)}")
    return memory - operands


# ---- what is printed, as text or as JSON


def printed_fields(choice: Choice, calibration: Calibration, limits: Limits) -> dict[str, Any]:
    """All that is printed. Times are of exact counts, like the vendor's to which they are compared."""
    problem = choice.best.prediction.problem
    vendor = predict(VENDOR, problem, calibration).seconds
    rest = [candidate for candidate in choice.considered if candidate is not choice.best]
    return {
        "device": calibration.name,
        "source": calibration.source,
        "library": vendors_name(calibration),
        "size": problem.size,
        "dtype": problem.dtype,
        "workspace_limit": None if limits.workspace == NO_LIMIT else limits.workspace,
        "error_growth_limit": limits.error_growth,
        "reason": choice.reason,
        "chosen": _row(choice.best, calibration, limits, vendor),
        "runners_up": [_row(candidate, calibration, limits, vendor) for candidate in rest],
        "seconds_are": NOMINAL if calibration.source == cpu(1).source else "predicted",
        "leaves_out": LEAVES_OUT,
    }


def _row(candidate: Candidate, calibration: Calibration, limits: Limits, vendor: float) -> dict[str, Any]:
    problem = candidate.prediction.problem
    exact = predict(candidate.plan, problem, calibration)
    counts = cost(candidate.plan, *problem.size, problem.itemsize)
    return {
        "plan": str(candidate.plan),
        "seconds": exact.seconds,
        "speedup": vendor / exact.seconds,
        "tflops": exact.effective_flops / 1e12,
        "dominant": exact.dominant,
        "traffic": counts.bytes,
        "launches": counts.launches,
        "workspace": counts.workspace,
        "error_growth": candidate.error_growth,
        "exceeds": _exceeds(candidate, limits),
    }


def _exceeds(candidate: Candidate, limits: Limits) -> list[str]:
    """The limits that the candidate does not keep."""
    kept = {"error": candidate.error_growth <= limits.error_growth, "workspace": candidate.fits(limits.workspace)}
    return [name for name, keeps in kept.items() if not keeps]


def _text(found: dict[str, Any]) -> str:
    best, (m, k, n) = found["chosen"], found["size"]
    lines = [
        f"{m}x{k}x{n} {found['dtype']} on {found['device']} ({found['source']})",
        f"plan: {best['plan']}",
        f"why: {found['reason']}",
        *(found[note] for note in ("not_used", "tuned_elsewhere", "measured") if found[note]),
        f"time: {best['seconds']:.4g} s, {best['speedup']:.2f} times as fast as {found['library']}, "
        f"{best['tflops']:.3g} TFLOPS, mostly {best['dominant']}",
        f"traffic {spelled_bytes(best['traffic'])}, launches {best['launches']}, "
        f"workspace {spelled_bytes(best['workspace'])}, "
        f"expected error {spelled_growth(best['error_growth'])} times the usual",
        *([f"seconds: {found['seconds_are']}"] if found["seconds_are"] == NOMINAL else []),
        "",
        explained_table(Plan.parse(best["plan"]), m, k, n, DTYPES[found["dtype"]].itemsize),
        "",
        "runners-up, by estimated time:",
        f"{'seconds':>10}{'speedup':>9}{'TFLOPS':>11}{'traffic':>11}{'workspace':>11}{'error':>7}  mostly    plan",
        *map(_runner_up, found["runners_up"]),
        "",
        f"left out: {found['leaves_out']}",
    ]
    return "\n".join(lines)


def _runner_up(row: dict[str, Any]) -> str:
    exceeds = f" (too much {' and '.join(row['exceeds'])})" if row["exceeds"] else ""
    return (
        f"{row['seconds']:>10.4g}{row['speedup']:>9.2f}{row['tflops']:>11.3g}{spelled_bytes(row['traffic']):>11}"
        f"{spelled_bytes(row['workspace']):>11}{row['error_growth']:>7.1f}  {row['dominant']:<9} {row['plan']}{exceeds}"
    )

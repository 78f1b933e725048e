"""fmm-tune predict: the plan that the model would choose for a product on a device, and the runners-up."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fmm.config.schema import ANY, PRODUCT, Entry, Tuned
from fmm.dtypes import DTYPES
from fmm.kernels.plans.explain import format_bytes, plan_table
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import (
    CPU_ERROR_GROWTH,
    GPU_ERROR_GROWTH,
    Candidate,
    Choice,
    Limits,
    choose,
    default_error_growth,
    required_margin,
)
from fmm.perfmodel.cost import cost
from fmm.perfmodel.default_calibration import cpu_calibration
from fmm.perfmodel.predict import LEAVES_OUT, predict
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import OPERATIONS, Problem, Shape
from fmm.runtime.decisions.decide import SMALLEST_INTEGER_SIDE, decide_by_tuning
from fmm.runtime.decisions.limits import limits_without_arrays, workspace_share
from fmm.tuner.commands.config_file import add_json
from fmm.tuner.device_registry import (
    config_tuning,
    find_calibration,
    find_datasheet,
    find_identity,
    is_local_cpu,
    is_local_gpu,
    memory_in_config,
    names_in_words,
    rejected_because,
    trusted_calibration,
    tuned_keys,
)
from fmm.tuner.findings.model_in_use import guess_of, passed_over
from fmm.tuner.findings.outcome import spelled_growth, vendors_name

NO_LIMIT = 1 << 62
SIDES = "M alone is a square, M K N an M x K by K x N product"
GROWTH_HELP = f"default {CPU_ERROR_GROWTH:g}, on a GPU {GPU_ERROR_GROWTH:g}"
NOMINAL = "nominal, 10 GB/s of sums a thread: only the ratios of times mean something"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "predict the best plan for an M x K by K x N product"
    parser = commands.add_parser("predict", help=what, add_help=False)
    parser.add_argument("-h", "--help", action=_Help, nargs=0, default=argparse.SUPPRESS, help="show this and exit")
    parser.add_argument("m", type=_whole_number, metavar="M", help=SIDES)
    for side in ("k", "n"):
        parser.add_argument(side, type=_whole_number, nargs="?", metavar=side.upper())
    parser.add_argument("--dtype", default="float64", help=", ".join(DTYPES))
    parser.add_argument("--op", default="product", help=f"{', '.join(OPERATIONS)}: as fmm.plan has them")
    parser.add_argument("--device", default=argparse.SUPPRESS, help="one of the devices below (default: cpu)")
    parser.add_argument("--workspace", type=int, metavar="BYTES", help="the most temporaries may take")
    parser.add_argument("--max-error-growth", type=float, metavar="X", help=GROWTH_HELP)
    add_json(parser)
    parser.set_defaults(run=run)


class _Help(argparse.Action):
    """The help, and below it the devices that can be asked for now: configs are read for those who want to see it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        parser.print_help()
        width = max(shutil.get_terminal_size().columns - 2, 20)
        print("", *textwrap.wrap(names_in_words(), width, break_on_hyphens=False, break_long_words=False), sep="\n")
        parser.exit()


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}; a side is a whole number from 1 on") from None


def run(options: argparse.Namespace) -> int:
    """Print the choice; exit code 2 and one line if the arguments are off."""
    name = "cpu" if options.device is None else options.device
    try:
        problem = _problem(options)
        calibration = find_calibration(name, problem.dtype)
        calibration.rate(problem.dtype)
        limits = _limits(options, name, problem, default_error_growth(calibration.batches))
    except ValueError as error:
        print(f"fmm-tune predict: {error}", file=sys.stderr)
        return 2
    choice, notes = _by_tuning(name, _choice(problem, calibration, limits), problem, calibration, limits)
    found = printed_fields(choice, calibration, limits) | notes
    found["not_used"] = rejected_because(name, problem.dtype)
    found["tuned_elsewhere"] = _tuned_elsewhere(name, problem)
    found["probed"] = _probed(name, problem, choice)
    print(json.dumps(found, indent=1) if options.json else _text(found))
    return 0


def _problem(options: argparse.Namespace) -> Problem:
    m, k, n = _sides(options.m, options.k, options.n)
    if options.op in OPERATIONS and options.op != "product" and m != n:
        raise ValueError(f"--op {options.op} needs M = N, for its result is its own adjoint, not {m} and {n}")
    return Problem(m, k, n, options.dtype, op=options.op)


def _sides(m: int, k: int | None, n: int | None) -> Shape:
    """All three, of M alone, which is a square, or of M K N."""
    if k is None:
        k = n = m
    if n is None:
        raise ValueError(f"two sides, {m} and {k}, are no product: {SIDES}")
    for name, side in zip("MKN", (m, k, n), strict=True):
        if side < 1:
            raise ValueError(f"{name} must be 1 or more, not {side}: {SIDES}")
    return m, k, n


def _function(problem: Problem) -> str:
    """Whom a user calls for it."""
    return "fmm.gram" if problem.writes_triangle else "fmm.matmul"


def _choice(problem: Problem, calibration: Calibration, limits: Limits) -> Choice:
    """The model's, but for integers with a short side on the host, which fmm.matmul leaves to NumPy unasked."""
    choice = choose(problem, calibration, limits)
    if calibration.batches or not problem.type.exact or min(problem.size) >= SMALLEST_INTEGER_SIDE:
        return choice
    numpys = next(candidate for candidate in choice.candidates if candidate.plan == VENDOR)
    why = f"{_function(problem)} leaves integers with a side shorter than {SMALLEST_INTEGER_SIDE} to NumPy"
    return replace(choice, best=numpys, reason=why)


def _by_tuning(
    name: str, choice: Choice, problem: Problem, calibration: Calibration, limits: Limits
) -> tuple[Choice, dict[str, str]]:
    """What fmm.matmul does instead of the model's choice by what was measured of exactly this product, as it decides
    itself; and what was measured, by which it goes or which it passes over, and why."""
    tuned = None if problem.type.exact else config_tuning(name, problem.dtype)
    if tuned is None:
        return choice, {"measured": "", "passed_over": ""}
    known = decide_by_tuning(problem, limits, tuned, trusted_calibration(name, problem.dtype), not calibration.batches)
    entry = _entry_of(tuned, problem, limits)
    told = f"{entry.plan}, {entry.text}" if entry else ""
    why = passed_over(entry, problem, limits, tuned, known) if entry else ""
    notes = {"measured": "" if why else told, "passed_over": f"{told}; passed over: {why}" if why else ""}
    if known is None:
        return choice, notes
    return replace(choice, best=_candidate(known.plan, choice, calibration), reason=known.reason), notes


def _entry_of(tuned: Tuned, problem: Problem, limits: Limits) -> Entry | None:
    """What the tuning has of exactly this product, be it trusted or not; for a call without workspace the lean one."""
    keys = [(problem.op, problem.size, ANY, lean) for lean in (True, False)[limits.workspace > 0 :]]
    return next((tuned.entries[key] for key in keys if key in tuned.entries), None)


def _candidate(plan: Plan, choice: Choice, calibration: Calibration) -> Candidate:
    """The plan as the model sees it, which may not have compared it."""
    if (known := next((x for x in choice.candidates if x.plan == plan), None)) is not None:
        return known
    problem = choice.best.prediction.problem
    own, base = (predict(x, problem, calibration) for x in (plan, VENDOR))
    growth = expected_error_growth(plan, problem.dtype, not calibration.batches)
    return Candidate(plan, own, own.seconds / base.seconds, growth, required_margin(plan, problem, calibration))


def _tuned_elsewhere(name: str, problem: Problem) -> str:
    """Under which key the configs in force know cards of that name, by which fmm goes on them."""
    gpu = None if is_local_gpu(name) else find_datasheet(name)
    if gpu is None:
        return ""
    for known in map(find_identity, tuned_keys()):
        named = guess_of(known.key, known.name)
        if named and named.name == gpu.name and trusted_calibration(known.key, problem.dtype) is not None:
            goes = f"{_function(problem)} goes by a tuning of such a card"
            return f"on a {known.name} {goes}: `--device {known.key}` tells what it chooses"
    return ""


def _probed(name: str, problem: Problem, choice: Choice) -> str:
    """That a plan for this processor, which is not tuned, is not yet what a call does."""
    asked = is_local_cpu(name) and problem.op == PRODUCT and choice.best.plan != VENDOR
    if not asked or trusted_calibration(name, problem.dtype) is not None:
        return ""
    m, k, n = problem.size
    return (
        f"a call goes by what it measures of this processor for a moment, not by this: fmm.plan({m}, {k}, {n}, "
        f"dtype={problem.dtype!r}) does so now, and says what it chooses"
    )


def _limits(options: argparse.Namespace, name: str, problem: Problem, usual: float) -> Limits:
    """The limits given, and the environment's; never more workspace than the device has left beside the operands."""
    workspace = NO_LIMIT if options.workspace is None else options.workspace
    if workspace < 0:
        raise ValueError(f"--workspace must be 0 or more, not {workspace}")
    growth = usual if options.max_error_growth is None else options.max_error_growth
    if not growth > 0:  # nan too
        raise ValueError(f"--max-error-growth must be a number above 0, not {growth}")
    left = _left(name, problem)
    if options.workspace is None and left != NO_LIMIT and find_datasheet(name) is None:
        left = workspace_share(left)  # as fmm.matmul and `fmm-tune show` have it by that tuning
    return limits_without_arrays(problem.op, problem.dtype, min(workspace, left), growth)


def _left(name: str, problem: Problem) -> int:
    """Bytes of the memory of a datasheet, or of a config's device, beside the matrices, of which a gram has one factor
    alone."""
    gpu = find_datasheet(name)
    memory = int(gpu.memory_gb * 1e9) if gpu else memory_in_config(name)
    if memory is None:
        return NO_LIMIT
    m, k, n = problem.size
    operands = (m * k + (0 if problem.op == "gram" else k * n) + m * n) * problem.itemsize
    if operands > memory:
        who = "A and C" if problem.op == "gram" else "A, B and C"
        raise ValueError(f"{who} take {format_bytes(operands)}, {gpu.name if gpu else name} has {format_bytes(memory)}")
    return memory - operands


# ---- what is printed, as text or as JSON


def printed_fields(choice: Choice, calibration: Calibration, limits: Limits) -> dict[str, Any]:
    """All that is printed. Times are of exact counts, like the vendor's to which they are compared."""
    problem = choice.best.prediction.problem
    vendor = predict(VENDOR, problem, calibration).seconds
    rest = [candidate for candidate in choice.candidates if candidate is not choice.best]
    return {
        "device": calibration.name,
        "source": calibration.source,
        "library": vendors_name(calibration),
        "op": problem.op,
        "size": problem.size,
        "dtype": problem.dtype,
        "workspace_limit": None if limits.workspace == NO_LIMIT else limits.workspace,
        "error_growth_limit": limits.error_growth,
        "reason": choice.reason,
        "chosen": _row(choice.best, calibration, limits, vendor),
        "runners_up": [_row(candidate, calibration, limits, vendor) for candidate in rest],
        "seconds_are": NOMINAL if calibration.source == cpu_calibration(1).source else "predicted",
        "leaves_out": LEAVES_OUT,
    }


def _row(candidate: Candidate, calibration: Calibration, limits: Limits, vendor: float) -> dict[str, Any]:
    problem = candidate.prediction.problem
    exact = predict(candidate.plan, problem, calibration)
    counts = cost(candidate.plan, *problem.size, problem.itemsize, op=problem.op)
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
    """The limits that the candidate does not keep; `emulation` where FMM_EMULATION=0 forbids it."""
    emulates = not limits.emulation and candidate.plan.emulates
    kept = {
        "emulation": not emulates,
        "error": replace(limits, emulation=limits.emulation or emulates).allow(candidate.plan, candidate.error_growth),
        "workspace": candidate.fits(limits.workspace),
    }
    return [name for name, keeps in kept.items() if not keeps]


def _text(found: dict[str, Any]) -> str:
    best, (m, k, n), op = found["chosen"], found["size"], found["op"]
    what = "" if op == "product" else f" {op}"
    time = "time by the model" if found["measured"] else "time"
    lines = [
        f"{m}x{k}x{n} {found['dtype']}{what} on {found['device']} ({found['source']})",
        f"plan: {best['plan']}",
        f"why: {found['reason']}",
        *(found[note] for note in ("not_used", "tuned_elsewhere", "probed") if found[note]),
        *([f"measured of this size: {found['passed_over']}"] if found["passed_over"] else []),
        f"{time}: {best['seconds']:.4g} s, {best['speedup']:.2f} times as fast as {found['library']}, "
        f"{best['tflops']:.3g} TFLOPS, mostly {best['dominant']}",
        f"traffic {format_bytes(best['traffic'])}, launches {best['launches']}, "
        f"workspace {format_bytes(best['workspace'])}, "
        f"expected error {spelled_growth(best['error_growth'])} times the usual",
        *([f"seconds: {found['seconds_are']}"] if found["seconds_are"] == NOMINAL else []),
        "",
        plan_table(Plan.parse(best["plan"]), m, k, n, DTYPES[found["dtype"]].itemsize, GemmParams(op=op)),
        "",
        "runners-up, by estimated time:",
        f"{'seconds':>10}{'speedup':>9}{'TFLOPS':>11}{'traffic':>11}{'workspace':>11}{'error':>7}  mostly    plan",
        *map(_runner_up, found["runners_up"]),
        "",
        f"left out: {found['leaves_out']}",
    ]
    return "\n".join(lines)


def _runner_up(row: dict[str, Any]) -> str:
    much = " and ".join(name for name in row["exceeds"] if name != "emulation")
    why = ["FMM_EMULATION=0 forbids it"] * ("emulation" in row["exceeds"]) + [f"too much {much}"] * bool(much)
    exceeds = f" ({'; '.join(why)})" if why else ""
    return (
        f"{row['seconds']:>10.4g}{row['speedup']:>9.2f}{row['tflops']:>11.3g}{format_bytes(row['traffic']):>11}"
        f"{format_bytes(row['workspace']):>11}{row['error_growth']:>7.1f}  {row['dominant']:<9} {row['plan']}{exceeds}"
    )

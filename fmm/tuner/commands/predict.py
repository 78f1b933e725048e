"""fmm-tune predict: print fmm's decision for a product on any device, with predicted times of the other plans."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fmm.config.schema import ANY_LAYOUT, DEFAULT_OPERATION, Entry, Tuning
from fmm.dtypes import DTYPES
from fmm.kernels.plans.explain import format_bytes, format_error_growth, plan_table
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import (
    CPU_ERROR_GROWTH_LIMIT,
    GPU_ERROR_GROWTH_LIMIT,
    Candidate,
    Choice,
    Limits,
    choose,
    default_error_growth_limit,
    required_margin,
    required_margin_parts,
)
from fmm.perfmodel.cost import cost
from fmm.perfmodel.default_calibration import cpu_calibration
from fmm.perfmodel.predict import OMITTED_EFFECTS, predict
from fmm.perfmodel.prediction_terms import prediction_terms
from fmm.perfmodel.stability import expected_error_growth, is_error_measured
from fmm.problem import OPERATIONS, Problem, Shape
from fmm.runtime.decisions.decide import MIN_INTEGER_PLAN_SIDE, decide_by_tuning
from fmm.runtime.decisions.first_product import uses_portable_kernels
from fmm.runtime.decisions.limits import limits_without_arrays, workspace_limit_for_free_bytes
from fmm.tuner.commands.config_file import add_json_option
from fmm.tuner.device_registry import (
    find_calibration,
    find_datasheet,
    is_cpu_name,
    memory_bytes_from_config,
    trusted_calibration,
    tuning_from_config,
    tuning_rejection_reason,
    valid_devices_text,
)
from fmm.tuner.findings.model_in_use import entry_skip_reason
from fmm.tuner.findings.summary import TextTable, text_table, vendor_name

UNLIMITED_BYTES = 1 << 62
SIDES_HELP = "M alone is a square, M K N an M x K by K x N product"
GROWTH_HELP = f"default {CPU_ERROR_GROWTH_LIMIT:g}, on a GPU {GPU_ERROR_GROWTH_LIMIT:g}"
TERMS_HELP = "print each term of the predicted time of the chosen plan, or of PLAN, and of the vendor's product"
NOMINAL_RATES_NOTE = "nominal, 10 GB/s of sums per thread: only ratios of times are meaningful"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `predict` to the commands of fmm-tune."""
    what = "predict the best plan for an M x K by K x N product"
    parser = commands.add_parser("predict", help=what, add_help=False)
    parser.add_argument(
        "-h", "--help", action=_HelpWithDevicesAction, nargs=0, default=argparse.SUPPRESS, help="show this and exit"
    )
    parser.add_argument("m", type=_parse_whole_number, metavar="M", help=SIDES_HELP)
    for side in ("k", "n"):
        parser.add_argument(side, type=_parse_whole_number, nargs="?", metavar=side.upper())
    parser.add_argument("--dtype", default="float64", help=", ".join(DTYPES))
    parser.add_argument("--op", default="product", help=f"{', '.join(OPERATIONS)}: the operations of fmm.plan")
    parser.add_argument("--device", default=argparse.SUPPRESS, help="a device below (default: cpu)")
    parser.add_argument("--workspace", type=int, metavar="BYTES", help="limit of the temporaries")
    parser.add_argument("--max-error-growth", type=float, metavar="X", help=GROWTH_HELP)
    parser.add_argument("--terms", nargs="?", const="", metavar="PLAN", help=TERMS_HELP)
    add_json_option(parser)
    parser.set_defaults(run=run_predict)


class _HelpWithDevicesAction(argparse.Action):
    """The action of --help: print the help, then the names of all devices, including those in the configs."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        parser.print_help()
        width = max(shutil.get_terminal_size().columns - 2, 20)
        print("", *textwrap.wrap(valid_devices_text(), width, break_on_hyphens=False, break_long_words=False), sep="\n")
        parser.exit()


def _parse_whole_number(text: str) -> int:
    """Return a command-line argument as an integer; raise ArgumentTypeError with a hint for other texts."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}; a side is a whole number from 1 on") from None


def run_predict(options: argparse.Namespace) -> int:
    """Print fmm's decision for the problem; for invalid arguments print one line and return exit code 2."""
    name = "cpu" if options.device is None else options.device
    try:
        problem = _problem_of_options(options)
        calibration = find_calibration(name, problem.dtype)
        calibration.require_rate(problem.dtype)
        limits = _limits_of_options(options, name, problem, default_error_growth_limit(calibration.batches))
        plan_of_terms = Plan.parse(options.terms) if options.terms else None
    except ValueError as error:
        print(f"fmm-tune predict: {error}", file=sys.stderr)
        return 2
    choice, notes = _choice_by_tuning(name, _model_choice(problem, calibration, limits), problem, calibration, limits)
    found = prediction_fields(choice, calibration, limits) | notes
    found["not_used"] = tuning_rejection_reason(name, problem.dtype)
    found["probed"] = _untuned_cpu_note(name, problem, choice) or _portable_kernels_note(name, problem, choice)
    if options.terms is not None:
        found["terms"] = _prediction_term_texts(plan_of_terms or choice.best.plan, problem, calibration)
    print(json.dumps(found, indent=1) if options.json else _decision_text(found))
    return 0


def _prediction_term_texts(plan: Plan, problem: Problem, calibration: Calibration) -> list[str]:
    """Return the terms of two predicted times as text: the time of a plan, and the time of the vendor's product."""
    plans = dict.fromkeys((plan, VENDOR))
    return [str(prediction_terms(predict(x, problem, calibration), calibration)) for x in plans]


def _problem_of_options(options: argparse.Namespace) -> Problem:
    """Return the problem of the arguments M, K, N, --dtype and --op; raise ValueError for invalid arguments."""
    m, k, n = _sides_of_options(options.m, options.k, options.n)
    if options.op in OPERATIONS and options.op != "product" and m != n:
        raise ValueError(f"--op {options.op} needs M = N, for its result is its own adjoint, not {m} and {n}")
    return Problem(m, k, n, options.dtype, op=options.op)


def _sides_of_options(m: int, k: int | None, n: int | None) -> Shape:
    """Return (m, k, n) of the arguments M, K and N; M alone is a square product."""
    if k is None:
        k = n = m
    if n is None:
        raise ValueError(f"two sides, {m} and {k}, are no product: {SIDES_HELP}")
    for name, side in zip("MKN", (m, k, n), strict=True):
        if side < 1:
            raise ValueError(f"{name} must be 1 or more, not {side}: {SIDES_HELP}")
    return m, k, n


def _public_function_name(problem: Problem) -> str:
    """Return the name of the public function that computes this product: fmm.gram or fmm.matmul."""
    return "fmm.gram" if problem.writes_triangle else "fmm.matmul"


def _model_choice(problem: Problem, calibration: Calibration, limits: Limits) -> Choice:
    """Return the model's choice; for integer matrices with a short side on a CPU, the choice is NumPy's product."""
    choice = choose(problem, calibration, limits)
    if calibration.batches or not problem.element_type.exact or min(problem.size) >= MIN_INTEGER_PLAN_SIDE:
        return choice
    numpys = next(candidate for candidate in choice.candidates if candidate.plan == VENDOR)
    why = f"{_public_function_name(problem)} leaves integers with a side shorter than {MIN_INTEGER_PLAN_SIDE} to NumPy"
    return replace(choice, best=numpys, reason=why)


def _choice_by_tuning(
    name: str, choice: Choice, problem: Problem, calibration: Calibration, limits: Limits
) -> tuple[Choice, dict[str, str]]:
    """Return fmm.matmul's decision, for which certified entries precede the model's choice, and notes for the output.

    If the decision uses a certified entry, the note `measured` describes the entry's measurements. If the decision does
    not use an entry of the product, the note `passed_over` describes the entry and says why.
    """
    tuned = None if problem.element_type.exact else tuning_from_config(name, problem.dtype)
    if tuned is None:
        return choice, {"measured": "", "passed_over": ""}
    known = decide_by_tuning(problem, limits, tuned, trusted_calibration(name, problem.dtype), not calibration.batches)
    entry = _entry_of_product(tuned, problem, limits)
    text = f"{entry.plan}, {entry.evidence_text}" if entry else ""
    why = entry_skip_reason(entry, problem, limits, tuned, known) if entry else ""
    notes = {"measured": "" if why else text, "passed_over": f"{text}; skipped: {why}" if why else ""}
    if known is None:
        return choice, notes
    return replace(choice, best=_candidate_of_plan(known.plan, choice, calibration), reason=known.reason), notes


def _entry_of_product(tuned: Tuning, problem: Problem, limits: Limits) -> Entry | None:
    """Return the tuning's entry for exactly this product, even if unverified; None if there is no entry.

    If the workspace limit is 0 bytes, an entry is returned only if its plan needs no workspace.
    """
    keys = [(problem.op, problem.size, ANY_LAYOUT, lean) for lean in (True, False)[limits.workspace > 0 :]]
    return next((tuned.entries[key] for key in keys if key in tuned.entries), None)


def _candidate_of_plan(plan: Plan, choice: Choice, calibration: Calibration) -> Candidate:
    """Return a plan as a candidate with its predicted time; the plan need not be among the candidates of `choice`."""
    if (known := next((x for x in choice.candidates if x.plan == plan), None)) is not None:
        return known
    problem = choice.best.prediction.problem
    own, base = (predict(x, problem, calibration) for x in (plan, VENDOR))
    growth = expected_error_growth(plan, problem.dtype, not calibration.batches)
    return Candidate(
        plan, own, own.predicted_seconds / base.predicted_seconds, growth, required_margin(plan, problem, calibration)
    )


def _untuned_cpu_note(name: str, problem: Problem, choice: Choice) -> str:
    """Return a note that fmm.matmul would first probe this CPU, which has no tuning; else an empty text."""
    applies = is_cpu_name(name) and problem.op == DEFAULT_OPERATION and choice.best.plan != VENDOR
    if not applies or trusted_calibration(name, problem.dtype) is not None:
        return ""
    m, k, n = problem.size
    return (
        f"a call decides by a short probe of this processor instead: fmm.plan({m}, {k}, {n}, dtype={problem.dtype!r}) "
        "returns its decision"
    )


def _portable_kernels_note(name: str, problem: Problem, choice: Choice) -> str:
    """Return a note if no GPU of this kind has run the plan's kernels; the first large product measures the kernels."""
    gpu = find_datasheet(name)
    if gpu is None or not uses_portable_kernels(choice.best.plan, problem.dtype, gpu.name):
        return ""
    return (
        f"predicted: no {gpu.name} has run these kernels. The first large {problem.dtype} product on one times the "
        "plan against the vendor, and the result decides from then on"
    )


def _limits_of_options(options: argparse.Namespace, name: str, problem: Problem, usual: float) -> Limits:
    """Return the limits of workspace and error growth, from the options, the environment and the device's memory."""
    workspace = UNLIMITED_BYTES if options.workspace is None else options.workspace
    if workspace < 0:
        raise ValueError(f"--workspace must be 0 or more, not {workspace}")
    growth = usual if options.max_error_growth is None else options.max_error_growth
    if not growth > 0:  # `not growth > 0` is also true for NaN
        raise ValueError(f"--max-error-growth must be a number above 0, not {growth}")
    left = _bytes_left_for_workspace(name, problem)
    if options.workspace is None and left != UNLIMITED_BYTES and find_datasheet(name) is None:
        left = workspace_limit_for_free_bytes(left)  # fmm.matmul and `fmm-tune show` use the same limit
    return limits_without_arrays(problem.op, problem.dtype, min(workspace, left), growth)


def _bytes_left_for_workspace(name: str, problem: Problem) -> int:
    """Return the bytes of device memory that remain free if only the operands and the result are allocated.

    A gram product has the operand A only. ValueError is raised if operands and result do not fit in memory.
    """
    gpu = find_datasheet(name)
    memory = int(gpu.memory_gb * 1e9) if gpu else memory_bytes_from_config(name)
    if memory is None:
        return UNLIMITED_BYTES
    m, k, n = problem.size
    operands = (m * k + (0 if problem.op == "gram" else k * n) + m * n) * problem.itemsize
    if operands > memory:
        who = "A and C" if problem.op == "gram" else "A, B and C"
        raise ValueError(f"{who} take {format_bytes(operands)}, {gpu.name if gpu else name} has {format_bytes(memory)}")
    return memory - operands


# ---- the output, as text or as JSON


def prediction_fields(choice: Choice, calibration: Calibration, limits: Limits) -> dict[str, Any]:
    """Return the decision as the fields that --json prints; all times are predicted from exact counts of work."""
    problem = choice.best.prediction.problem
    vendor = predict(VENDOR, problem, calibration).predicted_seconds
    rest = [candidate for candidate in choice.candidates if candidate is not choice.best]
    return {
        "device": calibration.name,
        "source": calibration.source,
        "library": vendor_name(calibration),
        "op": problem.op,
        "size": problem.size,
        "dtype": problem.dtype,
        "workspace_limit": None if limits.workspace == UNLIMITED_BYTES else limits.workspace,
        "error_growth_limit": limits.error_growth,
        "reason": choice.reason,
        "chosen": _candidate_fields(choice.best, calibration, limits, vendor),
        "runners_up": [_candidate_fields(candidate, calibration, limits, vendor) for candidate in rest],
        "seconds_are": NOMINAL_RATES_NOTE if calibration.source == cpu_calibration(1).source else "predicted",
        "leaves_out": OMITTED_EFFECTS,
    }


def _candidate_fields(candidate: Candidate, calibration: Calibration, limits: Limits, vendor: float) -> dict[str, Any]:
    """Return a candidate as fields for JSON; `vendor` is the vendor's predicted time in seconds."""
    problem = candidate.prediction.problem
    exact = predict(candidate.plan, problem, calibration)
    counts = cost(candidate.plan, *problem.size, problem.itemsize, op=problem.op)
    return {
        "plan": str(candidate.plan),
        "seconds": exact.predicted_seconds,
        "speedup": vendor / exact.predicted_seconds,
        "tflops": exact.effective_flops / 1e12,
        "dominant": exact.dominant_term,
        "traffic": counts.total_bytes,
        "launches": counts.launches,
        "workspace": counts.workspace,
        "error_growth": candidate.error_growth,
        "error_basis": _source_of_expected_error(candidate.plan),
        "margin": candidate.margin,
        "margin_of_shape": required_margin_parts(candidate.plan, problem, calibration)[1],
        "exceeds": _exceeded_limits(candidate, limits),
    }


def _source_of_expected_error(plan: Plan) -> str:
    """Return where a plan's expected error comes from: `vendor` (1 by definition), `measured` or `model`."""
    return "vendor" if plan == VENDOR else "measured" if is_error_measured(plan) else "model"


def _exceeded_limits(candidate: Candidate, limits: Limits) -> list[str]:
    """Return the names of the limits that a candidate exceeds: emulation, error or workspace.

    The result contains `emulation` if FMM_EMULATION=0 forbids the plan.
    """
    emulates = not limits.emulation and candidate.plan.uses_emulation
    kept = {
        "emulation": not emulates,
        "error": replace(limits, emulation=limits.emulation or emulates).allows_plan(
            candidate.plan, candidate.error_growth
        ),
        "workspace": candidate.fits_workspace(limits.workspace),
    }
    return [name for name, keeps in kept.items() if not keeps]


def _error_text(candidate: dict[str, Any]) -> str:
    """Return a plan's expected error growth as text, which says whether the error was measured or predicted."""
    growth, basis = format_error_growth(candidate["error_growth"]), candidate["error_basis"]
    texts = {"measured": f"about {growth} (measured)", "model": f"{growth} (by the model)"}
    return texts.get(basis, growth)


def _margin_text(candidate: dict[str, Any]) -> str:
    """Return as text the margin by which a plan must win: the calibration's margin, plus an addition for the shape."""
    margin, of_shape = 100 * candidate["margin"], 100 * candidate["margin_of_shape"]
    parts = f" ({margin - of_shape:.2f} % of the model, {of_shape:.2f} % for the shape)" if of_shape else ""
    return f"{margin:.2f} % of the vendor's time{parts}"


def _decision_text(found: dict[str, Any]) -> str:
    """Return the decision as text: the plan, the reason, notes, predicted numbers, the levels, and other plans."""
    best, (m, k, n), op = found["chosen"], found["size"], found["op"]
    what = "" if op == "product" else f" {op}"
    numbers = {
        "time by the model" if found["measured"] else "time": f"{best['seconds']:.4g} s",
        f"speedup over {found['library']}": f"{best['speedup']:.2f}",
        "effective rate (flops / time)": f"{best['tflops']:.3g} TFLOPS",
        "limited by": best["dominant"],
        "memory traffic of sums and of products' operands": format_bytes(best["traffic"]),
        "starts of products and sums (a batch counts as one)": str(best["launches"]),
        "workspace": format_bytes(best["workspace"]),
        f"expected error, as a multiple of {found['library']}'s": _error_text(best),
        "margin by which the plan must win": _margin_text(best),
    }
    lines = [
        f"{m}x{k}x{n} {found['dtype']}{what} on {found['device']} ({found['source']})",
        f"plan: {best['plan']}",
        f"why: {found['reason']}",
        *(found[note] for note in ("not_used", "probed") if found[note]),
        *([f"entry of this size: {found['passed_over']}"] if found["passed_over"] else []),
        *(f"{name}: {value}" for name, value in numbers.items()),
        *([f"seconds: {found['seconds_are']}"] if found["seconds_are"] == NOMINAL_RATES_NOTE else []),
        "",
        plan_table(Plan.parse(best["plan"]), m, k, n, DTYPES[found["dtype"]].itemsize, GemmParams(op=op)),
        "",
        *_runners_up_table(found["runners_up"]).text_lines,
        "",
        *(line for text in found.get("terms", ()) for line in (text, "")),
        f"not in the model: {found['leaves_out']}",
    ]
    return "\n".join(lines)


def _runners_up_table(rows: Sequence[dict[str, Any]]) -> TextTable:
    cells: list[tuple[str, ...]] = []
    for row in rows:
        exceeds = ", ".join("FMM_EMULATION=0" if name == "emulation" else name for name in row["exceeds"])
        numbers = f"{row['seconds']:.4g}", f"{row['speedup']:.2f}", f"{row['tflops']:.3g}"
        growth = format_error_growth(row["error_growth"]) + "*" * (row["error_basis"] == "measured")
        sizes = format_bytes(row["traffic"]), format_bytes(row["workspace"]), growth
        cells.append((*numbers, *sizes, row["dominant"], row["plan"], exceeds))
    columns = ["seconds", "speedup", "TFLOPS", "traffic", "workspace", "error", "limited by", "plan", "exceeds"]
    if not any(row["exceeds"] for row in rows):
        columns, cells = columns[:-1], [row[:-1] for row in cells]
    legend = " (error: *, measured; others, by the model)"
    return text_table(f"runners-up, by estimated time{legend}", columns, cells)

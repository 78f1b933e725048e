"""The formats T1 and T4 in which autotuners exchange search spaces and results; Kernel Tuner reads and writes both.

A T1 document describes the search space of a device and an element type. A T4 document has the recorded results. The
parameters of a T1 document are the choices from which fmm-tune builds a plan. Each result in a T4 document lists values
of the same parameters: the choices from which fmm-tune builds the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import combinations, product
from statistics import median
from typing import Any

from fmm.kernels.plans.plan import Plan, PlanError
from fmm.tuner.search.space import SearchSpace, build_plan, choices_by_plan, search_space, space_for_dtype
from fmm.tuner.trials.record import RecordedTuning, Trial

T4_SCHEMA_VERSION = "1.0.0"
T1_FORMAT_VERSION = 1


def search_space_of_device(key: str, dtype: str) -> SearchSpace:
    """Return fmm-tune's search space for an element type on the device with this key."""
    return space_for_dtype(search_space("cpu" if key.startswith("cpu") else "cuda"), dtype)


# ---- T4, the results of a tuning


def t4_results_document(tunings: Sequence[RecordedTuning]) -> dict[str, Any]:
    """Return the recorded results of tunings as a T4 document; times are in milliseconds, as Kernel Tuner's are."""
    versions = {f"{name}=={version}" for tuning in tunings for name, version in tuning.header.versions.items()}
    hardware = [
        {"device": header.device, "run": header.run, "started": header.started, "conditions": dict(header.conditions)}
        for header in (tuning.header for tuning in tunings)
    ]
    metadata = {
        "timeunit": "milliseconds",
        "hardware": {"hardware_description": hardware},
        "environment": {"requirements": sorted(versions)},
    }
    results = [result for tuning in tunings for result in _tuning_results(tuning)]
    return {"schema_version": T4_SCHEMA_VERSION, "metadata": metadata, "results": results}


def _tuning_results(tuning: RecordedTuning) -> Iterator[dict[str, Any]]:
    """Yield a T4 result for each plan, problem and stage of a tuning.

    Samples in which only the sums or only the leaf products of a plan ran are skipped.
    """
    samples: dict[tuple[object, ...], list[Trial]] = {}
    for trial in tuning.trials:
        if trial.part == "whole":
            samples.setdefault((trial.stage, trial.problem, trial.plan), []).append(trial)
    for trials in samples.values():
        yield _t4_plan_result(tuning, trials)


def _t4_plan_result(tuning: RecordedTuning, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the T4 result of a plan from its samples; a sample without seconds says why the run failed."""
    first, header = trials[0], tuning.header
    milliseconds = [trial.seconds * 1e3 for trial in trials if trial.seconds is not None]
    failure = next((trial.failed or "no reason is recorded" for trial in trials if trial.seconds is None), "")
    measurements: list[dict[str, Any]] = [{"name": "stage", "value": first.stage, "unit": ""}]
    if failure:
        measurements.append({"name": "failure", "value": failure, "unit": ""})
    else:
        time = median(milliseconds)
        gigaflops = first.problem.flops / max(time, 1e-9) / 1e6
        measurements += [
            {"name": "time", "value": time, "unit": "ms"},
            {"name": "GFLOP/s", "value": gigaflops, "unit": ""},
        ]
    return {
        "timestamp": _sample_timestamp(header.started, first.elapsed),
        "configuration": _t4_trial_configuration(header.device, first),
        "objectives": ["time"],
        "times": {"runtimes": milliseconds},
        "invalidity": _t4_failure_word(failure),
        "correctness": int(not failure),
        "measurements": measurements,
    }


def _t4_trial_configuration(key: str, trial: Trial) -> dict[str, Any]:
    """Return T4's configuration of a trial: the problem, the plan, and the choices that build the plan.

    A plan outside the search space, such as the baseline, has no choices in the configuration.
    """
    m, k, n = trial.size
    space = search_space_of_device(key, trial.dtype)
    plans = choices_by_plan(tuple((name, tuple(values)) for name, values in space.items()))
    problem = {"device": key, "dtype": trial.dtype, "op": trial.op, "m": m, "k": k, "n": n}
    return {**problem, "plan": trial.plan, **plans.get(Plan.parse(trial.plan), {})}


def _t4_failure_word(failure: str) -> str:
    """Return T4's word for the reason of a failure; "correct" if `failure` is empty."""
    kinds = {"wrong result": "correctness", "PlanError": "constraints", "ompil": "compile", "": "runtime"}
    return next(kind for text, kind in kinds.items() if text in failure) if failure else "correct"


def _sample_timestamp(started: str, elapsed: float) -> str:
    """Return the date and time of a sample: the start of the tuning plus the elapsed seconds."""
    try:
        return (datetime.fromisoformat(started) + timedelta(seconds=elapsed)).isoformat()
    except (ValueError, OverflowError):  # the start is no valid date if a user has edited the file
        return started


# ---- T1, a search space


def t1_space_document(key: str, device_name: str, dtype: str) -> dict[str, Any]:
    """Return the search space of an element type on a device as a T1 document."""
    space = search_space_of_device(key, dtype)
    parameters = [{"Name": name, "Type": "string", "Values": str(list(values))} for name, values in space.items()]
    return {
        "General": {
            "FormatVersion": T1_FORMAT_VERSION,
            "BenchmarkName": f"fmm.matmul {dtype}",
            "TimeUnit": "Milliseconds",
            "OutputFormat": "JSON",
        },
        "ConfigurationSpace": {"TuningParameters": parameters, "Conditions": list(t1_space_conditions(space))},
        "KernelSpecification": {
            # The format T1 requires OpenCL, CUDA or Vulkan as the language of a kernel. For the CPU, where plans call
            # BLAS, OpenCL is written, because OpenCL also runs on CPUs.
            "Language": "OpenCL" if key.startswith("cpu") else "CUDA",
            "Device": {"Name": device_name},
            "KernelName": "matmul",
            "KernelFile": "fmm/api.py",
            # T1 requires launch sizes, but fmm computes launch sizes from the plan: 1 is written.
            "GlobalSize": {"X": "1"},
            "LocalSize": {"X": "1"},
        },
    }


def t1_space_conditions(space: SearchSpace) -> Iterator[dict[str, Any]]:
    """Yield T1's conditions: Python expressions that are all true if and only if the choices build a valid plan.

    Each condition excludes combinations of values of as few parameters as possible.
    """
    names, choices = list(space), list(product(*space.values()))
    valid = [values for values in choices if _builds_plan(dict(zip(names, values, strict=True)))]
    left = set(choices).difference(valid)
    for width in range(1, len(names) + 1):
        for picked in combinations(range(len(names)), width):
            possible = {tuple(values[i] for i in picked) for values in valid}
            excluded = {tuple(values[i] for i in picked) for values in left} - possible
            if excluded:
                left = {values for values in left if tuple(values[i] for i in picked) not in excluded}
                parameters = [names[i] for i in picked]
                yield {"Parameters": parameters, "Expression": _t1_exclusion_expression(parameters, sorted(excluded))}


def _t1_exclusion_expression(names: Sequence[str], excluded: Sequence[Sequence[str]]) -> str:
    """Return a Python expression that is false if the parameters have one of the excluded combinations of values.

    Kernel Tuner takes < and > in the names of leaves for comparisons. Kernel Tuner splits an expression with several
    comparisons, unless the expression contains ` and `.
    """
    clauses = (" and ".join(f"{name} == {x!r}" for name, x in zip(names, values, strict=True)) for values in excluded)
    return " and ".join(f"not ({clause})" for clause in clauses)


def _builds_plan(choices: Mapping[str, str]) -> bool:
    try:
        build_plan(choices)
    except PlanError:
        return False
    return True

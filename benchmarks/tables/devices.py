"""The table of docs/devices.md: the kernels and the predicted speedups of each GPU with a datasheet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from statistics import median

from benchmarks.tables.markdown import Row, heading_lines, loaded_results, median_ratio, rounded_text, table_lines
from fmm.config import files
from fmm.config.identity import Identity
from fmm.dtypes import DTYPES
from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import Datasheet, datasheet_names, datasheet_of
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import GPU_ERROR_GROWTH_LIMIT, Limits, choose
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import complete_calibration, scaled_shipped_calibration
from fmm.runtime.decisions.limits import WORKSPACE_SHARE
from fmm.runtime.devices import calibration_from_datasheet

OLDEST_CAPABILITY = 7.0
SIDES = (1024, 2048, 4096, 8192, 16384)
TYPES = ("float32", "float64", "int64")


def predicted_speedups(results: Path) -> Iterator[str]:
    """Yield a table for each type: a row for each GPU, newest capability last, and a column for each side."""
    names = [name for name in datasheet_names() if float(datasheet_of(name).capability) >= OLDEST_CAPABILITY]
    for dtype in TYPES:
        yield from ("", f"**{dtype}**", "")
        yield from table_lines(
            ("GPU", "basis of the prediction", *map(str, SIDES)), (_device_row(name, dtype) for name in names)
        )


def device_kernels(results: Path) -> Iterator[str]:
    """Yield a table of what multiplies on each GPU."""
    names = [name for name in datasheet_names() if float(datasheet_of(name).capability) >= OLDEST_CAPABILITY]
    columns = "GPU", "compute capability", "f16x3 (float32)", "residues (float64, complex, integers)", "measured"
    yield from table_lines(columns, (_kernel_row(datasheet_of(name)) for name in names))


def _kernel_row(gpu: Datasheet) -> tuple[str, ...]:
    chip = datasheet_chip(gpu)
    planes, residues = _kernel_names(chip)
    if residues != "none" and "residues > bytes of int64" not in datasheet_calibration(gpu.name).rates:
        residues += ", never chosen"
    shipped = _shipped_calibration(gpu.name, "float32") is not None
    return gpu.name, gpu.capability, planes, residues, "yes" if shipped else "never"


def _kernel_names(chip: Chip) -> tuple[str, str]:
    """Return what multiplies float16 planes, and what multiplies bytes."""
    if chip.has_warpgroups:
        return "Hopper's kernel", "Hopper's kernel"
    if not chip.has_warp_mma:
        return "none", "none"
    return "cuBLAS in float16" if chip.has_tensor_memory else "portable kernel", "portable kernel"


def _device_row(name: str, dtype: str) -> tuple[str, ...]:
    calibration, basis = _best_calibration(name, dtype)
    return name, basis, *(_speedup_text(datasheet_of(name), calibration, dtype, side) for side in SIDES)


def _best_calibration(name: str, dtype: str) -> tuple[Calibration, str]:
    """Return the calibration that predicts a GPU best, and its basis."""
    if (shipped := _shipped_calibration(name, dtype)) is not None:
        return shipped, "measured model"
    if (scaled := scaled_shipped_calibration(name, dtype)) is not None:
        return scaled, f"scaled from the {datasheet_of(name).relative_of}"
    return datasheet_calibration(name), "datasheet"


@lru_cache
def _shipped_calibration(name: str, dtype: str) -> Calibration | None:
    """Return the shipped calibration that was measured on this GPU; None without one."""
    unmeasured, shipped = datasheet_calibration(name), files.Configs((files.SHIPPED_CONFIG,), False)
    for key in (key for devices in shipped.files.values() for key in devices):
        model = calibration_from_datasheet(key, key)
        if model is not None and model.name == unmeasured.name:
            tuned = shipped.find_tuning(Identity(key, key), dtype)
            return complete_calibration(tuned, None, unmeasured) if tuned else None
    return None


def _speedup_text(gpu: Datasheet, calibration: Calibration, dtype: str, side: int) -> str:
    """Return the predicted speedup of the plan that the model chooses, or a dash if the operands do not fit."""
    if dtype not in calibration.rates:
        return "–"
    problem = Problem(side, side, side, dtype)
    left = gpu.memory_gb * 1e9 - 3 * side * side * DTYPES[dtype].itemsize
    if left <= 0:
        return "–"
    plan = choose(problem, calibration, Limits(int(WORKSPACE_SHARE * left), GPU_ERROR_GROWTH_LIMIT)).best.plan
    seconds, baseline = (quick_prediction(x, problem, calibration).predicted_seconds for x in (plan, VENDOR))
    return f"{baseline / seconds:.2g}" if plan != VENDOR else "1"


# ---- what was measured


def portable_speedups(results: Path) -> Iterator[str]:
    """Yield the measured speedups of the portable kernels, compiled for compute capability 8.0, on a Hopper GPU."""
    for path, environment, rows in loaded_results(results, "*/portable.json"):
        yield from heading_lines(path, environment)
        columns = "product", "side", "library, ms", "plan: speedup over the library"
        yield from table_lines(columns, (_measured_row(row) for row in rows))


def _measured_row(row: Row) -> tuple[str, ...]:
    samples = row["samples"]
    vendor = samples["vendor"]
    plans = "; ".join(f"`{plan}`: {median_ratio(vendor, samples[plan]):.2f}" for plan in row["plans"])
    return f"{row['operation']} {row['dtype']}", str(row["side"]), rounded_text(median(vendor)), plans

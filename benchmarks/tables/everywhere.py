"""Tables of products on several GPUs, of unchanged programs with fmm installed, and of other projects' tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.outside import SUITES
from benchmarks.solver_errors import FAMILIES
from benchmarks.stacks import device_speedup, lost_microseconds
from benchmarks.tables.markdown import (
    Row,
    load_result,
    loaded_results,
    median_ratio,
    rounded_text,
    size_text,
    table_lines,
)

# Products on several GPUs

CALLERS = {
    "torch": "torch's own product",
    "hook": "torch's, with fmm installed",
    "hook-ieee": "torch's, with fmm installed, `FMM_EMULATION=0`",
    "shared": "`fmm.distributed.matmul`",
    "shared-ieee": "`fmm.distributed.matmul`, `FMM_EMULATION=0`",
    "shared-level": '`fmm.distributed.matmul(..., plan="winograd")`',
    "alone": "a GPU's own part, all there",
}
PREDICTED_SECONDS = re.compile(r"^predicted: (\S+) s", re.MULTILINE)
SEVERAL_COLUMNS = ("on", "type", "n", "who", "ms", "predicted, ms", "speedup over torch's", "of own part")


def several_gpus(results: Path) -> Iterator[str]:
    """Yield a row for each sharded product and caller: milliseconds, the prediction, and the speedup over torch's."""
    yield from table_lines(SEVERAL_COLUMNS, _several_rows(results))


def _several_rows(results: Path) -> Iterator[tuple[object, ...]]:
    for _, environment, rows in loaded_results(results, "*/distributed.json"):
        where = f"{environment['gpus']} x {environment['device']}"
        for row in rows:
            taken = {who: seconds for who, seconds in row["seconds"].items() if seconds}
            for who, seconds in taken.items():
                has_own_part = "alone" in taken and who in ("hook", "shared", "shared-level")
                own = f"{median_ratio(taken['alone'], seconds):.2f}" if has_own_part else ""
                speedup = (
                    f"**{median_ratio(taken['torch'], seconds):.2f}**" if "torch" in taken and who != "torch" else ""
                )
                expected = _predicted_milliseconds(row["ways"].get(who, ()))
                time = rounded_text(1e3 * median(seconds))
                yield where, row["dtype"], _sharded_size(row), CALLERS[who], time, expected, speedup, own


def _predicted_milliseconds(way: Sequence[str]) -> str:
    """Return the predicted milliseconds that an explanation names."""
    found = PREDICTED_SECONDS.search("\n".join(way))
    return rounded_text(1e3 * float(found[1])) if found else ""


def _sharded_size(row: Row) -> str:
    """Return the side of the square matrices, and the mesh if they are sharded in blocks."""
    mesh = row.get("mesh", ())
    return f"{row['n']} in blocks on {size_text(mesh)}" if len(mesh) > 1 else str(row["n"])


# Contractions

CONTRACTION_COLUMNS = ("on", "program", "type", "contraction", "best other", "its ms", "fmm, ms", "speedup")
FAST_CONTRACTION, SLOW_CONTRACTION = 1.2, 0.95  # speedups: those between are counted, and not shown


def contraction_speedups(results: Path) -> Iterator[str]:
    """Yield the contractions that fmm.einsum makes faster or slower, and the number of all."""
    for _, environment, rows in loaded_results(results, "*/contractions.json"):
        rows = [row for row in rows if not row["failure"]]
        shown = [row for row in rows if not SLOW_CONTRACTION <= row["speedup"] < FAST_CONTRACTION]
        device = environment.get("device") or environment["processor"]
        yield from table_lines(CONTRACTION_COLUMNS, ((device, *_contraction_cells(row)) for row in shown))
        yield ""
        yield f"{len(rows)} contractions in all; the others have a speedup of {SLOW_CONTRACTION} to {FAST_CONTRACTION}."
        if slow := [row for row in rows if _speedup_over_cupy(row) < SLOW_CONTRACTION]:
            names = ", ".join(f"`{row['subscripts'].replace(',', ', ')}` ({row['dtype']})" for row in slow)
            least = min(map(_speedup_over_cupy, slow))
            yield f"fmm's time is that of the faster arrays, CuPy's or torch's. On CuPy's arrays alone, {len(slow)}"
            yield f"contractions are slower than `cupy.einsum`, at least {least:.2f} times as fast: {names}."


def _speedup_over_cupy(row: Row) -> float:
    """Return the speedup of fmm.einsum over cupy.einsum on the same arrays; infinity if CuPy was not measured."""
    samples = row["samples"]
    return median_ratio(samples["cupy"], samples["fmm"]) if "cupy" in samples else float("inf")


def _contraction_cells(row: Row) -> tuple[str, ...]:
    """Return a contraction's program, type, subscripts, fastest other library, both times and the speedup."""
    own = min(median(seconds) for name, seconds in row["samples"].items() if name.startswith("fmm"))
    times = rounded_text(1e3 * median(row["samples"][row["best"]])), rounded_text(1e3 * own)
    subscripts = row["subscripts"].replace(",", ", ")
    return row["program"], row["dtype"], f"`{subscripts}`", row["best"], *times, f"**{row['speedup']:.2f}**"


# Solvers

SOLVER_COLUMNS = "on", "function", "type", "size", "torch.linalg, ms", "fmm, ms", "speedup", "backward error", "torch's"


def solver_speedups(results: Path) -> Iterator[str]:
    """Yield a row for each solver, type and size: both times, the speedup, and both backward errors."""
    yield from table_lines(SOLVER_COLUMNS, _solver_rows(results))


def _solver_rows(results: Path) -> Iterator[tuple[object, ...]]:
    for _, environment, rows in loaded_results(results, "*/solvers.json"):
        for row in (row for row in rows if not row["failure"]):
            times = [rounded_text(1e3 * median(row["samples"][name])) for name in ("torch", "fmm")]
            errors = [f"{row['errors'][name]:.1e}" for name in ("fmm", "torch")]
            speedup = f"**{row['speedup']:.2f}**" if row["speedup"] >= FAST_CONTRACTION else f"{row['speedup']:.2f}"
            size = row["side"] if row["columns"] == row["side"] else f"{row['side']} x {row['columns']}"
            yield environment["device"], f"`{row['function']}`", row["dtype"], size, *times, speedup, *errors


RANDOM_SOLVER_COLUMNS = ("on", "function", "problems", "slowest", "median", "fastest")


def random_solver_speedups(results: Path) -> Iterator[str]:
    """Yield a row for each solver: the least, the median and the largest speedup on random problems."""
    yield from table_lines(RANDOM_SOLVER_COLUMNS, _random_solver_rows(results))


def _random_solver_rows(results: Path) -> Iterator[tuple[object, ...]]:
    for _, environment, rows in loaded_results(results, "*/random-solvers.json*"):
        speedups: dict[str, list[float]] = {}
        for row in (row for row in rows if not row["failure"]):
            speedups.setdefault(row["function"], []).append(row["speedup"])
        for function, found in speedups.items():
            numbers = (f"{x:.2f}" for x in (min(found), median(found), max(found)))
            yield environment["device"], f"`{function}`", len(found), *numbers


# Muon

MUON_COLUMNS = ("on", "function", "bfloat16", "torch, µs", "fmm, µs", "speedup", "error", "torch's")


def muon_speedups(results: Path) -> Iterator[str]:
    """Yield a row for each stack of fmm.orthogonalize and fmm.gram: both times, the speedup, and both errors."""
    yield from table_lines(MUON_COLUMNS, _muon_rows(results))


def _muon_rows(results: Path) -> Iterator[tuple[object, ...]]:
    for _, environment, rows in loaded_results(results, "*/muon.json"):
        for row in (row for row in rows if not row["failure"]):
            count = f"{row['count']} of " if row["count"] > 1 else ""
            times = [rounded_text(1e6 * median(row["samples"][name])) for name in ("torch", "fmm")]
            errors = [f"{row['errors'][name]:.1e}" for name in ("fmm", "torch")]
            speedup = f"**{row['speedup']:.2f}**" if row["speedup"] >= FAST_CONTRACTION else f"{row['speedup']:.2f}"
            size = f"{count}{row['rows']} x {row['cols']}"
            yield environment["device"], f"`fmm.{row['function']}`", size, *times, speedup, *errors


STACK_COLUMNS = ("on", "call", "type", "stack", "torch.bmm, µs", "fmm, µs", "speedup", "plan")
STACK_RESULTS = "*/stacks.json*"


def stack_speedups(results: Path) -> Iterator[str]:
    """Yield a row for each named stack, then a sentence about the random stacks of each device."""
    yield from table_lines(STACK_COLUMNS, _stack_rows(results))
    for _, environment, rows in loaded_results(results, STACK_RESULTS):
        found = [row for row in rows if not row["failure"] and row["random"]]
        if not found:
            continue
        lost = [lost_microseconds(row) for row in found if row["plan"] == "vendor"]
        fast = sum(row["speedup"] >= FAST_CONTRACTION for row in found)
        short = [device_speedup(row) for row in found if "device" in row]
        yield ""
        yield (
            f"{environment['device']}: of {len(found)} random stacks, {fast} are at least {FAST_CONTRACTION} times as"
            f" fast as `torch.bmm`; the slowest whole call has a speedup of {min(row['speedup'] for row in found):.2f}."
            f" {len(lost)} calls are left to `torch.bmm`. They take {median(lost):.1f} µs longer (median), because the"
            f" host decides first. On the device alone, the {len(short)} short calls take at most {1 / min(short):.2f}"
            " times as long as `torch.bmm`."
        )


def _stack_rows(results: Path) -> Iterator[tuple[object, ...]]:
    for _, environment, rows in loaded_results(results, STACK_RESULTS):
        for row in (row for row in rows if not row["failure"] and not row["random"]):
            times = [rounded_text(1e6 * median(row["samples"][name])) for name in ("torch", "fmm")]
            speedup = f"**{row['speedup']:.2f}**" if row["speedup"] >= FAST_CONTRACTION else f"{row['speedup']:.2f}"
            size = f"{row['count']} of {row['m']} x {row['k']}" + (
                f" x {row['n']}" if row["function"] == "matmul" else ""
            )
            yield (
                environment["device"],
                f"`fmm.{row['function']}`",
                row["dtype"],
                size,
                *times,
                speedup,
                f"`{row['plan']}`",
            )


TALL_COLUMNS = ("on", "type", "rows", "columns", "torch.linalg.qr, ms", "fmm, ms", "speedup")


def tall_qr_speedups(results: Path) -> Iterator[str]:
    """Yield a row for each shape of the tall matrices: both times of QR factors, and the speedup."""
    yield from table_lines(TALL_COLUMNS, _tall_rows(results))


def _tall_rows(results: Path) -> Iterator[tuple[object, ...]]:
    for _, environment, rows in loaded_results(results, "*/solver_errors.json"):
        for row in (row for row in rows if not row["failure"] and "samples" in row):
            times = [rounded_text(1e3 * median(row["samples"][name])) for name in ("torch", "fmm")]
            speedup = f"**{row['speedup']:.2f}**"
            yield environment["device"], row["dtype"], row["m"], row["side"], *times, speedup


ERROR_COLUMNS = ("function", "error", "type", *FAMILIES)


def solver_family_errors(results: Path) -> Iterator[str]:
    """Yield a row for each function, error and type: fmm's error and the library's for each family of matrices."""
    yield from table_lines(ERROR_COLUMNS, _error_rows(results))


def _error_rows(results: Path) -> Iterator[tuple[object, ...]]:
    for _, _, rows in loaded_results(results, "*/solver_errors.json"):
        cells: dict[tuple[str, str, str], dict[str, str]] = {}
        for row in (row for row in rows if not row["failure"] and "errors" in row):
            own, vendor = row["errors"]["fmm"], row["errors"]["vendor"]
            for error in own:
                line = cells.setdefault((row["function"], error, row["dtype"]), {})
                line[row["family"]] = f"{own[error]:.1e} / {vendor[error]:.1e}"
        for (function, error, dtype), line in cells.items():
            yield f"`{function}`", error, dtype, *(line.get(family, "") for family in FAMILIES)


# Unchanged programs

GAINED_COLUMNS = ("what", "where", "as it is", "with fmm", "gained")
OUTSIDE_COLUMNS = ("tests of", "which", "every product by", "passed, skipped, failed", "with fmm", "fail only with fmm")


def unchanged_programs(results: Path) -> Iterator[str]:
    """Yield a row for each program: the median times without and with fmm, and the speedup or the extra time."""
    rows = [*_sharded_rows(results), *_training_rows(results), *_addend_rows(results), *_declined_rows(results)]
    rows += [*_dask_rows(results), *_streamed_rows(results)]
    yield from table_lines(GAINED_COLUMNS, iter(rows))


def _sharded_rows(results: Path) -> Iterator[Sequence[object]]:
    for _, environment, rows in loaded_results(results, "*/distributed.json"):
        for row in rows:
            plain, hooked = (row["seconds"].get(who) for who in ("torch", "hook"))
            if plain and hooked:
                what = f"DTensor's `a @ b`, {row['dtype']} {_sharded_size(row)}"
                yield what, f"{environment['gpus']} x {environment['device']}", *_time_cells(plain, hooked)


def _training_rows(results: Path) -> Iterator[Sequence[object]]:
    for path in sorted(results.glob("*/training.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for run in content["runs"]:
            plain, ours = (run["seconds"][who] for who in ("torch", "fmm"))
            what = f"training a small transformer, {run['dtype']}, losses {_loss_difference(run)}"
            yield what, _program_machine(content["environment"]), *_time_cells([plain], [ours])


def _loss_difference(run: dict[str, Any]) -> str:
    """Return the difference of the losses, and that of two plain runs."""
    return f"apart by {run['apart']:.1e}, those of two plain runs by {run['noise']:.1e}" if run["apart"] else "alike"


def _addend_rows(results: Path) -> Iterator[Sequence[object]]:
    """Yield products with a bias, as in nn.Linear."""
    for _, environment, rows in loaded_results(results, "*/added.json"):
        for row in rows:
            if row["added"] == "row":
                what = f"`torch.addmm` of a bias, {row['dtype']} {row['n']}"
                yield what, environment["device"], *_time_cells(row["seconds"]["torch"], row["seconds"]["fmm"])


def _declined_rows(results: Path) -> Iterator[Sequence[object]]:
    for _, environment, rows in loaded_results(results, "*/host-declined.json"):
        for row in rows:
            plain, ours = median(row["without"]), median(row["with"])
            what = f"a small `torch.{row['operator']}`, which is torch's own, the host's time"
            more = f"{ours - plain:+.2f} µs"
            yield what, environment["device"], f"{plain:.1f} µs", f"{ours:.1f} µs", more


def _dask_rows(results: Path) -> Iterator[Sequence[object]]:
    for path in sorted(results.glob("*/dask.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for run in content["runs"]:
            what = f"Dask's `x @ y`, {run['dtype']} {run['side']} in chunks of {run['chunk']}, as `fmm.dask.matmul`"
            workers = {
                **content["environment"],
                "blas_threads": content["environment"]["processors"],
            }  # each worker has one thread
            # A stopped run has an incomplete round.
            plain, ours = zip(*zip(run["seconds"]["dask"], run["seconds"]["fmm"], strict=False), strict=True)
            yield what, _program_machine(workers), *_time_cells(plain, ours)


def _streamed_rows(results: Path) -> Iterator[Sequence[object]]:
    """Yield products of NumPy's arrays on a GPU that have times of cuBLASXt."""
    for path in sorted(results.glob("*/out_of_core*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for run in content["runs"]:
            if "cuBLASXt" in run["seconds"]:
                what = f"NumPy's arrays on a GPU, {run['dtype']} {run['side']}, beside cuBLASXt"
                plain, ours = (run["seconds"][who] for who in ("cuBLASXt", "fmm"))
                yield what, _card_name(path.parent), *_time_cells(plain, ours)


def _card_name(folder: Path) -> str:
    """Return the name of the folder's device."""
    found = folder / "calls.json"
    return str(load_result(found)[0]["device"]) if found.exists() else folder.name


def _time_cells(plain: Sequence[float], ours: Sequence[float]) -> tuple[str, str, str]:
    both = median(plain), median(ours)
    unit, scale = ("s", 1.0) if max(both) > 1 else ("ms", 1e3)
    before, after = (f"{rounded_text(scale * x)} {unit}" for x in both)
    return before, after, f"**{median_ratio(plain, ours):.2f}**"


def _program_machine(environment: dict[str, Any]) -> str:
    return str(environment.get("device") or f"{environment['processor']}, {environment['blas_threads']} threads")


# Programs of others, and products of JAX

PROGRAM_COLUMNS = (
    *("program", "type", "where", "plain", "under fmm", "speedup", "difference, plain", "difference under fmm"),
    *("products by plans", "share of products in a plain step", "longest other kernels"),
)


def programs_of_others(results: Path) -> Iterator[str]:
    """Yield a row for each program: both times, the speedup, both errors, the products by plans, and the kernels."""
    yield from table_lines(PROGRAM_COLUMNS, _program_rows(results))


def _program_rows(results: Path) -> Iterator[Sequence[object]]:
    for _, environment, rows in loaded_results(results, "*/programs*.json"):
        for row in (row for row in rows if not row["failure"]):
            what = f"{row['program']} ({row['package']} {row['version']})"
            where = environment["device"] if row["where"] == "GPU" else environment["host"]
            times = _time_cells(row["samples"]["plain"], row["samples"]["fmm"])
            errors = [f"{row['differences'][name]:.1e}" for name in ("plain", "fmm")]
            products = f"{row['products']['by_plans']} of {row['products']['calls']}"
            kernels = dict(row["kernels"])
            share = f"{kernels.pop('products'):.0%}" if kernels else ""
            others = ", ".join(f"`{name}` {part:.0%}" for name, part in kernels.items())
            yield what, row["dtype"], where, *times, *errors, products, share, others


JAX_COLUMNS = ("on", "function", "type", "n", "jnp.matmul, ms", "fmm.jax, ms", "speedup", "error", "XLA's")


def jax_speedups(results: Path) -> Iterator[str]:
    """Yield a row for each function of fmm.jax under jit: both times, the speedup, and both errors."""
    yield from table_lines(JAX_COLUMNS, _jax_rows(results))


def _jax_rows(results: Path) -> Iterator[Sequence[object]]:
    for _, environment, rows in loaded_results(results, "*/jax.json"):
        for row in (row for row in rows if not row["failure"]):
            times = [rounded_text(1e3 * median(row["samples"][name])) for name in ("jax", "fmm")]
            errors = [f"{row['errors'][name]:.1e}" for name in ("fmm", "jax")]
            speedup = f"**{row['speedup']:.2f}**" if row["by_fmm"] else f"{row['speedup']:.2f} (XLA's own)"
            yield environment["device"], row["function"], row["dtype"], row["side"], *times, speedup, *errors


# Other projects' tests


def outside_tests(results: Path) -> Iterator[str]:
    """Yield a row for each suite of `python -m benchmarks outside`."""
    yield from table_lines(OUTSIDE_COLUMNS, _outside_rows(results))


def _outside_rows(results: Path) -> Iterator[Sequence[object]]:
    for path in sorted({path for name in SUITES for path in results.glob(f"*/{name}*.json")}):
        content = json.loads(path.read_text(encoding="utf-8"))
        package = {"sklearn": "scikit-learn", "torch-cpu": "torch"}.get(content["suite"], content["suite"])
        found = {"cupy": content["versions"].get("cupy-cuda13x")} | content["versions"]
        counts = (", ".join(str(content[who].get(end, 0)) for end in OUTCOMES) for who in ("without fmm", "with fmm"))
        plan = f"`{content['plan']}`" if content["plan"] else "what fmm chooses"
        plan += "".join(f", `{name}={value}`" for name, value in content.get("wishes", {}).items())
        older = content.get("tests of", "").removeprefix(package).strip()  # the version of the checkout
        own = f", the tests of {older}" if older not in ("", found.get(package)) else ""
        yield (
            f"{package} {found.get(package, '')}{own}",
            _selected_tests(content),
            plan,
            *counts,
            len(content["worse with fmm"]),
        )


def _selected_tests(content: dict[str, Any]) -> str:
    """Return the files of the suite, and the selected tests."""
    suite, (_, _, options) = SUITES[content["suite"]], content["environment"]["command"].partition(" --pytest ")
    selected = options.partition("-k ")[2] or suite.select
    files = ", ".join(f"`{Path(x).name if x.endswith('.py') else x}`" for x in suite.files)
    selected = selected.strip('"')
    return f"`-k {selected}`" if "-k " in options else f"{files}, `-k {selected}`" if selected else files


OUTCOMES = ("passed", "skipped", "failed")

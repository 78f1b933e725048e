"""Tables of unchanged programs with fmm installed, other projects' tests, and products that several GPUs share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.outside import SUITES
from benchmarks.tables.markdown import Row, digits, load, loaded, paired, table, times

# ---- several GPUs

WHO = {
    "torch": "torch's own product",
    "hook": "torch's, with fmm installed",
    "hook-ieee": "torch's, with fmm installed, `FMM_EMULATION=0`",
    "shared": "`fmm.distributed.matmul`",
    "shared-ieee": "`fmm.distributed.matmul`, `FMM_EMULATION=0`",
    "shared-level": '`fmm.distributed.matmul(..., plan="winograd")`',
    "alone": "a GPU's own part, all there",
}
PREDICTED = re.compile(r"^predicted: (\S+) s", re.MULTILINE)
COLUMNS = ("on", "type", "n", "who", "ms", "predicted, ms", "speedup over torch's", "of own part")


def several_gpus(results: Path) -> Iterator[str]:
    """Medians, and of the ratios of each round; beside what no sharing can beat."""
    yield from table(COLUMNS, _rows(results))


def _rows(results: Path) -> Iterator[tuple[object, ...]]:
    for _, environment, rows in loaded(results, "*/distributed.json"):
        where = f"{environment['gpus']} x {environment['device']}"
        for row in rows:
            taken = {who: seconds for who, seconds in row["seconds"].items() if seconds}
            for who, seconds in taken.items():
                beside = "alone" in taken and who in ("hook", "shared", "shared-level")
                own = f"{paired(taken['alone'], seconds):.2f}" if beside else ""
                speedup = f"**{paired(taken['torch'], seconds):.2f}**" if "torch" in taken and who != "torch" else ""
                expected = _predicted(row["ways"].get(who, ()))
                time = digits(1e3 * median(seconds))
                yield where, row["dtype"], size(row), WHO[who], time, expected, speedup, own


def _predicted(way: Sequence[str]) -> str:
    """Milliseconds, of the lines that explain a way to share a product."""
    found = PREDICTED.search("\n".join(way))
    return digits(1e3 * float(found[1])) if found else ""


def size(row: Row) -> str:
    """Of square matrices, which are sharded by rows unless it says blocks."""
    mesh = row.get("mesh", ())
    return f"{row['n']} in blocks on {times(mesh)}" if len(mesh) > 1 else str(row["n"])


# ---- unchanged programs

GAINED = ("what", "where", "as it is", "with fmm", "gained")
OUTSIDE = ("tests of", "which", "every product by", "passed, skipped, failed", "with fmm", "fail only with fmm")


def gained(results: Path) -> Iterator[str]:
    """Medians of both, and of the ratios of each round; of small products what a call takes more."""
    rows = [*_sharded(results), *_trained(results), *_added(results), *_declined(results)]
    rows += [*_dask(results), *_streamed(results)]
    yield from table(GAINED, iter(rows))


def _sharded(results: Path) -> Iterator[Sequence[object]]:
    for _, environment, rows in loaded(results, "*/distributed.json"):
        for row in rows:
            plain, hooked = (row["seconds"].get(who) for who in ("torch", "hook"))
            if plain and hooked:
                what = f"DTensor's `a @ b`, {row['dtype']} {size(row)}"
                yield what, f"{environment['gpus']} x {environment['device']}", *_before_and_after(plain, hooked)


def _trained(results: Path) -> Iterator[Sequence[object]]:
    for path in sorted(results.glob("*/training.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for dtype, run in content["runs"].items():
            plain, ours = (run["seconds"][who] for who in ("torch", "fmm"))
            what = f"training a small transformer, {dtype}, losses {_within(run)}"
            yield what, _machine(content["environment"]), *_before_and_after([plain], [ours])


def _within(run: dict[str, Any]) -> str:
    """What two plain runs differ by is the measure. (Losses of about 9 in float32 are multiples of 9.5e-7.)"""
    return f"apart by {run['apart']:.1e}, those of two plain runs by {run['noise']:.1e}" if run["apart"] else "alike"


def _added(results: Path) -> Iterator[Sequence[object]]:
    """Products with a bias, as nn.Linear has it."""
    for _, environment, rows in loaded(results, "*/added.json"):
        for row in rows:
            if row["added"] == "row":
                what = f"`torch.addmm` of a bias, {row['dtype']} {row['n']}"
                yield what, environment["device"], *_before_and_after(row["seconds"]["torch"], row["seconds"]["fmm"])


def _declined(results: Path) -> Iterator[Sequence[object]]:
    for _, environment, rows in loaded(results, "*/host-declined.json"):
        for row in rows:
            plain, ours = median(row["without"]), median(row["with"])
            what = f"a small `torch.{row['operator']}`, which is torch's own, the host's time"
            more = f"{ours - plain:+.2f} µs"
            yield what, environment["device"], f"{plain:.1f} µs", f"{ours:.1f} µs", more


def _dask(results: Path) -> Iterator[Sequence[object]]:
    for path in sorted(results.glob("*/dask.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for run in content["runs"]:
            what = f"Dask's `x @ y`, {run['dtype']} {run['side']} in chunks of {run['chunk']}, as `fmm.dask.matmul`"
            workers = {
                **content["environment"],
                "blas_threads": content["environment"]["processors"],
            }  # one thread each
            # A run that was stopped may have begun a round that it did not end.
            plain, ours = zip(*zip(run["seconds"]["dask"], run["seconds"]["fmm"], strict=False), strict=True)
            yield what, _machine(workers), *_before_and_after(plain, ours)


def _streamed(results: Path) -> Iterator[Sequence[object]]:
    """Beside cuBLASXt, where that was measured."""
    for path in sorted(results.glob("*/out_of_core*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for run in content["runs"]:
            if "cuBLASXt" in run["seconds"]:
                what = f"NumPy's arrays on a GPU, {run['dtype']} {run['side']}, beside cuBLASXt"
                plain, ours = (run["seconds"][who] for who in ("cuBLASXt", "fmm"))
                yield what, _card(path.parent), *_before_and_after(plain, ours)


def _card(folder: Path) -> str:
    """The device whose results these are, as its own table of products names it."""
    found = folder / "gpu.json"
    return str(load(found)[0]["device"]) if found.exists() else folder.name


def _before_and_after(plain: Sequence[float], ours: Sequence[float]) -> tuple[str, str, str]:
    both = median(plain), median(ours)
    unit, scale = ("s", 1.0) if max(both) > 1 else ("ms", 1e3)
    before, after = (f"{digits(scale * x)} {unit}" for x in both)
    return before, after, f"**{paired(plain, ours):.2f}**"


def _machine(environment: dict[str, Any]) -> str:
    return str(environment.get("device") or f"{environment['processor']}, {environment['blas_threads']} threads")


# ---- other projects' tests


def outside(results: Path) -> Iterator[str]:
    """What `python -m benchmarks.outside` found, suite by suite."""
    yield from table(OUTSIDE, _outside_rows(results))


def _outside_rows(results: Path) -> Iterator[Sequence[object]]:
    for path in sorted({path for name in SUITES for path in results.glob(f"*/{name}*.json")}):
        content = json.loads(path.read_text(encoding="utf-8"))
        package = {"sklearn": "scikit-learn", "torch-cpu": "torch"}.get(content["suite"], content["suite"])
        found = {"cupy": content["versions"].get("cupy-cuda13x")} | content["versions"]
        counts = (", ".join(str(content[who].get(end, 0)) for end in ENDS) for who in ("without fmm", "with fmm"))
        plan = f"`{content['plan']}`" if content["plan"] else "what fmm chooses"
        plan += "".join(f", `{name}={value}`" for name, value in content.get("wishes", {}).items())
        older = content.get("tests of", "").removeprefix(package).strip()  # a checkout of another version
        own = f", the tests of {older}" if older not in ("", found.get(package)) else ""
        yield f"{package} {found.get(package, '')}{own}", _which(content), plan, *counts, len(content["worse with fmm"])


def _which(content: dict[str, Any]) -> str:
    """The files, or what was selected of them."""
    suite, (_, _, options) = SUITES[content["suite"]], content["environment"]["command"].partition(" --pytest ")
    selected = options.partition("-k ")[2] or suite.select
    files = ", ".join(f"`{Path(x).name if x.endswith('.py') else x}`" for x in suite.files)
    selected = selected.strip('"')
    return f"`-k {selected}`" if "-k " in options else f"{files}, `-k {selected}`" if selected else files


ENDS = ("passed", "skipped", "failed")

"""Products on a GPU against cuBLAS's: plans, random shapes, calls without workspace, our own kernel."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.held_out import OWN
from benchmarks.held_out import TYPES as OF_DEFAULT_CALLS
from benchmarks.tables.markdown import Row, digits, load, loaded, paired, range_of_ratios, short, space, table, times
from fmm.kernels.plans.plan import Plan

TYPES = ("float32", "float64", "bfloat16", "float16", "tf32")  # in the order of the tables
RANDOM = "random.json.gz"


def gpu_folders(results: Path) -> list[Path]:
    return sorted(path.parent for path in results.glob("*/gpu.json"))


def cases(rows: list[Row]) -> list[list[Row]]:
    """The rows of one product each, in the order of the tables; plans that failed are left out."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["candidate"]:
            found.setdefault((row["dtype"], str(row["size"])), []).append(row)
    return sorted(found.values(), key=lambda case: (TYPES.index(case[0]["dtype"]), case[0]["size"]))


def best_of(case: list[Row]) -> Row:
    """The row of the fastest plan."""
    return max((r for r in case if r["plan"] != "vendor"), key=lambda r: paired(r["vendor"], r["candidate"]))


def gpu(results: Path) -> Iterator[str]:
    """The fastest plan of every case on every GPU, then whole calls on random shapes."""
    columns = ("type", "m x k x n", "cuBLAS", "fmm", "speedup", "/ Lt", "error", "workspace", "plan")
    for folder in gpu_folders(results):
        environment, rows = load(folder / "gpu.json")
        versions = "CUDA {cuda}, cuBLAS {cublas}, {time}".format(**environment)
        where = f"`results/{folder.name}/`, commit {short(environment['commit'])}"
        yield f"**{environment['device']}**, {versions} ({where})"
        yield ""
        yield from table(columns, map(_gpu_row, cases(rows)))
        if (folder / RANDOM).exists():
            yield ""
            yield from _random(folder / RANDOM)


def _is_candidate(text: str) -> bool:
    """Is it one of several ways in which the vendor does a whole product: without levels, by a numbered leaf?"""
    plan = Plan.parse(text)
    return not plan.levels and plan.leaf_use.number is not None


def _gpu_row(case: list[Row]) -> Sequence[object]:
    """One line of the table; without candidates of cuBLASLt, that column is cuBLAS's again."""
    lt = [r["candidate"] for r in case if _is_candidate(r["plan"]) and not r["graph"]]
    best = best_of(case)
    theirs, ours = best["vendor"], best["candidate"]
    ratios = f"**{paired(theirs, ours):.2f}**", f"{paired(min(lt, key=median, default=theirs), ours):.2f}"
    error = f"{best['error'] / best['vendor_error']:.1f}"
    plan = f"`{best['plan']}`" + (" graph" if best["graph"] else "")
    clock = (f"{digits(median(x))} ms" for x in (theirs, ours))
    name = _type_name(best["dtype"], (r["plan"] for r in case))
    return name, times(best["size"]), *clock, *ratios, error, space(best["workspace"]), plan


def _type_name(dtype: str, plans: Iterable[str]) -> str:
    """The type as the tables of default calls name it: these plans compute in its own arithmetic, where others make a
    product of that type of products in another one."""
    own = f"{dtype}{OWN}"
    return own if own in OF_DEFAULT_CALLS["cuda"] and not any(Plan.parse(x).emulates for x in plans) else dtype


def _random(path: Path) -> Iterator[str]:
    """Whole calls of fmm.matmul on random shapes, type by type."""
    environment, rows = load(path)
    where = f"`results/{path.parent.name}/{path.name}`, commit {short(environment['commit'])}"
    yield f"Whole calls on random shapes ({where}):"
    yield ""
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        found = [r for r in rows if r["dtype"] == dtype]
        name = _type_name(dtype, (r["plan"] for r in found))
        yield f"- {name}: {len(found)} random shapes: {range_of_ratios(found, 'products')}."


def no_workspace(results: Path) -> Iterator[str]:
    """Whole calls with workspace=0."""
    for path, environment, rows in loaded(results, "*/tiles/workspace.json"):
        where = f"`results/{path.parent.parent.name}/tiles/`, commit {short(environment['commit'])}"
        yield f"**{environment['device']}** ({where})"
        yield ""
        columns = ("type", "m x k x n", "speedup", "answered by", "plan")
        found = (
            (r["dtype"], times(r["size"]), f"**{r['ratio']:.2f}**", r["step"], f"`{r['plan']}`")
            for r in sorted(rows, key=lambda r: r["size"])
        )
        yield from table(columns, found)


OWN_KERNEL = ("tile", "strassen.fused > tile", "strassen.batched.pad16 > tile", "strassen.batched.pad16 > vendor")


def own_kernel(results: Path) -> Iterator[str]:
    """Our own product kernel against cuBLAS on square matrices: ratios of the same rounds."""
    paths = sorted(p for name in ("tile", "double") for p in results.glob(f"*/tiles/{name}.json"))
    found = {path: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    sizes = [n for n in next(iter(found.values()))["seconds"] if n.isdecimal()] if found else []

    def rows() -> Iterator[Sequence[object]]:
        for content in found.values():
            name = f"{content['environment']['device']}, {content['dtype']}"
            for plan in OWN_KERNEL:
                own = (content["seconds"][n] for n in sizes)
                yield name, f"`{plan}`", *(f"{paired(x['cuBLAS'], x[plan]):.2f}" if plan in x else "" for x in own)

    yield from table(("device, type", "plan", *sizes), rows())

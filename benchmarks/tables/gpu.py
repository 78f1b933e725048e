"""Tables of products on a GPU: plans, random shapes, calls, structured products, emulation, residues, host time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.held_out import OWN
from benchmarks.held_out import TYPES as OF_DEFAULT_CALLS
from benchmarks.tables.cpu import machine
from benchmarks.tables.markdown import (
    Row,
    digits,
    heading,
    load,
    loaded,
    paired,
    range_of_ratios,
    short,
    space,
    table,
    times,
)
from fmm.kernels.plans.plan import Plan

# ---- named plans and random shapes

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


# ---- default calls, the largest products, integers


def calls(results: Path) -> Iterator[str]:
    """Default calls on named products."""
    columns = ("type", "m x k x n", "library", "fmm", "speedup", "error", "workspace", "answered by", "plan")
    for path, environment, rows in loaded(results, "*/calls.json"):
        yield from heading(path, environment)
        found = ((r["dtype"], times(r["size"]), *_call(r), r["step"], f"`{r['plan']}`") for r in rows if _whole(r))
        yield from table(columns, found)


def large(results: Path) -> Iterator[str]:
    """The largest products, alone on the device and beside others."""
    columns = ("type", "m x k x n", "taken", "library", "fmm", "speedup", "error", "workspace", "plan")
    for path, environment, rows in loaded(results, "*/large*.json"):
        yield from heading(path, environment)
        found = (
            (r["dtype"], times(r["size"]), f"{r['taken']:.0%}", *_call(r), f"`{r['plan']}`") for r in rows if _whole(r)
        )
        yield from table(columns, found)


def _whole(row: Row) -> bool:
    return bool(row["seconds"]) and not row["failure"]


def _call(row: Row) -> Sequence[str]:
    """Milliseconds of both, speedup, error and workspace."""
    theirs, ours = (f"{digits(1e3 * median(row[x]))} ms" for x in ("vendor_seconds", "seconds"))
    speedup = f"**{paired(row['vendor_seconds'], row['seconds']):.2f}**"
    return theirs, ours, speedup, f"{row['error']:.2f}", space(row["workspace"])


def integers(results: Path) -> Iterator[str]:
    """Exact products of integers, whole calls, on CPUs and GPUs."""
    columns = ("type", "n", "numbers", "library", "fmm", "speedup", "workspace", "plan")
    for path, environment, rows in loaded(results, "*/integers.json"):
        name = environment.get("device") or machine(environment)
        yield f"**{name}** (`results/{path.parent.name}/{path.name}`, commit {environment['commit']})"
        yield ""
        yield from table(columns, (_integer_row(row) for row in rows if row["equal"]))
        yield ""


def _integer_row(row: Row) -> Sequence[object]:
    """The library's product may have been timed on some rows only, each of which takes as long."""
    theirs, ours = median(row["vendor"]) * row["side"] / row["rows"], median(row["candidate"])
    numbers = f"below 2^{row['bits']}" if row["bits"] else "the whole range"
    seconds = (f"{digits(1e3 * x)} ms" for x in (theirs, ours))
    return (
        row["dtype"],
        row["side"],
        numbers,
        *seconds,
        f"**{theirs / ours:.1f}**",
        space(row["workspace"]),
        f"`{row['plan']}`",
    )


# ---- float32 by three float16 products


def emulation(results: Path) -> Iterator[str]:
    """float32 by three float16 products, whole calls; and what else is faster than cuBLAS, with its errors."""
    for path, environment, rows in loaded(results, "*/emulation*.json"):
        drawn = json.loads(path.read_text(encoding="utf-8")).get("random", [])
        rows = [row for row in rows if row["samples"]]
        yield from heading(path, environment)
        columns = ("product", "ms", "speedup", "error, normal", "error, uniform", "plan")
        yield from table(columns, (_emulated(row) for row in rows))
        peers = list(dict.fromkeys(name for row in rows for name in row["samples"] if name not in ("fmm", "cublas")))
        if peers:
            yield from ("", "The same of others, in the same run (in brackets their errors, normal and uniform):", "")
            yield from table(
                ("m x k x n", "fmm", *peers),
                (
                    (times(row["size"]), *(_speed_and_errors(row, name) for name in ("fmm", *peers)))
                    for row in rows
                    if len(row["samples"]) > 2
                ),
            )
        if drawn:
            ratios, fast = sorted(row["ratio"] for row in drawn), sum(row["plan"] != "vendor" for row in drawn)
            least, middle, most = (f"{x:.3g}" for x in (ratios[0], median(ratios), ratios[-1]))
            yield from (
                "",
                f"{len(drawn)} random shapes, {fast} by plans: {least} of the library's speed at least, "
                f"{middle} in the middle, {most} at most.",
            )


def _emulated(row: dict[str, Any]) -> tuple[str, ...]:
    samples, kind = row["samples"], "" if row["dtype"] == "float32" else f", {row['dtype']}"
    errors = (f"{row['errors'][data]['fmm']:.2f}" if data in row["errors"] else "" for data in ("normal", "uniform"))
    name = times(row["size"]) + kind + ", half of a a^T against syrk" * row["half"]
    speedup = f"**{paired(samples['cublas'], samples['fmm']):.2f}**"
    return name, digits(1e3 * median(samples["fmm"])), speedup, *errors, f"`{row['plan']}`"


def _speed_and_errors(row: dict[str, Any], name: str) -> str:
    if name not in row["samples"]:
        return ""
    found = [row["errors"].get(data, {}).get(name) for data in ("normal", "uniform")]
    errors = [f"{x:.2g}" for x in found if x is not None]
    return f"{paired(row['samples']['cublas'], row['samples'][name]):.2f} ({', '.join(errors)})"


# ---- float64 by products of bytes

NONE = "-"


def residues(results: Path) -> Iterator[str]:
    """Whole calls of fmm.matmul, default and by named plans, beside the library's product and GEMMul8."""
    columns = ("type", "n", "product", "ms", "speedup", "error, normal", "error, uniform", "TOPS of the bytes")
    for path in sorted(results.glob("*/residues*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        yield from heading(path, content["environment"])
        yield from table(columns, (row for case in content["cases"] for row in _rows(case)))


def _rows(case: Row) -> Iterator[Sequence[object]]:
    for name, samples in case["samples"].items():
        chosen = case.get("chosen", "")
        plan = chosen if name == "fmm" else name
        text = {"vendor": "cuBLAS", "fmm": f"fmm's choice: `{chosen}`"}.get(
            name, name if name.startswith("GEMM") else f"`{name}`"
        )
        rate = case["tops"].get(plan)
        errors = (_error(case["errors"].get(kind), name) for kind in ("normal", "uniform"))
        speedup = f"**{case['speedups'][name]:.2f}**"
        ms = digits(median(samples))
        yield case.get("dtype", "float64"), case["side"], text, ms, speedup, *errors, f"{rate:.0f}" if rate else NONE


def _error(found: dict[str, float] | None, name: str) -> str:
    """Beside the library's."""
    return NONE if found is None else digits(found[name] / found["vendor"])


# ---- structured products

HALVES = {
    "syrk": "lower half, against syrk",
    "matmul": "`x @ x.T`, against the library's",
    "newton-schulz": "five steps",
    "plan": "all of it, the best plan named",
}


def halves(results: Path) -> Iterator[str]:
    """A matrix times its transpose, whole calls."""
    for path, environment, rows in loaded(results, "*/gram*.json"):
        yield from heading(path, environment)
        found = (
            (
                HALVES[r["kind"]],
                r["dtype"] + ", without emulation" * r.get("ieee", False),
                times(r["size"]),
                digits(median(r["candidate"])),
                f"**{paired(r['vendor'], r['candidate']):.2f}**",
                f"`{r['plan']}`",
            )
            for r in rows
            if r["kind"] in HALVES and not r["failure"] and (r["kind"] != "plan" or r is _best_named(r, rows))
        )
        yield from table(("what", "type", "size", "ms", "speedup", "plan"), found)


def _best_named(row: Row, rows: list[Row]) -> Row:
    """Of the plans that were named for the same product."""
    same = [r for r in rows if not r["failure"] and all(r[x] == row[x] for x in ("kind", "dtype", "size"))]
    return max(same, key=lambda r: paired(r["vendor"], r["candidate"]))


def structured(results: Path) -> Iterator[str]:
    """Structured products of random shapes, whole calls, and on CPUs those of the benchmark's list."""
    for path, environment, rows in loaded(results, "*/structured.json"):
        yield from heading(path, {"device": environment.get("processor"), **environment})
        if "ratio" in rows[0] or "failure" in rows[0]:
            yield from _structured_shapes([r for r in rows if "ratio" in r])
        else:
            columns = ("what", "type", "side", "speedup (95 % interval)", "plan")
            yield from table(columns, (_structured_row(r) for r in rows))


def _structured_row(row: Row) -> Sequence[object]:
    interval = f"**{row['speedup']:.2f}** ({row['low']:.3f} to {row['high']:.3f})"
    return f"`{row['kind']}`", row["dtype"], row["side"], interval, f"`{row['plan']}`"


def _structured_shapes(rows: list[Row]) -> Iterator[str]:
    """Kind by kind."""
    for kind in dict.fromkeys(r["kind"] for r in rows):
        found = [r for r in rows if r["kind"] == kind]
        fast = sum(r["plan"] != "vendor" for r in found)
        yield f"- {kind}: {len(found)} shapes, {fast} by fast plans: {range_of_ratios(found, 'those')}."


def complex_products(results: Path) -> Iterator[str]:
    """Complex squares, whole calls, and the fastest of the plans that were named."""
    for path, environment, rows in loaded(results, "*/complex.json"):
        yield from heading(path, environment)
        found = []
        for r in rows:
            plans = {plan: r["speedups"][plan] for plan in r["plans"] if plan in r["speedups"]}
            if "without emulation" in r["speedups"]:
                plans[r["chosen_without_emulation"]] = r["speedups"]["without emulation"]
            named = max(plans, key=plans.__getitem__)
            own = (
                f"**{r['speedups']['fmm']:.2f}**",
                f"`{r['chosen']}`",
                f"{r['errors']['fmm'] / r['errors']['vendor']:.2f}",
            )
            found.append((r["dtype"], r["side"], *own, f"{plans[named]:.2f}", f"`{named}`"))
        yield from table(("type", "side", "speedup", "plan", "error", "named", "plan"), iter(found))


# ---- the host's time

WAYS = {
    "vendor": "the library's own product",
    "launches": "a one-level plan, launched kernel by kernel",
    "replay": "the same, replayed as a CUDA graph",
    "moved": "the same graph, told of other arrays at every call",
}


def host(results: Path) -> Iterator[str]:
    """Microseconds from Python to the last launch, and what a small product's call takes more than the library's."""
    for path, environment, rows in loaded(results, "*/host.json"):
        where = f"`results/{path.parent.name}/`, commit {short(environment['commit'])}"
        yield f"**{environment['device']}**, torch {environment['torch']}, CuPy {environment['cupy']} ({where})"
        yield ""
        yield from _host_table([r for r in rows if r["table"] == "host"])
        yield ""
        yield from _small_table([r for r in rows if r["table"] == "small"])


def _host_table(rows: list[Row]) -> Iterator[str]:
    keys = sorted({(r["library"], r["n"]) for r in rows})
    found = {(r["way"], r["library"], r["n"]): f"{median(r['microseconds']):.0f} µs" for r in rows}
    columns = ("the host's time for a call, float32", *(f"{library}, n = {n}" for library, n in keys))
    yield from table(columns, ((words, *(found[way, *key] for key in keys)) for way, words in WAYS.items()))


def _small_table(rows: list[Row]) -> Iterator[str]:
    """The spread over the element types."""
    libraries = sorted({r["library"] for r in rows})

    def extra(n: int, library: str) -> str:
        own = [r for r in rows if (r["n"], r["library"]) == (n, library)]
        more = [median(f - v for f, v in zip(r["fmm"], r["vendor"], strict=True)) for r in own]
        ratio = [paired(r["vendor"], r["fmm"]) for r in own]
        return f"{min(more):+.1f} to {max(more):+.1f} µs, ratio {min(ratio):.2f} to {max(ratio):.2f}"

    columns = ("a small product, whole calls: n", *(f"fmm beyond {library}, all types" for library in libraries))
    sizes = sorted({r["n"] for r in rows})
    yield from table(columns, ((n, *(extra(n, library) for library in libraries)) for n in sizes))

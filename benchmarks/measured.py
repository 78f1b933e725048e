"""The measured tables of README.md and docs/benchmarks.md, as lines of Markdown, each made from files in results/."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.held_out import FILE, environment_of, grouped, packed, summary, told_rows
from benchmarks.held_out import Row as HeldOut
from fmm.kernels.plans.old_names import todays_plan
from fmm.kernels.plans.plan import Plan

Row = dict[str, Any]

TYPES = ("float32", "float64", "bfloat16", "float16", "tf32")  # in the order of the tables
LONG = 0.1  # milliseconds from which a random product counts as long


def load(path: Path) -> tuple[Row, list[Row]]:
    """The environment of a result and its rows."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["environment"], content["rows"]


PLAN = re.compile("`([^`]+)`")


def table(columns: Sequence[str], rows: Iterator[Sequence[object]]) -> Iterator[str]:
    """A Markdown table; plans are spelled as they are today, whenever they were measured."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    lines = (f"| {' | '.join(map(str, row))} |" for row in rows)
    yield from (PLAN.sub(lambda named: f"`{todays_plan(named[1])}`", line) for line in lines)


def times(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def digits(number: float) -> str:
    """Three significant digits, never as a power of ten."""
    return f"{float(f'{number:.3g}'):g}"


def paired(other: Sequence[float], own: Sequence[float]) -> float:
    """The median of the ratios of each round: above 1 where `own` is faster."""
    return float(median(o / x for o, x in zip(other, own, strict=True)))


# ---- products on a CPU against NumPy's


def cpu_folders(results: Path) -> list[Path]:
    return sorted(path.parent for path in results.glob("*/speed.json"))


def machine(environment: Row) -> str:
    return "{processor}, {blas_threads} threads, NumPy {numpy}, {blas}".format(**environment)


def cpu(results: Path) -> Iterator[str]:
    """Large products and what the other suites found, machine by machine."""
    for folder in cpu_folders(results):
        environment, rows = load(folder / "speed.json")
        yield f"**{machine(environment)}** (`results/{folder.name}/`, commit {environment['commit']})"
        yield ""
        columns = ("m x k x n", "type", "NumPy", "fmm", "speedup (95 % interval)", "workspace", "plan")
        yield from table(columns, map(_cpu_row, rows))
        yield ""
        yield from _suites(folder)
        yield ""


def _cpu_row(row: Row) -> Sequence[object]:
    theirs, ours = (f"{median(row[who]):.3g} s" for who in ("vendor", "candidate"))
    interval = f"**{row['speedup']:.2f}** ({row['low']:.3f} to {row['high']:.3f})"
    return times(row["size"]), row["dtype"], theirs, ours, interval, space(row["workspace"]), f"`{row['plan']}`"


def space(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"


def _suites(folder: Path) -> Iterator[str]:
    """One line for each of the other suites that were run, worst cases first."""
    for suite, sentence in SENTENCES.items():
        if (folder / f"{suite}.json").exists():
            yield f"- {sentence(load(folder / f'{suite}.json')[1])}."


def _never_slower(rows: list[Row]) -> str:
    ratios = [r["speedup"] for r in rows]
    return f"{len(ratios)} random shapes, sides up to 6000: median ratios from {min(ratios):.3f} to {max(ratios):.3f}"


def _small_calls(rows: list[Row]) -> str:
    calls = (f"{r['extra_microseconds']:.2f} µs at {r['side']} x {r['side']}" for r in rows)
    return f"A small call costs more by {', '.join(calls)}"


def _errors(rows: list[Row]) -> str:
    worst = max(rows, key=lambda r: float(r["ratio"]))
    where = f"{worst['dtype']}, {worst['data']}, n = {worst['side']}"
    return f"Largest error: {worst['ratio']:.1f} times NumPy's ({where})"


SENTENCES: dict[str, Callable[[list[Row]], str]] = {
    "never_slower": _never_slower,
    "small_calls": _small_calls,
    "errors": _errors,
    "memory": lambda rows: f"Peak memory over what the plan said: {max(r['ratio'] for r in rows):.4f}",
    "guard": lambda rows: f"The check for overflow takes at most {max(r['share'] for r in rows):.2%} of a product",
}


# ---- products on a GPU against cuBLAS's


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
        yield f"**{environment['device']}**, {versions} (`results/{folder.name}/`, commit {environment['commit'][:12]})"
        yield ""
        yield from table(columns, map(_gpu_row, cases(rows)))
        if (folder / "random.json").exists():
            yield ""
            yield from _random(load(folder / "random.json")[1])


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
    return best["dtype"], times(best["size"]), *clock, *ratios, error, space(best["workspace"]), plan


def _random(rows: list[Row]) -> Iterator[str]:
    """Whole calls of fmm.matmul on random shapes, type by type."""
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        found = [r for r in rows if r["dtype"] == dtype]
        ratios = [r["ratio"] for r in found]
        long = [r["ratio"] for r in found if median(r["vendor"]) > LONG]
        text = f"{len(found)} random shapes, whole calls: median ratios from {min(ratios):.2f} to {max(ratios):.2f}"
        yield f"- {dtype}: {text}; of products over {LONG} ms ({len(long)}) from {min(long, default=1):.2f}."


def no_workspace(results: Path) -> Iterator[str]:
    """Whole calls with workspace=0."""
    for path in sorted(results.glob("*/tiles/workspace.json")):
        environment, rows = load(path)
        where = f"`results/{path.parent.parent.name}/tiles/`, commit {environment['commit'][:12]}"
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


# ---- emulated, structured and complex products on GPUs


def emulation(results: Path) -> Iterator[str]:
    """float32 by three float16 products, whole calls; and what else is faster than cuBLAS, with its errors."""
    for path in sorted(results.glob("*/emulation*.json")):
        environment, rows = load(path)
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


HALVES = {
    "syrk": "lower half, against syrk",
    "matmul": "`x @ x.T`, against the library's",
    "newton-schulz": "five steps",
    "plan": "all of it, the best plan named",
}


def halves(results: Path) -> Iterator[str]:
    """A matrix times its transpose, whole calls."""
    for path in sorted(results.glob("*/gram*.json")):
        environment, rows = load(path)
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
    for path in sorted(results.glob("*/structured.json")):
        environment, rows = load(path)
        where = environment.get("device", environment.get("processor"))
        yield ""
        yield f"**{where}** (`results/{path.parent.name}/{path.name}`, commit {environment['commit'][:12]})"
        yield ""
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
        ratios = [r["ratio"] for r in found]
        long = [r["ratio"] for r in found if median(r["vendor"]) > LONG]
        fast = sum(r["plan"] != "vendor" for r in found)
        text = f"{len(found)} shapes, {fast} by fast plans: median ratios from {min(ratios):.2f} to {max(ratios):.2f}"
        yield f"- {kind}: {text}; of those over {LONG} ms ({len(long)}) from {min(long, default=1):.2f}."


def complex_products(results: Path) -> Iterator[str]:
    """Complex squares, whole calls, and the fastest of the plans that were named."""
    for path in sorted(results.glob("*/complex.json")):
        environment, rows = load(path)
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


def heading(path: Path, environment: Row) -> Iterator[str]:
    """Which device, and where the samples are; apart from a table before it."""
    yield ""
    yield f"**{environment['device']}** (`results/{path.parent.name}/{path.name}`, commit {environment['commit'][:12]})"
    yield ""


# ---- what a call costs the host


WAYS = {
    "vendor": "the library's own product",
    "launches": "a one-level plan, launched kernel by kernel",
    "replay": "the same, replayed as a CUDA graph",
    "moved": "the same graph, told of other arrays at every call",
}


def host(results: Path) -> Iterator[str]:
    """Microseconds from Python to the last launch, and what a small product's call takes more than the library's."""
    for path in sorted(results.glob("*/host.json")):
        environment, rows = load(path)
        where = f"`results/{path.parent.name}/`, commit {environment['commit'][:12]}"
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


# ---- the models of tunings


def tuned(results: Path) -> Iterator[str]:
    """What the model of every tuning is off by on its held-out shapes, config by config."""
    columns = ("config", "device, type", "held-out pairs", "time off by (95 %)", "speedup off by", "noise floor")
    yield from table(columns, _tuned_rows(results))


def _tuned_rows(results: Path) -> Iterator[Sequence[object]]:
    for path in sorted((*results.glob("*/config.json"), *results.glob("*/*/config.json"))):
        (types,) = json.loads(path.read_text(encoding="utf-8"))["devices"].values()
        for dtype, section in types.items():
            name = f"{section['conditions']['device']}, {dtype}"
            yield f"`{_from(results, path.parent)}`", name, *_model_error(section), _share(section["noise"])


def _from(results: Path, folder: Path) -> str:
    return f"results/{folder.relative_to(results)}"


def _model_error(section: Row) -> tuple[object, ...]:
    time, speedup = section["error"]["time"], section["error"]["speedup"]
    if not speedup["count"]:
        return 0, "not measured", "not measured"
    return speedup["count"], f"{time['median']:.1%} ({time['p95']:.1%})", f"{speedup['median']:.1%}"


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1%}"


# ---- what fmm.matmul does after a tuning


def calls(results: Path) -> Iterator[str]:
    """Default calls on named products."""
    columns = ("type", "m x k x n", "library", "fmm", "speedup", "error", "workspace", "answered by", "plan")
    for path in sorted(results.glob("*/calls.json")):
        environment, rows = load(path)
        yield from heading(path, environment)
        found = ((r["dtype"], times(r["size"]), *_call(r), r["step"], f"`{r['plan']}`") for r in rows if _whole(r))
        yield from table(columns, found)


def large(results: Path) -> Iterator[str]:
    """The largest products, alone on the device and beside others."""
    columns = ("type", "m x k x n", "taken", "library", "fmm", "speedup", "error", "workspace", "plan")
    for path in sorted(results.glob("*/large*.json")):
        environment, rows = load(path)
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


def held_out(results: Path) -> Iterator[str]:
    """Default calls on shapes that no fit saw, beside the best of the plans that were tried."""
    columns = (
        "type", "shapes", "how many", "by plans", "answered by", "of the best plan: mean, least",
        "of the vendor: mean, least", "poor choices",
    )  # fmt: skip
    for path in sorted({x.with_name(FILE) for x in results.glob(f"*/{FILE}*")}):
        rows = told_rows(path)
        environment = environment_of(path, rows[0].config)
        yield from heading(
            path if path.exists() else packed(path), {"device": environment.get("processor", ""), **environment}
        )
        yield from table(columns, (_held_out_row(*found) for found in grouped(rows)))


def _held_out_row(dtype: str, kind: str, rows: Sequence[HeldOut]) -> Sequence[object]:
    s = summary(rows)
    best = f"{s['mean_share_of_best']:.1%}, {s['least_share_of_best']:.1%}"
    vendor = f"{s['mean_speedup']:.2f}, {s['least_speedup']:.2f}"
    steps = ", ".join(dict.fromkeys(row.step for row in rows))
    return dtype, kind, s["shapes"], s["by_plans"], steps, best, vendor, s["poor"]


def integers(results: Path) -> Iterator[str]:
    """Exact products of integers, whole calls, on CPUs and GPUs."""
    columns = ("type", "n", "numbers", "library", "fmm", "speedup", "workspace", "plan")
    for path in sorted(results.glob("*/integers.json")):
        environment, rows = load(path)
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

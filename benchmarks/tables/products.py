"""Tables of products on GPUs and CPUs: default calls, integers, triangles, complex, emulation and host time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.declines import BUDGET_MICROSECONDS as DECLINE_BUDGET
from benchmarks.tables.markdown import (
    LONG_MILLISECONDS,
    LongTable,
    Row,
    duration_text,
    gibibytes_text,
    heading_lines,
    load_result,
    loaded_results,
    machine_name,
    median_ratio,
    rounded_text,
    size_text,
    source_cells,
    speedup_text,
    table_lines,
)

# Default calls, and the largest products

CALL_COLUMNS = ("on", "type", "m x k x n", "vendor", "fmm", "speedup", "error", "workspace", "plan")
# The rows of docs/benchmarks.md, by card: the others are in the CSV file.
SHOWN_CALLS = {
    "H200": [
        *((dtype, f"{n}³") for dtype in ("float32", "float32-ieee", "float64", "float64-ieee") for n in (4096, 16384)),
        ("float64-ieee", "30000 x 3000 x 3000"),
        *(("bfloat16", f"{n}³") for n in (8191, 16384, 32768)),
        ("tf32", "16384³"),
    ],
    "H100": [("float32", "16384³"), ("float64", "16384³")],
}


def is_measured(row: Row) -> bool:
    """Return True if the call was timed and did not fail."""
    return bool(row["seconds"]) and not row["failure"]


def _call_rows(results: Path) -> Iterator[Sequence[object]]:
    for path, environment, rows in loaded_results(results, "*/calls.json"):
        for row in filter(is_measured, rows):
            cells = row["dtype"], size_text(row["size"]), *_call_cells(row), f"`{row['plan']}`"
            yield machine_name(environment), *cells, *source_cells(path, environment)


def _call_cells(row: Row) -> Sequence[str]:
    """Return the times of vendor and fmm, the speedup, the error and the workspace."""
    both = (duration_text(median(row[name])) for name in ("vendor_seconds", "seconds"))
    return (
        *both,
        speedup_text(row["vendor_seconds"], row["seconds"]),
        f"{row['error']:.2f}",
        gibibytes_text(row["workspace"]),
    )


CALLS = LongTable("calls", CALL_COLUMNS, _call_rows)


def default_calls(results: Path) -> Iterator[str]:
    """Yield default calls of fmm.matmul on some products."""

    def is_shown(row: Sequence[object]) -> bool:
        return (row[1], row[2]) in SHOWN_CALLS.get(str(row[0]), ())

    return CALLS.page_lines(results, is_shown)


LARGE_COLUMNS = ("on", "type", "n", "taken", "vendor", "fmm", "speedup", "error", "workspace", "plan")


def _large_rows(results: Path) -> Iterator[Sequence[object]]:
    for path, environment, rows in loaded_results(results, "*/large*.json"):
        for row in filter(is_measured, rows):
            cells = row["dtype"], row["size"][0], f"{row['taken']:.0%}", *_call_cells(row), f"`{row['plan']}`"
            yield machine_name(environment), *cells, *source_cells(path, environment)


LARGE = LongTable("large", LARGE_COLUMNS, _large_rows)


def largest_products(results: Path) -> Iterator[str]:
    """Yield the largest products; with taken memory, only the default types."""
    return LARGE.page_lines(results, lambda row: row[3] == "0%" or not str(row[1]).endswith("-ieee"))


# Integers

SHOWN_INTEGERS = {
    *(("int64", 1024), ("int64", 4096), ("int8", 2048), ("bool", 1024)),
    *(("int64", 8192), ("int32", 8192), ("int8", 8192)),
}


def _integer_rows(results: Path) -> Iterator[Sequence[object]]:
    """Yield exact products; the vendor's time is scaled up from `rows` rows of C, which all take the same time."""
    for path, environment, rows in loaded_results(results, "*/integers.json"):
        for row in (row for row in rows if row["equal"]):
            vendor, own = median(row["vendor"]) * row["side"] / row["rows"], median(row["candidate"])
            numbers = f"below 2^{row['bits']}" if row["bits"] else "whole range"
            cells = (
                row["dtype"],
                row["side"],
                numbers,
                duration_text(vendor),
                duration_text(own),
                f"**{vendor / own:.1f}**",
            )
            memory = gibibytes_text(row["workspace"]), f"`{row['plan']}`"
            yield machine_name(environment), *cells, *memory, *source_cells(path, environment)


INTEGER_TABLE = LongTable(
    "integers", ("on", "type", "n", "numbers", "vendor", "fmm", "speedup", "workspace", "plan"), _integer_rows
)


def integer_products(results: Path) -> Iterator[str]:
    """Yield some exact products of integers."""
    seen: set[tuple[object, ...]] = set()

    def is_shown(row: Sequence[object]) -> bool:
        key = row[0], row[1], row[2]
        first = key not in seen and row[3] == "whole range" and (row[1], row[2]) in SHOWN_INTEGERS
        seen.update([key] if first else ())
        return first

    return INTEGER_TABLE.page_lines(results, is_shown)


# float32 by three float16 products, and its peers

PEER_NAMES = (
    *("fmm", "fmm, prepared", "fmm, componentwise", "fmm, accurate", "cublasLt", "TF32", "3xTF32"),
    *("GEMMul8 fast", "GEMMul8 accurate"),
)


FLOAT64_PEER_NAMES = ("fmm", "fmm, accurate", "cuBLAS emulated", "GEMMul8 fast", "GEMMul8 accurate")


def _emulation_rows(results: Path) -> Iterator[Sequence[object]]:
    for path, environment, rows in loaded_results(results, "*/emulation*.json"):
        for row in rows:
            for name in (name for name in row["samples"] if name != "cublas"):
                own, base = row["samples"][name], row["samples"]["cublas"]
                errors = (row["errors"].get(data, {}).get(name) for data in ("normal", "uniform"))
                shown = ("" if x is None else rounded_text(x, 2) for x in errors)
                what = "lower triangle of a a^T" if row["half"] else "product"
                head = machine_name(environment), what, row["dtype"], size_text(row["size"]), name
                plan = f"`{row['plan']}`" if name == "fmm" else ""
                yield (
                    *head,
                    duration_text(median(own)),
                    speedup_text(base, own),
                    *shown,
                    plan,
                    *source_cells(path, environment),
                )


EMULATION = LongTable(
    "emulation",
    ("on", "what", "type", "m x k x n", "by", "time", "speedup", "error, normal", "error, uniform", "plan"),
    _emulation_rows,
)


def emulated_products(results: Path) -> Iterator[str]:
    """Yield the speedup and the errors, on normal and on uniform numbers, of fmm and its peers in float32."""
    yield from _peer_table(results, "results/nvidia-h200/emulation.json", "float32", PEER_NAMES)
    yield ""
    yield f"All products, plans and triangles: {EMULATION.link}."


def emulated_float64_products(results: Path) -> Iterator[str]:
    """Yield the same for float64, by residues."""
    path = "results/nvidia-h100-80gb-hbm3/emulation.json"
    yield from _peer_table(results, path, "float64", FLOAT64_PEER_NAMES)


def _peer_table(results: Path, path: str, dtype: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a table with a row for each size in this file of results, and a column for each of the names."""
    rows: dict[str, dict[str, str]] = {}
    for row in _emulation_rows(results):
        if row[-2] == path and row[2] == dtype:
            errors = ", ".join(str(x) for x in row[7:9] if x)
            rows.setdefault(str(row[3]), {})[str(row[4])] = f"{str(row[6]).strip('*')} ({errors})"
    shown = {size: cells for size, cells in rows.items() if len(cells) > 1}
    yield from table_lines(
        ("m x k x n", *names), ((size, *(cells.get(name, "") for name in names)) for size, cells in shown.items())
    )


# Structured and complex products

TRIANGLE_KINDS = {
    "syrk": "lower triangle, against syrk",
    "matmul": "`x @ x.T`, against the vendor's",
    "newton-schulz": "five Newton-Schulz steps",
    "plan": "both triangles, this plan",
}


def _triangle_rows(results: Path) -> Iterator[Sequence[object]]:
    for path, environment, rows in loaded_results(results, "*/gram*.json"):
        for row in (row for row in rows if row["kind"] in TRIANGLE_KINDS and not row["failure"]):
            dtype = row["dtype"] + "-ieee" * row.get("ieee", False)
            cells = (
                TRIANGLE_KINDS[row["kind"]],
                dtype,
                size_text(row["size"]),
                duration_text(median(row["candidate"]) / 1e3),
            )
            ratio = speedup_text(row["vendor"], row["candidate"])
            yield machine_name(environment), *cells, ratio, f"`{row['plan']}`", *source_cells(path, environment)


TRIANGLES = LongTable("triangles", ("on", "what", "type", "size", "time", "speedup", "plan"), _triangle_rows)
SHOWN_TRIANGLES = {
    ("syrk", "float32", 16384),
    *(("syrk", "float32-ieee", n) for n in (8192, 32768)),
    ("syrk", "float64", 16384),
    ("syrk", "float64-ieee", 16384),
    ("matmul", "float32", 16384),
    ("matmul", "float64", 16384),
    *(("matmul", "bfloat16", n) for n in (2048, 16384)),
    ("newton-schulz", "bfloat16", 8192),
}


def triangle_products(results: Path) -> Iterator[str]:
    """Yield some products of a matrix and its transpose."""
    shown = {(TRIANGLE_KINDS[kind], dtype, f"{n} x {n}") for kind, dtype, n in SHOWN_TRIANGLES}
    return TRIANGLES.page_lines(
        results, lambda row: str(row[-2]).endswith("/gram.json") and (row[1], row[2], row[3]) in shown
    )


def structured_products(results: Path) -> Iterator[str]:
    """Yield a row for each kind of structured product that was measured on random shapes."""
    rows: list[Sequence[object]] = []
    for _, environment, found in loaded_results(results, "*/structured.json*"):
        good = [row for row in found if "ratio" in row]
        for kind in dict.fromkeys(row["kind"] for row in good):
            own = [row for row in good if row["kind"] == kind]
            ratios = [row["ratio"] for row in own]
            long = [row["ratio"] for row in own if median(row["vendor"]) > LONG_MILLISECONDS]
            name, fast = kind.replace("half", "lower triangle,"), sum(row["plan"] != "vendor" for row in own)
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            rows.append((machine_name(environment), name, len(own), fast, spread, len(long), f"{min(long):.2f}"))
    columns = ("on", "what", "shapes", "by plans", "speedups", f"over {LONG_MILLISECONDS} ms", "least of these")
    yield from table_lines(columns, rows)


def complex_products(results: Path) -> Iterator[str]:
    """Yield complex squares: default calls, and the fastest of the named plans without emulation."""
    for path, environment, rows in loaded_results(results, "*/complex.json"):
        yield from heading_lines(path, environment)
        yield from table_lines(("type", "n", "speedup", "plan", "error", "named", "plan"), map(_complex_row, rows))


def _complex_row(row: Row) -> Sequence[object]:
    ratios = row["speedups"]
    plans = {plan: ratios[plan] for plan in row["plans"] if plan in ratios}
    if "without emulation" in ratios:
        plans[row["chosen_without_emulation"]] = ratios["without emulation"]
    named = max(plans, key=plans.__getitem__)
    own = f"**{ratios['fmm']:.2f}**", f"`{row['chosen']}`", f"{row['errors']['fmm'] / row['errors']['vendor']:.2f}"
    return row["dtype"], row["side"], *own, f"{plans[named]:.2f}", f"`{named}`"


# Host time

HOST_WAYS = {
    "vendor": "the vendor's product",
    "launches": "a one-level plan, launched kernel by kernel",
    "replay": "the same, replayed as a CUDA graph",
    "moved": "the same graph with other arrays at every call",
}
SHOWN_SMALL_SIZES = {1, 128, 512, 1024}


def host_times(results: Path) -> Iterator[str]:
    """Yield microseconds from Python to the last launch, and the extra time of small products' calls."""
    for path, environment, rows in loaded_results(results, "*/host.json"):
        yield from heading_lines(path, environment, f"torch {environment['torch']}", f"CuPy {environment['cupy']}")
        yield from _host_table([row for row in rows if row["table"] == "host"])
        yield ""
        yield from _small_table([row for row in rows if row["table"] == "small"])


def _host_table(rows: list[Row]) -> Iterator[str]:
    keys = sorted({(row["library"], row["n"]) for row in rows})
    found = {(row["way"], row["library"], row["n"]): f"{median(row['microseconds']):.0f} µs" for row in rows}
    columns = ("host time of a call, float32", *(f"{library}, n = {n}" for library, n in keys))
    yield from table_lines(columns, ((words, *(found[way, *key] for key in keys)) for way, words in HOST_WAYS.items()))


def _small_table(rows: list[Row]) -> Iterator[str]:
    """Yield a row for each size: the range over the element types."""
    libraries = sorted({row["library"] for row in rows})

    def extra_time(n: int, library: str) -> str:
        own = [row for row in rows if (row["n"], row["library"]) == (n, library)]
        extra = [median(f - v for f, v in zip(row["fmm"], row["vendor"], strict=True)) for row in own]
        ratio = [median_ratio(row["vendor"], row["fmm"]) for row in own]
        return f"{min(extra):+.1f} to {max(extra):+.1f} µs, ratio {min(ratio):.2f} to {max(ratio):.2f}"

    columns = ("small products, whole calls: n", *(f"fmm over {library}, all types" for library in libraries))
    sizes = sorted({row["n"] for row in rows} & SHOWN_SMALL_SIZES)
    yield from table_lines(columns, ((n, *(extra_time(n, library) for library in libraries)) for n in sizes))


# CPUs


def cpu_products(results: Path) -> Iterator[str]:
    """Yield large products, and a line for each other suite, of every CPU."""
    for path, environment, rows in loaded_results(results, "*/speed.json"):
        versions = f"NumPy {environment['numpy']}", environment["blas"]
        yield from heading_lines(path, environment, *versions)
        columns = ("m x k x n", "type", "NumPy", "fmm", "speedup (95 % interval)", "workspace", "plan")
        yield from table_lines(columns, map(_cpu_row, rows))
        yield ""
        for suite, sentence in CPU_SENTENCES.items():
            if (path.parent / f"{suite}.json").exists():
                yield f"- {sentence(load_result(path.parent / f'{suite}.json')[1])}."


def _cpu_row(row: Row) -> Sequence[object]:
    vendor, own = (f"{median(row[name]):.3g} s" for name in ("vendor", "candidate"))
    interval = f"**{row['speedup']:.2f}** ({row['low']:.3f} to {row['high']:.3f})"
    return (
        size_text(row["size"]),
        row["dtype"],
        vendor,
        own,
        interval,
        gibibytes_text(row["workspace"]),
        f"`{row['plan']}`",
    )


def cpu_peers(results: Path) -> Iterator[str]:
    """Yield NumPy, MKL and fmm in one run, on every CPU where peers were measured."""
    for path, environment, rows in loaded_results(results, "*/peers.json"):
        versions = f"NumPy {environment['numpy']}", environment["blas"], environment["mkl"]
        yield from heading_lines(path, environment, *filter(None, versions))
        yield from table_lines(("n", "type", "NumPy", "MKL", "fmm", "workspace", "plan"), map(_cpu_peer_row, rows))
        yield ""


def _cpu_peer_row(row: Row) -> Sequence[object]:
    samples = row["samples"]

    def cell(name: str) -> str:
        if name not in samples:
            return ""
        return f"{median_ratio(samples['numpy'], samples[name]):.2f} ({rounded_text(row['errors'][name], 2)})"

    cells = f"{median(samples['numpy']):.3g} s", cell("mkl"), cell("fmm")
    return row["size"][0], row["dtype"], *cells, gibibytes_text(row["workspace"]), f"`{row['plan']}`"


def _random_shape_sentence(rows: list[Row]) -> str:
    ratios = [row["speedup"] for row in rows]
    return f"{len(ratios)} random shapes, sides up to 6000: median ratios from {min(ratios):.3f} to {max(ratios):.3f}"


def _small_call_sentence(rows: list[Row]) -> str:
    calls = (f"{row['extra_microseconds']:.2f} µs at {row['side']} x {row['side']}" for row in rows)
    return f"Extra time of a small call: {', '.join(calls)}"


def _error_sentence(rows: list[Row]) -> str:
    worst = max(rows, key=lambda row: float(row["ratio"]))
    where = f"{worst['dtype']}, {worst['data']}, n = {worst['side']}"
    return f"Largest error: {worst['ratio']:.1f} times NumPy's ({where})"


CPU_SENTENCES: dict[str, Callable[[list[Row]], str]] = {
    "never_slower": _random_shape_sentence,
    "small_calls": _small_call_sentence,
    "errors": _error_sentence,
    "memory": lambda rows: f"Peak memory over the predicted workspace: {max(row['ratio'] for row in rows):.4f}",
    "guard": lambda rows: f"The overflow check takes at most {max(row['share'] for row in rows):.2%} of a product",
}

# Declined calls, and many threads

NO_RESULTS = "No results yet."


def _decline_rows(results: Path) -> Iterator[Sequence[object]]:
    for path, environment, rows in loaded_results(results, "*/declines.json*"):
        for row in (row for row in rows if not row["failure"] and not row.get("plan")):
            function = row["function"] + ", fmm installed" * row["hooked"]
            times_shown = (f"{row[name]:.2f}" for name in ("vendor_microseconds", "fmm_microseconds"))
            extra = f"{row['extra_microseconds']:+.2f}"
            head = machine_name(environment), row["library"], function, row["dtype"], row["side"]
            yield *head, *times_shown, extra, *source_cells(path, environment)


DECLINES = LongTable(
    "declines", ("on", "library", "function", "type", "n", "vendor, µs", "fmm, µs", "extra, µs"), _decline_rows
)


def declined_calls(results: Path) -> Iterator[str]:
    """Yield the extra time of declined calls: the median and the largest one of each function."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for row in _decline_rows(results):
        groups.setdefault(tuple(row[:3]), []).append(float(str(row[7])))
    if not groups:
        yield NO_RESULTS
        return
    yield from table_lines(
        ("on", "library", "function", "cases", "extra, µs: median", "largest", f"above {DECLINE_BUDGET:g} µs"),
        (
            (*key, len(extra), f"{median(extra):+.2f}", f"{max(extra):+.2f}", sum(x > DECLINE_BUDGET for x in extra))
            for key, extra in groups.items()
        ),
    )
    yield from ("", f"By type and size: {DECLINES.link}.")


def concurrent_products(results: Path) -> Iterator[str]:
    """Yield the time of products on many threads at once over the time of the same products one after the other."""
    found = list(loaded_results(results, "*/threads.json"))
    if not found:
        yield NO_RESULTS
    for path, environment, rows in found:
        good = [row for row in rows if not row["failure"]]
        yield from heading_lines(path, environment)
        counts = sorted({row["threads"] for row in good})
        ratios = {(row["plan"], row["dtype"], row["side"], row["threads"]): row["ratio"] for row in good}
        yield from table_lines(
            ("plan", "type", "n", *(f"{count} threads" for count in counts)),
            (
                (*key, *(f"{ratios[*key, n]:.2f}" if (*key, n) in ratios else "" for n in counts))
                for key in dict.fromkeys(key[:3] for key in ratios)
            ),
        )


LONG_TABLES = (CALLS, LARGE, INTEGER_TABLE, EMULATION, TRIANGLES, DECLINES)
SECTIONS = (
    *(
        default_calls,
        largest_products,
        emulated_products,
        emulated_float64_products,
        complex_products,
        integer_products,
        triangle_products,
        structured_products,
        host_times,
        cpu_products,
        cpu_peers,
    ),
    *(declined_calls, concurrent_products),
)

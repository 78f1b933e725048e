"""Writes the README's numbers from results/: `python -m benchmarks.readme [--check]`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = dict[str, Any]


def filled(readme: str, results: Path) -> str:
    """The README with every marked section written anew."""
    folders = sorted(folder for folder in results.iterdir() if (folder / "speed.json").exists())
    sections: dict[str, Callable[[list[Path]], Iterator[str]]] = {
        "example": lambda folders: chain(_example(folders), _gpu_example(results)),
        "tables": _tables,
        "gpu": lambda _: _gpus(results),
        "tuned": lambda _: _tuned(results),
    }
    return MARK.sub(lambda m: m[1] + "\n".join(sections[m[2]](folders)) + "\n" + m[3], readme)


def _load(folder: Path, suite: str) -> tuple[Row, list[Row]]:
    content = json.loads((folder / f"{suite}.json").read_text(encoding="utf-8"))
    return content["environment"], content["rows"]


def _machine(environment: Row) -> str:
    return "{processor}, {blas_threads} threads, NumPy {numpy}, {blas}".format(**environment)


def _example(folders: list[Path]) -> Iterator[str]:
    for folder in folders:
        environment, rows = _load(folder, "speed")
        row = next((r for r in rows if r["size"] == [8192] * 3 and r["dtype"] == "float64"), None)
        if row:
            ours, theirs = median(row["candidate"]), median(row["vendor"])
            yield f"On {_machine(environment)}: NumPy {theirs:.2f} s, fmm **{ours:.2f} s**."


def _gpu_example(results: Path) -> Iterator[str]:
    for path in sorted(results.glob("*/gpu.json")):
        for environment, rows in _runs(path.parent):
            mine = [r for r in rows if (r["dtype"], r["size"]) == ("float32", [16384] * 3)]
            for best in map(_best, _cases(mine)):
                ours, theirs = median(best["candidate"]), median(best["vendor"])
                what = "float32, n = 16384"
                yield f"On {environment['device']}, {what}: cuBLAS {theirs:.0f} ms, fmm **{ours:.0f} ms**."


def _runs(folder: Path) -> Iterator[tuple[Row, list[Row]]]:
    """All runs of a GPU's benchmark, the last first: the environment, and the rows of cases that no later one has."""
    known: set[tuple[str, str]] = set()
    for name in ("gpu", *sorted((path.stem for path in folder.glob("gpu-*.json")), reverse=True)):
        environment, rows = _load(folder, name)
        new = [r for r in rows if (r["dtype"], str(r["size"])) not in known]
        known |= {(r["dtype"], str(r["size"])) for r in new if r["candidate"]}
        yield environment, new


def _tables(folders: list[Path]) -> Iterator[str]:
    for i, folder in enumerate(folders):
        environment, speed = _load(folder, "speed")
        yield from [""] * (i > 0)
        yield f"**{_machine(environment)}** (`results/{folder.name}/`, commit {environment['commit']})"
        yield ""
        yield "| m x k x n | type | speedup over NumPy (95 % interval) | plan | workspace |"
        yield "|---|---|---|---|---|"
        for r in speed:
            size = " x ".join(map(str, r["size"]))
            interval = f"{r['low']:.3f} to {r['high']:.3f}"
            space = f"{r['workspace'] / 2**20:.0f} MiB"
            yield f"| {size} | {r['dtype']} | **{r['speedup']:.2f}** ({interval}) | `{r['plan']}` | {space} |"
        yield ""
        yield from _sentences(folder)
        yield ""


def _gpus(results: Path) -> Iterator[str]:
    """The fastest plan of every case on every GPU; cases that the last run had no time for from an earlier one."""
    for folder in sorted(path.parent for path in results.glob("*/gpu.json")):
        runs = list(_runs(folder))
        dates = "CUDA {cuda}, cuBLAS {cublas}, {time}".format(**runs[0][0])
        where = f"(`results/{folder.name}/`, commit {runs[0][0]['commit'][:12]})"
        yield f"**{runs[0][0]['device']}**, {dates} {where}"
        yield ""
        yield "| type | m x k x n | cuBLAS | fmm | speedup | / Lt | error | workspace | plan |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for i, (environment, rows) in enumerate(runs):
            note = f" (commit {environment['commit'][:7]})" if i else ""
            yield from (_gpu_row(case, note) for case in _cases(rows))
        if (folder / "random.json").exists():
            yield ""
            yield from _random(_load(folder, "random")[1])


def _cases(rows: list[Row]) -> Iterator[list[Row]]:
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["candidate"]:
            cases.setdefault((row["dtype"], str(row["size"])), []).append(row)
    order = ("float32", "float64", "bfloat16", "float16", "tf32")
    yield from sorted(cases.values(), key=lambda case: (order.index(case[0]["dtype"]), case[0]["size"]))


def _gpu_row(case: list[Row], note: str = "") -> str:
    """One line of the table; without candidates of cuBLASLt, that column is cuBLAS's again."""
    lt = [r for r in case if r["plan"].startswith("lt") and not r["graph"]]
    best = _best(case)
    peer = min((r["candidate"] for r in lt), key=median) if lt else best["vendor"]
    size = " x ".join(map(str, best["size"]))
    times = f"{median(best['vendor']):.3g} ms | {median(best['candidate']):.3g} ms"
    ratios = f"**{_paired(best['vendor'], best):.2f}** | {_paired(peer, best):.2f}"
    error = f"{best['error'] / best['vendor_error']:.1f}"
    plan = f"`{best['plan']}`" + (" graph" if best["graph"] else "")
    space = f"{best['workspace'] / 2**30:.2f} GiB"
    return f"| {best['dtype']} | {size} | {times} | {ratios} | {error} | {space} | {plan}{note} |"


def _best(case: list[Row]) -> Row:
    return max((r for r in case if r["plan"] != "vendor"), key=lambda r: _paired(r["vendor"], r))


def _paired(other: list[float], row: Row) -> float:
    return float(median(o / c for o, c in zip(other, row["candidate"], strict=True)))


def _random(rows: list[Row]) -> Iterator[str]:
    """Whole calls of fmm.matmul on random shapes, type by type."""
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        found = [r for r in rows if r["dtype"] == dtype]
        ratios = {"all": [r["ratio"] for r in found]}
        ratios["long"] = [r["ratio"] for r in found if median(r["vendor"]) > 0.1]
        low, high = min(ratios["all"]), max(ratios["all"])
        text = f"{len(found)} random shapes, whole calls: median ratios from {low:.2f} to {high:.2f}"
        long = f"of products over 0.1 ms ({len(ratios['long'])}) from {min(ratios['long'], default=1):.2f}"
        yield f"- {dtype}: {text}; {long}."


def _sentences(folder: Path) -> Iterator[str]:
    """One line for each of the other suites that were run, worst cases first."""
    for suite, sentence in SENTENCES.items():
        if (folder / f"{suite}.json").exists():
            yield f"- {sentence(_load(folder, suite)[1])}."


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


def _tuned(results: Path) -> Iterator[str]:
    """The model's error and the regret of its choices, of every device and type that was tuned."""
    yield "| device, type | held-out pairs | time off by (95 %) | speedup off by | regret: mean, worst | of the best |"
    yield "|---|---|---|---|---|---|"
    for path in sorted(results.glob("*/config.json")):
        (types,) = json.loads(path.read_text(encoding="utf-8"))["devices"].values()
        for dtype, section in types.items():
            time, speedup = section["error"]["time"], section["error"]["speedup"]
            name = f"{section['conditions']['device']}, {dtype}"
            errors = f"{time['median']:.1%} ({time['p95']:.1%}) | {speedup['median']:.1%}"
            yield f"| {name} | {speedup['count']} | {errors} | {_regret(path.with_name(f'regret-{dtype}.json'))} |"


def _regret(path: Path) -> str:
    if not path.exists():
        return " | "
    regret = json.loads(path.read_text(encoding="utf-8"))["regret"]
    return f"{regret['mean']:.2%}, {regret['worst']:.1%} | {regret['share_of_best']:.1%}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something would change")
    options = parser.parse_args(arguments)
    path = ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    new = filled(old, ROOT / "results")
    if options.check:
        return int(old != new)
    path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

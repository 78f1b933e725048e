"""Cases, rows and table of the benchmark of named plans (benchmarks.gpu); nothing here needs a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any


def one_pass(scheme: str, leaf: str = "vendor") -> str:
    """Return the plan with all levels in one pass, their products as one batch."""
    return f"{scheme}.batched.pad16 > {leaf}"


def two_passes(outer: str, inner: str, leaf: str = "vendor") -> str:
    """Return the plan with an outer level, two of its products at a time, above one pass."""
    return f"{outer}.overlapped.pad16 > {one_pass(inner, leaf)}"


S1, S2, S3 = "strassen", "strassen^2", "strassen^3"
W1, W2 = "winograd", "winograd^2"
ALIGNED = "aligned.pad16 > vendor"


@dataclass(frozen=True)
class Case:
    """A product and the plans that compete on it."""

    dtype: str
    size: tuple[int, int, int]
    plans: tuple[str, ...]
    graph: bool = False  # replayed as a CUDA graph too
    quick: bool = False

    @property
    def name(self) -> str:
        return case_name(self.dtype, self.size)


def case_name(dtype: str, size: Sequence[int]) -> str:
    return f"{dtype} {' x '.join(map(str, size))}"


def cube(n: int) -> tuple[int, int, int]:
    return n, n, n


CASES = (
    Case("float32", cube(8192), (one_pass(S3), two_passes(S1, S3)), quick=True),
    Case("float64", cube(8192), (one_pass(S3), one_pass(W2)), quick=True),
    Case(
        "bfloat16",
        cube(16384),
        tuple(one_pass(S2, leaf) for leaf in ("vendor", "lt1", "lt2", "lt6", "lt7")),
        quick=True,
    ),
    Case(
        "float32",
        cube(1536),
        (one_pass(S1), one_pass(S1, "vendor.outer"), one_pass(W1, "vendor.outer")),
        graph=True,
        quick=True,
    ),
    Case("float32", cube(2048), (one_pass(S2), one_pass(S2, "vendor.outer"), one_pass(S2, "lt0")), graph=True),
    Case("float32", cube(4096), (one_pass(S3), one_pass(S2, "lt1")), graph=True, quick=True),
    Case("bfloat16", cube(8191), (one_pass(S1), ALIGNED), quick=True),
    Case("float32", cube(16384), (two_passes(S1, S3), two_passes(S2, S3))),
    Case("float32", cube(32768), (two_passes(S2, S3),)),
    Case("float64", cube(4096), (one_pass(S2), one_pass(W2)), graph=True),
    Case("float64", cube(16384), (two_passes(S1, W2), two_passes(S2, W2), two_passes(S2, S2), two_passes(S1, S3))),
    Case("float64", cube(24576), (two_passes(S2, S2), two_passes(S2, W2))),
    Case("bfloat16", cube(4096), ("tile",)),
    Case("bfloat16", cube(8192), (one_pass(S1), one_pass(S1, "tile"), "tile")),
    Case("bfloat16", cube(32768), tuple(one_pass(S3, leaf) for leaf in ("vendor", "lt1", "tile"))),
    Case("bfloat16", cube(49152), (one_pass(S3), one_pass(S3, "lt1"), one_pass(S3, "tile"))),
    Case("bfloat16", cube(10007), (one_pass(S1), ALIGNED)),
    Case("float16", cube(8192), (one_pass(S1),)),
    Case("float16", cube(16384), tuple(one_pass(S2, leaf) for leaf in ("vendor", "lt1", "lt2", "lt6"))),
    Case("float16", cube(32768), tuple(one_pass(S3, leaf) for leaf in ("vendor", "lt1", "lt2"))),
    Case("float16", cube(8191), (one_pass(S1), ALIGNED)),
    Case("float16", cube(10007), (one_pass(S1), ALIGNED)),
    Case("tf32", cube(16384), (one_pass(S2, "lt2.inner"), one_pass(W2, "lt2.inner"), one_pass(S2, "tile.inner"))),
    Case("tf32", cube(32768), ("winograd^2.pad16 > vendor", one_pass(S2, "lt0.inner"))),
    Case("float64", cube(8191), (one_pass(S3), one_pass(W2))),
    Case("float64", cube(10007), (one_pass(S3), one_pass(W2))),
    Case("float32", (16384, 4096, 16384), (one_pass(S3),)),
    Case("float32", (8192, 32768, 8192), (one_pass(S3), two_passes(S1, S3))),
    Case("float32", (65536, 4096, 4096), (one_pass(S3),)),
)


# ---- rows and their table

LT = tuple(f"lt{i}" for i in range(8))  # cuBLASLt's candidates for the whole product: the vendor at its best


@dataclass
class Row:
    """One plan on one case: paired samples in milliseconds, against the vendor's of the same rounds."""

    dtype: str
    size: tuple[int, int, int]
    plan: str
    graph: bool
    workspace: int
    candidate: list[float] = field(default_factory=list)
    vendor: list[float] = field(default_factory=list)
    error: float = float("nan")  # relative, in the Frobenius norm
    vendor_error: float = float("nan")
    largest: float = float("nan")  # largest absolute error
    vendor_largest: float = float("nan")
    failure: str = ""

    def speedup_over(self, other: list[float]) -> float:
        """Return the median of the paired ratios to other samples of the same rounds."""
        pairs = zip(other, self.candidate, strict=True)
        return median(v / c for v, c in pairs) if self.candidate else float("nan")


def table_lines(rows: list[Row]) -> Iterator[str]:
    """Yield a line for each plan: against cuBLAS and the best of cuBLASLt's candidates; errors over the vendor's."""
    yield (
        f"{'type':9}{'m x k x n':22}{'ms':>9}{'vendor':>9}{'speedup':>9}{'/ Lt':>7}{'error':>7}{'max':>6}{'GiB':>7}"
        "  plan"
    )
    for row in rows:
        size = " x ".join(map(str, row.size))
        if row.failure:
            yield f"{row.dtype:9}{size:22}{row.failure[:90]}  {row.plan}"
            continue
        if row.plan == "vendor" and not row.graph:
            continue
        name = row.plan.replace(".batched.pad16 > vendor", "").replace(".pad16", "") + (" graph" if row.graph else "")
        yield (
            f"{row.dtype:9}{size:22}{median(row.candidate):9.3f}{median(row.vendor):9.3f}{row.speedup_over(row.vendor):9.3f}"
            f"{row.speedup_over(best_lt_samples(row, rows)):7.3f}{row.error / row.vendor_error:7.2f}"
            f"{row.largest / row.vendor_largest:6.1f}{row.workspace / 2**30:7.2f}  {name}"
        )


def best_lt_samples(row: Row, rows: list[Row]) -> list[float]:
    """Return the samples of the fastest of cuBLASLt's candidates on the row's case."""
    same = [r for r in rows if (r.dtype, r.size) == (row.dtype, row.size) and r.plan in LT and r.candidate]
    return min((r.candidate for r in same), key=median, default=row.vendor)


# ---- a selection of the cases, and several runs as one


def chosen_cases(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    """Return the cases of --only, --quick and --part, with the plans of --plans."""
    first, _, step = options.part.partition("/")
    found = [c for c in cases if options.only in c.name and (c.quick or not options.quick)][int(first) - 1 :: int(step)]
    plans = tuple(p.strip() for p in options.plans.split(",")) if options.plans else ()
    return [replace(case, plans=plans) if plans else case for case in found]


def merged_runs(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what one run would have written; SystemExit unless all parts are of one kind of device and one commit."""
    environments = [part["environment"] for part in parts]
    for key in ("device", "driver", "cublas", "commit"):
        if len({env[key] for env in environments}) > 1:
            raise SystemExit(f"the parts differ in {key}: {', '.join(str(e[key]) for e in environments)}")
    commands = "; ".join(env["command"] for env in environments)
    order = {case.name: i for i, case in enumerate(CASES)}
    rows = [row for part in parts for row in part["rows"]]
    rows.sort(key=lambda row: order.get(case_name(row["dtype"], row["size"]), len(order)))
    skipped = [name for part in parts for name in part["skipped"]]
    return {"environment": {**environments[0], "command": commands}, "skipped": skipped, "rows": rows}

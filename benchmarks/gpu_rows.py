"""What the GPU benchmark measured: a row for each plan on each case, and their table. Nothing here needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

LT = tuple(f"lt{i}" for i in range(8))  # cuBLASLt's own candidates for the whole product: the vendor at its best


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
    largest: float = float("nan")  # the largest absolute error
    vendor_largest: float = float("nan")
    failure: str = ""

    @property
    def speedup(self) -> float:
        return self.against(self.vendor)

    def against(self, other: list[float]) -> float:
        """The median of the paired ratios to another row of the same rounds."""
        pairs = zip(other, self.candidate, strict=True)
        return median(v / c for v, c in pairs) if self.candidate else float("nan")


def table(rows: list[Row]) -> Iterator[str]:
    """Every plan against cuBLAS as it comes and the best of cuBLASLt's candidates; errors over the vendor's."""
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
            f"{row.dtype:9}{size:22}{median(row.candidate):9.3f}{median(row.vendor):9.3f}{row.speedup:9.3f}"
            f"{row.against(peer(row, rows)):7.3f}{row.error / row.vendor_error:7.2f}"
            f"{row.largest / row.vendor_largest:6.1f}{row.workspace / 2**30:7.2f}  {name}"
        )


def peer(row: Row, rows: list[Row]) -> list[float]:
    """The samples of the fastest of cuBLASLt's candidates on the row's case."""
    same = [r for r in rows if (r.dtype, r.size) == (row.dtype, row.size) and r.plan in LT and r.candidate]
    return min((r.candidate for r in same), key=median, default=row.vendor)

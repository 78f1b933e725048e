"""The products and plans of the GPU benchmark, and which of them a run has. Nothing here needs a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


def one(scheme: str, leaf: str = "vendor") -> str:
    """All levels in one pass, their products as one batch."""
    return f"{scheme}.batched.pad16 > {leaf}"


def two(outer: str, inner: str, leaf: str = "vendor") -> str:
    """An outer step whose products run two at a time, below it one pass."""
    return f"{outer}.overlapped.pad16 > {one(inner, leaf)}"


S1, S2, S3 = "strassen", "strassen^2", "strassen^3"
W1, W2 = "winograd", "winograd^2"
ALIGNED = "aligned.pad16 > vendor"


@dataclass(frozen=True)
class Case:
    dtype: str
    size: tuple[int, int, int]
    plans: tuple[str, ...]
    graph: bool = False  # also as a CUDA graph
    quick: bool = False

    @property
    def name(self) -> str:
        return named(self.dtype, self.size)


def named(dtype: str, size: Sequence[int]) -> str:
    return f"{dtype} {' x '.join(map(str, size))}"


def cube(n: int) -> tuple[int, int, int]:
    return n, n, n


CASES = (
    Case("float32", cube(8192), (one(S3), two(S1, S3)), quick=True),
    Case("float64", cube(8192), (one(S3), one(W2)), quick=True),
    Case("bfloat16", cube(16384), tuple(one(S2, leaf) for leaf in ("vendor", "lt1", "lt2", "lt6", "lt7")), quick=True),
    Case("float32", cube(1536), (one(S1), one(S1, "vendor.outer"), one(W1, "vendor.outer")), graph=True, quick=True),
    Case("float32", cube(2048), (one(S2), one(S2, "vendor.outer"), one(S2, "lt0")), graph=True),
    Case("float32", cube(4096), (one(S3), one(S2, "lt1")), graph=True, quick=True),
    Case("bfloat16", cube(8191), (one(S1), ALIGNED), quick=True),
    Case("float32", cube(16384), (two(S1, S3), two(S2, S3))),
    Case("float32", cube(32768), (two(S2, S3),)),
    Case("float64", cube(4096), (one(S2), one(W2)), graph=True),
    Case("float64", cube(16384), (two(S1, W2), two(S2, W2), two(S2, S2), two(S1, S3))),
    Case("float64", cube(24576), (two(S2, S2), two(S2, W2))),
    Case("bfloat16", cube(4096), ("tile",)),
    Case("bfloat16", cube(8192), (one(S1), one(S1, "tile"), "tile")),
    Case("bfloat16", cube(32768), tuple(one(S3, leaf) for leaf in ("vendor", "lt1", "tile"))),
    Case("bfloat16", cube(49152), (one(S3), one(S3, "lt1"), one(S3, "tile"))),
    Case("bfloat16", cube(10007), (one(S1), ALIGNED)),
    Case("float16", cube(8192), (one(S1),)),
    Case("float16", cube(16384), tuple(one(S2, leaf) for leaf in ("vendor", "lt1", "lt2", "lt6"))),
    Case("float16", cube(32768), tuple(one(S3, leaf) for leaf in ("vendor", "lt1", "lt2"))),
    Case("float16", cube(8191), (one(S1), ALIGNED)),
    Case("float16", cube(10007), (one(S1), ALIGNED)),
    Case("tf32", cube(16384), (one(S2, "lt2.inner"), one(W2, "lt2.inner"), one(S2, "tile.inner"))),
    Case("tf32", cube(32768), ("winograd^2.pad16 > vendor", one(S2, "lt0.inner"))),
    Case("float64", cube(8191), (one(S3), one(W2))),
    Case("float64", cube(10007), (one(S3), one(W2))),
    Case("float32", (16384, 4096, 16384), (one(S3),)),
    Case("float32", (8192, 32768, 8192), (one(S3), two(S1, S3))),
    Case("float32", (65536, 4096, 4096), (one(S3),)),
)


# ---- some of them, or several runs


def chosen(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    """The cases that the command line asks for, with its plans."""
    first, _, step = options.part.partition("/")
    found = [c for c in cases if options.only in c.name and (c.quick or not options.quick)][int(first) - 1 :: int(step)]
    plans = tuple(p.strip() for p in options.plans.split(",")) if options.plans else ()
    return [replace(case, plans=plans) if plans else case for case in found]


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What one run would have written; all parts must be of one kind of device and one commit."""
    environments = [part["environment"] for part in parts]
    for key in ("device", "driver", "cublas", "commit"):
        if len({env[key] for env in environments}) > 1:
            raise SystemExit(
                f"parts that do not belong together: {key} is {', '.join(str(e[key]) for e in environments)}"
            )
    commands = "; ".join(env["command"] for env in environments)
    order = {case.name: i for i, case in enumerate(CASES)}
    rows = [row for part in parts for row in part["rows"]]
    rows.sort(key=lambda row: order.get(named(row["dtype"], row["size"]), len(order)))
    skipped = [name for part in parts for name in part["skipped"]]
    return {"environment": {**environments[0], "command": commands}, "skipped": skipped, "rows": rows}

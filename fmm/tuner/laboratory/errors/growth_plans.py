"""The plans whose error growth is measured: every scheme and step table on a CPU, a choice of all kinds on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Final

from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.plans.plan import Plan

DEEPEST: Final = 4
LEAST: Final = 8  # the shortest side of a leaf product
MOST: Final = 20_000  # products


def scheme_depths(name: str, side: int) -> Iterator[int]:
    """The depths that leave leaf products of a fair size; four levels of squares of two, else three."""
    found = scheme(name)
    deepest = DEEPEST if found.size == (2, 2, 2) else DEEPEST - 1
    for depth in range(1, deepest + 1):
        if max(found.size) ** depth * LEAST <= side and found.rank**depth <= MOST:
            yield depth


def host_plans(side: int) -> tuple[str, ...]:
    """Every scheme, stacked and one product at a time, and every step table, by one to three or four levels, as far as
    leaf products are of a fair size and not too many."""
    found = []
    for name in scheme_names():
        for depth, order in product(scheme_depths(name, side), ("", ".sequential")):
            found.append(" > ".join([f"{name}{order}"] * depth + ["vendor"]))
    for name in step_table_names():
        found += [" > ".join([name] * depth + ["vendor"]) for depth in range(1, DEEPEST) if 2**depth * LEAST <= side]
    return tuple(dict.fromkeys(found))


# Other traversals, fringes, compositions in one pass, levels that cut. (What scales has an experiment of its own.)
OTHER_WAYS: Final = (
    "strassen.overlapped > vendor",
    "winograd.overlapped > winograd.sequential > vendor",
    "winograd.batched.pad16 > vendor",
    "strassen^2.batched.pad16 > vendor",
    "strassen.pad > strassen.pad > vendor",
    "winograd.peel > winograd.peel > vendor",
    "strassen^2 > vendor",
    "strassen*hk223 > vendor",
    "balanced(2) > winograd > vendor",
)
OF_COMPLEX: Final = (
    "3m > vendor",
    "3m > winograd > vendor",
    "3m > strassen > strassen > vendor",
    "3m(strassen) > vendor",
)
DEVICE_PLANS: Final = (
    *(f"strassen{power}.batched.pad16 > vendor" for power in ("", "^2", "^3")),
    *(f"winograd{power}.batched.pad16 > vendor" for power in ("", "^2")),
    "winograd.overlapped.pad16 > strassen^2.batched.pad16 > vendor",
    "dps.batched.pad16 > vendor",
    "dps^2.batched.pad16 > vendor",
    "hk223.batched.pad16 > vendor",
    "laderman.batched.pad16 > vendor",
    "winograd.sequential > vendor",
    "li-fig12 > vendor",
    "li-fig23 > li-fig13 > vendor",
    "hasa > vendor",
    "strassen.batched.pad16 > vendor.inner",
    "tile",
    "strassen.fused.pad4 > tile",
    "strassen.batched.pad16 > tile",
    "lt0",
    "f16x3",
    "strassen^2.batched.pad16 > f16x3",
    "vendor3m",
    "3m > strassen.batched.pad16 > vendor",
    "3m(strassen.pad16) > vendor",
)


@lru_cache(maxsize=64)
def plans_on(on_host: bool, dtype: str, side: int) -> tuple[Plan, ...]:
    """Those that take the type."""
    names = (*host_plans(side), *OTHER_WAYS, *OF_COMPLEX) if on_host else DEVICE_PLANS
    return tuple(plan for plan in map(Plan.parse, names) if plan.accepts_type(dtype))

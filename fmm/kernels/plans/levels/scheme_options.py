"""What the text of a scheme's or a step table's level may say, and what it means where it says nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal

from fmm.kernels.algorithms.catalogue import canonical, scheme, scheme_names
from fmm.kernels.algorithms.step_table import step_table, step_table_names
from fmm.kernels.plans.level import unknown_algorithm
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.registry import depends_on_rows

Traversal = Literal["stacked", "overlapped", "batched", "fused", "sequential"]
TRAVERSALS: tuple[Traversal, ...] = ("stacked", "overlapped", "batched", "fused", "sequential")
FRINGES = ("unequal", "pad", "peel")
UNITS = tuple(f"pad{unit}" for unit in (4, 8, 16, 32, 64, 128))


def choice(what: str, value: object, valid: tuple[str, ...]) -> None:
    """PlanError if the value is none of the valid ones."""
    if value not in valid:
        raise PlanError(f"unknown {what} {value!r}; valid: {', '.join(valid)}")


def usual_traversal(algorithm: str) -> Traversal:
    """A table has an order of its own."""
    return "sequential" if algorithm in step_table_names() else "stacked"


# What proves which fringe a step table bears: `unequal` or `pad`, or PlanError if neither. A proof runs plans, so that
# it cannot be imported here: fmm.kernels hands it in.
FRINGE_PROOFS: Final[list[Callable[[str], str]]] = []


@depends_on_rows
@lru_cache(maxsize=256)
def usual_fringe(algorithm: str, traversal: Traversal) -> str:
    """Unequal blocks wherever they are possible: they multiply no zeros. What a table says of itself must be proved."""
    if algorithm not in step_table_names():
        return "pad" if traversal == "batched" else "unequal"
    said = step_table(algorithm).fringe
    if said == "unequal" and "unequal" not in (proof(algorithm) for proof in FRINGE_PROOFS):
        raise PlanError(f"the step table {algorithm} says that it bears unequal blocks, but it does not")
    return said


def scheme_name(name: str) -> str:
    """The short spelling of a scheme or a composition; PlanError if there is none of this name."""
    names = factor_names(name)
    for table in (n for n in names if n in step_table_names()):
        raise PlanError(f"{table} is a step table, and cannot be composed; in {name!r} only schemes can")
    for unknown in (n for n in names if n not in scheme_names()):
        raise unknown_algorithm(unknown)
    scheme(name)
    return canonical(name)


def factor_names(expression: str) -> list[str]:
    """The names in a composition, without powers."""
    return [part.partition("^")[0] for part in expression.replace(" ", "").split("*")]

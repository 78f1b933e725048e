"""What the text of a scheme's or a step table's level may say, and what it means where it says nothing.

The algorithm comes first, a scheme (`strassen`), a composition of schemes that is done in one pass (`strassen^2`,
`strassen*hk223`) or a step table (`li-fig23`), then options after dots.

A scheme is traversed `stacked` (the default: all sums first, then the products, then the join), `overlapped` (the same,
on a GPU two products at a time, so that the sums of one run beside the other's leaf products), `batched` (the same,
every operand in a block of its own, the products as one batch), `fused` (on a GPU, one product at a time, its sums
inside the kernel of the leaf: no temporaries) or `sequential` (one product at a time, three temporaries); a step table
has its own order. A fused level's products may also run side by side: on two `streams`, as far as they write different
blocks, or all of them, adding to C by `atomic` updates (whose order, and with it C's last bits, differ from run to
run); and products of equally many blocks (`variants`) may start as one launch.

Fringes: `unequal` (blocks differ by one row or column, sums are as if padded), `pad` (equal blocks, zeros beyond the
edge are virtual; `pad16`: sides are multiples of 16) or `peel` (the core that divides, then thin strips).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal

from fmm.kernels.algorithms.catalogue import scheme, scheme_names, short_spelling
from fmm.kernels.algorithms.step_table import step_table, step_table_names
from fmm.kernels.plans.level import unknown_algorithm
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.registry import depends_on_rows

Traversal = Literal["stacked", "overlapped", "batched", "fused", "sequential"]
TRAVERSALS: tuple[Traversal, ...] = ("stacked", "overlapped", "batched", "fused", "sequential")
FRINGES = ("unequal", "pad", "peel")
UNITS = tuple(f"pad{unit}" for unit in (4, 8, 16, 32, 64, 128))


def check_choice(what: str, value: object, valid: tuple[str, ...]) -> None:
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
    return short_spelling(name)


def factor_names(expression: str) -> list[str]:
    """The names in a composition, without powers."""
    return [part.partition("^")[0] for part in expression.replace(" ", "").split("*")]

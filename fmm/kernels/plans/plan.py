"""Plans: small immutable trees from the whole product down to the leaf that multiplies.

Text form, outermost level first, levels joined by " > ":

    winograd^2 > li-fig3.peel > vendor          balanced(2) > hasa > vendor          vendor

A level is a scheme (or a composition of schemes, done in one pass) or a step table, then its options after dots. A
scheme is traversed `stacked` (the default: all sums first, then the products, then the join), `overlapped` (the same,
on a GPU two products at a time, so that the sums of one run beside the other's leaf products), `batched` (the same,
every operand in a block of its own, the products as one batch), `fused` (on a GPU, one product at a time, its sums
inside the kernel of the leaf `tile`: no temporaries) or `sequential` (one product at a time, three temporaries); a step
table has its own order. A fused level's products may also run side by side: on two `streams`, as far as they write
different blocks, or all of them, adding to C by `atomic` updates (whose order, and with it C's last bits, differ from
run to run); and products of equally many blocks (`variants`) may start as one launch. Fringes: `unequal` (blocks differ
by one row or column, sums are as if padded), `pad` (equal blocks, zeros beyond the edge are virtual; `pad16`: sides are
multiples of 16) or `peel` (the core that divides, then thin strips).

Leaves: `vendor` (BLAS as it comes) or, on a GPU, `lt0`, `lt1`, ... (so many-th candidate of cuBLASLt's own list for the
product) and `tile` (this package's own kernel: of float32 and float64, and of 16-bit numbers and TF32, without sums
inside, by Hopper's warpgroups; what these cannot read is the vendor's. `tile.huge` and the like: of float32 and float64
by another of its strategies; with `.plain` behind it, tiles come to shared memory through registers, with `.texture`
those of the left operand by loads of the read-only path: Li, Ranka and Sahni's tStrassen and tWinograd).
With `.inner` after it, the sums of the last level are written so that both operands of a leaf product are contiguous
along its inner dimension; with `.outer`, along the outer ones. (A CPU's sums are always written as A and B lie in
memory, for all leaves.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal

from fmm.kernels.algorithms.catalogue import canonical, scheme, scheme_names
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.algorithms.step_table import StepTable, step_table, step_table_names
from fmm.kernels.plans.fused_order import TASKS
from fmm.kernels.plans.leaf import LEAVES as LEAF_ROWS
from fmm.kernels.plans.leaf import LeafUse, fusing_leaves, leaf_use, leaf_uses, valid_leaves
from fmm.kernels.plans.plan_error import PlanError as PlanError

Traversal = Literal["stacked", "overlapped", "batched", "fused", "sequential"]
FRINGES = ("unequal", "pad", "peel")
UNITS = tuple(f"pad{unit}" for unit in (4, 8, 16, 32, 64, 128))
TRAVERSALS: tuple[Traversal, ...] = ("stacked", "overlapped", "batched", "fused", "sequential")


def _choice(what: str, value: object, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise PlanError(f"unknown {what} {value!r}; valid: {', '.join(valid)}")


@dataclass(frozen=True)
class Level:
    """One level of a fast algorithm: which, in which order, and what happens at the fringe."""

    algorithm: str
    traversal: Traversal = "stacked"
    fringe: str = "unequal"
    tasks: tuple[str, ...] = ()  # of a fused level: how its products share launches and the device

    def __post_init__(self) -> None:
        for option in self.tasks:
            _choice("option", option, TASKS)
        object.__setattr__(self, "tasks", tuple(option for option in TASKS if option in self.tasks))
        _choice("fringe", self.fringe, FRINGES + UNITS)
        _choice("traversal", self.traversal, TRAVERSALS)
        if self.algorithm not in step_table_names():
            object.__setattr__(self, "algorithm", _scheme_name(self.algorithm))
        elif self.traversal != "sequential":
            raise PlanError(f"the step table {self.algorithm} is sequential, not {self.traversal}")
        if self.tasks and self.traversal != "fused":
            raise PlanError(f"{self.algorithm}: only a fused level can have {' and '.join(self.tasks)}")
        if {"streams", "atomic"} <= set(self.tasks):
            raise PlanError(f"{self.algorithm}: what is added atomically needs no streams that wait for each other")
        if self.traversal == "batched" and not self.fringe.startswith("pad"):
            raise PlanError(f"{self.algorithm}: a batch needs equal blocks, so pad, not {self.fringe}")

    @cached_property
    def table(self) -> StepTable | None:
        return step_table(self.algorithm) if self.algorithm in step_table_names() else None

    @cached_property
    def scheme(self) -> Scheme | None:
        return None if self.table else scheme(self.algorithm)

    @cached_property
    def size(self) -> tuple[int, int, int]:
        """The grid of blocks, (m, k, n)."""
        return self.table.size if self.table else self.scheme.size  # type: ignore[union-attr]

    @property
    def unit(self) -> int:
        """Blocks' sides are multiples of this."""
        return int(self.fringe[3:] or 1) if self.fringe.startswith("pad") else 1

    @property
    def products(self) -> int:
        return self.table.products if self.table else self.scheme.rank  # type: ignore[union-attr]

    @property
    def fused(self) -> bool:
        """Are its sums done inside its products? (A peeled level has strips besides: it is a sequential one.)"""
        return self.traversal == "fused" and self.fringe != "peel"

    @property
    def sums_inside(self) -> bool:
        """Are sums done inside its products, if the leaf can?"""
        return self.fused or self.table is not None

    @property
    def lanes(self) -> int:
        """How many of its products may run at a time, of whole blocks (a peeled level has strips besides)."""
        return 2 if self.traversal == "overlapped" and self.products > 1 else 1

    @property
    def side_by_side(self) -> bool:
        """Does it need lanes beside the caller's?"""
        return self.traversal == "overlapped" or "streams" in self.tasks or "atomic" in self.tasks

    def __str__(self) -> str:
        usual = _usual_traversal(self.algorithm)
        options = [] if self.traversal == usual else [str(self.traversal)]
        options += self.tasks
        if self.fringe != _usual_fringe(self.algorithm, self.traversal):
            options.append(self.fringe)
        return ".".join([self.algorithm, *options])


@dataclass(frozen=True)
class Balanced:
    """D'Alberto and Nicolau's Table 1: halve the longest side while it is at least gamma times the others."""

    gamma: float = 2

    def __post_init__(self) -> None:
        if not self.gamma >= 1.5:
            raise PlanError(f"balanced({self.gamma:g}): gamma must be at least 1.5, so that halving makes sides alike")

    def side(self, m: int, k: int, n: int) -> str | None:
        """Which side to halve, tested in the table's order: m (tall A), n (long B), k (inner); None: almost square."""
        if m >= self.gamma * max(k, n) and m > 1:
            return "m"
        if n >= self.gamma * max(m, k) and n > 1:
            return "n"
        if k >= self.gamma * max(m, n) and k > 1:
            return "k"
        return None

    def __str__(self) -> str:
        short = f"{self.gamma:g}"
        return f"balanced({short if float(short) == self.gamma else repr(self.gamma)})"


@dataclass(frozen=True)
class Plan:
    """Levels from the outermost inwards, then the leaf."""

    levels: tuple[Level | Balanced, ...] = ()
    leaf: str = "vendor"
    leaf_use: LeafUse = field(init=False, repr=False, compare=False)  # what that text says

    def __post_init__(self) -> None:
        object.__setattr__(self, "leaf_use", leaf_use(self.leaf))
        lanes = [level for level in self.levels if isinstance(level, Level) and level.side_by_side]
        if len(lanes) > 1:
            what = "overlapped" if lanes[1].traversal == "overlapped" else "side by side"
            raise PlanError(f"{lanes[1]} below {lanes[0]}: only one level of a plan can be {what}")
        fused = [level for level in self.levels if isinstance(level, Level) and level.traversal == "fused"]
        if fused and (fused[0] is not self.levels[-1] or not self.leaf_use.fuses):
            raise PlanError(f"{fused[0]}: only the last level can be fused, into the leaf {fusing_leaves()}")

    @property
    def rest(self) -> Plan:
        """The plan of the products of the first level."""
        return _rest(self)

    @property
    def fused(self) -> bool:
        """Are the sums of the first level done inside its products?"""
        first = self.levels[0] if self.levels else None
        return isinstance(first, Level) and first.fused

    @property
    def timed_by_tiles(self) -> bool:
        """Is the time of its leaf products told by the tiles in which they are computed?"""
        return self.leaf_use.leaf.time_formula == "tiles"

    @property
    def types(self) -> tuple[str, ...]:
        """That the leaf multiplies, with sums inside its products if the last level wants them there."""
        last = self.levels[-1] if self.levels else None
        return self.leaf_use.types(isinstance(last, Level) and last.sums_inside)

    def considered_for(self, dtype: str) -> bool:
        """Is it compared for this type without anybody's asking for it?"""
        considered = self.leaf_use.leaf.considered
        return dtype in self.types and (considered is None or dtype in considered)

    @property
    def depth(self) -> int:
        """Levels of recursion, a composition of f factors counted as f."""
        return sum(_factors(level) for level in self.levels)

    def __str__(self) -> str:
        return " > ".join([*map(str, self.levels), self.leaf])

    @staticmethod
    def parse(text: str) -> Plan:
        """The plan that `text` describes; PlanError says what is wrong and what is valid."""
        if not isinstance(text, str):
            raise PlanError(f"a plan is a text such as 'winograd > vendor', not {text!r}")
        return _parse(text)


VENDOR = Plan()


@lru_cache(maxsize=4096)
def _rest(plan: Plan) -> Plan:
    return replace(plan, levels=plan.levels[1:])


def _factors(level: Level | Balanced) -> int:
    if isinstance(level, Balanced):
        return 0
    return max(len(level.scheme.factors), 1) if level.scheme else 1


def level(algorithm: str, *options: str) -> Level:
    """A level with the defaults of its algorithm where `options` say nothing."""
    traversals = [option for option in options if option in TRAVERSALS]
    fringes = [option for option in options if option in FRINGES + UNITS]
    tasks = tuple(option for option in options if option in TASKS)
    for found in (traversals, fringes):
        if len(found) > 1:
            raise PlanError(f"{algorithm} cannot be both {' and '.join(found)}")
    for unknown in (option for option in options if option not in (*traversals, *fringes, *tasks)):
        valid = ", ".join(TRAVERSALS + FRINGES + UNITS + TASKS)
        raise PlanError(f"unknown option {unknown!r} of {algorithm}; valid: {valid}")
    traversal = traversals[0] if traversals else _usual_traversal(algorithm)
    fringe = fringes[0] if fringes else _usual_fringe(algorithm, traversal)
    return Level(algorithm, traversal, fringe, tasks)


def _usual_traversal(algorithm: str) -> Traversal:
    return "sequential" if algorithm in step_table_names() else "stacked"


@lru_cache(maxsize=256)
def _usual_fringe(algorithm: str, traversal: Traversal) -> str:
    """Unequal blocks wherever they are possible: they multiply no zeros."""
    if algorithm in step_table_names():
        from fmm.kernels.cpu.symbolic_proof import (
            proved_fringe,  # the proof runs plans: it cannot be imported before them
        )

        return proved_fringe(algorithm)
    return "pad" if traversal == "batched" else "unequal"


_BALANCED = re.compile(r"balanced(?:\(([^()]*)\))?")


@LEAF_ROWS.forgets
@lru_cache(maxsize=4096)
def _parse(text: str) -> Plan:
    *levels, leaf = (part.strip() for part in text.split(">"))
    if leaf not in leaf_uses():
        raise PlanError(f"{text!r} ends in {leaf!r}; a plan ends in its leaf: {valid_leaves()}")
    found = tuple(_parse_level(part, text) for part in levels)
    try:
        return Plan(found, leaf)
    except PlanError as error:
        raise PlanError(f"{text!r}: {error}") from None


def _parse_level(part: str, text: str) -> Level | Balanced:
    if match := _BALANCED.fullmatch(part):
        try:
            return Balanced(float(match[1])) if match[1] else Balanced()
        except ValueError as error:
            raise PlanError(f"{text!r}: {error}") from None
    name, *options = part.split(".")
    try:
        return level(name, *options)
    except ValueError as error:
        raise PlanError(f"{text!r}: {error}") from None


def _scheme_name(name: str) -> str:
    names = [part.partition("^")[0] for part in name.replace(" ", "").split("*")]
    for table in (n for n in names if n in step_table_names()):
        raise PlanError(f"{table} is a step table, and cannot be composed; in {name!r} only schemes can")
    for unknown in (n for n in names if n not in scheme_names()):
        valid = ", ".join((*scheme_names(), *step_table_names(), "balanced"))
        raise PlanError(f"unknown algorithm {unknown!r}; valid: {valid}")
    scheme(name)
    return canonical(name)

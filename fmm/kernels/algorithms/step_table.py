"""Step tables: the papers' own orders of operations, as data.

A table names kernels in call form, `mulIncInc(C12, C21, C11, C22)`, over the blocks A11.., B11.., C11.. and its
declared temporaries. What a kernel means stands once, in step_tables/kernels.txt. Two more lines may say what was found
of the table: `fringe unequal` (it stays right where blocks differ by a row or a column; without the line they are
padded) and `consider`. A table by name is proved to compute AB on equal blocks; that it bears unequal ones is proved
where a plan relies on it. It is read by the lowering (which sizes its blocks), and through that by the walker, the
counters and the symbolic proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from typing import Final

from fmm.kernels.algorithms.consider import considered_forms
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.algorithms.table_kernel import KERNELS, Kernel, TableCall, kernel_table, table_text
from fmm.kernels.algorithms.table_kernel import StepError as StepError
from fmm.kernels.algorithms.text_files import TextFiles
from fmm.kernels.registry import depends_on_rows

FRINGES = ("unequal", "pad")


@dataclass(frozen=True)
class Step:
    """One call of a kernel: the blocks or temporaries that stand for its formals."""

    kernel: Kernel
    places: tuple[str, ...]

    @cached_property
    def bound(self) -> dict[str, str]:
        return dict(zip(self.kernel.formals, self.places, strict=True))

    @property
    def reads(self) -> tuple[str, ...]:
        operands = self.kernel.product or ()
        return tuple(dict.fromkeys(self.bound[f] for f in (*operands, *self.kernel.reads)))

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(self.bound[f] for f in self.kernel.writes)

    @property
    def overwritten_operands(self) -> tuple[str, ...]:
        """The operands of its product that it writes while that is computed: an error, on whatever device."""
        return tuple(sorted({self.bound[f] for f in self.kernel.product or ()} & set(self.writes)))

    def __str__(self) -> str:
        return f"{self.kernel.name}({', '.join(self.places)})"


@dataclass(frozen=True)
class StepTable:
    """A named sequence of steps that computes C = AB over 2 x 2 blocks, with its declared temporaries."""

    name: str
    source: str
    size: tuple[int, int, int]
    temporaries: tuple[str, ...]
    steps: tuple[Step, ...]
    fringe: str = "pad"  # what it is said to bear

    def __hash__(self) -> int:
        return hash((self.name, len(self.steps)))

    @cached_property
    def products(self) -> int:
        return sum(1 for step in self.steps if step.kernel.product)

    @property
    def kernel_counts(self) -> dict[str, int]:
        """How often each kernel is called, in order of first use."""
        counts: dict[str, int] = {}
        for step in self.steps:
            counts[step.kernel.name] = counts.get(step.kernel.name, 0) + 1
        return counts

    def text(self) -> str:
        head = [f"name    {self.name}", f"source  {self.source}", f"size    {' '.join(map(str, self.size))}"]
        head += [f"temps   {' '.join(self.temporaries)}", f"fringe  {self.fringe}", ""]
        return "\n".join([*head, *map(str, self.steps)]) + "\n"


# ---- reading


HEAD, FOUND = ("name", "source", "size", "temps"), ("fringe", "consider")


def parse_step_table(text: str, origin: str = "step table") -> StepTable:
    """A step table from its text form; StepError names the file and the line."""
    head, calls = table_text(text, origin, HEAD, FOUND)
    steps = tuple(map(kernel_step, calls))
    temporaries, fringe = tuple(head["temps"].split()), _found(head, text, origin)
    table = StepTable(head["name"], head["source"], _size(head, origin), temporaries, steps, fringe)
    _check_places(table, origin)
    return table


def _found(head: Mapping[str, str], text: str, origin: str) -> str:
    """The fringe; StepError if what is said of it, or of what to consider, cannot be read."""
    fringe = head.get("fringe", "pad")
    if fringe not in FRINGES:
        raise StepError(f"{origin}: unknown fringe {fringe!r}; valid: {', '.join(FRINGES)}")
    try:
        considered_forms(text)
    except ValueError as error:
        raise StepError(f"{origin}: {error}") from None
    return fringe


def _size(head: Mapping[str, str], origin: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"[1-9] [1-9] [1-9]", head["size"]):
        raise StepError(f"{origin}: size must be three digits such as 2 2 2, not {head['size']!r}")
    m, k, n = (int(x) for x in head["size"].split())
    return m, k, n


def kernel_step(call: TableCall) -> Step:
    """The kernel that a line calls; StepError if there is none with so many places."""
    kernels = kernel_table()
    if call.name not in kernels:
        raise StepError(f"{call.where}: unknown kernel {call.name!r}; the kernels are {', '.join(kernels)}")
    kernel = kernels[call.name]
    if len(call.places) != len(kernel.formals):
        raise StepError(f"{call.where}: {call.name} takes {len(kernel.formals)} places, not {len(call.places)}")
    return Step(kernel, call.places)


def _check_places(table: StepTable, origin: str) -> None:
    """Known places only, inputs never written, nothing read before it is written, every temporary used."""
    m, k, n = table.size
    grids = {"A": (m, k), "B": (k, n), "C": (m, n)}
    blocks = {f"{x}{i + 1}{j + 1}" for x, (r, c) in grids.items() for i in range(r) for j in range(c)}
    inputs = {b for b in blocks if b[0] in "AB"}
    if taken := [t for t in table.temporaries if not re.fullmatch(r"[A-Z]\w*", t) or t in blocks | {"A", "B", "C"}]:
        raise StepError(f"{origin}: a temporary cannot be called {', '.join(taken)}")
    written = set(inputs)
    for step in table.steps:
        _check_step(step, blocks | set(table.temporaries), inputs, written, f"{origin}: {step}")
        written |= set(step.writes)
    if unused := [t for t in table.temporaries if t not in written]:
        raise StepError(f"{origin}: declares {', '.join(unused)} but does not use it")
    if unwritten := sorted(b for b in blocks if b not in written):
        raise StepError(f"{origin}: never writes {', '.join(unwritten)}")


def _check_step(step: Step, known: set[str], inputs: set[str], written: set[str], where: str) -> None:
    if unknown := [p for p in step.places if p not in known]:
        raise StepError(f"{where}: undeclared {', '.join(unknown)}")
    if stale := [p for p in step.reads if p not in written]:
        raise StepError(f"{where}: reads {', '.join(stale)} before it is written")
    if spoiled := [p for p in step.writes if p in inputs]:
        raise StepError(f"{where}: writes the input {', '.join(spoiled)}")
    if len(set(step.writes)) < len(step.writes):
        raise StepError(f"{where}: writes one place twice")
    if step.overwritten_operands:
        raise StepError(f"{where}: overwrites its operand {', '.join(step.overwritten_operands)} during the product")


# ---- which bilinear algorithm a step table is

Combination = Mapping[str, Fraction]  # of blocks of A, of blocks of B or of products, by name


@lru_cache(maxsize=64)
def table_scheme(table: StepTable) -> Scheme:
    """The coefficients of a step table's products and results, found by running it on formal sums."""
    m, k, n = table.size
    a, b, c = (_names(x, *grid) for x, grid in (("A", (m, k)), ("B", (k, n)), ("C", (m, n))))
    held: dict[str, Combination] = {name: {name: Fraction(1)} for name in (*a, *b)}
    products: list[tuple[Combination, Combination]] = []
    for step in table.steps:
        sources = [held[step.bound[f]] for f in step.kernel.reads]
        if step.kernel.product:
            left, right = (held[step.bound[f]] for f in step.kernel.product)
            products.append((left, right))
            sources.insert(0, {f"M{len(products)}": Fraction(1)})
        rows = step.kernel.program.matrix()
        held |= {place: _combined(zip(row, sources, strict=True)) for place, row in zip(step.writes, rows, strict=True)}
    u, v = (tuple(tuple(p[i].get(x, Fraction(0)) for p in products) for x in names) for i, names in enumerate((a, b)))
    numbers = [f"M{p}" for p in range(1, len(products) + 1)]
    w = tuple(tuple(held[x].get(p, Fraction(0)) for p in numbers) for x in c)
    return Scheme(table.name, table.source, m, k, n, u, v, w)


def _names(letter: str, rows: int, columns: int) -> list[str]:
    return [f"{letter}{i + 1}{j + 1}" for i, j in product(range(rows), range(columns))]


def _combined(parts: Iterable[tuple[object, Combination]]) -> Combination:
    found: dict[str, Fraction] = {}
    for coefficient, terms in parts:
        for name, c in terms.items():
            found[name] = found.get(name, Fraction(0)) + Fraction(str(coefficient)) * c
    return {name: c for name, c in found.items() if c}


# ---- the folder of step tables, and users' own


FILES: Final = TextFiles("step_tables", "step table", but=KERNELS)


def register_step_table(text: str) -> StepTable:
    """From now on, plans may name the table of this text; StepError if it computes something else than AB."""
    table = _proved(parse_step_table(text), "step table")
    if table.name in step_table_names():
        raise StepError(f"there is a step table {table.name!r} already")
    FILES.add(table.name, text)
    return table


def unregister_step_table(name: str) -> None:
    FILES.remove(name)


@depends_on_rows
@lru_cache(maxsize=1)
def step_table_names() -> tuple[str, ...]:
    """Every step table that can be named: the files but for the kernels', and what was registered."""
    return tuple(sorted(FILES.names()))


@depends_on_rows
@lru_cache(maxsize=64)
def step_table(name: str) -> StepTable:
    """A step table by name, proved to compute AB on equal blocks."""
    if name not in step_table_names():
        raise StepError(f"unknown step table {name!r}; the step tables are {', '.join(step_table_names())}")
    table = parse_step_table(FILES.text(name), f"{name}.txt")
    if table.name != name:
        raise StepError(f"{name}.txt: its name line says {table.name!r}; it must be {name!r}")
    return _proved(table, f"{name}.txt")


def _proved(table: StepTable, origin: str) -> StepTable:
    if (defect := table_scheme(table).defect()) is not None:
        raise StepError(f"{origin}: the step table {table.name} does not compute AB: {defect}")
    return table


def considered_step_tables() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names, and in which forms they are worth considering; files whose line cannot be read are left out."""
    for name in step_table_names():
        try:
            yield name, considered_forms(FILES.text(name))
        except ValueError:
            continue

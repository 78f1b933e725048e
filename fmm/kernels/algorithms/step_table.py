"""Step tables: sequences of block operations, in the order in which papers print them, as data.

A step table calls kernels, such as `mulIncInc(C12, C21, C11, C22)`. The arguments are blocks of A, B and C (A11, A12
and so on) and temporaries that the table declares. The file step_tables/kernels.txt defines each kernel: an optional
product of two blocks, and assignments. Two lines of a table are optional: `consider` (in which candidate plans the
table occurs) and `fringe unequal`. A table with `fringe unequal` is correct even if blocks differ by one row or column.
Tables without `fringe unequal` run on padded blocks.

When a step table is read, it is proved that the table computes A B on blocks of equal size. For unequal blocks, the
tests prove the shipped tables, and the first use proves a user's table. Lowering a table computes the sizes of its
blocks; the walk, the cost model and the symbolic proof use the lowered steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from typing import Final, NamedTuple

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, integral_as_int
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.algorithms.text_files import AlgorithmTexts, parse_candidate_forms
from fmm.kernels.registry import clear_on_registration

FRINGE_KINDS = ("unequal", "pad")
# Names of the shipped tables that declare `fringe unequal`. The tests prove that the tables with these names are
# correct for unequal blocks, so that a user's process spends no time on the proof.
TABLES_PROVED_UNEQUAL: Final = ("adaptive-winograd", "hasa", "li-fig13", "li-fig23", "li-fig3")
KERNELS_FILE = "kernels"  # name of the file in step_tables/ that defines the kernels
STEP_TABLE_FILES: Final = AlgorithmTexts("step_tables", "step table", except_for=KERNELS_FILE)
PRODUCT_SYMBOL = "*"  # the name of a kernel's product in the kernel's assignments
TableAssignment = tuple[str, tuple[tuple[Coefficient, str], ...]]


class StepTableError(ValueError):
    """Raised if a step table or a kernel of a table is unknown, malformed or wrong."""


# ---- kernels


@dataclass(frozen=True)
class TableKernel:
    """A named operation on blocks: an optional product of two blocks, and elementwise assignments in order.

    `formals` are the names of the kernel's parameters, which stand for blocks. Each call of the kernel names the blocks
    or temporaries that replace the parameters.
    """

    name: str
    formals: tuple[str, ...]
    product: tuple[str, str] | None
    assignments: tuple[TableAssignment, ...]

    @property
    def written_blocks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(target for target, _ in self.assignments))

    @cached_property
    def read_blocks(self) -> tuple[str, ...]:
        """Return the blocks that the step's additions read, and that no earlier addition of this step has written."""
        written: set[str] = set()
        seen: dict[str, None] = {}
        for target, terms in self.assignments:
            seen.update(dict.fromkeys(s for _, s in terms if s != PRODUCT_SYMBOL and s not in written))
            written.add(target)
        return tuple(seen)

    @cached_property
    def addition_program(self) -> AdditionProgram:
        """Return the assignments as an addition program, with inputs `program_inputs` and outputs `written_blocks`."""
        values = {name: i for i, name in enumerate(self.program_inputs)}
        lines: list[tuple[tuple[Coefficient, int], ...]] = []
        for target, terms in self.assignments:
            if len(terms) == 1 and terms[0][0] == 1:
                values[target] = values[terms[0][1]]
                continue
            lines.append(tuple((c, values[s]) for c, s in terms))
            values[target] = len(self.program_inputs) + len(lines) - 1
        return AdditionProgram(len(self.program_inputs), tuple(lines), tuple(values[w] for w in self.written_blocks))

    @cached_property
    def write_dependencies(self) -> tuple[tuple[int, ...], ...]:
        """Return, for each written block, the indices of the program inputs on which its new value depends."""
        return tuple(tuple(i for i, c in enumerate(row) if c) for row in self.addition_program.coefficient_matrix())

    @property
    def program_inputs(self) -> tuple[str, ...]:
        return ((PRODUCT_SYMBOL,) if self.product else ()) + self.read_blocks


_TERM_PATTERN = re.compile(r"\s*([+-]?)\s*(?:(\d+)\s+)?([A-Z]\d*)(?:\s*\*\s*([A-Z]\d*))?")
_CALL_PATTERN = re.compile(r"(\w+)\(([^()]*)\)")


@lru_cache(maxsize=1)
def kernel_table() -> dict[str, TableKernel]:
    """Return the kernels of step_tables/kernels.txt by name."""
    lines = (line.split("#")[0].strip() for line in STEP_TABLE_FILES.read_text(KERNELS_FILE).splitlines())
    return {kernel.name: kernel for kernel in map(parse_table_kernel, filter(None, lines))}


def parse_table_kernel(line: str) -> TableKernel:
    """Return the kernel that a line defines, for example `mulStoreDec(W, X, Y, Z): Y = W * X; Z = Z - W * X`.

    If a product occurs in several assignments, the kernel computes the product once.
    """
    head, _, body = line.partition(":")
    call = _CALL_PATTERN.fullmatch(head.strip())
    if call is None:
        raise StepTableError(f"cannot read the kernel {line!r}")
    formals = tuple(f.strip() for f in call[2].split(","))
    if len(set(formals)) < len(formals):
        raise StepTableError(f"kernel {call[1]} names a formal twice: {', '.join(formals)}")
    products: set[tuple[str, str]] = set()
    assignments = tuple(_read_assignment(part, formals, products) for part in body.split(";"))
    if len(products) > 1:
        raise StepTableError(f"kernel {call[1]} has more than one product")
    return TableKernel(call[1], formals, next(iter(products), None), assignments)


def _read_assignment(text: str, formals: tuple[str, ...], products: set[tuple[str, str]]) -> TableAssignment:
    target, equals, sum_ = (part.strip() for part in text.partition("="))
    terms: list[tuple[Coefficient, str]] = []
    position = 0
    while equals and position < len(sum_):
        match = _TERM_PATTERN.match(sum_, position)
        if match is None or {match[3], match[4] or match[3]} - set(formals) or (terms and not match[1]):
            raise StepTableError(f"cannot read the assignment {text.strip()!r}")
        position = match.end()
        if match[4]:
            products.add((match[3], match[4]))
        sign = -1 if match[1] == "-" else 1
        terms.append((integral_as_int(sign * Fraction(match[2] or 1)), PRODUCT_SYMBOL if match[4] else match[3]))
    if target not in formals or not terms:
        raise StepTableError(f"cannot read the assignment {text.strip()!r}")
    return target, tuple(terms)


# ---- tables


@dataclass(frozen=True)
class TableStep:
    """One call of a table's kernel. `places` are the blocks or temporaries that replace the kernel's parameters."""

    kernel: TableKernel
    places: tuple[str, ...]

    @cached_property
    def blocks_by_formal_parameter(self) -> dict[str, str]:
        """Return a dict from each parameter of the kernel to the block or temporary in this call."""
        return dict(zip(self.kernel.formals, self.places, strict=True))

    @property
    def read_blocks(self) -> tuple[str, ...]:
        operands = self.kernel.product or ()
        return tuple(dict.fromkeys(self.blocks_by_formal_parameter[f] for f in (*operands, *self.kernel.read_blocks)))

    @property
    def written_blocks(self) -> tuple[str, ...]:
        return tuple(self.blocks_by_formal_parameter[f] for f in self.kernel.written_blocks)

    @property
    def overwritten_operands(self) -> tuple[str, ...]:
        """Return the operands of the step's product that the step overwrites; a correct table has none."""
        return tuple(
            sorted({self.blocks_by_formal_parameter[f] for f in self.kernel.product or ()} & set(self.written_blocks))
        )

    def __str__(self) -> str:
        return f"{self.kernel.name}({', '.join(self.places)})"


@dataclass(frozen=True)
class StepTable:
    """A named sequence of steps that computes C = AB on blocks, with the temporaries that the table declares."""

    name: str
    source: str
    size: tuple[int, int, int]
    temporaries: tuple[str, ...]
    steps: tuple[TableStep, ...]
    fringe: str = "pad"  # the fringe that the table declares, one of FRINGE_KINDS

    def __hash__(self) -> int:
        return hash((self.name, len(self.steps)))

    @cached_property
    def product_count(self) -> int:
        return sum(1 for step in self.steps if step.kernel.product)

    @property
    def kernel_counts(self) -> dict[str, int]:
        """Return the number of calls of each kernel by its name, in the order of first calls."""
        counts: dict[str, int] = {}
        for step in self.steps:
            counts[step.kernel.name] = counts.get(step.kernel.name, 0) + 1
        return counts

    def to_text(self) -> str:
        """Return the table in its text form."""
        head = [f"name    {self.name}", f"source  {self.source}", f"size    {' '.join(map(str, self.size))}"]
        head += [f"temps   {' '.join(self.temporaries)}", f"fringe  {self.fringe}", ""]
        return "\n".join([*head, *map(str, self.steps)]) + "\n"


REQUIRED_WORDS, OPTIONAL_WORDS = ("name", "source", "size", "temps"), ("fringe", "consider")


def parse_step_table(text: str, origin: str = "step table") -> StepTable:
    """Return the step table of a text; raise StepTableError with the file and the line of a defect."""
    head, calls = parse_table_lines(text, origin, REQUIRED_WORDS, OPTIONAL_WORDS)
    steps = tuple(map(step_from_kernel_call, calls))
    fringe = head.get("fringe", "pad")
    if fringe not in FRINGE_KINDS:
        raise StepTableError(f"{origin}: unknown fringe {fringe!r}; valid: {', '.join(FRINGE_KINDS)}")
    try:
        parse_candidate_forms(text)
    except ValueError as error:
        raise StepTableError(f"{origin}: {error}") from None
    if not re.fullmatch(r"[1-9] [1-9] [1-9]", head["size"]):
        raise StepTableError(f"{origin}: size must be three digits such as 2 2 2, not {head['size']!r}")
    m, k, n = (int(x) for x in head["size"].split())
    table = StepTable(head["name"], head["source"], (m, k, n), tuple(head["temps"].split()), steps, fringe)
    _check_block_accesses(table, origin)
    return table


class TableKernelCall(NamedTuple):
    """A call in a table: the name of the kernel and the blocks of the call.

    Tables for the closure of a matrix also call the kernel `close`.
    """

    name: str
    places: tuple[str, ...]
    where: str  # the file and the line of the call, for error messages


class ParsedTable(NamedTuple):
    """The parsed lines of a table: the calls of kernels in order, and the head (a dict from words to values)."""

    head: Mapping[str, str]
    calls: tuple[TableKernelCall, ...]


def parse_table_lines(
    text: str, origin: str, required_words: Sequence[str], optional_words: Sequence[str] = ()
) -> ParsedTable:
    """Return a table's head and its calls of kernels; raise StepTableError for any other line.

    The table's head must have all words in `required_words`, and can have words in `optional_words`.
    """
    head: dict[str, str] = {}
    calls: list[TableKernelCall] = []
    for number, line in enumerate((raw.split("#")[0].strip() for raw in text.splitlines()), 1):
        word, _, rest = line.partition(" ")
        where = f"{origin}, line {number}"
        if call := _CALL_PATTERN.fullmatch(line):
            calls.append(TableKernelCall(call[1], tuple(p.strip() for p in call[2].split(",")), where))
        elif word in (*required_words, *optional_words) and word not in head:
            head[word] = rest.strip()
        elif line:
            raise StepTableError(f"{where}: cannot read {line!r}")
    missing = [word for word in required_words if word not in head]
    if missing or not calls:
        raise StepTableError(f"{origin}: {', '.join(missing) or 'steps'} missing")
    return ParsedTable(head, tuple(calls))


def step_from_kernel_call(call: TableKernelCall) -> TableStep:
    """Return the step of a call; raise StepTableError if the kernel is unknown or the number of blocks is wrong."""
    kernels = kernel_table()
    if call.name not in kernels:
        raise StepTableError(f"{call.where}: unknown kernel {call.name!r}; the kernels are {', '.join(kernels)}")
    kernel = kernels[call.name]
    if len(call.places) != len(kernel.formals):
        raise StepTableError(f"{call.where}: {call.name} takes {len(kernel.formals)} places, not {len(call.places)}")
    return TableStep(kernel, call.places)


def _check_block_accesses(table: StepTable, origin: str) -> None:
    """Raise StepTableError if a step writes an input, or if a block is undeclared, unused or read before a write."""
    m, k, n = table.size
    grids = {"A": (m, k), "B": (k, n), "C": (m, n)}
    blocks = {f"{x}{i + 1}{j + 1}" for x, (r, c) in grids.items() for i in range(r) for j in range(c)}
    inputs = {b for b in blocks if b[0] in "AB"}
    if taken := [t for t in table.temporaries if not re.fullmatch(r"[A-Z]\w*", t) or t in blocks | {"A", "B", "C"}]:
        raise StepTableError(f"{origin}: a temporary cannot be called {', '.join(taken)}")
    written = set(inputs)
    for step in table.steps:
        _check_step(step, blocks | set(table.temporaries), inputs, written, f"{origin}: {step}")
        written |= set(step.written_blocks)
    if unused := [t for t in table.temporaries if t not in written]:
        raise StepTableError(f"{origin}: declares {', '.join(unused)} but does not use it")
    if unwritten := sorted(b for b in blocks if b not in written):
        raise StepTableError(f"{origin}: never writes {', '.join(unwritten)}")


def _check_step(step: TableStep, declared: set[str], inputs: set[str], written: set[str], where: str) -> None:
    if unknown := [p for p in step.places if p not in declared]:
        raise StepTableError(f"{where}: undeclared {', '.join(unknown)}")
    if stale := [p for p in step.read_blocks if p not in written]:
        raise StepTableError(f"{where}: reads {', '.join(stale)} before it is written")
    if spoiled := [p for p in step.written_blocks if p in inputs]:
        raise StepTableError(f"{where}: writes the input {', '.join(spoiled)}")
    if len(set(step.written_blocks)) < len(step.written_blocks):
        raise StepTableError(f"{where}: writes one place twice")
    if step.overwritten_operands:
        raise StepTableError(
            f"{where}: overwrites its operand {', '.join(step.overwritten_operands)} during the product"
        )


# ---- the bilinear algorithm of a step table

# A linear combination of blocks of A, of blocks of B, or of products: a dict from names to coefficients.
BlockCombination = Mapping[str, Fraction]


@lru_cache(maxsize=64)
def table_scheme(table: StepTable) -> Scheme:
    """Return the scheme that a step table computes, by executing the steps on linear combinations of block names."""
    m, k, n = table.size
    grids = (("A", (m, k)), ("B", (k, n)), ("C", (m, n)))
    a, b, c = ([f"{x}{i + 1}{j + 1}" for i, j in product(range(r), range(s))] for x, (r, s) in grids)
    held: dict[str, BlockCombination] = {name: {name: Fraction(1)} for name in (*a, *b)}
    products: list[tuple[BlockCombination, BlockCombination]] = []
    for step in table.steps:
        sources = [held[step.blocks_by_formal_parameter[f]] for f in step.kernel.read_blocks]
        if step.kernel.product:
            left, right = (held[step.blocks_by_formal_parameter[f]] for f in step.kernel.product)
            products.append((left, right))
            sources.insert(0, {f"M{len(products)}": Fraction(1)})
        rows = step.kernel.addition_program.coefficient_matrix()
        held |= {
            place: _add_weighted_blocks(zip(row, sources, strict=True))
            for place, row in zip(step.written_blocks, rows, strict=True)
        }
    u, v = (tuple(tuple(p[i].get(x, Fraction(0)) for p in products) for x in names) for i, names in enumerate((a, b)))
    numbers = [f"M{p}" for p in range(1, len(products) + 1)]
    w = tuple(tuple(held[x].get(p, Fraction(0)) for p in numbers) for x in c)
    return Scheme(table.name, table.source, m, k, n, u, v, w)


def _add_weighted_blocks(parts: Iterable[tuple[object, BlockCombination]]) -> BlockCombination:
    found: dict[str, Fraction] = {}
    for coefficient, terms in parts:
        for name, c in terms.items():
            found[name] = found.get(name, Fraction(0)) + Fraction(str(coefficient)) * c
    return {name: c for name, c in found.items() if c}


# ---- shipped step tables, and tables that users register


def register_step_table(text: str) -> StepTable:
    """Register the step table of this text for use in plans; raise StepTableError if the table does not compute AB."""
    table = _require_proof(parse_step_table(text), "step table")
    if table.name in step_table_names():
        raise StepTableError(f"there is a step table {table.name!r} already")
    STEP_TABLE_FILES.register_text(table.name, text)
    return table


def unregister_step_table(name: str) -> None:
    """Remove a step table that a user registered."""
    STEP_TABLE_FILES.unregister_text(name)


@clear_on_registration
@lru_cache(maxsize=1)
def step_table_names() -> tuple[str, ...]:
    """Return the names of all step tables: of shipped files and of registered texts."""
    return tuple(sorted(STEP_TABLE_FILES.algorithm_names()))


@clear_on_registration
@lru_cache(maxsize=64)
def step_table(name: str) -> StepTable:
    """Return the step table of this name, proved to compute AB on blocks of equal size."""
    if name not in step_table_names():
        raise StepTableError(f"unknown step table {name!r}; the step tables are {', '.join(step_table_names())}")
    table = parse_step_table(STEP_TABLE_FILES.read_text(name), f"{name}.txt")
    if table.name != name:
        raise StepTableError(f"{name}.txt: its name line says {table.name!r}; it must be {name!r}")
    return _require_proof(table, f"{name}.txt")


def _require_proof(table: StepTable, origin: str) -> StepTable:
    if (defect := table_scheme(table).failed_brent_equation()) is not None:
        raise StepTableError(f"{origin}: the step table {table.name} does not compute AB: {defect}")
    return table


def candidate_step_tables() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (table name, names of the PlanPatterns whose plans may contain the table).

    Skip a table if the `consider` line of its file is invalid.
    """
    for name in step_table_names():
        if (forms := STEP_TABLE_FILES.candidate_plan_forms(name)) is not None:
            yield name, forms

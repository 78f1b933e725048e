"""Step tables: the papers' own orders of operations, as data.

A table names kernels in call form, `mulIncInc(C12, C21, C11, C22)`, over the blocks A11.., B11.., C11.. and its
declared temporaries. What a kernel means stands once, in step_tables/kernels.txt. A table is read by the lowering
(which sizes its blocks), and through it by the executor, the counters and the symbolic proof.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from importlib import resources

from fmm.kernels.algorithms.additions import Coefficient, Program, whole

PRODUCT = "*"  # the pseudo-source of a kernel's one product in its assignments
Assignment = tuple[str, tuple[tuple[Coefficient, str], ...]]


class StepError(ValueError):
    """A step table or kernel that is unknown, malformed or wrong."""


@dataclass(frozen=True)
class Kernel:
    """One kernel: an optional product of two formals, and assignments done in order, element by element."""

    name: str
    formals: tuple[str, ...]
    product: tuple[str, str] | None
    assignments: tuple[Assignment, ...]

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(target for target, _ in self.assignments))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Formals whose old value is used (the product's operands not counted)."""
        written: set[str] = set()
        seen: dict[str, None] = {}
        for target, terms in self.assignments:
            seen.update(dict.fromkeys(s for _, s in terms if s != PRODUCT and s not in written))
            written.add(target)
        return tuple(seen)

    @cached_property
    def program(self) -> Program:
        """The assignments as a program over `sources`; its outputs are the `writes`."""
        values = {name: i for i, name in enumerate(self.sources)}
        lines: list[tuple[tuple[Coefficient, int], ...]] = []
        for target, terms in self.assignments:
            if len(terms) == 1 and terms[0][0] == 1:
                values[target] = values[terms[0][1]]
                continue
            lines.append(tuple((c, values[s]) for c, s in terms))
            values[target] = len(self.sources) + len(lines) - 1
        return Program(len(self.sources), tuple(lines), tuple(values[w] for w in self.writes))

    @cached_property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For each write, the numbers of the sources that it depends on."""
        return tuple(tuple(i for i, c in enumerate(row) if c) for row in self.program.matrix())

    @property
    def sources(self) -> tuple[str, ...]:
        return ((PRODUCT,) if self.product else ()) + self.reads


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

    def __hash__(self) -> int:
        return hash((self.name, len(self.steps)))

    @property
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
        return "\n".join([*head, f"temps   {' '.join(self.temporaries)}", "", *map(str, self.steps)]) + "\n"


# ---- reading


_TERM = re.compile(r"\s*([+-]?)\s*(?:(\d+)\s+)?([A-Z]\d*)(?:\s*\*\s*([A-Z]\d*))?")
_CALL = re.compile(r"(\w+)\(([^()]*)\)")


def parse_kernel(line: str) -> Kernel:
    """`mulStoreDec(W, X, Y, Z): Y = W * X; Z = Z - W * X` as a kernel; the product is computed once."""
    head, _, body = line.partition(":")
    call = _CALL.fullmatch(head.strip())
    if call is None:
        raise StepError(f"cannot read the kernel {line!r}")
    formals = tuple(f.strip() for f in call[2].split(","))
    if len(set(formals)) < len(formals):
        raise StepError(f"kernel {call[1]} names a formal twice: {', '.join(formals)}")
    products: set[tuple[str, str]] = set()
    assignments = tuple(_assignment(part, formals, products) for part in body.split(";"))
    if len(products) > 1:
        raise StepError(f"kernel {call[1]} has more than one product")
    return Kernel(call[1], formals, next(iter(products), None), assignments)


def _assignment(text: str, formals: tuple[str, ...], products: set[tuple[str, str]]) -> Assignment:
    target, equals, sum_ = (part.strip() for part in text.partition("="))
    terms: list[tuple[Coefficient, str]] = []
    position = 0
    while equals and position < len(sum_):
        match = _TERM.match(sum_, position)
        if match is None or {match[3], match[4] or match[3]} - set(formals) or (terms and not match[1]):
            raise StepError(f"cannot read the assignment {text.strip()!r}")
        position = match.end()
        if match[4]:
            products.add((match[3], match[4]))
        sign = -1 if match[1] == "-" else 1
        terms.append((whole(sign * Fraction(match[2] or 1)), PRODUCT if match[4] else match[3]))
    if target not in formals or not terms:
        raise StepError(f"cannot read the assignment {text.strip()!r}")
    return target, tuple(terms)


HEAD = ("name", "source", "size", "temps")


def parse(text: str, origin: str = "step table") -> StepTable:
    """A step table from its text form; StepError names the file and the line."""
    head: dict[str, str] = {}
    steps: list[Step] = []
    for number, line in enumerate((raw.split("#")[0].strip() for raw in text.splitlines()), 1):
        word, _, rest = line.partition(" ")
        if call := _CALL.fullmatch(line):
            steps.append(_step(call, f"{origin}, line {number}"))
        elif word in HEAD and word not in head:
            head[word] = rest.strip()
        elif line:
            raise StepError(f"{origin}, line {number}: cannot read {line!r}")
    missing = [word for word in HEAD if word not in head]
    if missing or not steps:
        raise StepError(f"{origin}: {', '.join(missing) or 'steps'} missing")
    table = StepTable(head["name"], head["source"], _size(head, origin), tuple(head["temps"].split()), tuple(steps))
    _check_places(table, origin)
    return table


def _size(head: dict[str, str], origin: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"[1-9] [1-9] [1-9]", head["size"]):
        raise StepError(f"{origin}: size must be three digits such as 2 2 2, not {head['size']!r}")
    m, k, n = (int(x) for x in head["size"].split())
    return m, k, n


def _step(call: re.Match[str], where: str) -> Step:
    kernels = kernel_table()
    if call[1] not in kernels:
        raise StepError(f"{where}: unknown kernel {call[1]!r}; the kernels are {', '.join(kernels)}")
    kernel = kernels[call[1]]
    places = tuple(p.strip() for p in call[2].split(","))
    if len(places) != len(kernel.formals):
        raise StepError(f"{where}: {call[1]} takes {len(kernel.formals)} places, not {len(places)}")
    return Step(kernel, places)


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
    operands = {step.bound[f] for f in step.kernel.product or ()}
    if overlap := operands & set(step.writes):
        raise StepError(f"{where}: overwrites its operand {', '.join(sorted(overlap))} during the product")


# ---- the folder of step tables


@lru_cache(maxsize=1)
def step_table_names() -> tuple[str, ...]:
    """Every step table that can be named: the files but for the kernels'."""
    names = (f.name[:-4] for f in _folder().iterdir() if f.name.endswith(".txt"))
    return tuple(sorted(name for name in names if name != "kernels"))


@lru_cache(maxsize=64)
def step_table(name: str) -> StepTable:
    if name not in step_table_names():
        raise StepError(f"unknown step table {name!r}; the step tables are {', '.join(step_table_names())}")
    table = parse((_folder() / f"{name}.txt").read_text(encoding="utf-8"), f"{name}.txt")
    if table.name != name:
        raise StepError(f"{name}.txt: its name line says {table.name!r}; it must be {name!r}")
    return table


@lru_cache(maxsize=1)
def kernel_table() -> dict[str, Kernel]:
    lines = (line.split("#")[0].strip() for line in (_folder() / "kernels.txt").read_text("utf-8").splitlines())
    return {kernel.name: kernel for kernel in map(parse_kernel, filter(None, lines))}


def _folder() -> resources.abc.Traversable:
    return resources.files("fmm.kernels.algorithms") / "step_tables"

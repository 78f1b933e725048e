"""The kernels that step tables call: an optional product, and assignments. They stand in step_tables/kernels.txt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from importlib import resources
from typing import NamedTuple

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, as_int

KERNELS = "kernels"  # the file of step_tables/ that is none
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
    def program(self) -> AdditionProgram:
        """The assignments as a program over `sources`; its outputs are the `writes`."""
        values = {name: i for i, name in enumerate(self.sources)}
        lines: list[tuple[tuple[Coefficient, int], ...]] = []
        for target, terms in self.assignments:
            if len(terms) == 1 and terms[0][0] == 1:
                values[target] = values[terms[0][1]]
                continue
            lines.append(tuple((c, values[s]) for c, s in terms))
            values[target] = len(self.sources) + len(lines) - 1
        return AdditionProgram(len(self.sources), tuple(lines), tuple(values[w] for w in self.writes))

    @cached_property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For each write, the numbers of the sources that it depends on."""
        return tuple(tuple(i for i, c in enumerate(row) if c) for row in self.program.matrix())

    @property
    def sources(self) -> tuple[str, ...]:
        return ((PRODUCT,) if self.product else ()) + self.reads


# ---- reading


_TERM = re.compile(r"\s*([+-]?)\s*(?:(\d+)\s+)?([A-Z]\d*)(?:\s*\*\s*([A-Z]\d*))?")
CALL = re.compile(r"(\w+)\(([^()]*)\)")


def parse_kernel(line: str) -> Kernel:
    """`mulStoreDec(W, X, Y, Z): Y = W * X; Z = Z - W * X` as a kernel; the product is computed once."""
    head, _, body = line.partition(":")
    call = CALL.fullmatch(head.strip())
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
        terms.append((as_int(sign * Fraction(match[2] or 1)), PRODUCT if match[4] else match[3]))
    if target not in formals or not terms:
        raise StepError(f"cannot read the assignment {text.strip()!r}")
    return target, tuple(terms)


class TableCall(NamedTuple):
    """A line of a table that calls something by name."""

    name: str
    places: tuple[str, ...]
    where: str  # for messages: the file and the line


class TableText(NamedTuple):
    """What a table's lines say: words with their values, and calls in order."""

    head: Mapping[str, str]
    calls: tuple[TableCall, ...]


def table_text(text: str, origin: str, words: Sequence[str], more: Sequence[str] = ()) -> TableText:
    """A table whose head has all of `words`, and perhaps some of `more`; StepError names the file and the line."""
    head: dict[str, str] = {}
    calls: list[TableCall] = []
    for number, line in enumerate((raw.split("#")[0].strip() for raw in text.splitlines()), 1):
        word, _, rest = line.partition(" ")
        where = f"{origin}, line {number}"
        if call := CALL.fullmatch(line):
            calls.append(TableCall(call[1], tuple(p.strip() for p in call[2].split(",")), where))
        elif word in (*words, *more) and word not in head:
            head[word] = rest.strip()
        elif line:
            raise StepError(f"{where}: cannot read {line!r}")
    missing = [word for word in words if word not in head]
    if missing or not calls:
        raise StepError(f"{origin}: {', '.join(missing) or 'steps'} missing")
    return TableText(head, tuple(calls))


@lru_cache(maxsize=1)
def kernel_table() -> dict[str, Kernel]:
    file = resources.files("fmm.kernels.algorithms") / "step_tables" / f"{KERNELS}.txt"
    lines = (line.split("#")[0].strip() for line in file.read_text("utf-8").splitlines())
    return {kernel.name: kernel for kernel in map(parse_kernel, filter(None, lines))}

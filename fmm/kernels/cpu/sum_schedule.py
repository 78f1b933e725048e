"""Schedule a program of sums as elementwise calls on numbered arrays.

A panel is the part of an array that is processed at once: all calls run on one panel before the first call runs on the
next. A slot is the index of an array: the arrays that are read come first, then the results, then scratch panels. A
result can share memory with an array that is read: a call that overwrites memory comes after all calls that still read
this memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, Terms, pruned_program


@dataclass(frozen=True)
class ElementwiseCall:
    """The call dest = first (op) second on arrays, given by index (slot); a unary operation has no `second`."""

    op: str  # "add", "subtract", "scale" (by `factor`), "negate", "copy" or "zero"
    dest: int
    first: int = -1
    second: int = -1
    factor: float | complex = 1.0


@dataclass(frozen=True)
class ElementwiseSchedule:
    """Elementwise calls in order, and the number of scratch panels that the calls use."""

    calls: tuple[ElementwiseCall, ...]
    scratch: int


@lru_cache(maxsize=4096)
def schedule_elementwise_calls(
    program: AdditionProgram,
    present: tuple[bool, ...],
    wanted: tuple[bool, ...],
    aliases: tuple[tuple[int, int], ...],
) -> ElementwiseSchedule:
    """Return the calls that compute the wanted outputs from the inputs that are present; absent inputs count as zero.

    `aliases` are pairs (output, input) that share memory.
    """
    outputs = [o for o, want in enumerate(wanted) if want]
    shared: dict[int, set[int]] = {}  # output -> inputs that share memory with the output
    for o, read in aliases:
        if wanted[o] and present[read]:
            shared.setdefault(outputs.index(o), set()).add(read)
    writes = [len(present) + o for o in outputs]
    return _ScheduleBuilder(
        pruned_program(program, present, wanted), shared, writes, len(present) + len(wanted)
    ).build_schedule()


class _ScheduleBuilder:
    """Builds the calls of one program, line by line; scratch panels are reused."""

    def __init__(
        self, program: AdditionProgram, aliases: dict[int, set[int]], writes: Sequence[int], scratch: int
    ) -> None:
        self.program, self.aliases, self.writes = program, aliases, writes
        self.overwritten = set().union(*aliases.values())
        self.slot = {v: v for v in range(program.inputs)}
        self.calls: list[ElementwiseCall] = []
        self.finally_: list[ElementwiseCall] = []
        self.first_scratch = self.next_scratch = scratch
        self.free: list[int] = []
        self.last_use = {v: i for i, terms in enumerate(program.lines, program.inputs) for _, v in terms}

    def build_schedule(self) -> ElementwiseSchedule:
        for o, value in enumerate(self.program.outputs):
            if value < self.program.inputs:
                self._copy_input(o, value)
        for number, terms in enumerate(self.program.lines, self.program.inputs):
            self._schedule_program_line(number, terms)
        return ElementwiseSchedule(tuple(self.calls + self.finally_), self.next_scratch - self.first_scratch)

    def _copy_input(self, output: int, value: int) -> None:
        """Schedule a final copy of an input to an output; copy an overwritten input to scratch first."""
        source = value
        if value in self.overwritten:
            source = self._allocate_scratch_slot()
            self.calls.append(ElementwiseCall("copy", source, value))
        self.finally_.append(ElementwiseCall("copy", self.writes[output], source))

    def _schedule_program_line(self, number: int, terms: Terms) -> None:
        outputs = [o for o, value in enumerate(self.program.outputs) if value == number]
        direct_output = next((o for o in outputs if self._can_overwrite_output_now(o, number, terms)), None)
        dest = self._allocate_scratch_slot() if direct_output is None else self.writes[direct_output]
        in_dest = self.aliases.get(direct_output, set()) if direct_output is not None else set()
        self._emit_sum(dest, sorted(terms, key=lambda term: term[1] not in in_dest))
        self.slot[number] = dest
        self.finally_ += [ElementwiseCall("copy", self.writes[o], dest) for o in outputs if o != direct_output]
        for value in {v for _, v in terms}:
            self._free_after_last_use(value, number)

    def _can_overwrite_output_now(self, output: int, number: int, terms: Terms) -> bool:
        """Return True if a sum (a line of the program) may be written directly to the output.

        The result is False if a later line reads an input that shares memory with the output, or if the sum itself has
        two terms that share memory with the output.
        """
        overwritten = self.aliases.get(output, set())
        needed_later = any(self.last_use.get(read, -1) > number for read in overwritten)
        return not needed_later and sum(v in overwritten for _, v in terms) <= 1

    def _emit_sum(self, dest: int, terms: Sequence[tuple[Coefficient, int]]) -> None:
        """Add the calls for dest = sum of the terms; the first term may share memory with dest."""
        if not terms:
            self.calls.append(ElementwiseCall("zero", dest))
            return
        (c, value), *rest = terms
        first = self.slot[value]
        if c == 1 and rest and rest[0][0] in (1, -1):
            d, value = rest.pop(0)
            self.calls.append(ElementwiseCall("add" if d == 1 else "subtract", dest, first, self.slot[value]))
        elif c == -1 and rest and rest[0][0] == 1:
            self.calls.append(ElementwiseCall("subtract", dest, self.slot[rest.pop(0)[1]], first))
        elif c in (1, -1):
            self.calls.append(ElementwiseCall("copy" if c == 1 else "negate", dest, first))
        else:
            self.calls.append(ElementwiseCall("scale", dest, first, factor=scalar_coefficient(c)))
        for d, value in rest:
            self._emit_term(dest, d, self.slot[value])

    def _emit_term(self, dest: int, c: Coefficient, source: int) -> None:
        if c in (1, -1):
            self.calls.append(ElementwiseCall("add" if c == 1 else "subtract", dest, dest, source))
            return
        scaled = self._allocate_scratch_slot()
        self.calls.append(ElementwiseCall("scale", scaled, source, factor=scalar_coefficient(c)))
        self.calls.append(ElementwiseCall("add", dest, dest, scaled))
        self.free.append(scaled)

    def _allocate_scratch_slot(self) -> int:
        if self.free:
            return self.free.pop()
        self.next_scratch += 1
        return self.next_scratch - 1

    def _free_after_last_use(self, value: int, line: int) -> None:
        """Free the scratch panel of a value that neither a later line of the program nor a final copy reads."""
        slot = self.slot[value]
        copied = any(call.first == slot for call in self.finally_)
        if slot >= self.first_scratch and self.last_use[value] == line and not copied:
            self.free.append(slot)


def scalar_coefficient(c: Coefficient) -> float | complex:
    """Return a coefficient as a Python scalar, so that its product with a float32 array is float32."""
    return c if isinstance(c, complex) else float(c)

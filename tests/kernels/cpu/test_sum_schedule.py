"""Schedules: every output is computed from the old values, whatever memory the outputs overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fmm.kernels.algorithms.additions import (
    AdditionProgram,
    Coefficient,
    Terms,
    program_with_alpha_beta,
    separate_sums_program,
)
from fmm.kernels.algorithms.step_table import kernel_table
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.sum_schedule import ElementwiseCall, schedule_elementwise_calls
from fmm.kernels.cpu.sum_schedule import scalar_coefficient as scalar
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.sums import Place, Sum

Array = np.ndarray[Any, np.dtype[Any]]
Aliases = tuple[tuple[int, int], ...]

BACKEND = NumpyBackend(ThreadGroup(1))


# ---- an interpreter of calls, apart from the backend's


def run(
    program: AdditionProgram, reads: Sequence[float | None], wanted: Sequence[bool], aliases: Aliases = ()
) -> list[float | None]:
    """Run the schedule on panels of one number and return the wanted writes; a read of None is absent."""
    present = tuple(x is not None for x in reads)
    found = schedule_elementwise_calls(program, present, tuple(wanted), aliases)
    places = dict(aliases)
    cells: list[list[complex]] = [[complex("nan") if x is None else x] for x in reads]
    cells += [cells[places[o]] if o in places else [complex("nan")] for o in range(len(wanted))]
    cells += [[complex("nan")] for _ in range(found.scratch)]
    for call in found.calls:
        cells[call.dest][0] = result(call, cells)
    return [cells[len(reads) + o][0] if want else None for o, want in enumerate(wanted)]  # type: ignore[misc]


def result(call: ElementwiseCall, cells: list[list[complex]]) -> complex:
    first, second = cells[call.first][0], cells[call.second][0]
    match call.op:
        case "add":
            return first + second
        case "subtract":
            return first - second
        case "negate":
            return -first
        case "scale":
            return first * call.factor
        case "copy":
            return first
    assert call.op == "zero"
    return 0


def expected(
    program: AdditionProgram, reads: Sequence[float | None], wanted: Sequence[bool]
) -> list[Coefficient | None]:
    values = [0 if x is None else x for x in reads]
    outputs = [sum((c * x for c, x in zip(row, values, strict=True)), 0) for row in program.coefficient_matrix()]
    return [x if want else None for x, want in zip(outputs, wanted, strict=True)]


# ---- cases

IN_PLACE = [
    # (what, program, aliases): values 0, 1, ... are the reads, outputs stand where the reads they are paired with do
    ("Y = X - Y", separate_sums_program([(1, -1)], 2), ((0, 1),)),
    ("X = X - Y", separate_sums_program([(1, -1)], 2), ((0, 0),)),
    ("X = -X", separate_sums_program([(-1,)], 1), ((0, 0),)),
    ("X = 2 X", separate_sums_program([(2,)], 1), ((0, 0),)),
    ("X = X", separate_sums_program([(1,)], 1), ((0, 0),)),
    ("X = 0", separate_sums_program([(0,)], 1), ((0, 0),)),
    ("X, Y = Y, X", separate_sums_program([(0, 1), (1, 0)], 2), ((0, 0), (1, 1))),
    ("X, Y, Z = Y, Z, X", separate_sums_program([(0, 1, 0), (0, 0, 1), (1, 0, 0)], 3), ((0, 0), (1, 1), (2, 2))),
    ("X, Y = X + Y, X - Y", separate_sums_program([(1, 1), (1, -1)], 2), ((0, 0), (1, 1))),
    ("X, Y = Y - X, X + Y, crosswise", separate_sums_program([(-1, 1), (1, 1)], 2), ((0, 1), (1, 0))),
    ("X, Y = X, X + Y", separate_sums_program([(1, 0), (1, 1)], 2), ((0, 0), (1, 1))),
    ("X, Y = Y, X + Y", separate_sums_program([(0, 1), (1, 1)], 2), ((0, 0), (1, 1))),
    ("X, Y = X / 2 - 2 Y, 3 X", separate_sums_program([(Fraction(1, 2), -2), (3, 0)], 2), ((0, 0), (1, 1))),
    ("two outputs of one value", separate_sums_program([(1, 1), (1, 1)], 2), ((0, 0), (1, 1))),
    ("an output that later lines read", AdditionProgram(2, (((1, 0), (1, 1)), ((1, 2), (-2, 0))), (2, 3)), ((0, 0),)),
    (
        "a scratch value kept to the end",
        AdditionProgram(2, (((1, 0), (-1, 1)), ((1, 2), (1, 0))), (2, 3)),
        ((0, 0), (1, 1)),
    ),
    (
        # The first output waits in scratch, since r0 is read later; its panel is not free before it is copied out.
        "a scratch value that outlives its last use",
        AdditionProgram(2, (((1, 0), (1, 1)), ((2, 2),), ((1, 0), (-1, 3)), ((1, 4), (1, 1))), (2, 5)),
        ((0, 0),),
    ),
    *[
        # the kernels of the step tables, each in place of what it updates
        (
            name,
            kernel.addition_program,
            tuple(
                (o, kernel.program_inputs.index(w))
                for o, w in enumerate(kernel.written_blocks)
                if w in kernel.program_inputs
            ),
        )
        for name, kernel in kernel_table().items()
    ],
    # C = alpha AB + beta C, with every kind of factor
    *[
        (
            f"C = {alpha} M + {beta} C",
            program_with_alpha_beta(separate_sums_program([(1,)], 1), alpha, beta),
            ((0, 1),) if beta else (),
        )
        for alpha in (1, -1, 0, 2, 0.5, 1j, -1j, 0.6 + 0.8j)
        for beta in (0, 1, -1, 3, 1j, 0.6 - 0.8j)
    ],
]


@pytest.mark.parametrize(("program", "aliases"), [case[1:] for case in IN_PLACE], ids=[case[0] for case in IN_PLACE])
def test_sums_in_place(program: AdditionProgram, aliases: Aliases) -> None:
    reads = [float(7**i) for i in range(program.inputs)]
    wanted = [True] * len(program.outputs)
    assert run(program, reads, wanted, aliases) == pytest.approx(expected(program, reads, wanted))
    # and the same with nothing in place
    assert run(program, reads, wanted) == pytest.approx(expected(program, reads, wanted))


SHORT = [
    # (program, present, aliases, operations): no pass over the data too many
    (separate_sums_program([(1, 1)], 2), (True, True), (), ["add"]),
    (separate_sums_program([(1, -1)], 2), (True, True), (), ["subtract"]),
    (separate_sums_program([(-1, 1)], 2), (True, True), (), ["subtract"]),
    (separate_sums_program([(1, 1, 1)], 3), (True,) * 3, (), ["add", "add"]),
    (separate_sums_program([(1, 1)], 2), (True, False), (), ["copy"]),
    (separate_sums_program([(-1, 1)], 2), (True, False), (), ["negate"]),
    (separate_sums_program([(1, 1)], 2), (False, False), (), ["zero"]),
    (separate_sums_program([(1, -1)], 2), (True, True), ((0, 1),), ["subtract"]),
    (separate_sums_program([(2, 1)], 2), (True, True), (), ["copy", "scale", "add"]),
]


@pytest.mark.parametrize(("program", "present", "aliases", "operations"), SHORT)
def test_calls_are_as_few_as_they_can_be(
    program: AdditionProgram, present: tuple[bool, ...], aliases: Aliases, operations: list[str]
) -> None:
    found = schedule_elementwise_calls(program, present, (True,) * len(program.outputs), aliases)
    assert len(found.calls) <= len(operations)
    assert {call.op for call in found.calls} <= set(operations)
    assert found.scratch <= 1


def test_unwanted_outputs_cost_nothing() -> None:
    program = separate_sums_program([(1, 1), (1, -1)], 2)
    assert len(schedule_elementwise_calls(program, (True, True), (False, True), ()).calls) == 1
    assert schedule_elementwise_calls(program, (True, True), (False, False), ()).calls == ()


def test_scratch_panels_are_used_again() -> None:
    """A chain of sums needs no more panels than live values."""
    lines: list[Terms] = [((1, 0), (1, 1))]
    lines += [((1, number), (1, 0)) for number in range(2, 12)]
    program = AdditionProgram(2, tuple(lines), (12,))
    assert schedule_elementwise_calls(program, (True, True), (True,), ()).scratch <= 2


def test_scaled_terms_of_a_sum_share_one_scratch_panel() -> None:
    program = AdditionProgram(4, (((1, 0), (2, 1), (3, 2), (5, 3)),), (4,))
    assert schedule_elementwise_calls(program, (True,) * 4, (True,), ()).scratch == 1


# ---- any program, any aliases, any part of it present or wanted


FACTORS: st.SearchStrategy[Coefficient] = st.sampled_from([1, 1, -1, -1, 2, Fraction(1, 2)])


@st.composite
def cases(draw: st.DrawFn) -> tuple[AdditionProgram, list[float | None], list[bool], Aliases]:
    inputs = draw(st.integers(1, 4))
    lines: list[Terms] = []
    for number in range(inputs, inputs + draw(st.integers(0, 5))):
        sources = draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True))
        lines.append(tuple((draw(FACTORS), v) for v in sources))
    outputs = draw(st.lists(st.integers(0, inputs + len(lines) - 1), min_size=1, max_size=4))
    reads = [float(7**i) if draw(st.integers(0, 3)) else None for i in range(inputs)]
    wanted = [draw(st.integers(0, 3)) > 0 for _ in outputs]
    spots = draw(st.permutations(range(inputs)))  # every output over a read of its own, or over none
    aliases = [(o, spots[o]) for o in range(min(len(outputs), inputs)) if draw(st.booleans())]
    return AdditionProgram(inputs, tuple(lines), tuple(outputs)), reads, wanted, tuple(aliases)


@pytest.mark.slow
@settings(max_examples=300)
@given(cases())
def test_any_program_on_any_aliases(case: tuple[AdditionProgram, list[float | None], list[bool], Aliases]) -> None:
    program, reads, wanted, aliases = case
    assert run(program, reads, wanted, aliases) == expected(program, reads, wanted)


# ---- the same through the backend, on arrays of unequal sizes


@settings(max_examples=150)
@given(cases(), st.data())
def test_sums_on_arrays_of_unequal_sizes(
    case: tuple[AdditionProgram, list[float | None], list[bool], Aliases], data: st.DataObject
) -> None:
    """A smaller read is padded with zeros; a smaller write is cropped; a write may be larger than its read."""
    program, _, _, aliases = case
    sizes = st.tuples(st.integers(0, 3), st.integers(0, 3))
    fortran = data.draw(st.booleans())

    def room(value: float) -> Array:
        return np.full((3, 3), value, order="F" if fortran else "C")

    rooms = [room(7.0**i) for i in range(program.inputs)]
    reads = [Place(f"R{i}", 0, 0, *data.draw(sizes)) for i in range(program.inputs)]
    over = dict(aliases)
    writes = [
        Place(f"R{over[o]}" if o in over else f"W{o}", 0, 0, *data.draw(sizes)) for o in range(len(program.outputs))
    ]
    arrays = [rooms[over[o]] if o in over else room(np.nan) for o in range(len(program.outputs))]
    wanted = []
    for place, row in zip(writes, program.coefficient_matrix(), strict=True):
        total: Array = np.zeros((3, 3))
        for c, read, values in zip(row, reads, rooms, strict=True):
            total[: read.rows, : read.cols] += scalar(c) * values[: read.rows, : read.cols]
        wanted.append(total[: place.rows, : place.cols])
    step = Sum("test", program, tuple(reads), tuple(writes))
    views = [x[: p.rows, : p.cols] for x, p in zip([*rooms, *arrays], [*reads, *writes], strict=True)]
    BACKEND.compute_sums(step, views[: len(reads)], views[len(reads) :])
    for view, total in zip(views[len(reads) :], wanted, strict=True):
        assert np.array_equal(view, total)


def test_two_reads_of_one_place_keep_its_old_value() -> None:
    """A write over the place must wait for both."""
    x, y = np.array([[3.0]]), np.array([[5.0]])
    spot, other = Place("X", 0, 0, 1, 1), Place("Y", 0, 0, 1, 1)
    program = AdditionProgram(2, (((2, 0),), ((3, 1),)), (2, 3))  # X, Y = 2 X, 3 X
    BACKEND.compute_sums(Sum("test", program, (spot, spot), (spot, other)), [x, x], [x, y])
    assert (x[0, 0], y[0, 0]) == (6, 9)


def test_writes_without_a_common_corner() -> None:
    """A tall write and a wide one: the corner outside both is not written, even if no read has it."""
    m = np.ones((1, 1))
    tall, wide = np.full((2, 1), np.nan), np.full((1, 2), np.nan)
    places = Place("M", 0, 0, 1, 1), Place("C12", 0, 0, 2, 1), Place("C21", 0, 0, 1, 2)
    BACKEND.compute_sums(Sum("add", AdditionProgram(1, (), (0, 0)), places[:1], places[1:]), [m], [tall, wide])
    assert tall.tolist() == [[1], [0]]
    assert wide.tolist() == [[1, 0]]


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_every_operation_on_every_stride(dtype: str) -> None:
    """Guards against a bug of NumPy 2.3 and 2.4: numpy.negative on every fourth float32 or eighth float64."""
    programs = [
        separate_sums_program([row], 2) for row in ((1, 1), (1, -1), (-1, 1), (-1, 0), (1, 0), (2, 0), (0, 0), (-1, -1))
    ]
    x, y = Place("X", 0, 0, 5, 1), Place("Y", 0, 0, 5, 1)
    for stride in (1, 2, 3, 4, 5, 8, 16, 17, -1, -4, -8):
        for program in programs:
            rows = [strided(dtype, stride, value) for value in (1, 10)]
            (c, d), (old, other) = program.coefficient_matrix()[0], rows
            wanted = scalar(c) * old + scalar(d) * other
            BACKEND.compute_sums(Sum("test", program, (x, y), (x,)), rows, rows[:1])
            assert np.array_equal(rows[0], wanted), (stride, program)


def strided(dtype: str, stride: int, start: int) -> Array:
    """A column of five numbers, `stride` items apart."""
    column = np.full((5 * abs(stride), 1), np.nan, dtype)[:: abs(stride)]
    column[:, 0] = np.arange(start, start + 5)
    return column[::-1] if stride < 0 else column

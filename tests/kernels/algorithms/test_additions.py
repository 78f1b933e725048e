"""Programs of additions: every operation on them against the algebra of their coefficient matrices."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fmm.kernels.algorithms.additions import (
    AdditionProgram,
    Coefficient,
    compose_addition_programs,
    order_lines_by_use,
    program_with_alpha_beta,
    pruned_program,
    renumber_inputs,
    separate_sums_program,
    shared_sums_program,
)

Row = tuple[Coefficient, ...]
COEFFICIENTS = st.sampled_from([Fraction(c, 2) for c in (-4, -2, -1, 1, 2, 4)])
SMALL = st.sampled_from([0, 0, 1, -1, 2])


@st.composite
def random_programs(draw: st.DrawFn, inputs: int | None = None) -> AdditionProgram:
    inputs = inputs or draw(st.integers(1, 4))
    lines: list[tuple[tuple[Coefficient, int], ...]] = []
    for number in range(inputs, inputs + draw(st.integers(0, 5))):
        sources = draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True))
        lines.append(tuple((draw(COEFFICIENTS), v) for v in sources))
    values = st.integers(0, inputs + len(lines) - 1)
    return AdditionProgram(inputs, tuple(lines), tuple(draw(st.lists(values, min_size=1, max_size=4))))


@st.composite
def random_rows(draw: st.DrawFn) -> tuple[int, list[Row]]:
    inputs = draw(st.integers(1, 6))
    return inputs, [tuple(draw(SMALL) for _ in range(inputs)) for _ in range(draw(st.integers(1, 6)))]


def run(program: AdditionProgram, inputs: Sequence[Coefficient]) -> list[Coefficient]:
    """The plainest possible evaluation: the oracle for matrix()."""
    values = list(inputs)
    for terms in program.lines:
        total: Coefficient = Fraction(0)
        for c, v in terms:
            total += c * values[v]
        values.append(total)
    return [values[v] for v in program.outputs]


def times(matrix: Sequence[Sequence[Coefficient]], x: Sequence[Coefficient]) -> list[Coefficient]:
    return [sum((c * v for c, v in zip(row, x, strict=True)), Fraction(0)) for row in matrix]


def product(x: Sequence[Sequence[Coefficient]], y: Sequence[Sequence[Coefficient]]) -> tuple[Row, ...]:
    return tuple(tuple(times(list(zip(*y, strict=True)), row)) for row in x)


@given(random_programs())
def test_matrix_is_what_running_the_lines_gives(program: AdditionProgram) -> None:
    inputs = [Fraction(7**i) for i in range(program.inputs)]
    assert times(program.coefficient_matrix(), inputs) == run(program, inputs)


@given(random_rows())
def test_plain_and_shared_compute_the_rows(case: tuple[int, list[Row]]) -> None:
    inputs, rows = case
    assert separate_sums_program(rows, inputs).coefficient_matrix() == tuple(rows)
    assert shared_sums_program(rows, inputs).coefficient_matrix() == tuple(rows)


@given(random_rows())
def test_sharing_never_costs_additions(case: tuple[int, list[Row]]) -> None:
    inputs, rows = case
    assert separate_sums_program(rows, inputs).addition_count == sum(
        max(sum(1 for c in row if c) - 1, 0) for row in rows
    )
    assert shared_sums_program(rows, inputs).addition_count <= separate_sums_program(rows, inputs).addition_count


SHARED = [
    # (rows, additions): a pair that repeats, up to a common factor, is formed once
    ([(1, 1, 0), (1, 1, 1)], 2),
    ([(1, -1, 0), (-1, 1, 1)], 2),
    ([(1, 1, 1), (2, 2, 0)], 2),
    ([(1, 1, 0), (1, -1, 1)], 3),  # a + b and a - b are different pairs
    ([(1, 1, 1, 1), (1, 1, 1, 1)], 3),
]


@pytest.mark.parametrize(("rows", "additions"), SHARED)
def test_shared_sums_are_counted_once(rows: list[Row], additions: int) -> None:
    assert shared_sums_program(rows, len(rows[0])).addition_count == additions


def test_sharing_ends_with_floats_whose_ratio_is_rounded() -> None:
    assert (1.0 / 49.0) * 49.0 != 1.0  # the pair occurs twice, but its ratio does not give the coefficient back
    program = shared_sums_program([(49.0, 1.0), (49.0, 1.0)], 2)
    assert program.addition_count == 1
    assert program.coefficient_matrix()[0] == pytest.approx((49.0, 1.0))


def test_an_output_that_is_an_input_takes_no_line() -> None:
    assert separate_sums_program([(0, 1), (1, 0)], 2) == AdditionProgram(2, (), (1, 0))
    # A negated input takes a line but no addition.
    assert separate_sums_program([(0, -1)], 2).lines == (((-1, 1),),)
    assert separate_sums_program([(0, -1)], 2).addition_count == 0


def test_a_positive_term_comes_first() -> None:
    assert separate_sums_program([(-1, 1)], 2).lines == (((1, 1), (-1, 0)),)


@given(random_programs())
def test_by_demand_keeps_the_meaning_and_drops_what_nobody_needs(program: AdditionProgram) -> None:
    late = order_lines_by_use(program)
    assert late.coefficient_matrix() == program.coefficient_matrix()
    read = {v for terms in late.lines for _, v in terms} | set(late.outputs)
    assert read >= set(range(late.inputs, late.inputs + len(late.lines)))
    assert order_lines_by_use(late) == late


def test_by_demand_forms_a_value_just_before_its_use() -> None:
    early = AdditionProgram(2, (((1, 0), (1, 1)), ((1, 0), (-1, 1)), ((2, 2),), ((2, 3),)), (4, 5))
    late = order_lines_by_use(early)
    assert late.lines == (((1, 0), (1, 1)), ((2, 2),), ((1, 0), (-1, 1)), ((2, 4),))
    assert late.outputs == (3, 5)


@given(random_programs(), st.randoms(use_true_random=False))
def test_permuted_moves_the_columns(program: AdditionProgram, random: object) -> None:
    order = list(range(program.inputs))
    random.shuffle(order)  # type: ignore[attr-defined]
    moved = renumber_inputs(program, order).coefficient_matrix()
    for row, old in zip(moved, program.coefficient_matrix(), strict=True):
        assert [row[order[i]] for i in range(program.inputs)] == list(old)


@given(random_programs(), COEFFICIENTS | st.just(0), COEFFICIENTS | st.just(0))
def test_updating_is_alpha_times_the_old_outputs_plus_beta_times_new_inputs(
    program: AdditionProgram, alpha: Fraction, beta: Fraction
) -> None:
    updated = program_with_alpha_beta(program, alpha, beta)
    outputs = len(program.outputs)
    extra = outputs if beta else 0  # with beta = 0 the old C is no input: it must not be read
    assert updated.inputs == program.inputs + extra
    for o, (row, old) in enumerate(zip(updated.coefficient_matrix(), program.coefficient_matrix(), strict=True)):
        identity = [beta * (i == o) for i in range(extra)]
        assert list(row) == [alpha * c for c in old] + identity


def test_updating_by_one_and_zero_changes_nothing() -> None:
    program = separate_sums_program([(1, 1)], 2)
    assert program_with_alpha_beta(program, 1, 0) is program


@given(random_programs(), st.data())
def test_restricted_zeroes_columns_and_drops_rows(program: AdditionProgram, data: st.DataObject) -> None:
    present = data.draw(st.lists(st.booleans(), min_size=program.inputs, max_size=program.inputs))
    outputs = len(program.outputs)
    wanted = data.draw(st.lists(st.booleans(), min_size=outputs, max_size=outputs))
    small = pruned_program(program, present, wanted)
    expected = [
        tuple(c if here else 0 for c, here in zip(row, present, strict=True))
        for row, want in zip(program.coefficient_matrix(), wanted, strict=True)
        if want
    ]
    assert list(small.coefficient_matrix()) == expected
    read = {v for terms in small.lines for _, v in terms}
    assert not read & {v for v in range(small.inputs) if not present[v]}, "reads an absent input"
    numbers = range(small.inputs, small.inputs + len(small.lines))
    assert set(numbers) <= read | set(small.outputs), "keeps a line that nobody needs"
    empty = [v for v, terms in zip(numbers, small.lines, strict=True) if not terms]
    assert not set(empty) & read, "adds an empty line to something"


@given(st.data())
def test_chain_multiplies_the_matrices(data: st.DataObject) -> None:
    first = data.draw(st.lists(random_programs(), min_size=1, max_size=3))
    pins = [(p, o) for p, program in enumerate(first) for o in range(len(program.outputs))]
    then = data.draw(st.lists(random_programs(), min_size=1, max_size=3))
    wiring = [[data.draw(st.sampled_from(pins)) for _ in range(program.inputs)] for program in then]
    found = compose_addition_programs(first, then, wiring).coefficient_matrix()

    total, start, wide = sum(p.inputs for p in first), 0, []
    for program in first:  # the firsts side by side, each output a row over all inputs
        wide += [
            [0] * start + list(row) + [0] * (total - start - program.inputs) for row in program.coefficient_matrix()
        ]
        start += program.inputs
    rows = {pin: wide[i] for i, pin in enumerate(pins)}
    expected: list[Row] = []
    for program, wires in zip(then, wiring, strict=True):
        expected += product(program.coefficient_matrix(), [rows[pin] for pin in wires])
    assert list(found) == expected


@pytest.mark.parametrize("source", [1, 2, -1])
def test_a_line_that_reads_ahead_is_refused(source: int) -> None:
    with pytest.raises(ValueError, match=r"line 1 reads a value that does not exist yet"):
        AdditionProgram(1, (((1, source),),), (1,))


def test_equal_programs_are_one_key() -> None:
    one, two = separate_sums_program([(1, 1)], 2), separate_sums_program([(Fraction(1), Fraction(1))], 2)
    assert one == two
    assert hash(one) == hash(two)
    assert len({one, two, separate_sums_program([(1, -1)], 2)}) == 2

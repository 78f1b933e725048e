"""Closure tables: what is read, and that the proof takes nothing for right that is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fmm.kernels.algorithms.step_table import StepTableError, kernel_table, parse_table_kernel
from fmm.semirings.closure_table import (
    EMPTY_SET,
    EMPTY_WORD_SET,
    LetterSet,
    closure_error,
    closure_table,
    concatenation,
    is_set_of_walks,
    parse_closure_table,
    repetition,
    union_of_words,
)

TEXT = """
name    small
source  a test
blocks  A B C E
temps   T
"""


def test_r_kleene_is_two_closures_and_six_products() -> None:
    table = closure_table("r-kleene")
    assert table.product_count == 6 and len(table.steps) == 8
    assert closure_error(table) is None
    assert "Nicolau" in table.source


def test_each_step_is_needed() -> None:
    table = closure_table("r-kleene")
    for i in range(len(table.steps)):
        assert closure_error(replace(table, steps=table.steps[:i] + table.steps[i + 1 :])) is not None


def test_the_order_matters() -> None:
    """Steps that are told in one round may change places; others not."""
    steps = closure_table("r-kleene").steps
    defects = []
    for i in range(len(steps) - 1):
        swapped = (*steps[:i], steps[i + 1], steps[i], *steps[i + 2 :])
        defects.append(closure_error(replace(closure_table("r-kleene"), steps=swapped)) is not None)
    assert defects == [True, False, True, True, True, False, True]


def test_it_matters_where_each_operand_stands() -> None:
    """Products do not commute."""
    table = closure_table("r-kleene")
    text = f"name x\nsource y\nblocks {' '.join(table.blocks)}\ntemps T1 T2\n" + "\n".join(map(str, table.steps))
    assert closure_error(parse_closure_table(text)) is None
    for right, wrong in (("mulAdd(A, B, B, T1)", "mulAdd(B, A, B, T1)"), ("mulInc(T2, T1, E)", "mulInc(T1, T2, E)")):
        assert right in text
        assert closure_error(parse_closure_table(text.replace(right, wrong))) is not None


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (["sub(A, B, C)"], "not one product"),
        (["mulStoreDec(A, B, C, T)"], "not one product"),
        (["mulSubInc(A, B, C, E, T)"], "not one product"),
        (["mulInc(A, B, B)"], "overwrites its operand"),
        (["nothing(A)"], "unknown kernel 'nothing'"),
        (["close(A, E)"], "unknown kernel 'close'"),
        (["mulInc(A, B)"], "mulInc takes 3 places, not 2"),
        (["A = A B"], "line 6"),
    ],
)
def test_what_cannot_be_read_is_told(steps: list[str], says: str) -> None:
    with pytest.raises(StepTableError, match=says):
        parse_closure_table(TEXT + "\n".join(steps))


@pytest.mark.parametrize(
    ("old", "new"), [("blocks  A B C E", "blocks  A B C"), ("temps   T", "temps   A"), ("name    small\n", "")]
)
def test_a_head_that_is_wrong_is_told(old: str, new: str) -> None:
    with pytest.raises(StepTableError):
        parse_closure_table((TEXT + "close(A)").replace(old, new))


def test_steps_that_subtract_are_no_semirings(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = parse_table_kernel("mulDec(W, X, Y): Y = Y - W * X")
    monkeypatch.setitem(kernel_table(), kernel.name, kernel)
    with pytest.raises(StepTableError, match="subtracts"):
        parse_closure_table(TEXT + "mulDec(A, B, E)")


def test_what_nothing_has_written_is_told() -> None:
    table = parse_closure_table(TEXT + "mulInc(A, T, B)")
    assert "nothing has written" in str(closure_error(table))
    assert "diagonal" in str(closure_error(parse_closure_table(TEXT + "close(B)")))


def test_unknown_tables() -> None:
    with pytest.raises(StepTableError, match="r-kleene"):
        closure_table("kleene")


def test_words() -> None:
    """(a b)* a = a (b a)*, but not (a | b)* a."""
    a, b = LetterSet("a"), LetterSet("b")
    moves = {"a": (0, 1), "b": (1, 0)}
    assert is_set_of_walks(concatenation(repetition(concatenation(a, b)), a), moves, 0, 1)
    assert is_set_of_walks(concatenation(a, repetition(concatenation(b, a))), moves, 0, 1)
    assert not is_set_of_walks(concatenation(repetition(union_of_words(a, b)), a), moves, 0, 1)
    assert is_set_of_walks(repetition(concatenation(b, a)), moves, 1, 1) and not is_set_of_walks(
        repetition(concatenation(a, b)), moves, 1, 1
    )
    assert (
        concatenation(EMPTY_SET, a) == EMPTY_SET
        and concatenation(EMPTY_WORD_SET, a) == a
        and union_of_words(EMPTY_SET, a) == a
        and repetition(EMPTY_WORD_SET) == EMPTY_WORD_SET
    )

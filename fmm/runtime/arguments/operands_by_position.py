"""Operands go by position; who names them, as torch and NumPy spell them, is told what to write."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final


class _NotGiven:
    """Stands where an operand is wanted, and is no array."""


NOT_GIVEN: Final[Any] = _NotGiven()
# torch's names, NumPy's in its documentation, and fmm's own.
NAMES = ("a", "b", "input", "other", "mat1", "mat2", "self", "tensor", "x1", "x2", "x", "y")


def missing_operands(
    function: str, names: Collection[str], given: tuple[Any, ...], options: Collection[str]
) -> TypeError:
    """The error for a call without some of the operands of these names; `options`: what it named."""
    if told := named_operands(function, names, options):
        return TypeError(told)
    missing = [repr(name) for name, x in zip(names, given, strict=True) if x is NOT_GIVEN]
    words = "arguments" if len(missing) > 1 else "argument"
    return TypeError(f"{function}() missing {len(missing)} required positional {words}: {' and '.join(missing)}")


def named_operands(function: str, names: Collection[str], options: Collection[str]) -> str:
    """What to write instead, if operands were given by name; else empty."""
    named = ", ".join(f"{name}=" for name in options if name in NAMES)
    call = f"fmm.{function}({', '.join(names)})"
    return f"fmm.{function} takes its operands by position: write {call}, without {named}" if named else ""

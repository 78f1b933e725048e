"""Operands go by position; who names them, as torch and NumPy spell them, is told what to write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _NotGiven:
    """Stands where an operand is wanted, and is no array."""


NOT_GIVEN: Final[Any] = _NotGiven()
# torch's names, NumPy's in its documentation, and fmm's own.
NAMES = ("a", "b", "input", "other", "mat1", "mat2", "self", "tensor", "x1", "x2", "x", "y")


def with_operands_by_position(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: calls without some of the operands, which have no names, get the error below."""
    names = operands_of(inspect.signature(function))

    @wraps(function)
    def called(*given: P.args, **named: P.kwargs) -> R:
        if len(given) < len(names):
            lacking = [NOT_GIVEN] * (len(names) - len(given))
            raise missing_operands(function.__name__, names, (*given, *lacking), named)
        return function(*given, **named)

    return called


def operands_of(signature: inspect.Signature) -> list[str]:
    """The names of the operands that must be given, by position."""
    parts = signature.parameters.values()
    return [part.name for part in parts if part.kind is part.POSITIONAL_ONLY and part.default is part.empty]


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

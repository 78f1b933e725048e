"""The operands of numpy.dot and cupy.dot, as their callers may give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OUT = {"out"}


def dot_operands(operands: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, Any, Any] | None:
    """Both operands and the place for the result (None: a new one), which is named or comes third; None where the call
    is another one, which the library is to judge."""
    if not options:
        if len(operands) == 2:
            return operands[0], operands[1], None
        return operands if len(operands) == 3 else None
    return (*operands, options["out"]) if len(operands) == 2 and options.keys() == OUT else None

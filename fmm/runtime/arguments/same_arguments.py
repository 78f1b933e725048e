"""What explains a function takes the same arguments: what can be asked stands in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec

from fmm.request import named_operands, operands_of
from fmm.runtime.decisions.decide import Decision

P = ParamSpec("P")
Explained = Callable[[Mapping[str, Any]], Decision]


def asked_like(product: Callable[P, Any]) -> Callable[[Explained], Callable[P, Decision]]:
    """A decorator: the function takes what `product` takes, and is handed all of it by name, what was not given too."""
    signature = inspect.signature(product)
    operands = operands_of(signature)

    def decorated(explained: Explained) -> Callable[P, Decision]:
        @wraps(explained)
        def explain_call(*given: P.args, **named: P.kwargs) -> Decision:
            try:
                asked = signature.bind(*given, **named)
            except TypeError as error:
                if told := named_operands(explained.__name__, operands, named):
                    raise TypeError(told) from error
                raise
            asked.apply_defaults()
            return explained(asked.arguments)

        explain_call.__annotations__ = {**product.__annotations__, "return": "Decision"}
        vars(explain_call)["__signature__"] = signature.replace(return_annotation="Decision")
        return explain_call

    return decorated


def some_of(asked: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(asked[name] for name in names)

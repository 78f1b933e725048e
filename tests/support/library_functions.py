"""A library as ctypes has it, whose functions are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Function:
    """As ctypes has them: told the types of its arguments, and no function of Python's."""

    def __init__(self, call: Callable[..., int]) -> None:
        self.call, self.argtypes = call, list[Any]()

    def __call__(self, *given: Any) -> int:
        return self.call(*given)


class Functions:
    """By name; `call_of` says what a function of that name does."""

    def __init__(self, call_of: Callable[[str], Callable[..., int]]) -> None:
        self.call_of, self.made = call_of, dict[str, Function]()

    def __getattr__(self, name: str) -> Function:
        return self[name]

    def __getitem__(self, name: str) -> Function:
        if name not in self.made:
            self.made[name] = Function(self.call_of(name))
        return self.made[name]

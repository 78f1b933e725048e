"""A library like those of ctypes, whose functions are created on access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Function:
    """A function like those of ctypes: it has argument types and is not a Python function."""

    def __init__(self, call: Callable[..., int]) -> None:
        self.call, self.argtypes = call, list[Any]()

    def __call__(self, *arguments: Any) -> int:
        return self.call(*arguments)


class Functions:
    """Functions by name; `call_of` returns the behaviour for a name."""

    def __init__(self, call_of: Callable[[str], Callable[..., int]]) -> None:
        self.call_of, self.made = call_of, dict[str, Function]()

    def __getattr__(self, name: str) -> Function:
        return self[name]

    def __getitem__(self, name: str) -> Function:
        if name not in self.made:
            self.made[name] = Function(self.call_of(name))
        return self.made[name]

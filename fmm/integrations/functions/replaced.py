"""Objects of other modules under whose names functions of ours stand for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import Any

NOTHING = object()  # the name was not there, or came from an ancestor


class Replaced:
    """Called in the place of a library's function, and in all else that function: its attributes are handed on."""

    def __init__(self, own: Any, answer: Callable[..., Any]) -> None:
        update_wrapper(self, own, assigned=("__doc__", "__name__", "__qualname__", "__module__"), updated=())
        self.__wrapped__, self._answer = own, answer
        # The ufuncs of NumPy 1.26 have none: pickle is to look for them everywhere, and not in this module.
        home: Any = getattr(own, "__module__", None)
        self.__module__ = home

    def __call__(self, *operands: Any, **options: Any) -> Any:
        return self._answer(*operands, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for isinstance(numpy.matmul, numpy.ufunc)
        return type(self.__wrapped__)

    def __eq__(self, other: object) -> Any:  # of an array NumPy says it entry by entry
        """Who looks the function up in a table of his own finds what he knows of it."""
        return self.__wrapped__ == other

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __reduce__(self) -> str:
        return str(self.__wrapped__.__name__)  # pickled by its name, as the function itself would be

    def __reduce_ex__(self, protocol: Any) -> str:
        return self.__reduce__()

    def __repr__(self) -> str:
        return f"{self.__wrapped__!r}, by fmm where a plan pays"


def names_of(value: object, *owners: Any) -> list[tuple[Any, str]]:
    """Under which names of these modules the object stands."""
    return [(owner, name) for owner in owners for name, found in list(vars(owner).items()) if found is value]


def put(values: Iterable[tuple[Any, str, Any]]) -> Callable[[], None]:
    """Puts objects under names of modules and classes. The call that puts the former ones back: the very ones, where
    nobody has put another there since."""
    former: list[tuple[Any, str, Any, Any]] = []

    def undo() -> None:
        for owner, name, before, ours in reversed(former):
            if vars(owner).get(name, NOTHING) is not ours:
                continue
            if before is NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    try:
        for owner, name, value in values:
            before = vars(owner).get(name, NOTHING)
            setattr(owner, name, value)
            former.append((owner, name, before, value))
    except BaseException:
        undo()
        raise
    return undo

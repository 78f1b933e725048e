"""What fmm.shortest_paths is asked besides its arrays, and the error that it may raise."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Method = Literal["auto", "r-kleene", "floyd-warshall"]
METHODS: tuple[str, ...] = get_args(Method)


class NegativeCycleError(ValueError):
    """There are ways that become shorter at each round, so there are no shortest ones."""


class PathRequest(NamedTuple):
    """What fmm.shortest_paths was asked besides its arrays."""

    directed: bool = True
    predecessors: bool = False
    unweighted: bool = False
    overwrite: bool = False
    method: Method = "auto"

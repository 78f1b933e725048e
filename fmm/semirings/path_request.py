"""The options of fmm.shortest_paths, and the error that fmm.shortest_paths raises for negative cycles."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Method = Literal["auto", "r-kleene", "floyd-warshall"]
METHOD_NAMES: tuple[str, ...] = get_args(Method)


class NegativeCycleError(ValueError):
    """The graph has a cycle of negative length, so that no shortest paths exist."""


class PathRequest(NamedTuple):
    """The caller's options of fmm.shortest_paths."""

    directed: bool = True
    predecessors: bool = False
    unweighted: bool = False
    overwrite: bool = False
    method: Method = "auto"

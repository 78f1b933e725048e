"""The options of fmm.shortest_paths, the rule for edges, and the error that is raised for negative cycles."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

PathMethod = Literal["auto", "r-kleene", "floyd-warshall"]
PATH_METHOD_NAMES: tuple[str, ...] = get_args(PathMethod)


class NegativeCycleError(ValueError):
    """The graph has a cycle of negative length, so that no shortest paths exist."""


class PathRequest(NamedTuple):
    """The caller's options of fmm.shortest_paths."""

    directed: bool = True
    predecessors: bool = False
    unweighted: bool = False
    overwrite: bool = False
    method: PathMethod = "auto"


class EdgeRule(NamedTuple):
    """Which entries of a matrix of lengths are edges, and how edges are written."""

    missing: float  # the value for "no edge"
    smallest: float  # floating-point entries up to this magnitude are no edges
    unweighted: bool = False  # True if every edge has length 1
    no_predecessor: int | None = None  # the predecessor where there is no edge; None if no predecessors are written

"""Define the options of fmm.shortest_paths, the rule for edges, and the error for negative cycles."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

PathMethod = Literal["auto", "r-kleene", "floyd-warshall"]
PATH_METHOD_NAMES: tuple[str, ...] = get_args(PathMethod)


class NegativeCycleError(ValueError):
    """The error raised if the graph has a cycle of negative length, so that shortest paths do not exist."""


class PathRequest(NamedTuple):
    """The caller's options of fmm.shortest_paths."""

    directed: bool = True
    predecessors: bool = False
    unweighted: bool = False
    overwrite: bool = False
    method: PathMethod = "auto"


class EdgeRule(NamedTuple):
    """The rule that decides which entries in a matrix of lengths are edges, and how edges are written."""

    missing: float  # the entry that means "no edge"
    smallest: float  # floating-point entries up to this magnitude are not edges
    unweighted: bool = False  # True if every edge counts as length 1
    # The predecessor that is written for a pair of nodes without an edge. None means that no predecessors are written.
    no_predecessor: int | None = None

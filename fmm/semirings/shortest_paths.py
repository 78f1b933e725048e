"""All-pairs shortest paths of NumPy and CuPy arrays, torch tensors and SciPy's sparse matrices: fmm.shortest_paths."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from fmm.arrays.detect import array_kind
from fmm.semirings import placement
from fmm.semirings.domain import (
    choose_semiring_without_overflow,
    convert_from_semiring_type,
    convert_to_semiring_type,
    no_edge_value,
)
from fmm.semirings.host import HOST_TILE_SIDE, write_closure_in_place
from fmm.semirings.path_request import PATH_METHOD_NAMES, EdgeRule, NegativeCycleError, PathRequest
from fmm.semirings.placement import (
    COMPUTED_TYPES,
    ArrayPlacement,
    as_readable_array,
    host_semiring,
    writable_target,
    write_result,
)
from fmm.semirings.predecessors import repair_predecessors

NO_PREDECESSOR = -9999  # the predecessor that SciPy returns if a pair of nodes has no path
# floating-point entries up to this magnitude are not edges, since SciPy compares entries with zero by numpy.isclose
NO_EDGE_MAGNITUDE = 1e-8


def all_shortest_paths(d: Any, out: Any, request: PathRequest) -> Any:
    """Return the lengths of the shortest paths between all pairs of nodes, and the predecessors if requested."""
    if not isinstance(request.method, str) or request.method not in PATH_METHOD_NAMES:
        raise ValueError(f"method must be one of {', '.join(PATH_METHOD_NAMES)}, not {request.method!r}")
    with placement.place_arrays(d=d, out=out) as place:
        graph = _read_graph(place, d)
        weights = graph.lengths
        if weights.ndim != 2:
            raise ValueError("graph should have two dimensions")
        if weights.shape[0] != weights.shape[1]:
            raise ValueError("graph should be a square array")
        if weights.dtype.kind not in "biufcO":
            raise TypeError(f"fmm.shortest_paths takes lengths that are numbers, not {weights.dtype}")
        dtype = np.dtype(weights.dtype.name if weights.dtype.name in COMPUTED_TYPES else np.float64)
        result = d if out is None and request.overwrite and _can_overwrite(d, weights, dtype) else out
        target = None if result is None else writable_target(place, result, weights.shape, dtype)
        edges, predecessors = _edge_lengths_and_predecessors(place, graph, dtype, request)
        lengths, predecessors = _compute_shortest_paths(place, edges, predecessors, request)
        result = place.to_caller(lengths) if target is None else write_result(result, target, lengths)
        return (result, place.to_caller(predecessors)) if request.predecessors else result


# ---- from the caller's graph to a matrix of edges


class _Graph(NamedTuple):
    """A matrix of lengths, a mask of the entries that may be edges (None: all), and True if zeros are edges."""

    lengths: Any
    stored: Any = None
    zeros_are_edges: bool = False


def _read_graph(place: ArrayPlacement, d: Any) -> _Graph:
    if isinstance(d, np.ma.MaskedArray):
        return _Graph(np.ma.getdata(d), ~np.ma.getmaskarray(d))
    if not hasattr(d, "tocsr"):
        return _Graph(place.adopt(as_readable_array(d)))
    if not type(d).__module__.startswith("scipy."):
        raise TypeError("fmm.shortest_paths takes dense matrices, and SciPy's sparse ones")
    from scipy.sparse.csgraph import csgraph_to_dense

    lengths = csgraph_to_dense(d.tocsr(), null_value=np.inf)
    stored = np.isfinite(lengths)
    lengths[~stored] = 0
    return _Graph(lengths.astype(d.dtype) if d.dtype.name in COMPUTED_TYPES else lengths, stored, zeros_are_edges=True)


def _can_overwrite(d: Any, weights: Any, dtype: Any) -> bool:
    """Return True if d is a writable array of the result's type, so that the result can overwrite d."""
    if array_kind(d) == "torch":
        from fmm.arrays.torch_calls import is_out_rejected_by_torch

        if as_readable_array(d) is not d or is_out_rejected_by_torch(d):
            return False
    if isinstance(weights, np.ndarray):
        own = array_kind(d) == "torch" or type(d) is np.ndarray
        return own and weights.dtype == dtype and bool(weights.flags.writeable)
    return bool(weights.dtype == dtype)


def _edge_lengths_and_predecessors(
    place: ArrayPlacement, graph: _Graph, dtype: Any, request: PathRequest
) -> tuple[Any, Any]:
    """Return the lengths of the edges, and the predecessors on paths of one edge (None if not requested).

    On a device, a single kernel finds the edges if the matrix is dense and has the result's type.
    """
    xp, missing, predecessors = place.xp, no_edge_value(dtype, False), None
    values, is_plain = graph.lengths, graph.stored is None and not graph.zeros_are_edges
    is_aligned = not any(step % values.itemsize for step in values.strides)
    if not (place.is_on_device and is_plain and is_aligned and values.dtype == dtype and len(values)):
        edges = _edge_lengths(xp, graph, dtype, request)
    else:
        no_predecessor = NO_PREDECESSOR if request.predecessors and request.directed else None
        rule = EdgeRule(float(missing), NO_EDGE_MAGNITUDE, request.unweighted, no_predecessor)
        edges, predecessors = placement.load_device_module().graph_edges_on_device(values, rule)
    edges = edges if request.directed else xp.minimum(edges, edges.T)
    if request.predecessors and predecessors is None:
        nodes = xp.arange(len(edges), dtype=np.int32)
        predecessors = xp.where(edges == missing, np.int32(NO_PREDECESSOR), nodes[:, None])
        predecessors = xp.ascontiguousarray(predecessors)
        predecessors.reshape(-1)[:: len(edges) + 1] = NO_PREDECESSOR
    return edges, predecessors


def _edge_lengths(xp: Any, graph: _Graph, dtype: Any, request: PathRequest) -> Any:
    """Return the lengths of the edges as a new row-major array, with SciPy's rules for edges.

    An entry is no edge if it is zero, inf, NaN, or the largest integer of an integer type. Zeros that are stored in a
    sparse matrix are edges. The function avoids assignments with masks or index arrays, since CuPy compiles several
    kernels for such an assignment.
    """
    values = graph.lengths
    if values.dtype.kind == "c":  # the cast drops the imaginary part, and NumPy warns
        values = values.astype(np.float64)
    if values.dtype.kind == "f" and not graph.zeros_are_edges:
        sizes = abs(values)
        is_edge = (sizes > NO_EDGE_MAGNITUDE) & (sizes < np.inf)
    elif values.dtype.kind == "f":
        is_edge = xp.isfinite(values)
    else:
        is_edge = xp.ones(values.shape, bool) if graph.zeros_are_edges else values != 0
        if values.dtype.name == dtype.name:
            is_edge &= values != no_edge_value(dtype, False)
    if graph.stored is not None:
        is_edge &= graph.stored
    lengths = dtype.type(1) if request.unweighted else values.astype(dtype, copy=False)
    edges = xp.ascontiguousarray(xp.where(is_edge, lengths, no_edge_value(dtype, False)))
    edges.reshape(-1)[:: len(edges) + 1] = 0
    return edges


# ---- from edges to shortest paths


def _compute_shortest_paths(
    place: ArrayPlacement, edges: Any, predecessors: Any, request: PathRequest
) -> tuple[Any, Any]:
    """Return the lengths of the shortest paths, and the predecessors (None if not requested).

    On entry, `predecessors` contains for each edge the node where the edge begins.
    """
    xp, n, dtype = place.xp, len(edges), edges.dtype
    if n == 0:
        return edges, predecessors
    original = edges if predecessors is None else edges.copy()
    domain = choose_semiring_without_overflow(
        xp, (edges,), False, place.is_on_device, request.predecessors, terms=2 * n, work=n**3
    )
    values = convert_to_semiring_type(edges, domain, False)
    if place.is_on_device:
        if request.method == "floyd-warshall":
            raise ValueError("on a CUDA device the method is r-kleene")
        closure = placement.load_device_module().device_closure
        values, predecessors = closure(domain.ring, values, predecessors)
    else:
        tile_side = n if request.method == "floyd-warshall" else HOST_TILE_SIDE
        with np.errstate(all="ignore"):
            write_closure_in_place(host_semiring(domain, False, n**3), values, predecessors, tile_side)
    if domain.dtype[0] != "u":
        diagonal = placement.load_device_module().device_diagonal if place.is_on_device else np.diagonal
        _check_negative_cycles(diagonal(values))
    lengths = convert_from_semiring_type(xp, values, domain, dtype, False)
    if predecessors is not None:
        repair_predecessors(xp, original, no_edge_value(dtype, False), lengths, predecessors)
    return lengths, predecessors


def _check_negative_cycles(diagonal: Any) -> None:
    """Raise NegativeCycleError if `diagonal`, a NumPy array, has a negative entry.

    If SciPy is loaded, the error is also an instance of SciPy's NegativeCycleError, so programs that catch SciPy's
    error need no change.
    """
    negative = diagonal < 0
    if not negative.any():
        return
    error: type[NegativeCycleError] = NegativeCycleError
    scipy_error = getattr(sys.modules.get("scipy.sparse.csgraph"), "NegativeCycleError", None)
    if scipy_error is not None:  # None also while another thread imports scipy.sparse.csgraph
        error = type("NegativeCycleError", (error, scipy_error), {})
    raise error(f"Negative cycle in nodes {np.flatnonzero(negative)}")

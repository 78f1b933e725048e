"""Min-plus and max-plus products and all-pairs shortest paths, of NumPy's, CuPy's and torch's arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from fmm.arrays.detect import check_dense, cupy_library, kind_of, mixed_arrays_error, on_device
from fmm.arrays.numpy_library import tensor_as_numpy
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.semirings import numba_kernels
from fmm.semirings.domain import Domain, choose_domain, from_domain, missing_value, to_domain
from fmm.semirings.host import HOST_TILE_SIDE, Arguments, NumpySemiring, Semiring, close_matrix
from fmm.semirings.numba_kernels import CompiledSemiring
from fmm.semirings.path_request import METHODS, NegativeCycleError, PathRequest
from fmm.semirings.predecessors import mend_predecessors

TYPES = ("float32", "float64", "int32", "int16")
NO_NODE = -9999  # where there is no node before the end of a way, as SciPy has it
NO_EDGE = 1e-8  # floats up to that size are no edge either: SciPy compares them with zero by numpy.isclose
COMPILED = 128**3  # sums from which on compiling pays: it takes seconds, once


class _Place(NamedTuple):
    """Where arrays are computed: by NumPy or CuPy, and how a result goes back to the library that the call is from."""

    xp: Any
    adopt: Callable[[Any], Any]
    give: Callable[[Any], Any]

    @property
    def device(self) -> bool:
        return self.xp is not np


# ---- the product


def minplus_product(a: Any, b: Any, out: Any, greatest: bool, argbest: bool) -> Any:
    """The smallest (or greatest) of all sums a[i, k] + b[k, j]; with `argbest` also the first k that it comes from."""
    check_dense("fmm.minplus", a, b)
    with _placed(a=a, b=b, out=out) as place:
        x, y = place.adopt(_readable(a)), place.adopt(_readable(b))
        dtype = _product_type(x, y)
        x, y = (_without_masked(_converted(place.xp, v, dtype, greatest), of, greatest) for v, of in ((x, a), (y, b)))
        target = None if out is None else _target(place, out, (x.shape[0], y.shape[1]), dtype)
        found, args = _product(place, x, y, greatest, argbest)
        result = place.give(found) if target is None else _written(out, target, found)
        return (result, place.give(args)) if argbest else result


def _product_type(x: Any, y: Any) -> Any:
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0]:
        raise ValueError(f"fmm.minplus wants matrices m x k and k x n, not {x.shape} and {y.shape}")
    dtype = np.result_type(x.dtype, y.dtype)
    if dtype.kind not in "biuf":
        raise TypeError(f"fmm.minplus takes real numbers and computes in {', '.join(TYPES)}, not in {dtype.name}")
    return dtype if dtype.name in TYPES else np.dtype(np.float64)


def _converted(xp: Any, values: Any, dtype: Any, greatest: bool) -> Any:
    """In another type, in which "none" is another number."""
    found = values.astype(dtype, copy=False)
    if values.dtype == dtype or values.dtype.name not in TYPES or values.dtype.kind == "f":
        return found
    return xp.where(values == missing_value(values.dtype, greatest), missing_value(dtype, greatest), found)


def _without_masked(values: Any, given: Any, greatest: bool) -> Any:
    """What is masked is none, as it is no edge of a graph."""
    if not isinstance(given, np.ma.MaskedArray):
        return values
    return np.where(np.ma.getmaskarray(given), missing_value(values.dtype, greatest), values)


def _product(place: _Place, x: Any, y: Any, greatest: bool, argbest: bool) -> tuple[Any, Any]:
    xp, dtype, shape = place.xp, x.dtype, (x.shape[0], y.shape[1])
    if 0 in (*shape, x.shape[1]):
        return xp.full(shape, missing_value(dtype, greatest), dtype), xp.full(shape, -1, np.int32)
    work = x.shape[0] * x.shape[1] * y.shape[1]
    domain = choose_domain(xp, (x, y), greatest, place.device, argbest, terms=2, work=work)
    left, right = (to_domain(v, domain, greatest) for v in (x, y))
    if place.device:
        values, args = _on_device().device_product(domain.ring, left, right, argbest)
    else:
        values, args = np.empty(shape, left.dtype), np.empty(shape, np.int32) if argbest else None
        semiring = _host_semiring(domain, greatest, work)
        noted = None if args is None else Arguments(args)
        semiring.product(np.ascontiguousarray(left), np.ascontiguousarray(right), None, values, noted)
    found = from_domain(xp, values, domain, dtype, greatest)
    if argbest and found.dtype != values.dtype and dtype.kind == "i":
        args[found == missing_value(dtype, greatest)] = -1  # what is too large is none, wherever it comes from
    return found, args


def _host_semiring(domain: Domain, greatest: bool, work: int) -> Semiring:
    compiled = work >= COMPILED and numba_kernels.can_compile()
    made: type[CompiledSemiring] | type[NumpySemiring] = CompiledSemiring if compiled else NumpySemiring
    return made(greatest and domain.sign > 0, domain.none, blas_threads())


# ---- shortest paths


def all_shortest_paths(d: Any, out: Any, request: PathRequest) -> Any:
    """The lengths of the shortest paths between all nodes, and if asked the nodes before their ends."""
    if not isinstance(request.method, str) or request.method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {request.method!r}")
    with _placed(d=d, out=out) as place:
        graph = _graph_of(place, d)
        given = graph.lengths
        if given.ndim != 2:
            raise ValueError("graph should have two dimensions")
        if given.shape[0] != given.shape[1]:
            raise ValueError("graph should be a square array")
        if given.dtype.kind not in "biufcO":
            raise TypeError(f"fmm.shortest_paths takes lengths that are numbers, not {given.dtype}")
        dtype = np.dtype(given.dtype.name if given.dtype.name in TYPES else np.float64)
        back = d if out is None and request.overwrite and _can_be_written(d, given, dtype) else out
        target = None if back is None else _target(place, back, given.shape, dtype)
        edges = _edges(place.xp, graph, dtype, request)
        lengths, nodes = _closure(place, edges, request)
        result = place.give(lengths) if target is None else _written(back, target, lengths)
        return (result, place.give(nodes)) if request.predecessors else result


class _Graph(NamedTuple):
    """A matrix of lengths; where edges are, if it is known apart from the lengths; whether zero is a length."""

    lengths: Any
    stored: Any = None
    zeros: bool = False


def _graph_of(place: _Place, d: Any) -> _Graph:
    if isinstance(d, np.ma.MaskedArray):
        return _Graph(np.ma.getdata(d), ~np.ma.getmaskarray(d))
    if not hasattr(d, "tocsr"):
        return _Graph(place.adopt(_readable(d)))
    if not type(d).__module__.startswith("scipy."):
        raise TypeError("fmm.shortest_paths takes dense matrices, and SciPy's sparse ones")
    from scipy.sparse.csgraph import csgraph_to_dense

    lengths = csgraph_to_dense(d.tocsr(), null_value=np.inf)
    stored = np.isfinite(lengths)
    lengths[~stored] = 0
    return _Graph(lengths.astype(d.dtype) if d.dtype.name in TYPES else lengths, stored, zeros=True)


def _can_be_written(d: Any, given: Any, dtype: Any) -> bool:
    """Is it an array of the result's type, and not only made of one?"""
    if isinstance(given, np.ndarray):
        own = (kind_of(d) == "torch" and _readable(d) is d) or type(d) is np.ndarray
        return own and given.dtype == dtype and bool(given.flags.writeable)
    return bool(given.dtype == dtype) and _readable(d) is d


def _edges(xp: Any, graph: _Graph, dtype: Any, request: PathRequest) -> Any:
    """The edges' lengths as SciPy reads them, as a new array, row by row: zero, inf and NaN are no edge; of whole
    numbers, the largest is none either. Zeros that a sparse matrix stores are edges."""
    values = graph.lengths
    if values.dtype.kind == "c":  # with NumPy's warning, before anything is an edge
        values = values.astype(np.float64)
    if values.dtype.kind == "f":
        missing = ~xp.isfinite(values)
        if not graph.zeros:
            missing |= abs(values) <= NO_EDGE
    else:
        missing = xp.zeros(values.shape, bool) if graph.zeros else values == 0
        if values.dtype.name == dtype.name:
            missing |= values == missing_value(dtype, False)
    if graph.stored is not None:
        missing |= ~graph.stored
    edges = values.astype(dtype, order="C")
    if request.unweighted:
        edges[...] = 1
    edges[missing] = missing_value(dtype, False)
    every = xp.arange(len(edges))
    edges[every, every] = 0
    return edges if request.directed else xp.minimum(edges, edges.T)


def _closure(place: _Place, edges: Any, request: PathRequest) -> tuple[Any, Any]:
    xp, n, dtype = place.xp, len(edges), edges.dtype
    nodes = None
    if request.predecessors:
        every = xp.arange(n, dtype=np.int32)
        nodes = xp.where(edges == missing_value(dtype, False), np.int32(NO_NODE), every[:, None])
        nodes[every, every] = NO_NODE
    if n == 0:
        return edges, nodes
    kept = edges if nodes is None else edges.copy()
    domain = choose_domain(xp, (edges,), False, place.device, request.predecessors, terms=2 * n, work=n**3)
    values = to_domain(edges, domain, False)
    if place.device:
        if request.method == "floyd-warshall":
            raise ValueError("on a CUDA device the method is r-kleene")
        values, nodes = _on_device().device_closure(domain.ring, values, domain.none, nodes)
    else:
        leaf = n if request.method == "floyd-warshall" else HOST_TILE_SIDE
        with np.errstate(all="ignore"):
            close_matrix(_host_semiring(domain, False, n**3), values, nodes, leaf)
    if domain.dtype[0] != "u":
        _check_cycles(xp, values)
    lengths = from_domain(xp, values, domain, dtype, False)
    if nodes is not None:
        mend_predecessors(xp, kept, missing_value(dtype, False), lengths, nodes)
    return lengths, nodes


def _check_cycles(xp: Any, values: Any) -> None:
    below = xp.diagonal(values) < 0
    if bool(below.any()):
        nodes = xp.where(below)[0]
        raise _error_class()(f"Negative cycle in nodes {nodes}")


def _error_class() -> type[NegativeCycleError]:
    """Where SciPy is in use, also its own: programs that catch that need not be changed."""
    scipy = sys.modules.get("scipy.sparse.csgraph")
    if scipy is None:
        return NegativeCycleError
    return type("NegativeCycleError", (NegativeCycleError, scipy.NegativeCycleError), {})


# ---- arrays


@contextmanager
def _placed(**arrays: Any) -> Iterator[_Place]:
    """Where these arrays are; on a device, that device and its library's stream are current meanwhile."""
    given = [x for x in arrays.values() if x is not None]
    kinds = {kind_of(x) for x in given}
    if kinds <= {"host"}:
        yield _Place(np, np.asarray, lambda x: x)
        return
    apart = {on_device(x) for x in given}
    if len(apart) > 1 or len(kinds - {"host"}) > 1 or any(isinstance(x, np.ndarray) for x in given):
        raise mixed_arrays_error(**arrays)
    if apart == {False}:
        yield _Place(np, _numpy_of_torch, _torch().from_numpy)
        return
    cupy_library()
    import cupy

    if kinds != {"torch"}:
        with given[0].device if kinds == {"cupy"} else cupy.cuda.Device():
            yield _Place(cupy, cupy.asarray, lambda x: x)
        return
    torch, where = _torch(), given[0].device.index
    with cupy.cuda.Device(where), _adopted_stream(cupy.cuda, torch.cuda.current_stream(where)):
        yield _Place(cupy, lambda x: cupy.from_dlpack(x), torch.from_dlpack)


def _adopted_stream(cuda: Any, stream: Any) -> Any:
    """torch's stream as one of CuPy's, of whose versions the older ones know it by its address alone."""
    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(stream)
    return cuda.ExternalStream(stream.cuda_stream)


def _torch() -> Any:
    return sys.modules["torch"]


def _readable(x: Any) -> Any:
    """A tensor as NumPy and CuPy can read it; all else as it is."""
    if kind_of(x) != "torch":
        return x
    from fmm.arrays.torch_calls import as_plain_tensor

    return as_plain_tensor(x)


def _numpy_of_torch(x: Any) -> Any:
    if kind_of(x) != "torch":
        return np.asarray(x)
    return x.numpy() if x.requires_grad else tensor_as_numpy(x)  # torch's exception


def _on_device() -> Any:
    """The module that computes on a device, which loads CuPy."""
    from fmm.semirings import device

    return device


def _target(place: _Place, out: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """`out` as an array that can be written."""
    if kind_of(out) == "host" and not isinstance(out, np.ndarray):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    kind = str(out.dtype).removeprefix("torch.")  # some of which NumPy does not have
    if tuple(out.shape) != tuple(shape) or kind != np.dtype(dtype).name:
        raise ValueError(f"out is {tuple(out.shape)} of {kind}, the result {tuple(shape)} of {np.dtype(dtype)}")
    target = place.adopt(out)
    if isinstance(target, np.ndarray) and not target.flags.writeable:
        raise ValueError("out is read-only")
    return target


def _written(out: Any, target: Any, found: Any) -> Any:
    target[...] = found
    return out

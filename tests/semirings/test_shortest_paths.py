"""fmm.shortest_paths and fmm.minplus on the host, compared with SciPy's floyd_warshall and with the definition."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.semirings import numba_kernels, placement, shortest_paths
from fmm.semirings.domain import (
    SemiringType,
    choose_semiring_without_overflow,
    convert_from_semiring_type,
    convert_to_semiring_type,
    no_edge_value,
)
from fmm.semirings.host import HOST_TILE_SIDE, write_closure_in_place
from fmm.semirings.path_request import PathRequest
from tests.support.graphs import GRAPHS, as_lengths, check_predecessors, random_graph, with_length_type
from tests.support.host_compiler import required_compiler
from tests.support.marks import quick_and_slow
from tests.support.semiring_on_host import NumpyAsCupy, count_kernels, take_the_hosts_place

csgraph = pytest.importorskip("scipy.sparse.csgraph", reason="no SciPy to compare with")
COMPUTED_TYPES = ("float32", "float64", "int32", "int16")
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "int32": 0, "int16": 0}
Matrix = np.ndarray[Any, Any]


def same_as_scipy(edges: Matrix, **options: Any) -> None:
    wanted = csgraph.floyd_warshall(edges.astype(np.float64), **options)
    found = fmm.shortest_paths(edges, **options)
    tolerance = TOLERANCE[edges.dtype.name]
    if options.get("return_predecessors"):
        wanted, (found, nodes) = wanted[0], found
        shown = np.minimum(*(np.where(x == 0, np.inf, x) for x in (edges, edges.T)))
        undirected = options.get("directed") is False
        check_predecessors(found, nodes, np.where(np.isinf(shown), 0, shown) if undirected else edges, tolerance)
    assert found.dtype == edges.dtype
    np.testing.assert_allclose(as_lengths(found), wanted, rtol=tolerance, atol=tolerance)


def _zeros_stored(rng: np.random.Generator) -> Any:
    """Integer edges of lengths 0, 1 and 2."""
    chosen = np.where(rng.random((100, 100)) < 0.04, rng.integers(0, 3, (100, 100)), -1)
    return np.ma.masked_array(chosen.astype(np.int32), chosen < 0)


def _of_wide_range(rng: np.random.Generator) -> Any:
    """Positive edges; added to the longest, the shortest vanish in float32."""
    return np.where(rng.random((100, 100)) < 0.05, 10.0 ** rng.integers(-6, 6, (100, 100)), 0).astype(np.float32)


def _by_potentials(rng: np.random.Generator) -> Any:
    """Edges of any sign; every cycle has length zero."""
    height = rng.integers(1, 1000, 100)
    edges = np.where(rng.random((100, 100)) < 0.05, height[:, None] - height, 0)
    return edges.astype(np.float64)


@pytest.mark.parametrize("graph", [_zeros_stored, _of_wide_range, _by_potentials])
def test_predecessors_lead_back_where_cycles_have_no_length(graph: Any) -> None:
    """Predecessors lead back from every node to the start, by edges that sum to the path's length."""
    for seed in range(5):
        edges = graph(np.random.default_rng(seed))
        lengths, before = fmm.shortest_paths(edges, return_predecessors=True)
        exact = np.ma.getdata(edges).astype(np.float64)
        for start, end in zip(*np.nonzero(before >= 0), strict=True):
            node, way, steps = end, 0.0, 0
            while node != start and steps <= len(edges):
                last = before[start, node]
                way, node, steps = way + exact[last, node], last, steps + 1
            assert node == start
            assert abs(way - lengths[start, end]) <= 1e-5 * abs(way)


@pytest.mark.parametrize("dtype", COMPUTED_TYPES)
@pytest.mark.parametrize("kind", GRAPHS)
def test_the_same_as_scipys(kind: str, dtype: str) -> None:
    """Integers agree bit for bit. Sizes: zero, one, odd, prime, one more than a tile."""
    rng = np.random.default_rng(11)
    options: list[dict[str, Any]] = [{}, {"return_predecessors": True}, {"unweighted": True}]
    if kind != "negative":  # undirected, a negative edge is a cycle
        options += [{"directed": False}, {"directed": False, "return_predecessors": True}]
    for n, chosen in product((0, 1, 2, 67), options):
        same_as_scipy(with_length_type(GRAPHS[kind](n, rng), dtype, rng), **chosen)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dtype"), list(product(GRAPHS, COMPUTED_TYPES)))
def test_the_same_for_larger_graphs(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(12)
    for n in (257, 400):
        same_as_scipy(with_length_type(GRAPHS[kind](n, rng), dtype, rng), return_predecessors=True)


def test_no_edge_is_what_scipy_takes_for_none() -> None:
    """Zero and up to 1e-8, NaN and both infinities are no edge; the diagonal is not read. (SciPy's own result for
    column-major input is wrong: it returns the input.)"""
    numbers = [0, np.inf, -np.inf, np.nan, 1e-8, -1e-8, 2e-8, 5.0]
    edges = np.array(numbers * 8).reshape(8, 8)
    edges[3, 3] = -9
    for x in (edges, edges.T, np.asfortranarray(edges)):
        np.testing.assert_array_equal(fmm.shortest_paths(x), csgraph.floyd_warshall(np.ascontiguousarray(x)))


@pytest.mark.parametrize("dtype", ["int32", "int16"])
def test_the_largest_number_is_no_edge(dtype: str) -> None:
    most = np.iinfo(dtype).max
    edges = np.array([[0, most, 2], [0, 0, 0], [0, 3, 0]], dtype)
    assert fmm.shortest_paths(edges).tolist() == [[0, 5, 2], [most, 0, most], [most, 3, 0]]


@pytest.mark.parametrize("dtype", ["int32", "int16"])
def test_lengths_are_saturated(dtype: str) -> None:
    """A path that is too long counts as none; a longer path without overflow on the way is still found."""
    most = int(np.iinfo(dtype).max)
    chain = np.zeros((4, 4), dtype)
    chain[[0, 1, 2], [1, 2, 3]] = most - 1, most - 1, 1
    found = fmm.shortest_paths(chain)
    assert found[0].tolist() == [0, most - 1, most, most] and found[1, 3] == most
    chain[1, 2] = -5
    assert fmm.shortest_paths(chain)[0].tolist() == [0, most - 1, most - 6, most - 5]


def test_what_is_not_of_four_types_is_float64() -> None:
    edges = [[0, 1, 0], [0, 0, 2], [4, 0, 0]]
    wanted = csgraph.floyd_warshall(edges)
    for graph in (edges, np.array(edges), np.array(edges, np.uint8), np.array(edges, np.float16)):
        found = fmm.shortest_paths(graph)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, wanted)
    yes = np.array(edges, bool)
    np.testing.assert_array_equal(fmm.shortest_paths(yes), csgraph.floyd_warshall(yes))


def test_complex_numbers_are_real_ones_before_they_are_edges() -> None:
    d = np.array([[0, 2 + 0j, 0], [0, 0, 3], [1j, 0, 0]])
    with pytest.warns(np.exceptions.ComplexWarning):
        found = fmm.shortest_paths(d)
    np.testing.assert_array_equal(found, [[0, 2, 5], [np.inf, 0, 3], [np.inf, np.inf, 0]])


def test_masked_arrays() -> None:
    edges = np.ma.masked_array([[0, 2.0], [3, 0]], [[False, True], [False, False]])
    np.testing.assert_array_equal(fmm.shortest_paths(edges), csgraph.floyd_warshall(edges))
    np.testing.assert_array_equal(edges.mask, [[0, 1], [0, 0]])


@pytest.mark.parametrize("wrong", [np.zeros((2, 3)), np.zeros(3), np.zeros((2, 2, 2)), 5])
def test_what_scipy_rejects(wrong: Any) -> None:
    with pytest.raises(ValueError) as scipys:
        csgraph.floyd_warshall(wrong)
    with pytest.raises(ValueError, match=str(scipys.value)):
        fmm.shortest_paths(wrong)


def test_negative_cycles_raise_while_another_thread_imports_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse.csgraph", ModuleType("scipy.sparse.csgraph"))  # without names yet
    with pytest.raises(fmm.NegativeCycleError, match="Negative cycle in nodes"):
        fmm.shortest_paths([[0.0, -1.0], [-1.0, 0.0]])


@pytest.mark.parametrize("dtype", COMPUTED_TYPES)
def test_negative_cycles_raise(dtype: str) -> None:
    """Cycles of two or of a hundred nodes, also where lengths overflow the type on the way."""
    for n, step in ((2, 1), (100, 1), (100, 77)):
        edges = np.zeros((n, n), dtype)
        edges[np.arange(n), (np.arange(n) + step) % n] = -100
        with pytest.raises(csgraph.NegativeCycleError, match="Negative cycle in nodes") as caught:
            fmm.shortest_paths(edges)
        assert isinstance(caught.value, fmm.NegativeCycleError)
    apart = np.zeros((150, 150), dtype)
    apart[140, 141] = apart[141, 140] = -1
    with pytest.raises(fmm.NegativeCycleError, match=r"nodes \[140 141\]"):
        fmm.shortest_paths(apart)


def test_negative_cycles_without_scipy() -> None:
    text = "import fmm\ntry: fmm.shortest_paths([[0, -1], [-1, 0]])\nexcept fmm.NegativeCycleError as e: print(type(e))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "<class 'fmm.semirings.path_request.NegativeCycleError'>"


def test_operands_are_left_alone() -> None:
    rng = np.random.default_rng(13)
    outer = rng.random((40, 60))
    outer.flags.writeable = False
    edges = outer[3:35:2, 2:34:2]
    before, wanted = outer.copy(), csgraph.floyd_warshall(edges.copy())
    np.testing.assert_allclose(fmm.shortest_paths(edges), wanted, rtol=1e-13)
    np.testing.assert_allclose(fmm.shortest_paths(edges, overwrite=True), wanted, rtol=1e-13)
    np.testing.assert_array_equal(outer, before)


def test_out_and_overwrite() -> None:
    rng = np.random.default_rng(14)
    for random in (rng.random((9, 9)), rng.random((9, 9)).T):
        edges = random
        wanted, out = fmm.shortest_paths(edges), np.full((9, 18), 7.0)[:, ::2]
        assert fmm.shortest_paths(edges, out=out) is out
        np.testing.assert_array_equal(out, wanted)
        assert fmm.shortest_paths(edges, overwrite=True) is edges
        np.testing.assert_array_equal(edges, wanted)
    for out in (np.empty((9, 8)), np.empty((9, 9), np.float32)):
        with pytest.raises(ValueError, match="out is"):
            fmm.shortest_paths(edges, out=out)
    out = np.empty((9, 9))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        fmm.shortest_paths(edges, out=out)


def test_out_is_untouched_by_what_raises() -> None:
    out = np.full((2, 2), 7.0)
    with pytest.raises(fmm.NegativeCycleError):
        fmm.shortest_paths([[0, -1], [-1, 0.0]], out=out)
    assert (out == 7).all()


def test_methods() -> None:
    edges = np.random.default_rng(15).integers(0, 9, (70, 70)).astype(np.int32)
    found = [fmm.shortest_paths(edges, method=m) for m in ("auto", "r-kleene", "floyd-warshall")]
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()
    with pytest.raises(ValueError, match="r-kleene"):
        fmm.shortest_paths(edges, method="dijkstra")  # type: ignore[arg-type]


OPTIONS: tuple[dict[str, Any], ...] = ({}, {"directed": False}, {"unweighted": True}, {"overwrite": True})


def sparse_graph(rng: np.random.Generator, dtype: str) -> Any:
    """A sparse graph of 40 nodes, with some stored edges of length zero."""
    sparse = pytest.importorskip("scipy.sparse")
    i, j = rng.integers(0, 40, (2, 160))
    keep = np.unique(40 * i + j, return_index=True)[1]
    lengths = rng.integers(0, 4, len(keep)).astype(dtype)
    return sparse.coo_array((lengths, (i[keep], j[keep])), (40, 40))


@pytest.mark.parametrize("form", ["csr", "csc", "lil", "coo"])
def test_sparse_matrices(form: str) -> None:
    """Stored zeros are edges, as in SciPy (which takes no coo); types are preserved."""
    for dtype in (*COMPUTED_TYPES, "int64"):
        graph = sparse_graph(np.random.default_rng(41), dtype).asformat(form)
        assert form == "lil" or (graph.data == 0).any()
        for options in OPTIONS:
            wanted = csgraph.floyd_warshall(graph.tocsr() if form == "coo" else graph, **options)
            found = fmm.shortest_paths(graph, **options)
            assert found.dtype == (dtype if dtype in COMPUTED_TYPES else "float64")
            np.testing.assert_array_equal(as_lengths(found), wanted)
    out = np.empty((40, 40))
    assert fmm.shortest_paths(graph, out=out) is out
    lengths, nodes = fmm.shortest_paths(graph, return_predecessors=True)
    assert (nodes >= 0).sum() == np.isfinite(lengths).sum() - 40


def test_sparse_matrices_of_others() -> None:
    class Sparse:
        def tocsr(self) -> None: ...

    with pytest.raises(TypeError, match="SciPy's sparse ones"):
        fmm.shortest_paths(Sparse())


def test_masked_zeros_and_numbers_of_every_kind() -> None:
    """Masked entries are no edges; of the others zero, NaN and infinities are none either."""
    rng = np.random.default_rng(42)
    for dtype in ("float64", "float32", "int32", "int16", "int64", "bool"):
        values, mask = rng.integers(0, 5, (23, 23)).astype(dtype), rng.random((23, 23)) < 0.5
        edges = np.ma.masked_array(values, mask)
        before = edges.copy()
        for options in OPTIONS[:3]:
            wanted = csgraph.floyd_warshall(before.copy(), **options)
            for overwrite in (False, True):
                found = fmm.shortest_paths(edges, overwrite=overwrite, **options)
                np.testing.assert_array_equal(as_lengths(found), wanted)
        np.testing.assert_array_equal(edges.filled(9), before.filled(9))


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i4", ">i2", ">i8", "float16", "longdouble", "uint16", "uint64"])
def test_other_types_and_byte_orders(dtype: str) -> None:
    """The result is in native byte order, and in float64 for types other than the four."""
    rng = np.random.default_rng(43)
    edges = rng.integers(0, 9, (70, 70)).astype(dtype)
    native = edges.dtype.newbyteorder("=")
    for options in (*OPTIONS[::3], {"return_predecessors": True}):
        found = fmm.shortest_paths(edges.copy(), **options)
        found = found[0] if isinstance(found, tuple) else found
        assert found.dtype == (native if native.name in COMPUTED_TYPES else np.float64) and found.dtype.isnative
        np.testing.assert_array_equal(as_lengths(found), csgraph.floyd_warshall(edges.astype(float)))


class Lengths(np.ndarray[Any, Any]):
    """A subclass of NumPy's arrays."""


@pytest.mark.parametrize("overwrite", [False, True])
def test_lists_tuples_and_subclasses(overwrite: bool) -> None:
    """A list cannot be overwritten; `overwrite` is a permission, not a demand."""
    edges = [[0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [4.0, 0.0, 0.0]]
    wanted = csgraph.floyd_warshall(edges)
    forms: tuple[Any, ...] = (edges, tuple(map(tuple, edges)), np.array(edges).view(Lengths))
    for graph in forms:
        found = fmm.shortest_paths(graph, overwrite=overwrite)
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, wanted)
    assert edges[0] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("n", [67, 200])
def test_any_strides(n: int) -> None:
    """Column-major, strided and reversed inputs; by NumPy alone and, from some size on, compiled."""
    rng = np.random.default_rng(44)
    wide = rng.integers(0, 9, (2 * n, 2 * n)).astype(float)
    views = (np.asfortranarray(wide[:n, :n]), wide[::2, ::2], wide[:n, :n].T, wide[n - 1 :: -1, n - 1 :: -1])
    for x in (*views, np.broadcast_to(wide[0, :n], (n, n))):
        before = x.copy()
        np.testing.assert_array_equal(fmm.shortest_paths(x), csgraph.floyd_warshall(before))
        np.testing.assert_array_equal(x, before)


def test_what_is_computed_on_lies_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled kernels require row-major input: they would compute something else of column-major input."""
    seen: list[bool] = []

    def with_predecessors(ring: Any, d: Matrix, nodes: Any = None, side: int = HOST_TILE_SIDE) -> None:
        seen.append(d.flags.c_contiguous)
        write_closure_in_place(ring, d, nodes, side)

    monkeypatch.setattr("fmm.semirings.shortest_paths.write_closure_in_place", with_predecessors)
    for dtype in COMPUTED_TYPES:
        for directed in (True, False):
            fmm.shortest_paths(np.asfortranarray(np.arange(25).reshape(5, 5).astype(dtype)), directed)
    assert seen == [True] * 8


def test_negative_cycles_through_several_nodes() -> None:
    """A cycle with some negative edges among dead ends; an undirected graph with one negative edge."""
    rng = np.random.default_rng(45)
    edges = np.where(rng.random((90, 90)) < 0.1, 50.0, 0)
    ring = rng.permutation(90)[:7]
    edges[ring, np.roll(ring, -1)] = [5, 5, 5, -30, 5, 5, 4]
    with pytest.raises(csgraph.NegativeCycleError):
        csgraph.floyd_warshall(edges)
    for dtype in COMPUTED_TYPES:
        with pytest.raises(fmm.NegativeCycleError):
            fmm.shortest_paths(edges.astype(dtype), return_predecessors=True)
    edges[ring[-1], ring[0]] += 2
    same_as_scipy(edges, return_predecessors=True)
    for f in (csgraph.floyd_warshall, fmm.shortest_paths):
        with pytest.raises(csgraph.NegativeCycleError):
            f(np.array([[0, 0, 1.0], [-1, 0, 0], [0, 0, 0]]), directed=False)


@pytest.mark.parametrize("name", ["directed", "return_predecessors", "unweighted", "overwrite"])
def test_a_word_is_no_yes(name: str) -> None:
    option: dict[str, Any]
    for option in ({name: "no"}, {name: None}, {name: 2}):
        with pytest.raises(ValueError, match=f"{name} must be True or False, not {option[name]!r}"):
            fmm.shortest_paths(np.ones((3, 3)), **option)
    option = {name: 0}
    fmm.shortest_paths(np.ones((3, 3)), **option)


def test_what_stands_on_the_diagonal_is_not_read() -> None:
    """NaN, infinities, negative numbers, the largest integer."""
    edges = np.random.default_rng(46).integers(1, 9, (5, 5)).astype(float)
    wanted = fmm.shortest_paths(edges)
    for number in (np.nan, np.inf, -np.inf, -7.0, 1e300):
        np.fill_diagonal(edges, number)
        np.testing.assert_array_equal(fmm.shortest_paths(edges), wanted)
    whole = np.where(np.eye(5), 0, edges).astype(np.int32)
    np.fill_diagonal(whole, np.iinfo(np.int32).max)
    np.testing.assert_array_equal(fmm.shortest_paths(whole), wanted)


# ---- the product


def drawn(shape: tuple[int, int], dtype: str, maximum: bool, rng: np.random.Generator) -> Matrix:
    """Numbers of the whole range and small ones, a tenth of them missing."""
    if dtype[0] == "f":
        x = rng.standard_normal(shape).astype(dtype)
        x[rng.random(shape) < 0.1] = -np.inf if maximum else np.inf
        return x
    limits = np.iinfo(dtype)
    wide = rng.integers(limits.min, limits.max, shape, endpoint=True)
    x = np.where(rng.random(shape) < 0.5, wide, rng.integers(-9, 9, shape)).astype(dtype)
    x[rng.random(shape) < 0.1] = limits.min if maximum else limits.max
    return x


def defined(a: Matrix, b: Matrix, maximum: bool) -> tuple[Matrix, Matrix, Any]:
    """Return all sums, the best ones saturated, and the missing value."""
    dtype = a.dtype
    if dtype.kind == "f":
        none = -np.inf if maximum else np.inf
        sums = a[:, :, None] + b
    else:
        limits = np.iinfo(dtype)
        none = limits.min if maximum else limits.max
        sums = a[:, :, None].astype(np.int64) + b
        sums[(a[:, :, None] == none) | (b == none)] = -(2**40) if maximum else 2**40
    best = (sums.max if maximum else sums.min)(axis=1, initial=none)
    return sums, best if dtype.kind == "f" else np.clip(best, limits.min, limits.max), none


@pytest.mark.parametrize(
    ("dtype", "maximum"),
    quick_and_slow(
        [(t, False) for t in COMPUTED_TYPES] + [("float32", True), ("int16", True)],
        [("float64", True), ("int32", True)],
    ),
)
def test_products_as_defined(dtype: str, maximum: bool) -> None:
    rng = np.random.default_rng(16)
    for m, k, n in ((1, 1, 1), (5, 7, 3), (67, 31, 53), (0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 300, 1)):
        a, b = drawn((m, k), dtype, maximum, rng), drawn((n, k), dtype, maximum, rng).T
        sums, best, none = defined(a, b, maximum)
        out = np.full((m, n), 7, dtype)
        assert fmm.minplus(a, b, out, maximum=maximum) is out
        np.testing.assert_array_equal(out, best)
        found, step = fmm.minplus(a, b, maximum=maximum, argmin=True)
        np.testing.assert_array_equal(found, best)
        assert found.dtype == dtype and step.dtype == np.int32 and (step[best == none] == -1).all()
        i, j = np.nonzero(best != none)
        first = (sums.argmax if maximum else sums.argmin)(axis=1)[i, j] if k else []
        np.testing.assert_array_equal(step[i, j], first)


def domain_of(
    *arrays: Matrix, device: bool, args: bool = False, greatest: bool = False, work: int = 2**40
) -> SemiringType:
    return choose_semiring_without_overflow(np, arrays, greatest, device, args, terms=2, work=work)


def test_none_negative_is_computed_in_the_type_itself() -> None:
    """Integers with larger sums are computed in a domain with exact sums."""
    small, below = np.array([[1, 2]], np.int16), np.array([[-1, 2]], np.int32)
    assert domain_of(small, small, device=False).dtype == domain_of(small, small, device=True).dtype == "uint16"
    assert domain_of(small, small, device=True, args=True).dtype == "uint32"
    assert domain_of(below, below, device=True).ring == "int32"
    assert domain_of(below * 2**29, below, device=True).ring == "float64"
    assert domain_of(below, below, device=False).ring == "float64"


def test_floats_of_which_none_is_negative() -> None:
    """Nonnegative floats have a ring of their own on a device, in products large enough to test the signs."""
    floats = np.array([[0.0, 1]], np.float32)
    for other, ring in ((floats, "float32, none negative"), (floats - 1, "float32"), (floats * np.nan, "float32")):
        assert domain_of(floats, other, device=True).ring == ring
        assert domain_of(floats, other, device=False).ring == "float32"
    assert domain_of(floats, floats, device=True, work=10**6).ring == "float32"
    assert domain_of(floats, floats, device=True, greatest=True).ring == "float32, greatest"
    assert domain_of(floats.astype(float), floats.astype(float), device=True).ring == "float64"


@pytest.mark.parametrize("greatest", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int16"])
def test_no_edge_on_the_way_into_a_domain_and_back(dtype: str, greatest: bool) -> None:
    """In each domain of a device; also where the domain has the user's type."""
    none = no_edge_value(dtype, greatest)
    numbers = np.array([[5, none, -7, 0]], dtype)
    natural = np.array([[5, none, 7, 0]], dtype)
    cases = [(numbers, domain_of(numbers, device=True, greatest=greatest))]
    cases.append((numbers, domain_of(numbers, device=False, greatest=greatest)))
    if not greatest:
        cases += [(natural, domain_of(natural, device=True, args=args)) for args in (False, True)]
    for graph, domain in cases:
        inside = convert_to_semiring_type(graph, domain, greatest)
        assert inside.dtype == domain.dtype and inside[0, 1] == domain.missing
        assert (inside[0, [0, 2, 3]] == domain.sign * graph[0, [0, 2, 3]].astype(float)).all()
        back = convert_from_semiring_type(np, inside, domain, dtype, greatest)
        assert back.dtype == dtype and (back == graph).all()
    assert {domain.ring for _, domain in cases} >= {"int32", "float64"}


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float16"])
def test_other_real_numbers_are_multiplied_in_float64(dtype: str) -> None:
    a = np.array([[1, 0], [0, 1]], dtype)
    found = fmm.minplus(a, a)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [[0, 1], [1, 0]])


@pytest.mark.parametrize(("dtype", "none"), [("float64", np.inf), ("int32", 2**31 - 1)])
def test_what_is_masked_is_none(dtype: str, none: float) -> None:
    a = np.ma.masked_array(np.array([[1, 2], [3, 4]], dtype), [[True, False], [True, False]])
    found, step = fmm.minplus(a, np.array([[0, 1], [none, 5]], dtype), argmin=True)
    np.testing.assert_array_equal(found, np.array([[none, 7], [none, 9]], dtype))
    np.testing.assert_array_equal(step, [[-1, 1], [-1, 1]])
    assert type(found) is np.ndarray
    assert fmm.minplus(a, a, maximum=True)[0, 0] == (-np.inf if dtype == "float64" else -(2**31))


@pytest.mark.parametrize(("small", "large"), [("int16", "int32"), ("int32", "float64"), ("int16", "float32")])
def test_none_of_one_type_is_none_of_the_other(small: str, large: str) -> None:
    """The missing value of a type is an ordinary number of a wider type."""
    none, other = no_edge_value(small, False), no_edge_value(large, False)
    a, b = np.array([[none, 5]], small), np.array([[1], [other]], large)
    zeros = np.zeros_like(b)
    for found, expected in ((fmm.minplus(a, b), other), (fmm.minplus(b.T, a.T), other), (fmm.minplus(a, zeros), 5)):
        assert found.dtype == large and found[0, 0] == expected
    least = no_edge_value(small, True)
    greatest = fmm.minplus(np.array([[least, least]], small), zeros, maximum=True)
    assert greatest[0, 0] == no_edge_value(large, True)


def test_sparse_matrices_have_no_product() -> None:
    sparse = pytest.importorskip("scipy.sparse").csr_matrix(np.eye(3))
    for call in (fmm.minplus, fmm.gemm, lambda a, b: fmm.gram(a), lambda a, b: fmm.prepare(a)):
        with pytest.raises(TypeError, match="takes dense matrices, not a csr_matrix"):
            call(sparse, np.eye(3))


def test_out_may_overlap_the_operands() -> None:
    rng = np.random.default_rng(17)
    a = rng.random((20, 20))
    wanted = defined(a, a, False)[1]
    assert fmm.minplus(a, a, a) is a
    np.testing.assert_array_equal(a, wanted)


@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3)), ValueError),
        (np.zeros(3), np.zeros((3, 2)), ValueError),
        (np.zeros((2, 2), complex), np.zeros((2, 2)), TypeError),
        (np.zeros((2, 2), object), np.zeros((2, 2), np.int64), TypeError),
    ],
)
def test_what_has_no_product(a: Any, b: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"fmm\.minplus"):
        fmm.minplus(a, b)


# ---- on a device that is none: its kernels on the host


DEVICE_CASES = [("negative", "int32"), ("negative", "int16"), ("random", "int16"), ("disconnected", "float32")]


@pytest.mark.parametrize("with_predecessors", [False, True])
@pytest.mark.parametrize(("dtype", "expected"), [("float32", set()), ("float64", set()), ("int32", {"minimum"})])
def test_a_first_call_on_a_device_compiles_none_of_cupys_kernels_before_the_closure(
    dtype: str, expected: set[str], with_predecessors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy compiles a kernel for each operation, one after the other: a tenth of a second each, `any` seconds."""
    required_compiler()
    take_the_hosts_place(monkeypatch)
    kernels = count_kernels(monkeypatch)
    edges = with_length_type(random_graph(40, np.random.default_rng(33)), dtype, np.random.default_rng(34))
    fmm.shortest_paths(edges, return_predecessors=with_predecessors)
    assert {name for name, *_ in kernels} == expected, kernels


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dtype", COMPUTED_TYPES)
def test_edges_found_on_a_device_are_those_of_the_host(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    required_compiler()
    take_the_hosts_place(monkeypatch)
    rng = np.random.default_rng(35)
    graph = rng.integers(-3, 4, (37, 37)).astype(dtype)
    if dtype[0] == "f":
        special = [np.inf, -np.inf, np.nan, 1e-8, -1e-8, 1.1e-8, -1.1e-8, -0.0]
    else:
        special = [np.iinfo(dtype).max, np.iinfo(dtype).max - 1, np.iinfo(dtype).min]
    graph.reshape(-1)[: 4 * len(special)] = special * 4
    places = [placement.ArrayPlacement(xp, np.asarray, np.asarray) for xp in (NumpyAsCupy(), np)]
    for lengths, *options in product((graph, graph.T, graph[::-1]), *[(False, True)] * 3):
        read, request = shortest_paths._Graph(lengths), PathRequest(*options)
        on_device, on_host = (
            shortest_paths._edge_lengths_and_predecessors(x, read, lengths.dtype, request) for x in places
        )
        for x, y in zip(on_device, on_host, strict=True):
            assert (x is None) == (y is None) and (x is None or (x.dtype == y.dtype and np.array_equal(x, y)))


@pytest.mark.slow
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    quick_and_slow(DEVICE_CASES, [x for x in product(GRAPHS, COMPUTED_TYPES) if x not in DEVICE_CASES]),
)
def test_the_same_as_scipys_on_a_device(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the domain without overflow, its launches, and back."""
    required_compiler()
    device, rng = take_the_hosts_place(monkeypatch), np.random.default_rng(31)
    for n, with_predecessors in ((0, True), (1, False), (67, True), (131, False)):
        same_as_scipy(with_length_type(GRAPHS[kind](n, rng), dtype, rng), return_predecessors=with_predecessors)
    negative = kind == "negative" and dtype[0] == "i"
    assert ("int32" if negative else f"{dtype}{', none negative' * (dtype[0] == 'i')}") in device.rings


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dtype", COMPUTED_TYPES)
def test_negative_cycles_raise_on_a_device(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths that double in magnitude at each step do not wrap around."""
    required_compiler()
    take_the_hosts_place(monkeypatch)
    edges = np.zeros((70, 70), dtype)
    edges[np.arange(70), (np.arange(70) + 33) % 70] = -100
    for with_predecessors in (False, True):
        with pytest.raises(fmm.NegativeCycleError):
            fmm.shortest_paths(edges, return_predecessors=with_predecessors)
    with pytest.raises(ValueError, match="r-kleene"):
        fmm.shortest_paths(edges, method="floyd-warshall")


@pytest.mark.parametrize(
    ("dtype", "maximum"),
    quick_and_slow([("int32", False), ("int16", True)], [x for x in product(COMPUTED_TYPES, (False, True))]),
)
def test_products_as_defined_on_a_device(dtype: str, maximum: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    required_compiler()
    device, rng = take_the_hosts_place(monkeypatch), np.random.default_rng(32)
    for m, k, n in ((5, 7, 3), (37, 21, 53), (0, 3, 2), (3, 0, 2)):
        for wide in (True, False):
            a, b = drawn((m, k), dtype, maximum, rng), drawn((k, n), dtype, maximum, rng)
            if not wide and dtype[0] == "i":  # so small that "int32" holds all sums
                none = np.iinfo(dtype).min if maximum else np.iinfo(dtype).max
                a, b = (np.where(x == none, none, x % 1000 - 500).astype(dtype) for x in (a, b))
            _, best, none = defined(a, b, maximum)
            found, step = fmm.minplus(a, b, maximum=maximum, argmin=True)
            np.testing.assert_array_equal(found, best)
            np.testing.assert_array_equal(fmm.minplus(a, b, maximum=maximum), best)
            assert (step[best == none] == -1).all() and (step[best != none] >= 0).all()
    assert dtype[0] == "f" or "int32" in device.rings


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy alone computes the same as the compiled kernels."""
    monkeypatch.setattr(numba_kernels, "is_numba_installed", lambda: False)
    rng = np.random.default_rng(18)
    edges = rng.integers(0, 99, (200, 200)).astype(np.int32)
    np.testing.assert_array_equal(as_lengths(fmm.shortest_paths(edges)), csgraph.floyd_warshall(edges))


def test_torchs_tensors() -> None:
    torch = pytest.importorskip("torch")
    edges = np.random.default_rng(19).random((30, 30))
    graph = torch.from_numpy(edges)
    found, nodes = fmm.shortest_paths(graph, return_predecessors=True)
    assert isinstance(found, torch.Tensor) and isinstance(nodes, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), fmm.shortest_paths(edges))
    out = torch.empty(30, 30, dtype=torch.float64)
    assert fmm.minplus(graph, graph, out) is out
    np.testing.assert_array_equal(out.numpy(), fmm.minplus(edges, edges))


@pytest.mark.parametrize(
    "write",
    [
        lambda o: fmm.minplus(o.clone(), o.clone(), out=o),
        lambda o: fmm.shortest_paths(o.clone(), out=o),
        lambda o: fmm.shortest_paths(o, overwrite=True),
    ],
)
def test_a_tensor_that_fmm_writes_counts_as_changed(write: Any) -> None:
    """As after torch's own functions, a backward pass that needs the values before the write raises an error."""
    torch = pytest.importorskip("torch")
    o, y = torch.rand(8, 8), torch.rand(8, 8, requires_grad=True)
    total = (y * o).sum()
    assert write(o) is o
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
    with torch.inference_mode():
        o = torch.rand(8, 8)
        assert write(o) is o


def test_an_out_that_torch_rejects() -> None:
    """The error is torch's, and nothing is written; with overwrite=True the result is a new tensor."""
    torch = pytest.importorskip("torch")
    a = torch.rand(8, 8)
    with torch.inference_mode():
        frozen = torch.rand(8, 8)
    rejected = {
        "single memory location": torch.rand(1, 8).expand(8, 8),
        "inference tensor": frozen,
        "automatic differentiation": torch.rand(8, 8, requires_grad=True),
    }
    for message, out in rejected.items():
        before = out.detach().clone()
        with pytest.raises(RuntimeError, match=message):
            fmm.minplus(a, a, out=out)
        with pytest.raises(RuntimeError, match=message):
            fmm.shortest_paths(a, out=out)
        if not out.requires_grad:
            assert torch.equal(fmm.shortest_paths(out, overwrite=True), fmm.shortest_paths(before))
        assert torch.equal(out, before)
    with torch.no_grad():
        assert torch.equal(fmm.minplus(a, a, out=rejected["automatic differentiation"]), fmm.minplus(a, a))


def test_tensors_that_numpy_does_not_read() -> None:
    """Conjugate marks are resolved and types that NumPy lacks are converted, but not for `out` and d."""
    torch = pytest.importorskip("torch")
    edges = torch.arange(9.0, dtype=torch.float64).reshape(3, 3)
    marked = torch.complex(edges, -edges).conj().imag
    assert marked.is_neg() and torch.equal(fmm.minplus(marked, marked), fmm.minplus(edges, edges))
    assert torch.equal(fmm.shortest_paths(marked, overwrite=True), fmm.shortest_paths(edges))
    half = edges.bfloat16()
    assert torch.equal(fmm.minplus(half, half), fmm.minplus(edges, edges))
    assert fmm.shortest_paths(half, overwrite=True).dtype is torch.float64 and torch.equal(half, edges.bfloat16())
    with pytest.raises(ValueError, match=r"out is .* of bfloat16, the result .* of float64"):
        fmm.minplus(half, half, torch.zeros_like(half))


def test_tensors_of_which_the_numbers_are_not_all() -> None:
    """Tensors that require gradients or have no memory raise an error."""
    torch = pytest.importorskip("torch")
    a, ahead = torch.rand(4, 4, dtype=torch.float64), torch.autograd.forward_ad
    for x in (a.to("meta"), a.to_sparse()):
        with pytest.raises(TypeError, match="fmm needs a plain tensor"):
            fmm.shortest_paths(x)
        with pytest.raises(TypeError, match="fmm needs a plain tensor"):
            fmm.minplus(x, a)
    with pytest.raises(TypeError, match="fmm needs a plain tensor"):
        torch.vmap(fmm.shortest_paths)(a[None])
    with pytest.raises(TypeError, match="fmm needs a plain tensor"):
        torch.func.jvp(fmm.shortest_paths, (a,), (a,))
    with ahead.dual_level():
        assert torch.equal(fmm.minplus(a, a), fmm.minplus(a, a))
        with pytest.raises(TypeError, match="fmm needs a plain tensor"):
            fmm.minplus(ahead.make_dual(a, a), a)
    with pytest.raises(RuntimeError, match="requires grad"):
        fmm.minplus(a.clone().requires_grad_(), a)


def test_nothing_is_no_graph() -> None:
    """As in SciPy, whichever libraries are loaded."""
    with pytest.raises(ValueError, match="two dimensions"):
        fmm.shortest_paths(None)
    with pytest.raises(ValueError, match="takes an m x k"):
        fmm.minplus(None, None)

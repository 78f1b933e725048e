"""fmm.shortest_paths and fmm.minplus on a CUDA device: as on the host, and of CuPy's and torch's arrays."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from tests.support.graphs import GRAPHS, as_lengths, check_predecessors, with_length_type
from tests.support.semiring_kernels import every_kernel

pytestmark = pytest.mark.gpu

COMPUTED_TYPES = ("float32", "float64", "int32", "int16")
TOLERANCE = {"float32": 2e-5, "float64": 1e-13, "int32": 0, "int16": 0}


@pytest.fixture(scope="module")
def cupy() -> Any:
    """All kernels are compiled at once, which is several times as quick as one after the other."""
    found = pytest.importorskip("cupy")
    from fmm.kernels.cuda.launch.compile import compile_kernels

    compile_kernels(0, every_kernel())
    return found


@pytest.mark.parametrize(("kind", "dtype"), list(product(GRAPHS, COMPUTED_TYPES)))
def test_the_same_as_on_the_host(cupy: Any, kind: str, dtype: str) -> None:
    rng = np.random.default_rng(21)
    for n in (0, 1, 2, 127, 129, 333):
        edges = with_length_type(GRAPHS[kind](n, rng), dtype, rng)
        wanted = fmm.shortest_paths(edges)
        found, nodes = fmm.shortest_paths(cupy.asarray(edges), return_predecessors=True)
        alone = fmm.shortest_paths(cupy.asarray(edges))
        assert isinstance(found, cupy.ndarray) and found.dtype == edges.dtype
        for x in (found, alone):
            lengths = as_lengths(cupy.asnumpy(x))
            np.testing.assert_allclose(lengths, as_lengths(wanted), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        check_predecessors(cupy.asnumpy(found), cupy.asnumpy(nodes), edges, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", COMPUTED_TYPES)
def test_negative_cycles_raise(cupy: Any, dtype: str) -> None:
    for n, step in ((2, 1), (100, 77), (300, 1)):
        edges = np.zeros((n, n), dtype)
        edges[np.arange(n), (np.arange(n) + step) % n] = -100
        with pytest.raises(fmm.NegativeCycleError, match="Negative cycle"):
            fmm.shortest_paths(cupy.asarray(edges))


def drawn(shape: tuple[int, int], dtype: str, maximum: bool, signed: bool, rng: np.random.Generator) -> Any:
    if dtype[0] == "f":
        x = rng.standard_normal(shape).astype(dtype)
        x = x if signed else abs(x)
        x[rng.random(shape) < 0.1] = -np.inf if maximum else np.inf
        x[rng.random(shape) < 0.01] = np.nan
        return x
    limits = np.iinfo(dtype)
    wide = rng.integers(limits.min if signed else 0, limits.max, shape, endpoint=True)
    x = np.where(rng.random(shape) < 0.3, wide, rng.integers(-9 if signed else 0, 9, shape)).astype(dtype)
    x[rng.random(shape) < 0.1] = limits.min if maximum else limits.max
    return x


@pytest.mark.parametrize(("dtype", "maximum", "signed"), list(product(COMPUTED_TYPES, (False, True), (False, True))))
def test_products_as_on_the_host(cupy: Any, dtype: str, maximum: bool, signed: bool) -> None:
    """Bit for bit, the places too; of any strides, with every tile size, into poisoned memory."""
    rng = np.random.default_rng(22)
    for m, k, n in ((1, 1, 1), (5, 7, 3), (131, 67, 259), (0, 3, 2), (3, 0, 2), (1, 1000, 1), (513, 33, 1027)):
        a, b = drawn((m, 2 * k), dtype, maximum, signed, rng)[:, ::2], drawn((n, k), dtype, maximum, signed, rng).T
        wanted, places = fmm.minplus(a, b, maximum=maximum, argmin=True)
        x, y = cupy.asarray(np.ascontiguousarray(drawn((m, 2 * k), dtype, maximum, signed, rng))), cupy.asarray(b.T).T
        x[:, ::2] = cupy.asarray(np.ascontiguousarray(a))
        out = cupy.full((m, 2 * n), 7, dtype)[:, ::2]
        assert fmm.minplus(x[:, ::2], y, out, maximum=maximum) is out
        np.testing.assert_array_equal(cupy.asnumpy(out), wanted)
        found, where = fmm.minplus(x[:, ::2], y, maximum=maximum, argmin=True)
        np.testing.assert_array_equal(cupy.asnumpy(found), wanted)
        np.testing.assert_array_equal(cupy.asnumpy(where), places)


@pytest.mark.parametrize(("dtype", "signed"), list(product(COMPUTED_TYPES, (False, True))))
def test_large_products(cupy: Any, dtype: str, signed: bool) -> None:
    """By the tiles that small ones do not have, against the definition, one step after the other."""
    rng = np.random.default_rng(25)
    a, b = (cupy.asarray(drawn(s, dtype, False, signed, rng)) for s in ((2051, 301), (301, 4100)))
    found, where = fmm.minplus(a, b, argmin=True)
    none = found.dtype.type(np.inf) if dtype[0] == "f" else np.iinfo(dtype).max
    wide = np.dtype(dtype) if dtype[0] == "f" else np.dtype(np.int64)
    best, places = cupy.full(found.shape, none, wide), cupy.full(found.shape, -1, np.int32)
    for k in range(a.shape[1]):
        sums = a[:, k, None].astype(wide) + b[k]
        if wide != a.dtype:
            sums[(a[:, k, None] == none) | (b[k] == none)] = none
        places[sums < best] = k
        best = cupy.fmin(best, sums)
    if wide != a.dtype:
        best = best.clip(np.iinfo(dtype).min, None)
    assert bool((found == best).all()) and bool((where == places).all())
    assert bool((fmm.minplus(a, b) == best).all())


@pytest.mark.parametrize("dtype", ["float32", "int16"])
@pytest.mark.parametrize("kind", ["dense", "negative"])
def test_many_nodes(cupy: Any, kind: str, dtype: str) -> None:
    """No path is shorter by one more edge, and none is longer than an edge."""
    n, rng = 2500, np.random.default_rng(26)
    edges = with_length_type(GRAPHS[kind](n, rng), dtype, rng)
    lengths = as_lengths(cupy.asnumpy(fmm.shortest_paths(cupy.asarray(edges))))
    direct = np.where(edges == 0, np.inf, edges.astype(float))
    assert (lengths <= direct + 1e-4).all() and (np.diag(lengths) == 0).all()
    for i in rng.integers(0, n, 5):
        onward = (lengths[i][:, None] + direct).min(axis=0)
        onward[i] = 0
        np.testing.assert_allclose(lengths[i], onward, rtol=2e-5, atol=1e-4 if dtype == "float32" else 0)


def test_torchs_tensors(cupy: Any) -> None:
    """On the stream that is torch's current one."""
    torch = pytest.importorskip("torch")
    edges = np.random.default_rng(23).random((300, 300)).astype(np.float32)
    with torch.cuda.stream(torch.cuda.Stream()):
        graph = torch.from_numpy(edges).cuda()
        found, nodes = fmm.shortest_paths(graph, return_predecessors=True)
        assert isinstance(found, torch.Tensor) and found.is_cuda and nodes.dtype == torch.int32
        result, wanted = found.cpu().numpy(), fmm.shortest_paths(edges)
        squared = fmm.minplus(graph, graph).cpu().numpy()
    np.testing.assert_allclose(result, wanted, rtol=2e-5)
    np.testing.assert_array_equal(squared, fmm.minplus(edges, edges))


def test_streams_and_threads(cupy: Any) -> None:
    """The same launches at once, each on a stream of its own."""
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(24)
    graphs = [rng.random((200, 200)).astype(np.float32) for _ in range(8)]

    def one(edges: Any) -> Any:
        with cupy.cuda.Stream(non_blocking=True):
            return cupy.asnumpy(fmm.shortest_paths(cupy.asarray(edges)))

    with ThreadPoolExecutor(4) as pool:
        for edges, found in zip(graphs, pool.map(one, graphs), strict=True):
            np.testing.assert_allclose(found, fmm.shortest_paths(edges), rtol=2e-5)


def test_arrays_of_two_places_are_an_error(cupy: Any) -> None:
    with pytest.raises(TypeError, match="fmm moves nothing between host and device"):
        fmm.minplus(cupy.zeros((2, 2)), np.zeros((2, 2)))

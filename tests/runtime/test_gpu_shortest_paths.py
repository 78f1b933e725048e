"""fmm.shortest_paths and fmm.minplus on a CUDA device: as on the host, and of CuPy's and torch's arrays."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from tests.support.graphs import GRAPHS, as_lengths, check_predecessors, of_type

pytestmark = pytest.mark.gpu

TYPES = ("float32", "float64", "int32", "int16")
TOLERANCE = {"float32": 2e-5, "float64": 1e-13, "int32": 0, "int16": 0}


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.mark.parametrize(("kind", "dtype"), list(product(GRAPHS, TYPES)))
def test_the_same_as_on_the_host(cupy: Any, kind: str, dtype: str) -> None:
    rng = np.random.default_rng(21)
    for n in (0, 1, 2, 127, 129, 333):
        edges = of_type(GRAPHS[kind](n, rng), dtype, rng)
        wanted = fmm.shortest_paths(edges)
        found, nodes = fmm.shortest_paths(cupy.asarray(edges), return_predecessors=True)
        alone = fmm.shortest_paths(cupy.asarray(edges))
        assert isinstance(found, cupy.ndarray) and found.dtype == edges.dtype
        for x in (found, alone):
            given = as_lengths(cupy.asnumpy(x))
            np.testing.assert_allclose(given, as_lengths(wanted), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        check_predecessors(cupy.asnumpy(found), cupy.asnumpy(nodes), edges, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TYPES)
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


@pytest.mark.parametrize(("dtype", "maximum", "signed"), list(product(TYPES, (False, True), (False, True))))
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


def test_torchs_tensors(cupy: Any) -> None:
    """On the stream that is torch's current one."""
    torch = pytest.importorskip("torch")
    edges = np.random.default_rng(23).random((300, 300)).astype(np.float32)
    with torch.cuda.stream(torch.cuda.Stream()):
        given = torch.from_numpy(edges).cuda()
        found, nodes = fmm.shortest_paths(given, return_predecessors=True)
        assert isinstance(found, torch.Tensor) and found.is_cuda and nodes.dtype == torch.int32
        result, wanted = found.cpu().numpy(), fmm.shortest_paths(edges)
        squared = fmm.minplus(given, given).cpu().numpy()
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
    with pytest.raises(TypeError, match="one library"):
        fmm.minplus(cupy.zeros((2, 2)), np.zeros((2, 2)))

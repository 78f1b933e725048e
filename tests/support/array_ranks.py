"""Products of distributed NumPy or CuPy arrays, of which each process holds parts: cases of
tests/support/sharded_ranks.py."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import fmm
import fmm.distributed
from fmm.distributed import sharded_tensors

PLACES = (Shard(0), Shard(1), Replicate())
ERROR_BOUNDS = {"float16": 3e-3, "float32": 1e-5, "float64": 1e-12, "complex64": 1e-5, "complex128": 1e-12}


def meshes(device: str) -> Iterator[Any]:
    count = dist.get_world_size()
    yield init_device_mesh(device, (count,))
    if count == 4:
        yield init_device_mesh(device, (2, 2))


def array_library(device: str) -> Any:
    return import_module("cupy" if device == "cuda" else "numpy")


def draw_matrix(rows: int, cols: int, seed: int, dtype: str = "float64") -> Any:
    """Return a matrix that is the same on all processes."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((rows, cols)) + (1j * rng.standard_normal((rows, cols)) if "complex" in dtype else 0)
    return found.astype(dtype)


def local_part(whole: Any, mesh: Any, places: Any) -> Any:
    """Return the part of a NumPy array that this process holds, cut as by torch.chunk along each dimension of
    the mesh."""
    for place, side, mine in zip(places, mesh.mesh.shape, mesh.get_coordinate(), strict=True):
        if isinstance(place, Shard):
            each = -(-whole.shape[place.dim] // side) or 1
            span = slice(mine * each, (mine + 1) * each)
            whole = whole[span] if place.dim == 0 else whole[:, span]
    return np.ascontiguousarray(whole)


def is_close(found: Any, expected: Any, dtype: str = "float64") -> bool:
    found = found if isinstance(found, np.ndarray) else found.get()
    assert found.dtype == dtype and found.shape == expected.shape, (found.dtype, found.shape, expected.shape)
    wide = np.abs(found.astype(expected.dtype) - expected)
    return wide.size == 0 or float(wide.max()) <= ERROR_BOUNDS[dtype] * 10 * max(float(np.abs(expected).max()), 1e-30)


def check_array_products(device: str) -> None:
    """Check products with all placements, even and uneven sizes and outer levels, and that the array's type
    is kept."""
    xp, count = array_library(device), dist.get_world_size()
    for mesh in meshes(device):
        pairs = list(product(product(PLACES, repeat=mesh.ndim), repeat=3))
        for (m, k, n), plan, places in list(
            product(((24, 36, 12), (7, 9, 5), (count - 1, 3, 2)), (None, "vendor"), pairs)
        )[:: 3 if mesh.ndim == 1 else 101]:
            a, b = draw_matrix(m, k, 1), draw_matrix(k, n, 2)
            x, y = (xp.asarray(local_part(whole, mesh, at)) for whole, at in zip((a, b), places, strict=False))
            found = fmm.distributed.matmul(
                x, y, mesh=mesh, operand_placements=places[:2], placements=places[2], plan=plan, sizes=(m, k, n)
            )
            assert type(found) is xp.ndarray
            assert is_close(found, local_part(a @ b, mesh, places[2])), (m, k, n, plan, places)
    check_default_placements(device)


def check_default_placements(device: str) -> None:
    """Check products whose caller passes only the mesh: rows on a mesh of one dimension (or a group), else
    blocks."""
    xp, count = array_library(device), dist.get_world_size()
    a, b = draw_matrix(12 * count, 8 * count, 3), draw_matrix(8 * count, 4 * count, 4)
    for mesh in (*meshes(device), dist.group.WORLD):
        row = DeviceMesh(device, list(range(count)))
        places, over = ([Shard(0), Shard(1)], mesh) if getattr(mesh, "ndim", 1) == 2 else ([Shard(0)], row)
        x, y = (xp.asarray(local_part(whole, over, places)) for whole in (a, b))
        for plan in (None, "winograd"):
            assert is_close(fmm.distributed.matmul(x, y, mesh=mesh, plan=plan), local_part(a @ b, over, places))
        assert f"product: {12 * count} x {8 * count} x {4 * count}, float64" in str(
            fmm.distributed.explain(x, y, mesh=mesh)
        )
    for dtype in ERROR_BOUNDS:
        x, y = (draw_matrix(6 * count, 6 * count, seed, dtype) for seed in (5, 6))
        parts = [xp.asarray(local_part(whole, row, [Shard(0)])) for whole in (x, y)]
        wide = "complex128" if "complex" in dtype else "float64"
        expected = local_part(x.astype(wide) @ y.astype(wide), row, [Shard(0)])
        assert is_close(fmm.distributed.matmul(*parts, mesh=row), expected, dtype), dtype


def check_shared_memory(device: str) -> None:
    """Check that no operand or result is copied, except arrays that DLPack cannot describe, and that those
    are right too."""
    xp, mesh = array_library(device), next(meshes(device))
    count, rank = mesh.size(), mesh.get_local_rank()
    x, y = (xp.asarray(draw_matrix(6, 6 * count, seed + rank)) for seed in (10, 20))
    own, seen = sharded_tensors.matmul, list[int]()

    def noted(a: Any, b: Any, wanted: sharded_tensors.SharingOptions) -> Any:
        found = own(a, b, wanted)
        seen.extend(tensor.to_local().data_ptr() for tensor in (a, b, found))
        return found

    sharded_tensors.matmul = noted  # type: ignore[assignment]
    try:
        found = fmm.distributed.matmul(x, y, mesh=mesh)
    finally:
        sharded_tensors.matmul = own
    assert seen == [array.__array_interface__["data"][0] if xp is np else array.data.ptr for array in (x, y, found)]
    expected = found if xp is np else found.get()
    turned = xp.asarray(x.T.copy())
    odd = [xp.ascontiguousarray(x[::-1])[::-1], turned.T, xp.repeat(x, 2, axis=1)[:, ::2]]
    if xp is np:
        found[0, 0] += 0  # it belongs to the caller alone
        with tempfile.NamedTemporaryFile() as file:
            np.memmap(file, x.dtype, "w+", shape=x.shape)[:] = x
            odd += [np.memmap(file, x.dtype, mode, shape=x.shape) for mode in ("r", "c")]
        fixed = x.copy()
        fixed.flags.writeable = False
        odd += [fixed, x.astype(">f8")]
    before = x.copy()
    for other in odd:
        assert is_close(fmm.distributed.matmul(other, y, mesh=mesh), expected)
    assert (x == before).all()


def check_refused_arrays(device: str) -> None:
    """Check that each process alone refuses wrong arguments with a message."""
    xp, mesh = array_library(device), next(meshes(device))
    count = mesh.size()
    x, tensor = xp.ones((4, 4 * count)), distribute_tensor(torch.ones(4, 4, device=device), mesh, [Shard(0)])
    elsewhere = DeviceMesh("cuda" if device == "cpu" else "cpu", list(range(count)), _init_backend=False)
    solid = init_device_mesh(device, (count, 1, 1))
    rows, wrong = [Shard(0)], "placements of A"
    calls: list[tuple[type[Exception], str, tuple[Any, Any], dict[str, Any]]] = [
        (TypeError, "mesh= must be", (x, x), {}),
        (TypeError, "mesh= must be", (x, x), {"mesh": count}),
        (TypeError, "mesh= must be", (x, x), {"sizes": (4, 4, 4)}),
        (TypeError, "a torch tensor", (tensor, tensor), {"mesh": mesh}),
        (TypeError, "moves nothing between", (tensor, x), {"mesh": mesh}),
        (TypeError, "moves nothing between", (x, tensor), {}),
        (TypeError, "not a", (np.ma.ones((4, 4)), np.ma.ones((4, 4))), {"mesh": mesh}),
        (TypeError, "not a", ([[1.0]], [[1.0]]), {"mesh": mesh}),
        (TypeError, "one type", (x, x.astype("float32")), {"mesh": mesh}),
        (TypeError, "one type", (x.astype("int64"), x.astype("int64")), {"mesh": mesh}),
        (ValueError, "matrices", (x[0], x), {"mesh": mesh}),
        (ValueError, "its mesh is one of", (x, x), {"mesh": elsewhere}),
        (ValueError, "3 dimensions", (x, x), {"mesh": solid}),
        (ValueError, "the placements of A and of B", (x, x), {"mesh": mesh, "operand_placements": [Shard(0)]}),
        (ValueError, wrong, (x, x), {"mesh": mesh, "operand_placements": [rows * 2, rows]}),
        (ValueError, wrong, (x, x), {"mesh": mesh, "operand_placements": [[Shard(2)], rows]}),
        (ValueError, wrong, (x, x), {"mesh": mesh, "operand_placements": [Shard(0), Shard(0)]}),
        (ValueError, "placements of the product", (x, x), {"mesh": mesh, "placements": [Partial()]}),
        (ValueError, "pass sizes=", (x[:, 1:], x), {"mesh": mesh}),
        (ValueError, "m, k and n", (x, x), {"mesh": mesh, "sizes": (4, 4)}),
        (ValueError, "m, k and n", (x, x), {"mesh": mesh, "sizes": (4, 4, -1)}),
        (ValueError, "torch.chunk would have", (x, x), {"mesh": mesh, "sizes": (4 * count + 1, 4 * count, 4 * count)}),
    ]
    for error, words, arguments, requested in calls:
        try:
            fmm.distributed.matmul(*arguments, **requested)
        except error as reported:
            assert words in str(reported), (words, str(reported))
            continue
        raise AssertionError(f"{words}: no error was raised")
    assert is_close(fmm.distributed.matmul(x, x, mesh=mesh), np.full((4, 4 * count), 4.0 * count))


def check_other_stream(device: str) -> None:
    """Check a product whose operands CuPy has just written on another stream."""
    xp, mesh = array_library(device), next(meshes(device))
    rows = 2048
    n = rows * mesh.size()
    whole = [draw_matrix(n, n, seed, "float32") for seed in (30, 31)]
    parts = [xp.asarray(local_part(x, mesh, [Shard(0)])) for x in whole]
    expected = local_part(whole[0].astype("float64") @ whole[1], mesh, [Shard(0)])
    xp.cuda.Device().synchronize()
    with xp.cuda.Stream(non_blocking=True):
        for _ in range(5):
            x, y = (x * 1 for x in parts)
            found = fmm.distributed.matmul(x, y, mesh=mesh) * 1
            del x, y
        assert is_close(found, expected, "float32")


ARRAYS = (check_other_stream, check_array_products, check_shared_memory, check_refused_arrays)

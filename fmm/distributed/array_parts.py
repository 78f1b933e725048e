"""NumPy's and CuPy's arrays as parts of sharded matrices: fmm.distributed.matmul(a, b, mesh=...).

No number is copied on the way in or out (DLPack), but of arrays that DLPack has no words for: read-only ones, those
that run backwards. How a product is shared, and who sends what, is as of torch's own sharded tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from fmm.arrays.detect import describe_array, device_mismatch_error, kind_of, mixed_arrays_error
from fmm.distributed import sharded_tensors
from fmm.distributed.decide_sharing import SharedDecision
from fmm.distributed.sharded_tensors import OPERAND, RESULT, SharingOptions, checked_placements
from fmm.dtypes import STORED

MESH_OF = {"host": "cpu", "cupy": "cuda"}  # the kind of mesh whose processes hold such arrays
LEGACY_STREAMS = (0, 1)  # CUDA's names of a device's usual stream


class ArrayLayout(NamedTuple):
    """How processes hold the matrices of which each of them gives its parts."""

    mesh: Any = None  # or a group of processes
    operand_placements: Sequence[Sequence[Any]] | None = None  # of A, and of B
    sizes: Sequence[int] | None = None  # m, k and n of the whole product


def are_told_of(a: Any, b: Any, laid: ArrayLayout) -> bool:
    """Are these parts that arrays hold, and not sharded tensors?"""
    return laid != ArrayLayout() or not kind_of(a) == kind_of(b) == "torch"


def matmul(a: Any, b: Any, laid: ArrayLayout, wanted: SharingOptions) -> Any:
    """This process's part of the product, an array of the same library."""
    _check_parts(a, b)
    mesh = _mesh(laid.mesh, a)
    placements = checked_placements(mesh, "the product", wanted.placements, RESULT)
    with _on_its_stream(a):
        x, y = _sharded(a, b, mesh, laid)
        with torch.no_grad():
            found = sharded_tensors.matmul(x, y, wanted._replace(placements=placements))
        return _array_of(found, kind_of(a))


def explained(a: Any, b: Any, laid: ArrayLayout, wanted: SharingOptions) -> SharedDecision:
    """How it would be shared, as far as this process can tell."""
    _check_parts(a, b)
    mesh = _mesh(laid.mesh, a)
    with _on_its_stream(a):
        return sharded_tensors.explained(*_sharded(a, b, mesh, laid), wanted)


# ---- what is refused


def _check_parts(a: Any, b: Any) -> None:
    """Errors for what are no two matrices of one type, library and device."""
    if kind_of(a) != kind_of(b):
        raise mixed_arrays_error(a=a, b=b)
    for x in (a, b):
        plain = type(x).__name__ in ("ndarray", "memmap") and kind_of(x) in MESH_OF
        if not plain:
            raise TypeError(f"fmm.distributed.matmul takes DTensors, or with mesh= plain arrays, not {_in_words(x)}")
        if x.ndim != 2:
            raise ValueError(f"fmm.distributed.matmul takes parts of matrices, not arrays of shape {x.shape}")
    if a.dtype.newbyteorder("=") != b.dtype.newbyteorder("=") or a.dtype.name not in STORED:
        types = f"{a.dtype.name} and {b.dtype.name}"
        raise TypeError(f"fmm.distributed.matmul takes arrays of one type, floating-point or complex, not {types}")
    if kind_of(a) == "cupy" and a.device != b.device:
        raise device_mismatch_error(a, b)


def _in_words(x: Any) -> str:
    return f"a {type(x).__name__}" if isinstance(x, np.ndarray) else describe_array(x)


def _mesh(given: Any, a: Any) -> Any:
    """The mesh, or all processes of the group in a row."""
    kind = MESH_OF[kind_of(a)]
    if isinstance(given, dist.ProcessGroup):
        given = DeviceMesh.from_group(given, kind)
    if not isinstance(given, DeviceMesh):
        what = f"a is {describe_array(a)}, a part of a matrix"
        raise TypeError(f"{what}: mesh= is to be the DeviceMesh or the group of the processes that hold all of it")
    if given.device_type != kind:
        raise ValueError(f"a is {describe_array(a)}: its mesh is one of {kind}, not of {given.device_type}")
    if given.get_coordinate() is None:
        raise ValueError(f"this process is none of the mesh {given}")
    return given


# ---- to torch and back


def _sharded(a: Any, b: Any, mesh: Any, laid: ArrayLayout) -> tuple[Any, Any]:
    """The two matrices of which these are this process's parts."""
    pair = laid.operand_placements
    if pair is not None and (not isinstance(pair, Sequence) or len(pair) != 2):
        raise ValueError(f"operand_placements= are those of A and those of B, not {pair}")
    given = (None, None) if pair is None else pair
    placed = [checked_placements(mesh, name, x, OPERAND) for name, x in zip("AB", given, strict=True)]
    if laid.sizes is None:
        shapes = [_equal_parts(x, mesh, places) for x, places in zip((a, b), placed, strict=True)]
        if shapes[0][1] != shapes[1][0]:
            told = " times ".join(f"{rows} x {cols}" for rows, cols in shapes)
            raise ValueError(f"if all parts are as large as these, they are of {told}; if not, give sizes=(m, k, n)")
    else:
        m, k, n = _checked_sizes(laid.sizes)
        shapes = [(m, k), (k, n)]
    made = [_tensor(x, mesh, *as_) for x, *as_ in zip((a, b), placed, shapes, strict=True)]
    return made[0], made[1]


def _equal_parts(x: Any, mesh: Any, places: Sequence[Any]) -> tuple[int, int]:
    """The shape of a matrix all whose parts are as large as this one."""
    sides = tuple(mesh.mesh.shape)
    cut = [prod(side for side, p in zip(sides, places, strict=True) if _axis(p) == axis) for axis in (0, 1)]
    return x.shape[0] * cut[0], x.shape[1] * cut[1]


def _axis(place: Any) -> int | None:
    return int(place.dim) % 2 if type(place) is Shard else None


def _checked_sizes(sizes: Sequence[int]) -> tuple[int, int, int]:
    found = tuple(sizes)
    if len(found) != 3 or not all(isinstance(size, int | np.integer) and size >= 0 for size in found):
        raise ValueError(f"sizes= are m, k and n of the whole product, not {sizes}")
    m, k, n = map(int, found)
    return m, k, n


def _tensor(x: Any, mesh: Any, places: tuple[Any, ...], shape: tuple[int, int]) -> Any:
    local = torch.from_dlpack(_told_by_dlpack(x))
    whole = torch.Size(shape)
    return DTensor.from_local(local, mesh, places, run_check=False, shape=whole, stride=(max(shape[1], 1), 1))


def _told_by_dlpack(x: Any) -> Any:
    """The array, or a copy where it is read-only, of another byte order, or runs backwards or between its numbers."""
    steps = all(step >= 0 and step % x.itemsize == 0 for step in x.strides)
    if kind_of(x) == "host":
        x = np.asarray(x)
        return x if steps and x.flags.writeable and x.dtype.isnative else np.array(x, x.dtype.newbyteorder("="))
    return x if steps else x.copy()


def _array_of(found: Any, kind: str) -> Any:
    local = found.to_local()
    local = local.wait() if hasattr(local, "wait") else local
    if kind == "host":
        return local.numpy()
    import cupy

    return cupy.from_dlpack(local)


@contextmanager
def _on_its_stream(a: Any) -> Iterator[None]:
    """torch's work on the stream on which CuPy works: neither waits for the other, nor reads what is not yet there."""
    if kind_of(a) != "cupy":
        yield
        return
    import cupy

    number = int(a.device.id)
    pointer = cupy.cuda.get_current_stream(number).ptr
    usual = pointer in LEGACY_STREAMS
    stream = torch.cuda.default_stream(number) if usual else torch.cuda.ExternalStream(pointer, device=number)
    with torch.cuda.device(number), torch.cuda.stream(stream):
        yield

"""NumPy and CuPy arrays as local parts of sharded matrices, for fmm.distributed.matmul(a, b, mesh=...).

Arrays become DTensors, and DTensors arrays, through DLPack: without a copy unless DLPack cannot express the array
(read-only, negative strides). The processes then share the product as a product of torch's DTensors
(fmm.distributed.sharded_tensors).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from fmm.arrays.detect import array_kind, describe_array, device_mismatch_error, mixed_arrays_error
from fmm.distributed import sharded_tensors
from fmm.distributed.decide_sharing import SharedDecision
from fmm.distributed.sharded_tensors import (
    OPERAND_PLACEMENT_TYPES,
    RESULT_PLACEMENT_TYPES,
    SharingOptions,
    checked_placements,
)
from fmm.dtypes import STORED_TYPES

# library of the arrays, as fmm.arrays.detect names it -> torch's device type for the mesh
MESH_DEVICE_TYPES = {"host": "cpu", "cupy": "cuda"}
DEFAULT_STREAM_HANDLES = (0, 1)  # handles of CUDA's default stream


class PartLayout(NamedTuple):
    """The mesh of processes, the cuts of A and B over the mesh, and the sizes of the whole product."""

    mesh: Any = None  # a DeviceMesh or a ProcessGroup
    operand_placements: Sequence[Sequence[Any]] | None = None  # the placements of A and the placements of B
    sizes: Sequence[int] | None = None  # m, k and n of the whole product


def are_array_parts(a: Any, b: Any, layout: PartLayout) -> bool:
    """Return True if the operands of the call are local array parts, not DTensors."""
    return layout != PartLayout() or not array_kind(a) == array_kind(b) == "torch"


def matmul(a: Any, b: Any, layout: PartLayout, options: SharingOptions) -> Any:
    """Return this process's part of the product as an array of the operands' library."""
    _check_array_parts(a, b)
    mesh = _checked_mesh(layout.mesh, a)
    placements = checked_placements(mesh, "the product", options.placements, RESULT_PLACEMENT_TYPES)
    with _use_cupy_stream(a):
        x, y = _sharded_operands(a, b, mesh, layout)
        with torch.no_grad():
            c = sharded_tensors.matmul(x, y, options._replace(placements=placements))
        return _local_array(c, array_kind(a))


def explain(a: Any, b: Any, layout: PartLayout, options: SharingOptions) -> SharedDecision:
    """Return the decision on how `matmul` would share the product; send no messages to other processes."""
    _check_array_parts(a, b)
    mesh = _checked_mesh(layout.mesh, a)
    with _use_cupy_stream(a):
        return sharded_tensors.explain(*_sharded_operands(a, b, mesh, layout), options)


# ---- checks of the arguments


def _check_array_parts(a: Any, b: Any) -> None:
    """Raise TypeError or ValueError unless a and b are matrices of one element type, one library and one device."""
    if array_kind(a) != array_kind(b):
        raise mixed_arrays_error(a=a, b=b)
    for x in (a, b):
        plain = type(x).__name__ in ("ndarray", "memmap") and array_kind(x) in MESH_DEVICE_TYPES
        if not plain:
            operand = f"a {type(x).__name__}" if isinstance(x, np.ndarray) else describe_array(x)
            raise TypeError(f"fmm.distributed.matmul takes DTensors, or with mesh= plain arrays, not {operand}")
        if x.ndim != 2:
            raise ValueError(f"fmm.distributed.matmul takes parts of matrices, not arrays of shape {x.shape}")
    if a.dtype.newbyteorder("=") != b.dtype.newbyteorder("=") or a.dtype.name not in STORED_TYPES:
        types = f"{a.dtype.name} and {b.dtype.name}"
        raise TypeError(f"fmm.distributed.matmul takes arrays of one type, floating-point or complex, not {types}")
    if array_kind(a) == "cupy" and a.device != b.device:
        raise device_mismatch_error(a, b)


def _checked_mesh(mesh: Any, a: Any) -> Any:
    """Return `mesh` as a DeviceMesh; raise TypeError or ValueError if `a` or this process cannot be part of the mesh.

    A process group becomes a mesh of one dimension.
    """
    kind = MESH_DEVICE_TYPES[array_kind(a)]
    if isinstance(mesh, dist.ProcessGroup):
        mesh = DeviceMesh.from_group(mesh, kind)
    if not isinstance(mesh, DeviceMesh):
        part = f"a is {describe_array(a)}, a part of a matrix"
        raise TypeError(f"{part}: mesh= must be the DeviceMesh or the group of the processes that hold all of it")
    if mesh.device_type != kind:
        raise ValueError(f"a is {describe_array(a)}: its mesh is one of {kind}, not of {mesh.device_type}")
    if mesh.get_coordinate() is None:
        raise ValueError(f"this process is not in the mesh {mesh}")
    return mesh


# ---- conversions to torch's tensors and back


def _sharded_operands(a: Any, b: Any, mesh: Any, layout: PartLayout) -> tuple[Any, Any]:
    """Return the matrices A and B as DTensors; the arrays a and b are this process's parts of the two matrices."""
    pair = layout.operand_placements
    if pair is not None and (not isinstance(pair, Sequence) or len(pair) != 2):
        raise ValueError(f"operand_placements= must be the placements of A and of B, not {pair}")
    by_operand = (None, None) if pair is None else pair
    placements = [
        checked_placements(mesh, name, x, OPERAND_PLACEMENT_TYPES) for name, x in zip("AB", by_operand, strict=True)
    ]
    if layout.sizes is None:
        shapes = [_whole_matrix_shape(x, mesh, places) for x, places in zip((a, b), placements, strict=True)]
        if shapes[0][1] != shapes[1][0]:
            product = " times ".join(f"{rows} x {cols}" for rows, cols in shapes)
            raise ValueError(
                f"if all parts have this size, the product is {product}; for other parts pass sizes=(m, k, n)"
            )
    else:
        m, k, n = _checked_product_sizes(layout.sizes)
        shapes = [(m, k), (k, n)]
    x, y = (_as_dtensor(x, mesh, *rest) for x, *rest in zip((a, b), placements, shapes, strict=True))
    return x, y


def _whole_matrix_shape(x: Any, mesh: Any, placements: Sequence[Any]) -> tuple[int, int]:
    """Return the shape of the whole matrix if every process's part has the same shape as x."""
    rows, cols = x.shape
    for side, place in zip(tuple(mesh.mesh.shape), placements, strict=True):
        axis = int(place.dim) % 2 if type(place) is Shard else None
        rows, cols = rows * side if axis == 0 else rows, cols * side if axis == 1 else cols
    return rows, cols


def _checked_product_sizes(sizes: Sequence[int]) -> tuple[int, int, int]:
    values = tuple(sizes)
    if len(values) != 3 or not all(isinstance(size, int | np.integer) and size >= 0 for size in values):
        raise ValueError(f"sizes= must be m, k and n of the whole product, not {sizes}")
    m, k, n = map(int, values)
    return m, k, n


def _as_dtensor(x: Any, mesh: Any, placements: tuple[Any, ...], shape: tuple[int, int]) -> Any:
    local = torch.from_dlpack(_as_dlpack_exportable(x))
    whole = torch.Size(shape)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole, stride=(max(shape[1], 1), 1))


def _as_dlpack_exportable(x: Any) -> Any:
    """Return x, or a copy if DLPack cannot express x: a read-only array, a foreign byte order, irregular strides."""
    regular = all(step >= 0 and step % x.itemsize == 0 for step in x.strides)
    if array_kind(x) == "host":
        x = np.asarray(x)
        return x if regular and x.flags.writeable and x.dtype.isnative else np.array(x, x.dtype.newbyteorder("="))
    return x if regular else x.copy()


def _local_array(c: Any, kind: str) -> Any:
    local = c.to_local()
    local = local.wait() if hasattr(local, "wait") else local
    if kind == "host":
        return local.numpy()
    import cupy

    return cupy.from_dlpack(local)


@contextmanager
def _use_cupy_stream(a: Any) -> Iterator[None]:
    """Run torch on CuPy's current stream: work of CuPy and torch is then ordered without synchronization."""
    if array_kind(a) != "cupy":
        yield
        return
    import cupy

    number = int(a.device.id)
    pointer = cupy.cuda.get_current_stream(number).ptr
    is_default = pointer in DEFAULT_STREAM_HANDLES
    stream = torch.cuda.default_stream(number) if is_default else torch.cuda.ExternalStream(pointer, device=number)
    with torch.cuda.device(number), torch.cuda.stream(stream):
        yield

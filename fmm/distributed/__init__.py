"""`import fmm.distributed`: products that several devices share, `fmm.distributed.matmul(a, b)` of DTensors, or of
arrays of which each process holds its part.

`plan` predicts without torch and without devices: how so many of them would share a product, and how long it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fmm.distributed.decide_sharing import ShardingQuery, SharedDecision, decide_sharing
from fmm.distributed.layout import Layout
from fmm.distributed.quadrants import level_above
from fmm.dtypes import DTYPES
from fmm.hardware.datasheets import device as datasheet_row
from fmm.hardware.links import Network, link, network_of
from fmm.runtime.devices import gpu_from_description

__all__ = ["SharedDecision", "explain", "matmul", "plan"]


def matmul(
    a: Any,
    b: Any,
    /,
    *,
    plan: str | None = None,
    placements: Any = None,
    max_error_growth: float | None = None,
    mesh: Any = None,
    operand_placements: Any = None,
    sizes: Sequence[int] | None = None,
) -> Any:
    """The product of two matrices that are sharded over a mesh of processes (torch's DTensors), by all of them.

    Which process computes which block of C, and in how many pieces panels of A and B are sent for, is chosen by the
    predicted time; each process multiplies by fmm.matmul. All processes of the mesh call it alike.

    plan
        A level above: "winograd" or any other scheme makes seven shared products of blocks for eight, "vendor" none.
        Chosen unless given.
    placements
        How the result is to be sharded; unless given, as it was computed, and evenly by rows what had to be added up.
    max_error_growth
        As fmm.matmul has it, for all levels together.

    Products that are no such matrices are torch.matmul's.

    With these, a and b are the parts that this process holds of two matrices, NumPy's or CuPy's arrays, and so is what
    comes back of the product:

    mesh
        The processes that hold the parts: torch's DeviceMesh, or a group of torch.distributed.
    operand_placements
        How A is cut, and how B is, two lists of torch's Shard, Replicate and Partial. Unless given, both are cut by
        rows, on a mesh of two dimensions in blocks; so is the product, unless `placements` says otherwise.
    sizes
        m, k and n of the whole product, where the parts are not all of one size; they are cut as torch.chunk cuts.
    """
    module, asked = _who_answers(a, b, (plan, placements, max_error_growth), (mesh, operand_placements, sizes))
    return module.matmul(*asked)


def explain(
    a: Any,
    b: Any,
    /,
    *,
    plan: str | None = None,
    max_error_growth: float | None = None,
    mesh: Any = None,
    operand_placements: Any = None,
    sizes: Sequence[int] | None = None,
) -> SharedDecision:
    """How `matmul` would share the product, and why. Nothing is sent: each process can ask alone."""
    module, asked = _who_answers(a, b, (plan, None, max_error_growth), (mesh, operand_placements, sizes))
    found: SharedDecision = module.explained(*asked)
    return found


def _who_answers(a: Any, b: Any, wanted: tuple[Any, ...], laid: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The module for two arrays of which it is told how they are cut, or else for sharded tensors; and what it is
    asked."""
    from fmm.distributed import array_parts, sharded_tensors

    constraints, layout = sharded_tensors.SharingOptions(*wanted), array_parts.ArrayLayout(*laid)
    if array_parts.are_told_of(a, b, layout):
        return array_parts, (a, b, layout, constraints)
    return sharded_tensors, (a, b, constraints)


def plan(
    m: int,
    k: int,
    n: int,
    *,
    mesh: int | Sequence[int],
    dtype: str = "float32",
    device: str = "H200",
    together: int = 8,
    links: tuple[str, str] | None = None,
    plan: str | None = None,
    max_error_growth: float | None = None,
) -> SharedDecision:
    """How so many GPUs of a kind would share an m x k by k x n product, on paper.

    mesh
        Their number, or the sides of a mesh, whose first dimension cuts rows of A and B and whose second one columns.
    device, together, links
        A name of fmm.hardware.datasheets; how many are in one machine; names of fmm.hardware.links, inside a machine
        and between machines (what such devices usually have, unless given).
    """
    sides = (mesh,) if isinstance(mesh, int) else tuple(mesh)
    if not 1 <= len(sides) <= 2 or min(sides) < 1 or min(m, k, n) < 1:
        raise ValueError(f"a product of positive sizes on a mesh of one or two dimensions, not {(m, k, n)} on {sides}")
    row = datasheet_row(device)
    network = network_of(row.capability, together)
    if links is not None:
        network = Network(link(links[0]), link(links[1]), together)
    gpu = gpu_from_description(f"NVIDIA {row.name}", row.capability, row.sms)
    cuts = tuple(range(len(sides)))
    layout = Layout(m, k, n, sides, cuts, cuts, cuts)
    own = sum(layout.holdings[operand].box(0).size for operand in layout.holdings)
    room = row.memory_gb * 1e9 - (own + m * n / layout.ranks) * DTYPES[dtype].itemsize
    asked = ShardingQuery(max(room, 0.0), max_error_growth, None if plan is None else level_above(plan))
    return decide_sharing(layout, dtype, gpu, network, asked)

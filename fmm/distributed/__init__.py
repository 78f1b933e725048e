"""Multiply matrices on several devices together; the operands are torch's DTensors, or local parts as arrays.

The function `plan` predicts how devices would share a product, and how many seconds the product would take. `plan`
needs neither torch nor devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fmm.arrays.detect import type_name
from fmm.distributed.decide_sharing import ShardingQuery, SharedDecision, decide_sharing
from fmm.distributed.layout import MeshLayout
from fmm.distributed.quadrants import parse_outer_level
from fmm.dtypes import DTYPES
from fmm.hardware.datasheets import datasheet_of as datasheet_row
from fmm.hardware.links import Network, default_network, link_by_name
from fmm.kernels.plans.plan import Plan
from fmm.request import check_error_growth, check_side
from fmm.runtime.devices import gpu_from_description

__all__ = ["SharedDecision", "explain", "matmul", "plan"]


def matmul(
    a: Any,
    b: Any,
    /,
    *,
    plan: Plan | str | None = None,
    placements: Any = None,
    max_error_growth: float | None = None,
    mesh: Any = None,
    operand_placements: Any = None,
    sizes: Sequence[int] | None = None,
) -> Any:
    """Multiply two matrices that are sharded over a mesh of processes; all processes must make the same call.

    The layout with the smallest predicted time is chosen. The layout defines the submatrix of C that each process
    computes, and the number of steps in which processes exchange panels. Each process multiplies its panels with
    fmm.matmul.

    Parameters
    ----------
    a, b : DTensor, numpy.ndarray or cupy.ndarray
        Two DTensors on one mesh; if `mesh` is passed, this process's parts of the two matrices as arrays. For all other
        tensors (other numbers of axes or types, different meshes), torch.matmul computes the product.
    plan : str or Plan, optional
        The outer level: its products are shared products of submatrices. A scheme such as "winograd" replaces eight
        shared products of submatrices with seven; "vendor" selects no level. By default the candidate with the smallest
        predicted time is chosen.
    placements : sequence of torch.distributed.tensor placements, optional
        The placements of the result, Shard or Replicate. By default, the result keeps the placements in which the
        processes compute it, except that Partial becomes row shards.
    max_error_growth : float, optional
        Limit of the error growth of all levels together, as in fmm.matmul.
    mesh : DeviceMesh or ProcessGroup, optional
        The processes that hold the parts of A and B. Required for arrays.
    operand_placements : sequence of two sequences of placements, optional
        For arrays, the placements of A and the placements of B: Shard, Replicate or Partial. By default, A, B and the
        result are cut into rows; on a two-dimensional mesh, into rows and columns.
    sizes : sequence of three int, optional
        The whole product's m, k and n, needed if array parts have different sizes. The parts must have the sizes that
        torch.chunk gives.

    Returns
    -------
    DTensor, numpy.ndarray or cupy.ndarray
        The sharded product; for arrays, this process's part of the product.

    Raises
    ------
    ValueError
        If the processes make different calls, or a placement or a size is not valid.
    PlanError
        If the plan's levels cannot enclose shared products, or A and B are not cut as the levels require.
    fmm.distributed.exchange.LostProcessError
        If a process of the mesh has ended or does not answer.

    Notes
    -----
    Gradients of DTensors are shared products too. A result with inf or NaN is computed again without the outer level.
    """
    module, arguments = _module_and_arguments(
        a, b, (plan, placements, max_error_growth), (mesh, operand_placements, sizes)
    )
    return module.matmul(*arguments)


def explain(
    a: Any,
    b: Any,
    /,
    *,
    plan: Plan | str | None = None,
    max_error_growth: float | None = None,
    mesh: Any = None,
    operand_placements: Any = None,
    sizes: Sequence[int] | None = None,
) -> SharedDecision:
    """Return the decision on how `matmul` would share the product; str(decision) explains the choice.

    `explain` sends no messages, so a single process may call `explain`.

    Parameters
    ----------
    a, b, plan, max_error_growth, mesh, operand_placements, sizes
        The arguments of `matmul` with these names.

    Returns
    -------
    SharedDecision
        The chosen sharing and all candidates.
    """
    module, arguments = _module_and_arguments(a, b, (plan, None, max_error_growth), (mesh, operand_placements, sizes))
    decision: SharedDecision = module.explain(*arguments)
    return decision


def _module_and_arguments(
    a: Any, b: Any, constraints: tuple[Any, ...], part_layout: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """Return the module that computes the product (array parts or sharded tensors), and its arguments."""
    from fmm.distributed import array_parts, sharded_tensors

    sharing, layout = sharded_tensors.SharingOptions(*constraints), array_parts.PartLayout(*part_layout)
    if array_parts.are_array_parts(a, b, layout):
        return array_parts, (a, b, layout, sharing)
    return sharded_tensors, (a, b, sharing)


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
    plan: Plan | str | None = None,
    max_error_growth: float | None = None,
) -> SharedDecision:
    """Predict how equal GPUs would share an m x k by k x n product.

    Parameters
    ----------
    m, k, n : int
        The sizes of the product.
    mesh : int or sequence of int
        The number of GPUs, or the sides of a mesh. The mesh's first dimension cuts the rows of A and B, its second
        dimension the columns.
    dtype : str
        The type of the entries.
    device : str
        The name of a device in fmm.hardware.datasheets.
    together : int
        The number of GPUs in one machine.
    links : (str, str), optional
        The names in fmm.hardware.links of the links inside a machine and between machines. The default is the usual
        links of the device.
    plan, max_error_growth
        The arguments of `matmul` with these names.

    Returns
    -------
    SharedDecision
        The chosen sharing and the candidates, with their predicted seconds.

    Examples
    --------
    >>> import fmm.distributed
    >>> decision = fmm.distributed.plan(16384, 16384, 16384, mesh=2, dtype="float64")
    >>> 1.5 < decision.speedup < 2.1
    True
    """
    m, k, n = check_side("m", m), check_side("k", k), check_side("n", n)
    sides = tuple(check_side("a side of the mesh", x) for x in (mesh if isinstance(mesh, Sequence) else (mesh,)))
    if not 1 <= len(sides) <= 2 or min(sides) < 1 or min(m, k, n) < 1:
        raise ValueError(f"a product of positive sizes on a mesh of one or two dimensions, not {(m, k, n)} on {sides}")
    dtype = type_name(dtype)
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; valid: {', '.join(DTYPES)}")
    growth = None if max_error_growth is None else check_error_growth(max_error_growth)
    row = datasheet_row(device)
    network = default_network(row.capability, together)
    if links is not None:
        network = Network(link_by_name(links[0]), link_by_name(links[1]), together)
    gpu = gpu_from_description(f"NVIDIA {row.name}", row.capability, row.sms)
    cuts = tuple(range(len(sides)))
    layout = MeshLayout(m, k, n, sides, cuts, cuts, cuts)
    operands = sum(holdings.block_of_rank(0).size for holdings in layout.blocks_held.values())
    memory_limit = row.memory_gb * 1e9 - (operands + m * n / layout.process_count) * DTYPES[dtype].itemsize
    query = ShardingQuery(max(memory_limit, 0.0), growth, None if plan is None else parse_outer_level(plan))
    return decide_sharing(layout, dtype, gpu, network, query)

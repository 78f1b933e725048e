"""Products of torch's DTensors, computed by all processes of their mesh: fmm.distributed.matmul.

At the first call with new arguments, the mesh's first process decides how to share the product, and broadcasts the
decision. Separate decisions of the processes could differ, since their configs or free memory may differ.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fmm.api import gemm
from fmm.api import matmul as local_matmul
from fmm.arrays.torch_calls import TORCH_MATMUL, is_compiling
from fmm.arrays.torch_library import TYPE_NAMES, torch_library_of
from fmm.config.environment import is_componentwise_required, is_disabled, is_emulation_allowed, tuning_mode
from fmm.config.identity import parse_gpu_device_key
from fmm.distributed.decide_sharing import ShardingQuery, SharedDecision, decide_sharing
from fmm.distributed.exchange import (
    MeshProcesses,
    ProductInProgress,
    is_call_cached_everywhere,
    is_finite_everywhere,
    redistribute_result_to_row,
    translate_lost_process_errors,
)
from fmm.distributed.layout import K_AXIS, M_AXIS, N_AXIS, BlocksHeld, CutAxes, MeshLayout, interned_mesh_layout
from fmm.distributed.level_over_blocks import multiply_blocks
from fmm.distributed.quadrants import outer_level_blocks, parse_outer_level
from fmm.dtypes import STORED_TYPES
from fmm.hardware.links import Network, default_network
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.runtime.decisions.limits import count_gpu_processes
from fmm.runtime.devices import Device, get_device, gpu_from_description

NO_LEVEL_MESSAGE = "the plan {plan} is valid only for two matrices of one floating-point type on one mesh"
MAX_CACHED_DECISIONS = 256  # number of cached decisions per mesh
FREE_MEMORY_SHARE = 0.8  # largest share of a device's free memory for panels and blocks of an outer level
# axis of the cube of multiply-adds -> placement of the result along a dimension of the mesh that cuts this axis
RESULT_PLACEMENT_BY_AXIS = {M_AXIS: Shard(0), N_AXIS: Shard(1), K_AXIS: Partial()}


class SharingOptions(NamedTuple):
    """The caller's options of fmm.distributed.matmul."""

    plan: Plan | str | None = None
    placements: Sequence[Any] | None = None
    max_error_growth: float | None = None


class AgreedSharing(NamedTuple):
    """The decision of the mesh's first process: a description of the call, and how the product is shared."""

    description: str
    layout: MeshLayout
    outer_plan: str
    local_error_growth: float  # limit of the error growth of each process's local products
    # Workspace limit of each process's local products in bytes, as assumed by the prediction; None means the default.
    local_workspace: int | None = None


def matmul(a: Any, b: Any, options: SharingOptions) -> Any:
    """Return the shared product of two sharded matrices; torch computes products of all other tensors."""
    if _are_on_one_mesh(a, b):
        sharing = _agree_on_sharing(a, b, options)
        if sharing is not None:
            if any(_needed_gradients(a, b)):
                return SharedProductFunction.apply(a, b, options, sharing)
            return _multiply_and_redistribute(a, b, options, sharing)
    elif _outer_level_from_options(options) not in (None, VENDOR):
        raise PlanError(NO_LEVEL_MESSAGE.format(plan=options.plan))
    c = TORCH_MATMUL(a, b)
    return c if options.placements is None else c.redistribute(placements=options.placements)


def explain(a: Any, b: Any, options: SharingOptions) -> SharedDecision:
    """Return the decision on how `matmul` would share the product; send no messages to other processes."""
    outer_plan = _outer_level_from_options(options)
    if not _can_share_product(a, b):
        raise TypeError("two DTensors must be matrices of the same type on the same mesh")
    return _decide_on_this_process(a, b, outer_plan, options.max_error_growth)


class SharedProductFunction(torch.autograd.Function):  # type: ignore[misc]
    """The shared product as an autograd function; its gradients are shared products, sharded like the operands."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, options: SharingOptions, sharing: AgreedSharing) -> Any:
        ctx.save_for_backward(a, b)
        ctx.options = options
        return _multiply_and_redistribute(a.detach(), b.detach(), options, sharing)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        a, b = ctx.saved_tensors
        (gradient,) = gradients
        plan, _, growth = ctx.options
        need_a, need_b, *_ = ctx.needs_input_grad
        # The gradient of an operand with the placement Partial is replicated, since each process needs all of it.
        options_a, options_b = (
            SharingOptions(plan, replace_partial_placements(Replicate(), x.placements), growth) for x in (a, b)
        )
        gradient_a = matmul(gradient, _adjoint(b), options_a) if need_a else None
        gradient_b = matmul(_adjoint(a), gradient, options_b) if need_b else None
        return gradient_a, gradient_b, None, None


def _adjoint(x: Any) -> Any:
    transposed = x.transpose(0, 1)
    return transposed.conj().resolve_conj() if transposed.is_complex() else transposed


def _outer_level_from_options(options: SharingOptions) -> Plan | None:
    return None if options.plan is None else parse_outer_level(options.plan)


def _are_on_one_mesh(a: Any, b: Any) -> bool:
    """Return True for two sharded tensors on one mesh that includes this process."""
    if is_compiling() or not (isinstance(a, DTensor) and isinstance(b, DTensor)):
        return False
    return bool(a.device_mesh == b.device_mesh and a.device_mesh.get_coordinate() is not None)


def _can_share_product(a: Any, b: Any) -> bool:
    """Return True for non-empty matrices of one type on one mesh, each placed by Shard, Replicate or Partial."""
    if not _are_on_one_mesh(a, b) or (a.dim(), b.dim()) != (2, 2):
        return False
    plain = all(type(place) in (Shard, Replicate, Partial) for place in (*a.placements, *b.placements))
    same_type = a.dtype is b.dtype and TYPE_NAMES.get(a.dtype) in STORED_TYPES
    return bool(plain and same_type and a.shape[1] == b.shape[0] and 0 not in (*a.shape, *b.shape))


def _needed_gradients(a: Any, b: Any) -> tuple[bool, bool]:
    """Return two flags: True if autograd needs the gradient of A, and True if it needs the gradient of B."""
    enabled = torch.is_grad_enabled()
    return bool(enabled and a.requires_grad), bool(enabled and b.requires_grad)


# ---- the product


def _multiply_and_redistribute(a: Any, b: Any, options: SharingOptions, sharing: AgreedSharing) -> Any:
    """Return the product with the placements in `options`; operands with the placement Partial are reduced first."""
    processes = mesh_processes(a.device_mesh)
    with translate_lost_process_errors(processes, "parts of A and B are reduced"):
        a, b = _reduce_partial_operand(a), _reduce_partial_operand(b)
    c = compute_shared_product(sharing, a, b)
    placements = (
        replace_partial_placements(Shard(0), c.placements) if options.placements is None else options.placements
    )
    if tuple(placements) == tuple(c.placements):
        return c
    with translate_lost_process_errors(processes, "the result is redistributed"):
        return c.redistribute(placements=placements)


def compute_shared_product(sharing: AgreedSharing, a: Any, b: Any) -> Any:
    """Return the product as a DTensor with the placements in which the processes compute it."""
    mesh, outer_plan, layout = a.device_mesh, Plan.parse(sharing.outer_plan), interned_mesh_layout(sharing.layout)
    processes, local = mesh_processes(mesh), partial(_multiply_local_panels, sharing)
    with translate_lost_process_errors(processes, "A and B are redistributed"):
        a, b = _local_part(a, layout.a[: mesh.ndim]), _local_part(b, layout.b[: mesh.ndim])

    def start_product(block: MeshLayout, left: Any, right: Any) -> ProductInProgress:
        return ProductInProgress(processes, interned_mesh_layout(block), left, right)

    def finish_product(product: ProductInProgress) -> Any:
        return product.finish_product(local)

    # autocast is off, so that the product is computed in the operands' type
    with torch.no_grad(), torch.autocast(mesh.device_type, enabled=False):
        c = None
        if outer_plan != VENDOR:
            c = multiply_blocks(
                outer_level_blocks(layout, outer_plan), outer_plan, processes.place, a, b, start_product, finish_product
            )
            # inf and NaN may come from sums of blocks, so C is then computed again without the outer level
            c = c if is_finite_everywhere(c, processes) else None
        if c is None:
            c = finish_product(start_product(layout, a, b))
        # a one-dimensional mesh has computed two-dimensional blocks of C
        if len(layout.mesh) > mesh.ndim:
            c = redistribute_result_to_row(c, layout, processes)
    placements = [RESULT_PLACEMENT_BY_AXIS[axis] for axis in layout.work[: mesh.ndim] if axis is not None]
    shape = torch.Size((layout.m, layout.n))
    return DTensor.from_local(c, mesh, placements, run_check=False, shape=shape, stride=(layout.n, 1))


def _multiply_local_panels(sharing: AgreedSharing, left: Any, right: Any, c: Any, adds: bool) -> None:
    """Multiply panels on this device, with the limits on error and workspace that the prediction assumed."""
    growth, workspace = sharing.local_error_growth, sharing.local_workspace
    if adds:
        gemm(left, right, c, beta=1, out=c, max_error_growth=growth, workspace=workspace)
    else:
        local_matmul(left, right, out=c, max_error_growth=growth, workspace=workspace)


def _reduce_partial_operand(x: Any) -> Any:
    """Return x, after a reduction if a placement of x is Partial."""
    if any(type(place) is Partial for place in x.placements):
        return x.redistribute(placements=replace_partial_placements(Shard(0), x.placements))
    return x


def _local_part(x: Any, cuts: CutAxes) -> Any:
    """Return this process's part of x; if the mesh does not cut x as in `cuts`, redistribute x first."""
    if cuts != cut_axes_of_placements(x):
        x = x.redistribute(placements=[Replicate() if cut is None else Shard(cut) for cut in cuts])
    local = x.detach().to_local()
    return local.wait() if hasattr(local, "wait") else local


# ---- placements

OPERAND_PLACEMENT_TYPES = Shard, Replicate, Partial
RESULT_PLACEMENT_TYPES = Shard, Replicate  # torch cannot redistribute a tensor to Partial


def invalid_placements_error(mesh: Any, matrix: str, placements: Any, kinds: tuple[type, ...]) -> ValueError | None:
    """Return a ValueError if the placements of a matrix are not valid, else None."""
    sequence = placements if isinstance(placements, Sequence) else ()
    valid = all(type(place) in kinds and getattr(place, "dim", 0) in (-2, -1, 0, 1) for place in sequence)
    if len(sequence) == mesh.ndim and valid:
        return None
    names = ", ".join("Shard(0), Shard(1)" if kind is Shard else f"{kind.__name__}()" for kind in kinds)
    expected = f"a list with one of {names} for each of the mesh's dimensions ({mesh.ndim})"
    return ValueError(f"the placements of {matrix} must be {expected}, not {placements}")


def checked_placements(mesh: Any, matrix: str, placements: Any, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """Return the placements of a matrix as a tuple; raise ValueError if they are not valid.

    By default a one-dimensional mesh cuts the rows, and a two-dimensional mesh cuts rows and columns.
    """
    if placements is None:
        if mesh.ndim > 2:
            raise ValueError(f"a mesh of {mesh.ndim} dimensions has no default cuts of {matrix}: pass its placements")
        return (Shard(0), Shard(1))[: mesh.ndim]
    if (error := invalid_placements_error(mesh, matrix, placements, kinds)) is not None:
        raise error
    return tuple(placements)


def cut_axes_of_placements(x: Any) -> CutAxes:
    """Return the axis of x that each dimension of the mesh cuts.

    For the placement Partial the axis is 0, since x is summed before the product, and each process gets some rows of
    the sum.
    """

    def cut_axis(place: Any) -> int | None:
        if type(place) is Shard:
            return int(place.dim) % 2
        return 0 if type(place) is Partial else None

    return tuple(cut_axis(place) for place in x.placements)


def replace_partial_placements(replacement: Any, placements: Sequence[Any]) -> list[Any]:
    """Return the placements, with each Partial replaced by `replacement`."""
    return [replacement if type(place) is Partial else place for place in placements]


# ---- agreement on a sharing

_processes_by_mesh: dict[Any, tuple[Any, MeshProcesses]] = {}
_sharings_by_mesh: dict[Any, dict[str, AgreedSharing | None]] = {}
# How many groups `_create_process_group` has created, for each default group of torch and each tuple of global ranks.
_created_groups: dict[tuple[Any, tuple[int, ...]], int] = {}
FIRST_GROUP_NUMBER = 1 << 40  # torch's own counter of process groups stays below this number


def mesh_processes(mesh: Any) -> MeshProcesses:
    """Return the processes of a mesh, in row-major order."""
    world, processes = _processes_by_mesh.get(mesh, (None, None))
    own_group = mesh.get_group() if mesh.ndim == 1 else None
    # The cached processes are not valid if torch's default group was destroyed and created again, or if the mesh is
    # equal to the cached mesh but has another group.
    if processes is None or world is not dist.group.WORLD or own_group not in (None, processes.group):
        numbers = tuple(mesh.mesh.flatten().tolist())
        if own_group is not None:
            group = own_group
        elif len(numbers) == dist.get_world_size():
            group = dist.group.WORLD
        elif mesh.device_type == "cuda":  # processes outside the group may have to take part in creating an NCCL group
            group = mesh._flatten().get_group()
        else:
            group = _create_process_group(numbers, mesh.device_type)
        processes = MeshProcesses(group, numbers, numbers.index(dist.get_rank()))
        _processes_by_mesh[mesh] = dist.group.WORLD, processes
        _sharings_by_mesh.pop(mesh, None)
    return processes


def _create_process_group(numbers: tuple[int, ...], kind: str) -> Any:
    """Create a process group of these global ranks, with the time-out of torch's default group.

    Only these processes call this function. torch names the groups that all processes create by a counter of its own,
    which must be equal in all processes; newer versions of torch count this group too. So the counter is restored. For
    this group, the counter has a number that torch itself does not reach: torch derives the name from the number.
    """
    backend, world = dist.group.WORLD._get_backend(torch.device(kind)), dist.distributed_c10d._world
    counter, created = world.group_count, _created_groups.get((dist.group.WORLD, numbers), 0)
    _created_groups[dist.group.WORLD, numbers] = created + 1
    world.group_count = FIRST_GROUP_NUMBER + created
    try:
        return dist.new_group(list(numbers), timeout=backend.options._timeout, use_local_synchronization=True)
    finally:
        world.group_count = counter


def _agree_on_sharing(a: Any, b: Any, options: SharingOptions) -> AgreedSharing | None:
    """Return the decision for a call, from the cache or from the mesh's first process; None if torch must multiply.

    With gloo, all processes compare their calls each time. With NCCL, the processes compare only calls that are not
    cached, since a comparison makes the host wait for its GPU.
    """
    description, error = _describe_shared_call(a, b, options)
    processes = mesh_processes(a.device_mesh)
    cache = _sharings_by_mesh.setdefault(a.device_mesh, {})
    on_gpu = a.device_mesh.device_type == "cuda"
    if on_gpu and description in cache:
        return cache[description]
    device = torch.device("cuda", a.to_local().get_device()) if on_gpu else None
    cached_everywhere = is_call_cached_everywhere(processes, description, description in cache, device)
    if error is not None:
        raise error
    if not cached_everywhere:
        if len(cache) >= MAX_CACHED_DECISIONS:
            cache.clear()
        shared = _can_share_product(a, b)
        cache[description] = _broadcast_decision(description, a, b, options, processes, device) if shared else None
    return cache[description]


def _describe_shared_call(a: Any, b: Any, options: SharingOptions) -> tuple[str, Exception | None]:
    """Return the description of this process's call, and the error if the call is not valid."""
    shapes = " times ".join(f"{tuple(x.shape)} of {x.dtype} as {tuple(x.placements)}" for x in (a, b))
    placements = tuple(options.placements) if isinstance(options.placements, Sequence) else options.placements
    call = f"{shapes}, plan {options.plan}, placements {placements}, error growth {options.max_error_growth}"
    switches = is_disabled(), is_emulation_allowed(), is_componentwise_required()
    settings = f"gradients {_needed_gradients(a, b)}, {tuning_mode()} {switches}"
    error = _invalid_call_error(a, b, options)
    return f"{call}, {settings}" + (f" ({error})" if error else ""), error


def _invalid_call_error(a: Any, b: Any, options: SharingOptions) -> Exception | None:
    """Return an exception if the call is not valid, else None."""
    try:
        outer_plan = _outer_level_from_options(options)
    except PlanError as error:
        return error
    if not _can_share_product(a, b):
        return PlanError(NO_LEVEL_MESSAGE.format(plan=options.plan)) if outer_plan not in (None, VENDOR) else None
    if options.placements is not None:
        invalid = invalid_placements_error(a.device_mesh, "the product", options.placements, RESULT_PLACEMENT_TYPES)
        if invalid is not None:
            return invalid
    place, shape = mesh_processes(a.device_mesh).place, tuple(a.device_mesh.mesh.shape)
    for name, x in (("A", a), ("B", b)):
        cuts = tuple(int(p.dim) if type(p) is Shard else None for p in x.placements)
        box, local = BlocksHeld(tuple(x.shape), shape, cuts).block_of_rank(place), tuple(x.to_local().shape)
        expected = box.rows.size, box.cols.size
        if local != expected and not (0 in local and 0 in expected):
            return ValueError(f"this process has {local} of {name}, where torch.chunk would have {expected}")
    return None


def _broadcast_decision(
    description: str, a: Any, b: Any, options: SharingOptions, processes: MeshProcesses, device: Any
) -> AgreedSharing:
    """Return the decision of the mesh's first process, or raise that process's error on all processes."""
    message: list[Any] = [None]
    if processes.place == 0:
        try:
            decision = _decide_on_this_process(a, b, _outer_level_from_options(options), options.max_error_growth)
            best, limits = decision.best, (decision.local_error_growth, decision.local_workspace)
            message[0] = AgreedSharing(description, best.layout, str(best.outer_plan), *limits)
        except Exception as error:
            message[0] = error
    with translate_lost_process_errors(processes, "how to share the product"):
        dist.broadcast_object_list(message, processes.numbers[0], processes.group, device)
    if isinstance(message[0], Exception):
        raise message[0]
    sharing: AgreedSharing = message[0]
    return sharing


def _decide_on_this_process(a: Any, b: Any, outer_plan: Plan | None, max_error_growth: float | None) -> SharedDecision:
    """Return the decision that this process makes from its own device and free memory."""
    mesh, device = a.device_mesh, _local_device(a)
    (m, k), n = a.shape, b.shape[1]
    layout = MeshLayout(
        m, k, n, tuple(mesh.mesh.shape), cut_axes_of_placements(a), cut_axes_of_placements(b), (M_AXIS,) * mesh.ndim
    )
    local = a.to_local()
    library = torch_library_of(local)
    result_bytes = layout.m * layout.n / layout.process_count * local.element_size()
    number = library.device_number(local)
    processes = count_gpu_processes(number) if library.processor == "cuda" else 1
    free_bytes = max(library.free_bytes(number) / processes - result_bytes, 0.0)
    query = ShardingQuery(free_bytes * FREE_MEMORY_SHARE, max_error_growth, outer_plan, free_bytes)
    return decide_sharing(layout, TYPE_NAMES[a.dtype], device, _mesh_network(mesh, device), query)


def _local_device(x: Any) -> Device:
    local = x.to_local()
    library = torch_library_of(local)
    try:
        return get_device(library.processor, library.device_number(local))
    except ImportError:  # without CuPy, the product is shared, and torch multiplies the panels
        properties = torch.cuda.get_device_properties(local.get_device())
        capability = f"{properties.major}.{properties.minor}"
        return gpu_from_description(properties.name, capability, properties.multi_processor_count)


def _mesh_network(mesh: Any, device: Device) -> Network:
    """Return the default network of the mesh's devices.

    The environment variable LOCAL_WORLD_SIZE has the number of processes on this host.
    """
    parts = parse_gpu_device_key(device.identity.key)
    capability = parts[0] if parts else "cpu"
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "0") or 0) or mesh.size()
    return default_network(capability, together)

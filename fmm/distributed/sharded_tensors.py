"""Products of torch's DTensors, by all processes of their mesh: fmm.distributed.matmul.

How a product is shared, the first process of the mesh decides at the first product like it, and tells the others: what
they would decide could differ, by their configs or free memory.
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
from fmm.api import matmul as local_product
from fmm.arrays.torch_calls import MATMUL, is_compiling
from fmm.arrays.torch_library import NAMES, torch_library_of
from fmm.config.environment import is_disabled, is_emulation_allowed, tuning_mode
from fmm.config.identity import gpu_parts
from fmm.distributed.decide_sharing import ShardingQuery, SharedDecision, decide_sharing, sharing_error_growth
from fmm.distributed.exchange import (
    Processes,
    ProductInProgress,
    all_have_cached,
    is_finite_everywhere,
    redistribute_to_row,
    reports_loss,
)
from fmm.distributed.layout import Cuts, Holdings, K, Layout, M, N, interned_layout
from fmm.distributed.level_over_blocks import multiply_blocks
from fmm.distributed.quadrants import level_above, quadrants
from fmm.dtypes import STORED
from fmm.hardware.links import Network, network_of
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.runtime.devices import Device, get_device, gpu_from_description

NO_LEVEL = "the plan {plan} is one for two matrices of one floating-point type on one mesh"
KEPT = 256  # decisions for each mesh
ROOM = 0.8  # of the free memory that panels and blocks may take
PLACED = {M: Shard(0), N: Shard(1), K: Partial()}


class Wanted(NamedTuple):
    """What the caller asks besides the product."""

    plan: str | None = None
    placements: Sequence[Any] | None = None
    error_growth: float | None = None


class Way(NamedTuple):
    """What the first process tells the others: which product it is, and how it is shared."""

    question: str
    layout: Layout
    above: str
    rest: float  # of the error's growth, for each process's own products


def matmul(a: Any, b: Any, wanted: Wanted) -> Any:
    """The product of two sharded matrices; torch's own for everything else."""
    if _on_one_mesh(a, b):
        way = _agreed(a, b, wanted)
        if way is not None:
            if any(_gradients_of(a, b)):
                return SharedProduct.apply(a, b, wanted, way)
            return _product(a, b, wanted, way)
    elif _above(wanted) not in (None, VENDOR):
        raise PlanError(NO_LEVEL.format(plan=wanted.plan))
    found = MATMUL(a, b)
    return found if wanted.placements is None else found.redistribute(placements=wanted.placements)


def explained(a: Any, b: Any, wanted: Wanted) -> SharedDecision:
    """How it would be shared, as far as this process can tell."""
    above = _above(wanted)
    if not _ours(a, b):
        raise TypeError("fmm.distributed shares products of two DTensors, matrices of one type on one mesh")
    return _decided(a, b, above, wanted.error_growth)


class SharedProduct(torch.autograd.Function):  # type: ignore[misc]
    """The product as autograd knows it; its gradients are shared products too, sharded as the operands are."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, wanted: Wanted, way: Way) -> Any:
        ctx.save_for_backward(a, b)
        ctx.wanted = wanted
        return _product(a.detach(), b.detach(), wanted, way)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        a, b = ctx.saved_tensors
        (gradient,) = gradients
        plan, _, growth = ctx.wanted
        need_a, need_b, *_ = ctx.needs_input_grad
        of_a = matmul(gradient, _adjoint(b), Wanted(plan, _like(a), growth)) if need_a else None
        of_b = matmul(_adjoint(a), gradient, Wanted(plan, _like(b), growth)) if need_b else None
        return of_a, of_b, None, None


def _like(x: Any) -> list[Any]:
    """Where the gradient of an operand is: as the operand; of parts that are added up, each has the whole gradient."""
    return added_up_as(Replicate(), x.placements)


def _adjoint(x: Any) -> Any:
    turned = x.transpose(0, 1)
    return turned.conj().resolve_conj() if turned.is_complex() else turned


def _above(wanted: Wanted) -> Plan | None:
    return None if wanted.plan is None else level_above(wanted.plan)


def _on_one_mesh(a: Any, b: Any) -> bool:
    """Two sharded tensors, over one mesh of processes of which this is one? Then all of these are here."""
    if is_compiling() or not (isinstance(a, DTensor) and isinstance(b, DTensor)):
        return False
    return bool(a.device_mesh == b.device_mesh and a.device_mesh.get_coordinate() is not None)


def _ours(a: Any, b: Any) -> bool:
    """Two matrices of one type, sharded plainly over one mesh, of which this process is a part?"""
    if not _on_one_mesh(a, b) or (a.dim(), b.dim()) != (2, 2):
        return False
    plain = all(type(place) in (Shard, Replicate, Partial) for place in (*a.placements, *b.placements))
    alike = a.dtype is b.dtype and NAMES.get(a.dtype) in STORED
    return bool(plain and alike and a.shape[1] == b.shape[0] and 0 not in (*a.shape, *b.shape))


def _gradients_of(a: Any, b: Any) -> tuple[bool, bool]:
    """Are those of A wanted, and those of B?"""
    wanted = torch.is_grad_enabled()
    return bool(wanted and a.requires_grad), bool(wanted and b.requires_grad)


# ---- the product


def _product(a: Any, b: Any, wanted: Wanted, way: Way) -> Any:
    processes = processes_of(a.device_mesh)
    with reports_loss(processes, "parts of A and B are added up"):
        a, b = _added_up(a), _added_up(b)
    found = product_by(way, a, b)
    return _placed(found, wanted.placements, processes)


def product_by(way: Way, a: Any, b: Any) -> Any:
    """The product, shared in this way, and placed as it comes."""
    mesh, above, layout = a.device_mesh, Plan.parse(way.above), interned_layout(way.layout)
    processes, local = processes_of(mesh), partial(_multiplied, way.rest)
    with reports_loss(processes, "A and B are brought to their places"):
        a, b = _held(a, layout.a[: mesh.ndim]), _held(b, layout.b[: mesh.ndim])

    def begin(block: Layout, left: Any, right: Any) -> ProductInProgress:
        return ProductInProgress(processes, interned_layout(block), left, right)

    def finish(begun: ProductInProgress) -> Any:
        return begun.finish(local)

    with torch.no_grad(), torch.autocast(mesh.device_type, enabled=False):  # in the type that the operands have
        c = None
        if above != VENDOR:
            c = multiply_blocks(quadrants(layout, above), above, processes.place, a, b, begin, finish)
            c = c if is_finite_everywhere(c, processes) else None  # sums of blocks moved inf or NaN, or overflowed
        if c is None:
            c = finish(begin(layout, a, b))
        if len(layout.mesh) > mesh.ndim:  # its processes multiplied as a rectangle
            c = redistribute_to_row(c, layout, processes)
    placed = [PLACED[axis] for axis in layout.work[: mesh.ndim] if axis is not None]
    shape = torch.Size((layout.m, layout.n))
    return DTensor.from_local(c, mesh, placed, run_check=False, shape=shape, stride=(layout.n, 1))


def _multiplied(growth: float, left: Any, right: Any, c: Any, added: bool) -> None:
    """One process's product of panels, by fmm on its own device."""
    if added:
        gemm(left, right, c, beta=1, out=c, max_error_growth=growth)
    else:
        local_product(left, right, out=c, max_error_growth=growth)


def _added_up(x: Any) -> Any:
    """Without parts that are still to be added up."""
    if any(type(place) is Partial for place in x.placements):
        return x.redistribute(placements=added_up_as(Shard(0), x.placements))
    return x


def _held(x: Any, cuts: Cuts) -> Any:
    """What this process holds of a matrix that is cut so."""
    if cuts != cuts_of(x):
        x = x.redistribute(placements=[Replicate() if cut is None else Shard(cut) for cut in cuts])
    local = x.detach().to_local()
    return local.wait() if hasattr(local, "wait") else local


def _placed(found: Any, placements: Sequence[Any] | None, processes: Processes) -> Any:
    if placements is None:
        placements = added_up_as(Shard(0), found.placements)
    if tuple(placements) == tuple(found.placements):
        return found
    with reports_loss(processes, "the result is brought to its places"):
        return found.redistribute(placements=placements)


# ---- agreeing on a way

_groups: dict[Any, tuple[Any, Processes]] = {}
_ways: dict[Any, dict[str, Way | None]] = {}


def processes_of(mesh: Any) -> Processes:
    """Those of a mesh, counted row by row."""
    world, found = _groups.get(mesh, (None, None))
    if found is None or world is not dist.group.WORLD:  # an equal mesh may be one of groups that were ended since
        numbers = tuple(mesh.mesh.flatten().tolist())
        if mesh.ndim == 1:
            group = mesh.get_group()
        elif len(numbers) == dist.get_world_size():
            group = dist.group.WORLD
        elif mesh.device_type == "cuda":  # NCCL may want those that are not in a group to help to make it
            group = mesh._flatten().get_group()
        else:
            group = _own_group(numbers, mesh.device_type)
        found = Processes(group, numbers, numbers.index(dist.get_rank()))
        _groups[mesh] = dist.group.WORLD, found
        _ways.pop(mesh, None)
    return found


def _own_group(numbers: tuple[int, ...], kind: str) -> Any:
    """Of processes that are not all there are; with the time-out of the group of all."""
    backend = dist.group.WORLD._get_backend(torch.device(kind))
    return dist.new_group(list(numbers), timeout=backend.options._timeout, use_local_synchronization=True)


def _agreed(a: Any, b: Any, wanted: Wanted) -> Way | None:
    """As the first process decided at the first product like this one; None for torch's own products.

    With gloo all processes compare what they ask for each time; with NCCL, where that would wait for the device, only
    what is new to all of them.
    """
    question, complaint = _question(a, b, wanted)
    processes = processes_of(a.device_mesh)
    known = _ways.setdefault(a.device_mesh, {})
    on_gpu = a.device_mesh.device_type == "cuda"
    if on_gpu and question in known:
        return known[question]
    device = torch.device("cuda", a.to_local().get_device()) if on_gpu else None
    answered = all_have_cached(processes, question, question in known, device)
    if complaint is not None:
        raise complaint
    if not answered:
        if len(known) >= KEPT:
            known.clear()
        ours = _ours(a, b)
        known[question] = _told_way(question, a, b, wanted, processes, device) if ours else None
    return known[question]


def _question(a: Any, b: Any, wanted: Wanted) -> tuple[str, Exception | None]:
    """What this process asks for, in words; and why that cannot be."""
    shapes = " times ".join(f"{tuple(x.shape)} of {x.dtype} as {tuple(x.placements)}" for x in (a, b))
    placed = tuple(wanted.placements) if isinstance(wanted.placements, Sequence) else wanted.placements
    asked = f"{shapes}, plan {wanted.plan}, placements {placed}, error growth {wanted.error_growth}"
    settings = f"gradients {_gradients_of(a, b)}, {tuning_mode()} {is_disabled()} {is_emulation_allowed()}"
    complaint = _complaint(a, b, wanted)
    return f"{asked}, {settings}" + (f" ({complaint})" if complaint else ""), complaint


def _complaint(a: Any, b: Any, wanted: Wanted) -> Exception | None:
    """Why this process cannot take part."""
    try:
        above = _above(wanted)
    except PlanError as error:
        return error
    if not _ours(a, b):
        return PlanError(NO_LEVEL.format(plan=wanted.plan)) if above not in (None, VENDOR) else None
    if wanted.placements is not None:
        refused = refused_placements(a.device_mesh, "the product", wanted.placements, RESULT)
        if refused is not None:
            return refused
    place, shape = processes_of(a.device_mesh).place, tuple(a.device_mesh.mesh.shape)
    for name, x in (("A", a), ("B", b)):
        cuts = tuple(int(p.dim) if type(p) is Shard else None for p in x.placements)
        box, local = Holdings(tuple(x.shape), shape, cuts).box(place), tuple(x.to_local().shape)
        wanted_shape = box.rows.size, box.cols.size
        if local != wanted_shape and not (0 in local and 0 in wanted_shape):
            return ValueError(f"this process has {local} of {name}, where torch.chunk would have {wanted_shape}")
    return None


def _told_way(question: str, a: Any, b: Any, wanted: Wanted, processes: Processes, device: Any) -> Way:
    """As the first process of the mesh decides, who tells the others."""
    told: list[Any] = [None]
    if processes.place == 0:
        told[0] = _first_answer(question, a, b, wanted)
    with reports_loss(processes, "how to share the product"):
        dist.broadcast_object_list(told, processes.numbers[0], processes.group, device)
    if isinstance(told[0], Exception):
        raise told[0]
    way: Way = told[0]
    return way


def _first_answer(question: str, a: Any, b: Any, wanted: Wanted) -> Way | Exception:
    """What the first process tells: the others wait, so an error is told too."""
    try:
        found = _decided(a, b, _above(wanted), wanted.error_growth)
    except Exception as error:
        return error
    usual = wanted.error_growth if wanted.error_growth is not None else _device(a).error_growth
    rest = usual / sharing_error_growth(found.best, found.dtype)
    return Way(question, found.best.layout, str(found.best.above), rest)


def _decided(a: Any, b: Any, above: Plan | None, growth: float | None) -> SharedDecision:
    """By what this process knows of its device."""
    mesh, device = a.device_mesh, _device(a)
    (m, k), n = a.shape, b.shape[1]
    layout = Layout(m, k, n, tuple(mesh.mesh.shape), cuts_of(a), cuts_of(b), (M,) * mesh.ndim)
    local = a.to_local()
    library = torch_library_of(local)
    room = library.free_bytes(library.device_number(local)) - layout.m * layout.n / layout.ranks * local.element_size()
    asked = ShardingQuery(max(room * ROOM, 0.0), growth, above)
    return decide_sharing(layout, NAMES[a.dtype], device, _network(mesh, device), asked)


def _device(x: Any) -> Device:
    local = x.to_local()
    library = torch_library_of(local)
    try:
        return get_device(library.processor, library.device_number(local))
    except ImportError:  # without CuPy the processes' products are torch's own, and shared all the same
        facts = torch.cuda.get_device_properties(local.get_device())
        return gpu_from_description(facts.name, f"{facts.major}.{facts.minor}", facts.multi_processor_count)


def _network(mesh: Any, device: Device) -> Network:
    """What usually joins such devices; torchrun says how many processes there are on a machine."""
    parts = gpu_parts(device.identity.key)
    capability = parts[0] if parts else "cpu"
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "0") or 0) or mesh.size()
    return network_of(capability, together)


OPERAND = Shard, Replicate, Partial
RESULT = Shard, Replicate  # a sum whose parts are still to be added up is nobody's wish: torch brings none about


def refused_placements(mesh: Any, whose: str, given: Any, kinds: tuple[type, ...]) -> ValueError | None:
    """Why a matrix cannot be placed so; None if it can."""
    found = given if isinstance(given, Sequence) else ()
    fits = all(type(place) in kinds and getattr(place, "dim", 0) in (-2, -1, 0, 1) for place in found)
    if len(found) == mesh.ndim and fits:
        return None
    names = ", ".join("Shard(0), Shard(1)" if kind is Shard else f"{kind.__name__}()" for kind in kinds)
    each = f"a list with one of {names} for each of the mesh's dimensions, of which there are {mesh.ndim}"
    return ValueError(f"the placements of {whose} are to be {each}, not {given}")


def checked_placements(mesh: Any, whose: str, given: Any, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """How a matrix is cut: unless that is given, by rows, or in blocks on a mesh of two dimensions."""
    if given is None:
        if mesh.ndim > 2:
            raise ValueError(f"a mesh of {mesh.ndim} dimensions does not say how {whose} is cut: placements do")
        return (Shard(0), Shard(1))[: mesh.ndim]
    if (refused := refused_placements(mesh, whose, given, kinds)) is not None:
        raise refused
    return tuple(given)


def cuts_of(x: Any) -> Cuts:
    """Which axis each dimension of the mesh cuts; what is to be added up will be cut by rows."""
    return tuple(_cut(place) for place in x.placements)


def _cut(place: Any) -> int | None:
    if type(place) is Shard:
        return int(place.dim) % 2
    return 0 if type(place) is Partial else None


def added_up_as(place: Any, placements: Sequence[Any]) -> list[Any]:
    """The same placements, with this one for each whose parts are still to be added up."""
    return [place if type(given) is Partial else given for given in placements]

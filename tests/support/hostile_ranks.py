"""Wrong use of fmm.distributed by several processes, and odd arguments that torch may pass: cases of
tests/support/sharded_ranks.py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import fmm
import fmm.distributed
from benchmarks import forced_plan
from benchmarks.forced_plan import force_plan
from fmm.distributed import sharded_tensors
from fmm.kernels.plans.plan import PlanError

GROUP_TIMEOUT = timedelta(minutes=4)  # of processes that all multiply: only ends a hang, whatever the machine's load
STUCK_SECONDS = 5  # time-out of a process that waits for a process that does not multiply
# torch before 2.14 has the setter of a group's time-out under a private name
set_group_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout


def draw_tensor(m: int, n: int, dtype: Any = torch.float64, seed: int = 1) -> Any:
    """Return a matrix that is the same on all processes."""
    found = torch.randn(m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return found.to(dtype)


def is_close(found: Any, expected: Any, bound: float = 1e-12) -> None:
    whole = found.full_tensor().to(torch.float64)
    assert float((whole - expected).norm()) <= bound * max(float(expected.norm()), 1e-30), whole


def check_differing_requests(device: str) -> None:
    """Check that requests that differ raise the same error in every process at once, and that the next
    product is right."""
    mesh, second = init_device_mesh(device, (dist.get_world_size(),)), dist.get_rank() == 1
    rows = [Shard(0)]
    single, double = (
        distribute_tensor(draw_tensor(12, 12, kind), mesh, rows) for kind in (torch.float32, torch.float64)
    )
    wide = distribute_tensor(draw_tensor(12, 20), mesh, rows)
    whole = distribute_tensor(draw_tensor(12, 12).long(), mesh, rows)
    wanting = distribute_tensor(draw_tensor(12, 12), mesh, rows).requires_grad_()
    taller = torch.ones(7 if second else 5, 12, dtype=torch.float64)  # not as torch.chunk cuts twelve rows
    shape = torch.Size((12, 12))
    uneven = DTensor.from_local(taller, mesh, rows, run_check=False, shape=shape, stride=(12, 1))
    requested: dict[str, Callable[[], Any]] = {
        "types": lambda: multiplied(single, single) if second else multiplied(double, double),
        "shapes": lambda: multiplied(double, wide) if second else multiplied(double, double),
        "plans": lambda: multiplied(double, double, plan="winograd" if second else "vendor"),
        "places": lambda: multiplied(double, double, placements=[Replicate()] if second else [Shard(1)]),
        "limits": lambda: multiplied(double, double, max_error_growth=3.0 if second else 4.0),
        "gradients": lambda: multiplied(wanting if second else double, double),
        "torch's own": lambda: multiplied(whole, whole) if second else multiplied(double, double),
        "no plan": lambda: multiplied(double, double, plan="no-such-scheme" if second else "vendor"),
        "mixed types": lambda: multiplied(double, single) if second else multiplied(double, double),
        "uneven parts": lambda: multiplied(uneven, double),
    }
    expected = draw_tensor(12, 12) @ draw_tensor(12, 12)
    for cached in (False, True):  # the first time nobody has multiplied yet
        for what, call in requested.items():
            try:
                call()
            except (ValueError, PlanError) as error:
                reported: list[Any] = [None] * dist.get_world_size()
                dist.all_gather_object(reported, str(error))
                assert len(set(reported)) == 1 or what == "uneven parts", reported
                assert "different products" in str(error), error
            else:
                raise AssertionError(f"{what}: no process raised an error")
            is_close(fmm.distributed.matmul(double, double), expected)
        for matrix in (single, double) if not cached else ():
            fmm.distributed.matmul(matrix, matrix)


def multiplied(a: Any, b: Any, **requested: Any) -> Any:
    return fmm.distributed.matmul(a, b, **requested)


def check_refused_requests(device: str) -> None:
    """Check that a wrong request that is the same in all processes raises the error that one process would
    raise."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    x, y = (distribute_tensor(draw_tensor(8, 8, kind), mesh, [Shard(0)]) for kind in (torch.float64, torch.float32))
    wrongs: tuple[tuple[Callable[[], Any], type[Exception]], ...] = (
        (lambda: fmm.distributed.matmul(x, x, plan="no-such-scheme"), PlanError),
        (lambda: fmm.distributed.matmul(x, y, plan="winograd"), PlanError),
        (lambda: fmm.distributed.matmul(x, y), RuntimeError),
        (lambda: fmm.distributed.matmul(x, distribute_tensor(draw_tensor(6, 8), mesh, [Shard(0)])), RuntimeError),
    )
    for wrong, error in wrongs:
        try:
            wrong()
        except error:
            continue
        raise AssertionError(error)
    for places in ([Partial()], [Shard(0), Shard(1)], [], [Shard(2)], Shard(0), "rows", 1):
        try:
            fmm.distributed.matmul(x, x, placements=places)
        except ValueError as reported:
            valid = "placements of the product must be a list with one of Shard(0), Shard(1), Replicate()"
            assert valid in str(reported) and str(places) in str(reported), reported
            continue
        raise AssertionError(places)
    is_close(fmm.distributed.matmul(x, x), draw_tensor(8, 8) @ draw_tensor(8, 8))
    fmm.distributed.matmul(x, x, plan="winograd")
    os.environ["FMM_COMPONENTWISE"] = "1"  # also for a product whose decision is cached
    try:
        fmm.distributed.matmul(x, x, plan="winograd")
    except PlanError as reported:
        assert "as FMM_COMPONENTWISE=1 requires" in str(reported)
    else:
        raise AssertionError("FMM_COMPONENTWISE")
    cached = sharded_tensors._sharings_by_mesh[mesh]
    known = len(cached)
    is_close(fmm.distributed.matmul(x, x), draw_tensor(8, 8) @ draw_tensor(8, 8))
    assert len(cached) == known + 1
    del os.environ["FMM_COMPONENTWISE"]


def check_timeout(device: str) -> None:
    """Check that the first process waits only for the mesh's time-out if the second process does not
    multiply. The second process stays alive until the first process has reported its error, so that only the
    time-out ends the wait. Load cannot fail the test: the processes start, and multiply once, under the
    default time-out of minutes.
    """
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    store = dist.distributed_c10d._get_default_store()
    a = distribute_tensor(draw_tensor(64, 64), mesh, [Shard(0)])
    fmm.distributed.matmul(a, a)
    dist.barrier()
    if dist.get_rank() == 1:
        try:
            store.wait(["reported"], GROUP_TIMEOUT)
        finally:  # the first process holds the store, and may have ended already
            os._exit(0)
    set_group_timeout(timedelta(seconds=STUCK_SECONDS), mesh.get_group())
    began = time.monotonic()
    try:
        fmm.distributed.matmul(a, a)
    except RuntimeError as error:
        taken = time.monotonic() - began
        print(f"{type(error).__name__} after {taken:.1f} s: {error}", flush=True)
        store.set("reported", "")
        os._exit(3 if taken > STUCK_SECONDS / 2 else 4)
    os._exit(0)


def check_submeshes(device: str) -> None:
    """Check meshes of some of the processes, meshes of three dimensions, and slices of a larger mesh."""
    count, rank = dist.get_world_size(), dist.get_rank()
    a, b = draw_tensor(13, 9), draw_tensor(9, 11, seed=2)
    part = DeviceMesh(device, [[0], [count - 1]])  # without names
    row = DeviceMesh(device, [0, count - 1])
    for mesh, places in ((part, [Shard(0), Shard(1)]), (row, [Shard(1)])):
        if rank in (0, count - 1):
            x, y = distribute_tensor(a, mesh, places), distribute_tensor(b, mesh, places)
            for plan in (None, "vendor"):
                is_close(fmm.distributed.matmul(x, y, plan=plan), a @ b)
    dist.barrier()
    if count == 4:
        square = init_device_mesh(device, (2, 2), mesh_dim_names=("down", "across"))
        for name in ("down", "across"):
            x, y = distribute_tensor(a, square[name], [Shard(0)]), distribute_tensor(b, square[name], [Shard(1)])
            is_close(fmm.distributed.matmul(x, y), a @ b)
        solid = init_device_mesh(device, (2, 1, 2))
        x, y = (distribute_tensor(matrix, solid, [Shard(0), Replicate(), Shard(1)]) for matrix in (a, b))
        is_close(fmm.distributed.matmul(x, y), a @ b)
        twice = distribute_tensor(a, square, [Shard(0), Shard(0)])
        is_close(fmm.distributed.matmul(twice, distribute_tensor(b, square, [Replicate(), Shard(1)])), a @ b)


def check_recreated_groups(device: str) -> None:
    """Check that an equal mesh uses the new groups after the process groups were destroyed and created
    again."""
    for _ in range(2):  # a group of the mesh's own, beside torch's default group
        group = dist.new_group(list(range(dist.get_world_size())))
        mesh = DeviceMesh.from_group(group, device)
        x = distribute_tensor(draw_tensor(16, 16), mesh, [Shard(0)])
        is_close(fmm.distributed.matmul(x, x), draw_tensor(16, 16) @ draw_tensor(16, 16))
        assert sharded_tensors.mesh_processes(mesh) is sharded_tensors.mesh_processes(mesh)
        dist.barrier()
        dist.destroy_process_group(group)
    for _ in range(2):
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        x = distribute_tensor(draw_tensor(16, 16), mesh, [Shard(0)])
        is_close(fmm.distributed.matmul(x, x), draw_tensor(16, 16) @ draw_tensor(16, 16))
        dist.barrier()
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
        dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)


def check_odd_parts(device: str) -> None:
    """Check parts in any memory order, with gaps, with one repeated row, empty parts, and partial sums."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    count, rank = dist.get_world_size(), dist.get_rank()
    a, b = draw_tensor(4 * count, 10), draw_tensor(10, 6, seed=2)
    mine = a[4 * rank : 4 * rank + 4]
    y = distribute_tensor(b, mesh, [Shard(1)])
    wide = torch.empty(8, 30, dtype=a.dtype)
    wide[::2, ::3] = mine
    for local in (mine.T.contiguous().T, wide[::2, ::3]):
        x = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
        is_close(fmm.distributed.matmul(x, y), a @ b)
        is_close(fmm.distributed.matmul(y.T, x.T), (a @ b).T)
    row = torch.ones(1, 10, dtype=a.dtype).expand(4, 10)
    same = DTensor.from_local(row, mesh, [Shard(0)], run_check=False)
    is_close(fmm.distributed.matmul(same, y), torch.ones_like(a) @ b)
    few = distribute_tensor(a[:1], mesh, [Shard(0)])  # all but one have nothing
    is_close(fmm.distributed.matmul(few, y), a[:1] @ b)
    for kind, whole in (("sum", count), ("avg", 1), ("max", 1)):
        parts = DTensor.from_local(b, mesh, [Partial(kind)], run_check=False)
        x = distribute_tensor(a, mesh, [Shard(0)])
        is_close(fmm.distributed.matmul(x, parts), a @ b * whole)


def check_all_gradients(device: str) -> None:
    """Check gradients of parts, gradients with requested placements, and second derivatives."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    a, b = draw_tensor(10, 7), draw_tensor(7, 5, seed=2)
    for places in ([Shard(0)], [Shard(1)], [Replicate()]):
        x = distribute_tensor(a, mesh, [Shard(1)]).requires_grad_()
        y = distribute_tensor(b, mesh, [Replicate()]).requires_grad_()
        found = fmm.distributed.matmul(x, y, placements=places, plan="winograd" if places[0] == Shard(0) else None)
        (found * found).sum().backward()
        p, q = a.clone().requires_grad_(), b.clone().requires_grad_()
        (p @ q).square().sum().backward()
        is_close(x.grad, p.grad)
        is_close(y.grad, q.grad)
    x, y = (distribute_tensor(matrix, mesh, [Shard(0)]).requires_grad_() for matrix in (a, b))
    p, q = a.clone().requires_grad_(), b.clone().requires_grad_()
    ours = torch.autograd.grad(fmm.distributed.matmul(x, y).square().sum(), (x, y), create_graph=True)
    theirs = torch.autograd.grad((p @ q).square().sum(), (p, q), create_graph=True)
    sum(g.square().sum() for g in ours).backward()
    sum(g.square().sum() for g in theirs).backward()
    is_close(x.grad, p.grad)
    is_close(y.grad, q.grad)


def check_gradients_of_partial_sums(device: str) -> None:
    """Check gradients of operands that are partial sums: each part has the whole gradient of the sum."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    shares = (dist.get_rank() + 1) * 2 / dist.get_world_size() / (dist.get_world_size() + 1)
    for kind in (torch.float64, torch.complex128):
        a, b = draw_tensor(10, 7).to(kind), draw_tensor(7, 5, seed=2).to(kind)
        weights = draw_tensor(10, 5, seed=3).to(kind) * (1j if kind.is_complex else 1)
        p, q = a.clone().requires_grad_(), b.clone().requires_grad_()
        ((p @ q) * weights).sum().abs().backward()
        whole = distribute_tensor(weights, mesh, [Replicate()])
        for places in (None, [Shard(0)], [Shard(1)], [Replicate()]):
            parts = [(matrix * shares).requires_grad_() for matrix in (a, b)]
            x, y = (DTensor.from_local(part, mesh, [Partial()], run_check=False) for part in parts)
            for operand in (x, y):
                operand.retain_grad()
            (fmm.distributed.matmul(x, y, placements=places) * whole).sum().full_tensor().abs().backward()
            for operand, part, expected in zip((x, y), parts, (p.grad, q.grad), strict=True):
                assert tuple(operand.grad.placements) == (Replicate(),), operand.grad
                for found in (operand.grad.full_tensor(), part.grad):
                    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12), (kind, places, found, expected)


def check_autocast(device: str) -> None:
    """Check that under autocast fmm multiplies in the operands' type, where torch's product would be cast."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    a, b = draw_tensor(40, 30).to(torch.float32), draw_tensor(30, 20, seed=2).to(torch.float32)
    x, y = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(0)])
    force_plan("winograd > vendor")
    with torch.autocast(device, dtype=torch.bfloat16):
        ours = [fmm.distributed.matmul(x, y, plan=plan) for plan in (None, "winograd")]
    assert forced_plan.decided > 0
    with torch.autocast(device, dtype=torch.bfloat16):
        theirs = x @ y
    assert theirs.dtype is torch.bfloat16
    for found in ours:
        assert found.dtype is torch.float32
        is_close(found, a.double() @ b.double(), 1e-5)


def check_equal_explanations(device: str) -> None:
    """Check that every process explains a product in the same words."""
    for shape in ((dist.get_world_size(),), (2, dist.get_world_size() // 2)):
        mesh = init_device_mesh(device, shape)
        x = distribute_tensor(draw_tensor(300, 200, torch.float32), mesh, [Shard(0)] * mesh.ndim)
        y = distribute_tensor(draw_tensor(200, 100, torch.float32), mesh, [Shard(1)] * mesh.ndim)
        reported: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(reported, str(fmm.distributed.explain(x, y)))
        assert len(set(reported)) == 1, reported


def check_inf_and_overflow(device: str) -> None:
    """Check that a product with an outer level has inf and NaN where the product has them, and overflows no
    sooner."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    rows, eye = [Shard(0)], torch.eye(24, dtype=torch.float64)
    one_inf, one_nan, large = (
        draw_tensor(24, 24),
        draw_tensor(24, 24),
        torch.full((24, 24), 1.7e308, dtype=torch.float64),
    )
    one_inf[3, 5], one_nan[20, 1] = torch.inf, torch.nan
    for a in (one_inf, one_nan, large):
        x, y = distribute_tensor(a, mesh, rows), distribute_tensor(eye, mesh, rows)
        found = fmm.distributed.matmul(x, y, plan="winograd").full_tensor()
        torch.testing.assert_close(found, a @ eye, rtol=1e-12, atol=1e-12, equal_nan=True)


GRADIENTS = check_all_gradients, check_gradients_of_partial_sums
HOSTILE = (
    check_differing_requests,
    check_refused_requests,
    check_timeout,
    check_submeshes,
    check_recreated_groups,
    check_odd_parts,
    *GRADIENTS,
    check_autocast,
    check_equal_explanations,
    check_inf_and_overflow,
)

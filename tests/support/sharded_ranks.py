"""The program of each process in a test of fmm.distributed: `torchrun ... tests/support/sharded_ranks.py CASE
DEVICE`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import fmm
import fmm.distributed
from benchmarks import forced_plan
from benchmarks.forced_plan import force_plan
from fmm.distributed import predict_sharing, sharded_tensors
from fmm.distributed.layout import K_AXIS, M_AXIS, N_AXIS, MeshLayout
from fmm.distributed.predict_sharing import layouts_by_step_count, two_dimensional_layouts
from fmm.distributed.sharded_tensors import cut_axes_of_placements
from fmm.integrations.report import begin_report, end_report
from fmm.kernels.plans.plan import PlanError
from fmm.runtime.torch_autograd.operator import MATMUL_OPERATOR
from tests.support.array_ranks import ARRAYS
from tests.support.hostile_ranks import GROUP_TIMEOUT, HOSTILE

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 3e-3}
TOLERANCE[torch.complex64] = 1e-5
PLACES = (Shard(0), Shard(1), Replicate())


def meshes(device: str) -> Iterator[Any]:
    """Return the meshes of all processes: a row, and a rectangle if their number allows one."""
    count = dist.get_world_size()
    yield init_device_mesh(device, (count,))
    if count % 2 == 0 and count > 2:
        yield init_device_mesh(device, (2, count // 2))


def draw_tensor(m: int, n: int, dtype: Any, device: str, seed: int) -> Any:
    """Return a matrix that is the same on all processes."""
    found = torch.randn(m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if dtype.is_complex:
        found = torch.complex(found, found.flip(0))
    return found.to(dtype).to(device)


def check_product(found: Any, a: Any, b: Any, what: str, times: float = 1.0) -> None:
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    expected = a.to(wide) @ b.to(wide)
    error = (found.full_tensor().to(wide) - expected).abs().norm() / max(float(expected.abs().norm()), 1e-30)
    assert found.dtype is a.dtype and tuple(found.shape) == tuple(expected.shape), what
    assert float(error) <= times * TOLERANCE[a.dtype], f"{what}: error {float(error)}"


def check_products(device: str) -> None:
    """Check products with all placements, uneven sizes, outer levels and requested placements of C."""
    sizes = [(24, 20, 28), (7, 9, 5), (dist.get_world_size() - 1, 3, 2), (33, 1, 17)]
    for mesh in meshes(device):
        pairs = list(product(product(PLACES, repeat=mesh.ndim), repeat=2))
        cases = list(product(sizes, ("vendor", "winograd", "strassen^2"), pairs))
        for (m, k, n), plan, places in cases[:: 5 if mesh.ndim == 1 else 31]:
            a, b = draw_tensor(m, k, torch.float64, device, 1), draw_tensor(k, n, torch.float64, device, 2)
            x, y = (distribute_tensor(matrix, mesh, place) for matrix, place in zip((a, b), places, strict=True))
            try:
                found = fmm.distributed.matmul(x, y, plan=plan)
            except PlanError as error:
                assert plan != "vendor" and "inner dimension" in str(error), error
                continue
            check_product(found, a, b, f"{(m, k, n)} {plan} {places} {mesh}")
    check_every_sharing(device)
    check_types(device)
    check_requested_placements(device)


def check_every_sharing(device: str) -> None:
    """Check every way of sharing that could be chosen."""
    for mesh in meshes(device):
        cuts = tuple(range(mesh.ndim))
        start = MeshLayout(21, 17, 26, tuple(mesh.mesh.shape), cuts, cuts, cuts)
        a, b = draw_tensor(21, 17, torch.float64, device, 1), draw_tensor(17, 26, torch.float64, device, 2)
        x, y = (distribute_tensor(matrix, mesh, [Shard(cut) for cut in cuts]) for matrix in (a, b))
        for work in product((M_AXIS, K_AXIS, N_AXIS), repeat=mesh.ndim):
            for number, layout in enumerate(layouts_by_step_count(replace(start, work=work))):
                if mesh.ndim == 1 or number % 4 == 0:
                    way = sharded_tensors.AgreedSharing("", layout, "vendor", 10.0)
                    check_product(sharded_tensors.compute_shared_product(way, x, y), a, b, str(layout))


def check_rectangle(device: str) -> None:
    """Check processes in a row that multiply as a rectangle; the result and its gradients are sharded by
    rows."""
    mesh = next(meshes(device))
    count = mesh.size()
    for dtype, (m, k, n) in product((torch.float64, torch.complex64), ((24, 16, 28), (count, 2 * count, 3 * count))):
        a, b = draw_tensor(m, k, dtype, device, 3), draw_tensor(k, n, dtype, device, 4)
        for places in product(PLACES, repeat=2):
            x, y = (distribute_tensor(matrix, mesh, [place]) for matrix, place in zip((a, b), places, strict=True))
            start = MeshLayout(m, k, n, (count,), cut_axes_of_placements(x), cut_axes_of_placements(y), (M_AXIS,))
            found = [piece for whole in two_dimensional_layouts(start) for piece in layouts_by_step_count(whole)]
            assert len(found) >= 4 and {layout.mesh for layout in found} == {(2, count // 2)}
            for layout in found:
                c = sharded_tensors.compute_shared_product(
                    sharded_tensors.AgreedSharing("", layout, "vendor", 16.0), x, y
                )
                check_product(c, a, b, f"{dtype} {places} {layout}")
                assert c.placements == ((Shard(0),) if layout.work[0] == M_AXIS else (Shard(1),))
    predict_sharing.RECTANGLE_MARGIN, predict_sharing.MIN_SECONDS_TO_COMPARE = -1e9, 0.0  # whatever is predicted
    a, b = draw_tensor(24, 16, torch.float64, device, 5), draw_tensor(16, 28, torch.float64, device, 6)
    check_gradients(mesh, a, b)
    x, y = (distribute_tensor(matrix, mesh, [Shard(0)]) for matrix in (a, b))
    check_product(fmm.distributed.matmul(x, y, placements=[Shard(1)]), a, b, "elsewhere")
    best = min(fmm.distributed.explain(x, y).candidates, key=lambda way: not way.rectangle)
    assert "as a rectangle" in str(best)


def check_types(device: str) -> None:
    mesh = next(meshes(device))
    for dtype in TOLERANCE:
        a, b = draw_tensor(45, 64, dtype, device, 3), draw_tensor(64, 31, dtype, device, 4)
        for plan in ("vendor", "winograd"):
            x, y = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(0)])
            check_product(fmm.distributed.matmul(x, y, plan=plan), a, b, f"{dtype} {plan}", 4)


def check_requested_placements(device: str) -> None:
    """Check requested placements, transposed operands, partial sums, gradients, and products that torch
    computes."""
    mesh = next(meshes(device))
    a, b = draw_tensor(20, 30, torch.float64, device, 5), draw_tensor(30, 10, torch.float64, device, 6)
    x, y = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(0)])
    for place in PLACES:
        found = fmm.distributed.matmul(x, y, placements=[place])
        assert tuple(found.placements) == (place,)
        check_product(found, a, b, str(place))
    check_product(fmm.distributed.matmul(y.T, x.T), b.T, a.T, "transposed")
    parts = DTensor.from_local(a / dist.get_world_size(), mesh, [Partial()])
    check_product(fmm.distributed.matmul(parts, y), a, b, "parts", 10)
    check_gradients(mesh, a, b)
    vector = distribute_tensor(b[:, 0].contiguous(), mesh, [Replicate()])
    assert torch.allclose(fmm.distributed.matmul(x, vector).full_tensor(), a @ b[:, 0])


def check_gradients(mesh: Any, a: Any, b: Any) -> None:
    x = distribute_tensor(a, mesh, [Shard(0)]).requires_grad_()
    y = distribute_tensor(b, mesh, [Shard(1)]).requires_grad_()
    weights = torch.arange(a.shape[0] * b.shape[1], dtype=a.dtype, device=a.device).reshape(a.shape[0], -1)
    (fmm.distributed.matmul(x, y) * distribute_tensor(weights, mesh, [Replicate()])).sum().backward()
    assert tuple(x.grad.placements) == (Shard(0),) and tuple(y.grad.placements) == (Shard(1),)
    assert torch.allclose(x.grad.full_tensor(), weights @ b.T) and torch.allclose(y.grad.full_tensor(), a.T @ weights)


def check_explanations(device: str) -> None:
    """Check that one process alone can explain a product."""
    mesh = next(meshes(device))
    x = distribute_tensor(draw_tensor(64, 64, torch.float32, device, 7), mesh, [Shard(0)])
    if dist.get_rank() == 0:
        text = str(fmm.distributed.explain(x, x))
        assert "product: 64 x 64 x 64, float32" in text and "compared, predicted seconds" in text, text
    dist.barrier()
    check_local_limits(mesh, x)


def check_local_limits(mesh: Any, x: Any) -> None:
    """Check that the parts run within the limits under which the first process predicted them."""
    module: Any = sharded_tensors
    options: list[dict[str, Any]] = []
    multiply = module.local_matmul

    def noting(*operands: Any, **more: Any) -> Any:
        options.append(more)
        return multiply(*operands, **more)

    module.local_matmul = noting
    try:
        fmm.distributed.matmul(x, x, plan="vendor")
    finally:
        module.local_matmul = multiply
    agreed = [way for way in sharded_tensors._sharings_by_mesh[mesh].values() if way is not None][-1]
    limits = {(more["workspace"], more["max_error_growth"]) for more in options}
    assert limits == {(agreed.local_workspace, agreed.local_error_growth)} and agreed.local_workspace, limits


def check_installed(device: str) -> None:
    """Check torch's product of sharded matrices after fmm.install: fmm multiplies each process's part."""
    mesh = next(meshes(device))
    a, b = draw_tensor(256, 512, torch.float64, device, 10), draw_tensor(512, 384, torch.float64, device, 11)
    x, y = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(0)])
    report = begin_report()
    try:
        with fmm.installed("torch" if device == "cuda" else "torch-cpu"):
            found = torch.mm(x, y)
    finally:
        end_report()
    check_product(found, a, b, "hooked")
    assert "1  torch.mm, float64, " in str(report), str(report)


def check_operator(device: str) -> None:
    """Check that torch.ops.fmm.matmul of DTensors equals torch.mm, with gradients; stacks are gathered."""
    for mesh in meshes(device):
        a, b = draw_tensor(24, 20, torch.float64, device, 13), draw_tensor(20, 28, torch.float64, device, 14)
        for places in product(product(PLACES, repeat=mesh.ndim), repeat=2):
            pairs = list(zip((a, b), places, strict=True))
            x, y = (distribute_tensor(matrix, mesh, place).requires_grad_() for matrix, place in pairs)
            found = MATMUL_OPERATOR(x, y)
            check_product(found, a, b, f"{places} {mesh}")
            assert found.placements == torch.mm(x, y).placements, (places, found.placements)
            found.sum().backward()
            assert relative(x.grad.full_tensor(), b.sum(1).expand(24, 20)) < 1e-12, places
            assert relative(y.grad.full_tensor(), a.sum(0)[:, None].expand(20, 28)) < 1e-12, places
        stack = distribute_tensor(torch.stack([a, -a]), mesh, [Shard(1)] * mesh.ndim)
        assert relative(MATMUL_OPERATOR(stack, y).full_tensor(), torch.stack([a @ b, -a @ b])) < 1e-12


def check_large_products(device: str) -> None:
    """Check large products that run plans, in every way of sharing and after fmm.install, in float32 and
    bfloat16."""
    mesh = next(meshes(device))
    count, rank = mesh.size(), mesh.get_local_rank()
    for dtype, bound in ((torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
        n = (4096 if device == "cuda" else 48) * count  # on a CPU this only shows that everything runs
        torch.manual_seed(rank)
        parts = [torch.randn(n // count, n, device=device, dtype=dtype) for _ in range(2)]
        x, y = (DTensor.from_local(part, mesh, [Shard(0)], run_check=False) for part in parts)
        whole = y.full_tensor()
        expected = parts[0][:32].double() @ whole.double()
        for plan in (None, "vendor", "winograd"):
            found = fmm.distributed.matmul(x, y, plan=plan, placements=[Shard(0)]).to_local()
            assert relative(found[:32], expected) < bound, f"{dtype} {plan}"
        start = MeshLayout(n, n, n, (count,), (0,), (0,), (M_AXIS,))
        for work, along in product((M_AXIS, N_AXIS, K_AXIS), (M_AXIS, N_AXIS, K_AXIS)):
            way = sharded_tensors.AgreedSharing(
                "", replace(start, work=(work,), pieces=count, along=along), "vendor", 16.0
            )
            found = sharded_tensors.compute_shared_product(way, x, y).redistribute(placements=[Shard(0)]).to_local()
            assert relative(found[:32], expected) < bound, f"{dtype} {way}"
        with fmm.installed("torch" if device == "cuda" else "torch-cpu"):
            found = torch.mm(x, y).redistribute(placements=[Shard(0)]).to_local()
            assert relative(found[:32], expected) < bound, f"{dtype} installed"


def check_fully_sharded_model(device: str) -> None:
    """Check that a model whose parameters torch shards trains by fmm's plans as it does without fmm."""
    mesh = next(meshes(device))
    x = draw_tensor(128, 64, torch.float64, device, 12 + dist.get_rank())

    def losses() -> list[float]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 64))
        model.to(device, torch.float64)
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh)
        optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2), []
        for _ in range(4):
            optimizer.zero_grad()
            loss = (model(x) - x).pow(2).mean()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return found

    theirs = losses()
    force_plan("winograd > vendor")
    with fmm.installed("torch" if device == "cuda" else "torch-cpu"):
        ours = losses()
    assert forced_plan.decided > 0
    assert all(abs(x - y) <= 1e-9 * abs(y) for x, y in zip(ours, theirs, strict=True)), (ours, theirs)


def relative(found: Any, expected: Any) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def check_lost_process(device: str) -> None:
    """Check that the first process gets an error and does not hang when the second process is killed between
    two products."""
    mesh = next(meshes(device))
    a = distribute_tensor(draw_tensor(64, 64, torch.float32, device, 8), mesh, [Shard(0)])
    fmm.distributed.matmul(a, a)
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while True:  # gloo reports the loss at once, NCCL after its time-out; run_processes ends a hang
            fmm.distributed.matmul(a, a)
    except RuntimeError as error:
        print(f"{type(error).__name__} after {time.monotonic() - began:.1f} s: {error}", flush=True)
        os._exit(3)


EVERY = (
    check_products,
    check_rectangle,
    check_explanations,
    check_installed,
    check_operator,
    check_large_products,
    check_fully_sharded_model,
    check_lost_process,
    *ARRAYS,
    *HOSTILE,
)
CASES: dict[str, Callable[[str], None]] = {check.__name__.removeprefix("check_"): check for check in EVERY}


def main(case: str, device: str = "cpu") -> None:
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    own = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else None
    # A lost process is noticed only by NCCL's time-out.
    timeout = timedelta(seconds=10) if own and case == "lost_process" else GROUP_TIMEOUT
    dist.init_process_group("nccl" if own else "gloo", timeout=timeout, device_id=own)
    torch.set_num_threads(1)
    CASES[case](device)
    dist.barrier()
    dist.destroy_process_group()
    print(f"{case}: process {os.environ['RANK']} is done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""float32 by three float16 products on a device: the promised error, for every kind of data and memory order."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.plans.plan import Plan
from fmm.problem import Layout, Problem
from tests.support.f16x3_on_host import product_on_host
from tests.support.hard_matrices import BOUND_BY_NORMS, bound_by_entries, hard_matrices, relative_errors

pytest.importorskip("cupy")

import cupy

from fmm.kernels.cuda import record
from fmm.kernels.cuda.launch.device_facts import cuda_device_chip
from fmm.kernels.cuda.recompute.flags import stream_flag
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.cuda.select import uses_portable_f16x3
from fmm.perfmodel.block_model import chip_target
from fmm.runtime.device_backend import DeviceBackend, matrix_layout, record_plan_for_device

pytestmark = pytest.mark.gpu

# The vendor multiplies in pieces of 256, so its sums are rounded more often.
BY_VENDOR = 4 * BOUND_BY_NORMS


@pytest.fixture(autouse=True)
def _skip_without_kernel() -> None:
    chip = cuda_device_chip(cupy.cuda.runtime.getDevice())
    if not (chip.has_warpgroups or uses_portable_f16x3(chip)):
        pytest.skip("no kernel of fmm multiplies float16 planes on this GPU")


def worst(a: Any, b: Any, c: Any) -> float:
    """Return the largest error relative to the norms. (On the host: CuPy's own kernels flush subnormal float32.)"""
    a, b, c = (x.get().astype(np.float64) for x in (a, b, c))
    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=0)[None]
    off = np.abs(c - a @ b)
    return float(np.where(off == 0, 0, off / np.maximum(norms, 1e-300)).max())


def normal(shape: tuple[int, ...], seed: int = 0) -> Any:
    return cupy.random.default_rng(seed).standard_normal(shape, np.float32)


SHAPES = [
    (1, 1, 1),
    (128, 64, 128),
    (129, 65, 131),
    (1, 1000, 1),
    (1000, 1, 1000),
    (7, 5000, 9),
    (513, 1537, 1025),
    (2000, 33, 17),
    (64, 131072, 64),
    (1021, 1021, 1021),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_and_order(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    for orders in product("CF", repeat=2):
        a, b = (
            cupy.asarray(normal(s, i), order=o) for i, (s, o) in enumerate(zip(((m, k), (k, n)), orders, strict=True))
        )
        assert worst(a, b, fmm.matmul(a, b, plan="f16x3")) <= BOUND_BY_NORMS, orders


def test_poisoned_memory_strides_and_gaps() -> None:
    """Neither old numbers in the workspace nor gaps between lines affect C; gaps of C stay as they are."""
    m, k, n = 300, 200, 100
    memory = [cupy.full((rows + 3) * (cols + 5), cupy.nan, np.float32) for rows, cols in ((m, k), (k, n), (m, n))]
    a, b, c = (
        x.reshape(rows + 3, cols + 5)[:rows, :cols]
        for x, (rows, cols) in zip(memory, ((m, k), (k, n), (m, n)), strict=True)
    )
    a[...], b[...] = normal((m, k)), normal((k, n), 1)
    layouts = Layout("C", k + 5), Layout("C", n + 5), Layout("C", n + 5)
    launches = record_plan_for_device(Plan.parse("f16x3"), Problem(m, k, n, "float32", layouts), flagged=False)
    workspace = cupy.full(launches.workspace, 255, cupy.uint8)
    DeviceBackend().run_launches(launches, a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr, None)
    assert worst(a, b, c) <= BOUND_BY_NORMS
    assert int(cupy.isnan(memory[2]).sum()) == memory[2].size - m * n


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, 0), (-2, 3), (1, -1)])
def test_scalars(alpha: float, beta: float) -> None:
    m, k, n = 257, 190, 130
    a, b, old = normal((m, k)), normal((k, n), 1), normal((m, n), 2)
    c = old.copy()
    problem = Problem(m, k, n, "float32", alpha=alpha, beta=beta)
    launches = record_plan_for_device(Plan.parse("f16x3"), problem, flagged=False)
    workspace = cupy.empty(launches.workspace, cupy.uint8)
    DeviceBackend().run_launches(launches, a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr, None)
    expected = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + beta * old.astype(np.float64)
    assert float(cupy.abs(c - expected).max()) <= 1e-4


SIZES = [(256, 1024, 192), (320, 320, 320), (131, 4099, 67)]


@pytest.mark.parametrize("size", SIZES)
def test_every_kind_of_data(size: tuple[int, int, int]) -> None:
    """Relative to the norms of rows and columns; with componentwise relative to every entry of |A| |B|."""
    for name, (a, b) in hard_matrices(*size).items():
        x, y = cupy.asarray(a), cupy.asarray(b)
        norms, _ = relative_errors(a, b, fmm.matmul(x, y, plan="f16x3").get())
        assert norms <= BOUND_BY_NORMS, name
        for orders in product("CF", repeat=2) if size == SIZES[0] else ("CC",):
            x, y = (cupy.asarray(v, order=o) for v, o in zip((a, b), orders, strict=True))
            c = fmm.matmul(x, y, plan="f16x3", componentwise=True).get()
            assert relative_errors(a, b, c)[1] <= bound_by_entries(size[1]), (name, orders)


def recomputed() -> int:
    """Return the number of products recomputed so far on this stream."""
    cupy.cuda.get_current_stream().synchronize()
    return stream_flag(cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr).recomputed_count


@pytest.mark.parametrize("size", SIZES[:2])
def test_recomputed_products(size: tuple[int, int, int]) -> None:
    """Recomputed exactly where the host's copy of the kernels says that not all entries are accurate."""
    for name, (a, b) in hard_matrices(*size).items():
        before = recomputed()
        fmm.matmul(cupy.asarray(a), cupy.asarray(b), plan="f16x3", componentwise=True)
        _, certain, _ = product_on_host(a, b)
        assert recomputed() - before == int(not certain.all()), name


def test_a_long_inner_dimension() -> None:
    for k in (1, 2, 63, 64, 65, 1000, 131072):
        a, b = normal((70, k), k), normal((k, 50), k + 1)
        for componentwise in (False, True):
            c = fmm.matmul(a, b, plan="f16x3", componentwise=componentwise)
            norms, entries = relative_errors(a.get(), b.get(), c.get())
            assert norms <= BOUND_BY_NORMS and entries <= bound_by_entries(k), (k, componentwise)


def test_small_whole_numbers_are_exact() -> None:
    rng = cupy.random.default_rng(2)
    a, b = (rng.integers(-60, 61, shape).astype(np.float32) for shape in ((500, 900), (900, 300)))
    for componentwise in (False, True):
        c = fmm.matmul(a, b, plan="f16x3", componentwise=componentwise)
        assert bool((c == a.astype(np.float64) @ b.astype(np.float64)).all())


def test_an_accurate_checked_product_equals_the_usual_one() -> None:
    a, b = normal((700, 900)), normal((900, 500), 1)
    usual = fmm.matmul(a, b, plan="f16x3")
    assert bool((fmm.matmul(a, b, plan="f16x3", componentwise=True) == usual).all())


def test_checked_stacks_and_scalars() -> None:
    a, b = normal((3, 200, 300)), normal((3, 300, 100), 1)
    b[1, 7] *= 1e25
    a[1, :, 7] *= 1e-20
    c = fmm.matmul(a, b, plan="f16x3", componentwise=True)
    for i in range(3):
        assert relative_errors(*(x[i].get() for x in (a, b, c)))[1] <= bound_by_entries(300)


def test_componentwise_chooses_no_plan_that_saves_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    a = b = cupy.empty((16384, 16384), np.float32)
    found = fmm.explain(a, b, componentwise=True, workspace=2**33)  # however many processes share the card's memory
    assert found.plan.leaf == "f16x3" and not found.plan.levels and "|A| |B|" in str(found)
    with pytest.raises(fmm.PlanError, match="does not bound each entry's error"):
        fmm.matmul(a, b, plan="strassen > vendor", componentwise=True)


# ---- sums written as planes

LEVELS = ("strassen.batched.pad16", "winograd.batched.pad16", "strassen^2.batched.pad16")


def by_plan(plan: str, a: Any, b: Any) -> tuple[Any, tuple[str, ...]]:
    """Return C in poisoned memory, and the launches."""
    (m, k), n = a.shape, b.shape[1]
    layouts = *(matrix_layout(x) for x in (a, b)), Layout("C", n)
    problem = Problem(m, k, n, "float32", layouts)  # type: ignore[arg-type]
    launches = record_launches(Plan.parse(plan), problem, chip_target(cuda_device_chip(cupy.cuda.runtime.getDevice())))
    c, workspace = cupy.full((m, n), cupy.nan, np.float32), cupy.full(launches.workspace, 255, cupy.uint8)
    DeviceBackend().run_launches(launches, a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr)
    return c, tuple(launches.step_labels())


PLANE_SHAPES = [(720, 1072, 592), (1100, 900, 1300), (2048, 130, 260)]
PLANE_CASES = [
    *((LEVELS[0], PLANE_SHAPES[0], orders) for orders in ("CC", "CF", "FC", "FF")),
    *((level, shape, orders) for level in LEVELS for shape, orders in zip(PLANE_SHAPES[1:], ("FF", "CC"), strict=True)),
]


@pytest.mark.parametrize(("level", "shape", "orders"), PLANE_CASES)
def test_sums_written_as_planes(
    level: str, shape: tuple[int, int, int], orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit equal to sums stored as float32 and split then: another power of two in the scaling changes
    nothing."""
    m, k, n = shape
    a, b = (cupy.asarray(normal(s, i), order=o) for i, (s, o) in enumerate(zip(((m, k), (k, n)), orders, strict=True)))
    a *= cupy.asarray(np.exp2(np.arange(m) % 13 - 6.0).astype(np.float32))[:, None]
    b *= cupy.asarray(np.exp2(np.arange(n) % 11 - 5.0).astype(np.float32))
    record_launches.cache_clear()
    found, launched = by_plan(f"{level} > f16x3", a, b)
    with monkeypatch.context() as without:
        without.setattr(record, "fuse_plane_sums", lambda ops, target: ops)
        record_launches.cache_clear()
        expected, usual = by_plan(f"{level} > f16x3", a, b)
    record_launches.cache_clear()
    aligned = [x % 4 == 0 for x in (m if orders[0] == "F" else k, k if orders[1] == "F" else n)]
    assert sum("f16_sums, split" in line for line in launched) == sum(aligned)
    assert any("f16_planes" in line for line in usual)
    assert bool((found == expected).all())


@pytest.mark.parametrize("level", LEVELS)
def test_sums_as_planes_of_every_kind_of_data(level: str) -> None:
    """The error of the same level by the vendor, plus what f16x3 itself may lose."""
    for name, (a, b) in hard_matrices(256, 512, 320).items():
        exact = a.astype(np.float64) @ b.astype(np.float64)
        own, vendor = (
            np.abs(by_plan(f"{level} > {leaf}", cupy.asarray(a), cupy.asarray(b))[0].get() - exact).max()
            for leaf in ("f16x3", "vendor")
        )
        most = float(np.abs(a).max()) * float(np.abs(b).max()) * a.shape[1]
        assert own <= 4 * vendor + 2.0**-18 * most + 2.0**-149, name


# ---- prepared operands


def test_prepared_operands() -> None:
    """For every order and side, the same bits as without preparation, also after the matrix has changed."""
    for order, (m, k, n) in product("CF", [(300, 400, 500), (1, 128, 64), (129, 65, 131)]):
        a, b = cupy.asarray(normal((m, k)), order=order), cupy.asarray(normal((k, n), 1), order=order)
        expected = fmm.matmul(a, b, plan="f16x3")
        p, q = fmm.prepare(b), fmm.prepare(a, side="left")
        assert (
            p.prepared_leaf == "f16x3" and p.nbytes >= 2 * b.nbytes and q.prepared_leaf == ("f16x3" if m >= 64 else "")
        )
        for x, y in ((a, p), (q, b), (q, p)):
            assert bool((fmm.matmul(x, y, plan="f16x3") == expected).all()), (order, m)
        again = a.copy(order="K"), b.copy(order="K")
        a[...], b[...] = cupy.nan, cupy.nan
        assert bool((fmm.matmul(again[0], p, plan="f16x3") == expected).all())
        assert bool((fmm.matmul(q, again[1], plan="f16x3") == expected).all())


def test_a_prepared_operand_saves_its_splitting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    a, b = normal((512, 2048)), normal((2048, 4096), 1)
    p = fmm.prepare(b)
    lines = fmm.explain(a, p).kernels
    assert fmm.explain(a, p).plan.leaf == "f16x3" and "splits A in" in lines[0]
    assert "splits A and B" in fmm.explain(a, b).kernels[0]
    for x in (a, normal((2, 300, 2048), 2)):  # a stack is one tall matrix
        assert worst(x.reshape(-1, 2048), b, fmm.matmul(x, p).reshape(-1, 4096)) <= BOUND_BY_NORMS


def test_a_prepared_operand_with_inf() -> None:
    a, b = normal((200, 300)), normal((300, 400), 1)
    b[5, 6] = cupy.inf
    found = fmm.matmul(a, fmm.prepare(b), plan="f16x3")
    assert bool((cupy.isinf(found) == cupy.isinf(a @ b)).all() and (cupy.isnan(found) == cupy.isnan(a @ b)).all())


@pytest.mark.parametrize(
    ("dtype", "leaf"), [(np.float64, "residues(14) > bytes"), (np.float16, ""), (np.complex64, "")]
)
def test_prepared_operands_of_other_types(dtype: Any, leaf: str) -> None:
    a, b = normal((100, 200)).astype(dtype), normal((200, 150), 1).astype(dtype)
    p = fmm.prepare(b)
    assert p.prepared_leaf == leaf and bool((fmm.matmul(a, p) == fmm.matmul(a, b)).all())
    single = fmm.prepare(normal((200, 150), 1))
    assert fmm.matmul(a, single).dtype == fmm.matmul(a, normal((200, 150), 1)).dtype


def test_prepared_tensors() -> None:
    torch = pytest.importorskip("torch")
    rng = torch.Generator("cuda").manual_seed(1)
    a = torch.randn(600, 800, device="cuda", generator=rng)
    weights = torch.randn(700, 800, device="cuda", generator=rng)
    p = fmm.prepare(weights.T)
    expected = fmm.matmul(a, weights.T, plan="f16x3")
    assert p.prepared_leaf == "f16x3" and bool((fmm.matmul(a, p, plan="f16x3") == expected).all())
    weights.zero_()
    assert bool((fmm.matmul(a, p, plan="f16x3") == expected).all())
    x = a.clone().requires_grad_()
    fmm.matmul(x, p).sum().backward()
    assert x.grad is not None and x.grad.shape == a.shape
    with pytest.raises(ValueError, match="gradients"):
        fmm.prepare(weights.requires_grad_())


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("k", [1024, 2048, 4096, 16384])
def test_no_less_accurate_than_sgemm(kind: str, k: int) -> None:
    """In the Frobenius norm; a level of Strassen's above it included. (Of few rows and columns cuBLAS adds up parts of
    the inner dimension apart, which has less error.)"""
    rng = cupy.random.default_rng(k)
    a, b = ((rng.random if kind == "uniform" else rng.standard_normal)(s, np.float32) for s in ((2048, k), (k, 2048)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    vendor, own, level = (
        float(cupy.linalg.norm(c - exact))
        for c in (a @ b, fmm.matmul(a, b, plan="f16x3"), fmm.matmul(a, b, plan="strassen.batched.pad16 > f16x3"))
    )
    assert own <= vendor and level <= vendor


@pytest.mark.parametrize("plan", ["f16x3", "strassen.batched.pad16 > f16x3", "winograd.overlapped.pad16 > f16x3"])
def test_inf_and_nan_stand_where_the_vendors_do(plan: str) -> None:
    for a_value, b_value in ((cupy.inf, 1), (cupy.nan, 1), (cupy.inf, -cupy.inf), (3e38, 3e38)):
        a, b = normal((515, 300)), normal((300, 401), 1)
        a[3, 4], b[7, 9] = a_value, b_value
        c, expected = fmm.matmul(a, b, plan=plan), a @ b
        assert bool((cupy.isnan(c) == cupy.isnan(expected)).all()), (a_value, b_value)
        assert bool((cupy.isinf(c) == cupy.isinf(expected)).all()), (a_value, b_value)


@pytest.mark.parametrize("plan", ["f16x3", "strassen.batched.pad16 > f16x3", "strassen^2.overlapped.pad16 > f16x3"])
def test_the_same_bits_every_time(plan: str) -> None:
    a, b = normal((1000, 900)), normal((900, 1100), 1)
    first = fmm.matmul(a, b, plan=plan)
    for _ in range(5):
        assert bool((fmm.matmul(a, b, plan=plan) == first).all())


# ---- where the vendor multiplies the planes: as on data-center Blackwell, forced here


def as_vendor_gemm(plan: str, a: Any, b: Any, alpha: float = 1) -> Any:
    """Return C by the launches for compute capability 10.0, in poisoned memory."""
    (m, k), n = a.shape, b.shape[1]
    layouts = *(matrix_layout(x) for x in (a, b)), Layout("C", n)
    problem = Problem(m, k, n, "float32", layouts, alpha)  # type: ignore[arg-type]
    chip = replace(cuda_device_chip(cupy.cuda.runtime.getDevice()), version=100, tensor_maps=False)
    launches = record_launches(Plan.parse(plan), problem, chip_target(chip))
    assert any("f16_unscale" in line for line in launches.step_labels())
    c, workspace = cupy.full((m, n), cupy.nan, np.float32), cupy.full(launches.workspace, 255, cupy.uint8)
    DeviceBackend().run_launches(launches, a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr)
    return c


@pytest.mark.parametrize("shape", [(1, 1, 1), (129, 65, 131), (300, 1000, 200), (513, 777, 1025)])
def test_the_vendors_products_of_planes(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    for orders in product("CF", repeat=2):
        a, b = (
            cupy.asarray(normal(s, i), order=o) for i, (s, o) in enumerate(zip(((m, k), (k, n)), orders, strict=True))
        )
        expected = a.astype(np.float64) @ b.astype(np.float64)
        assert float(abs(as_vendor_gemm("f16x3", a, b) - expected).max()) <= 2e-6 * k, orders
        assert float(abs(as_vendor_gemm("f16x3", a, b, -2) + 2 * expected).max()) <= 4e-6 * k, orders


def test_batches_of_the_vendors_products_of_planes() -> None:
    a, b = normal((512, 768)), normal((768, 256), 1)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert float(abs(as_vendor_gemm("strassen.batched.pad16 > f16x3", a, b) - expected).max()) <= 2e-6 * 768


def test_the_vendors_products_of_every_kind_of_data() -> None:
    for name, (a, b) in hard_matrices(256, 1024, 192).items():
        c = as_vendor_gemm("f16x3", cupy.asarray(a), cupy.asarray(b))
        assert relative_errors(a, b, c.get())[0] <= BY_VENDOR, name


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_the_vendors_products_are_no_less_accurate_than_sgemm(kind: str) -> None:
    rng = cupy.random.default_rng(5)
    a, b = ((rng.random if kind == "uniform" else rng.standard_normal)((4096, 4096), np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    vendor, own = (float(cupy.linalg.norm(c - exact)) for c in (a @ b, as_vendor_gemm("f16x3", a, b)))
    assert own <= 1.5 * vendor


def test_stacks() -> None:
    a, b = normal((3, 200, 300)), normal((3, 300, 100), 1)
    c = fmm.matmul(a, b, plan="f16x3")
    for i in range(3):
        assert worst(a[i], b[i], c[i]) <= BOUND_BY_NORMS


def test_the_environment_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal((2048, 2048)), normal((2048, 2048), 1)
    monkeypatch.setenv("FMM_EMULATION", "0")
    assert fmm.explain(a, b).plan.leaf != "f16x3"
    monkeypatch.delenv("FMM_EMULATION")
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    assert fmm.explain(a, b).plan.leaf == "f16x3"


# ---- triangles and addends


@pytest.mark.parametrize("shape", [(1, 1), (130, 5), (257, 640), (1000, 333), (2048, 512)])
@pytest.mark.parametrize("fill", ["full", "lower", "upper"])
def test_a_matrix_times_its_transpose(shape: tuple[int, int], fill: Any) -> None:
    """The bits of the whole product, mirrored or alone; the other triangle stays as it is."""
    x = normal(shape)
    for a in (x, cupy.asfortranarray(x), cupy.repeat(x, 2, axis=1)[:, ::2]):
        out = cupy.full((shape[0], shape[0]), cupy.nan, np.float32)
        c = fmm.gram(a, rows=True, out=out, fill=fill, plan="f16x3")
        whole = fmm.matmul(a, a.T.copy(order="K"), plan="f16x3")
        # (Sums of hi lo and lo hi end otherwise in the other order: an upper half is the lower one, turned.)
        below, found = cupy.tri(shape[0], dtype=bool), c.T if fill == "upper" else c
        assert bool((found == whole)[below].all())
        assert bool((c == c.T).all()) if fill == "full" else bool(cupy.isnan(found[~below]).all())
        lines = fmm.explain_gram(a, rows=True, out=out, fill=fill, plan="f16x3").kernels
        assert any("below the diagonal" in line for line in lines) or shape[0] == 1


def test_updated_triangles_with_inf() -> None:
    x, old = normal((515, 130)), normal((515, 515), 1)
    old += old.T
    c = old.copy()
    fmm.gram(x, rows=True, out=c, alpha=-2, beta=3, plan="f16x3")
    exact = -2 * (x.astype(np.float64) @ x.T.astype(np.float64)) + 3 * old.astype(np.float64)
    norms = cupy.linalg.norm(x.astype(np.float64), axis=1)
    room = 2 * BOUND_BY_NORMS * cupy.outer(norms, norms) + 2.0**-22 * (abs(exact) + 3 * abs(old))
    assert bool((abs(c - exact) <= room).all()) and bool((c == c.T).all())
    x[7, 5], x[300, 6] = cupy.inf, cupy.nan
    c, expected = fmm.gram(x, rows=True, plan="f16x3"), x @ x.T.copy()
    assert bool((cupy.isnan(c) == cupy.isnan(expected)).all() and (cupy.isinf(c) == cupy.isinf(expected)).all())


@pytest.mark.parametrize("shape", [(256, 192, 320), (257, 100, 131)])
@pytest.mark.parametrize("rows", [1, 0])
def test_a_separate_addend_is_read_in_place(shape: tuple[int, int, int], rows: int) -> None:
    """The addend is a matrix, or one broadcast row; it stays as it is."""
    m, k, n = shape
    a, b, added = normal((m, k)), normal((k, n), 1), normal((m if rows else 1, n), 2)
    before, out = added.copy(), cupy.full((m, n), cupy.nan, np.float32)
    c = fmm.gemm(a, b, added, alpha=2, beta=-3, out=out, plan="f16x3")
    exact = 2 * (a.astype(np.float64) @ b.astype(np.float64)) - 3 * added.astype(np.float64)
    assert float(abs(c - exact).max()) <= 1e-4 and bool((added == before).all())

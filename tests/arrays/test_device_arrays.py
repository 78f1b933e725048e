"""Device arrays as far as they can be checked without a device: whose they are, and what a call on them would do."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fmm
from fmm.arrays import select_library
from fmm.arrays.detect import array_kind, describe_array, device_mismatch_error, is_on_device, type_name
from fmm.arrays.library import Library, Operand, ProductSetting, contiguous_operand
from fmm.arrays.numpy_library import NUMPY
from fmm.arrays.select_library import library_of
from fmm.config import files
from fmm.kernels.cuda.recompute import recompute
from fmm.kernels.cuda.recompute import recompute as trust_of_streams
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import GRAPH_SCRATCH_BYTES
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime import devices, prepare
from fmm.runtime import matmul as product_call
from fmm.runtime.decisions import early_declines, limits
from fmm.runtime.decisions.decide import decide_plan, plans_with_less_memory
from fmm.runtime.decisions.early_declines import remember_decline, was_declined
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints, default_workspace_bytes
from fmm.runtime.devices import gpu_from_description, parse_cuda_index
from fmm.runtime.operands import VendorOnlyError
from fmm.runtime.prepare import PreparedCall, ProblemQuery, prepare_query
from tests.support import ROOT
from tests.support import configs as tuned
from tests.support.devices import H200
from tests.support.marks import quick_and_slow

LEVEL = Plan.parse("strassen.batched.pad16 > vendor")
PLENTY = Limits(1 << 40)


# ---- whose array is it


def foreign(name: str, module: str, **members: Any) -> Any:
    """An object of a type of that name from that module."""
    return type(name, (), {"__module__": module, **members})()


CUPY = foreign("ndarray", "cupy", data=foreign("MemoryPointer", "cupy", device_id=1))
SUBCLASS = type("Mine", (type(CUPY),), {"__module__": "mine", "data": CUPY.data})()
TENSOR = foreign("Tensor", "torch", device=foreign("device", "torch", type="cuda", __str__=lambda self: "cuda:0"))
HOST_TENSOR = foreign("Tensor", "torch", device=foreign("device", "torch", type="cpu", __str__=lambda self: "cpu"))
INTERFACE = foreign("DeviceNDArray", "numba.cuda", __cuda_array_interface__={"shape": (3, 3)})
ON_CUDA = foreign("Array", "jaxlib", __dlpack_device__=lambda self: (2, 0))
MANAGED = foreign("Array", "managed", __dlpack_device__=lambda self: (13, 0))
ON_HOST = foreign("Array", "jaxlib", __dlpack_device__=lambda self: (1, 0))


def raising(self: Any) -> Any:
    raise RuntimeError("not on a device")


ELSEWHERE = foreign("Array", "jaxlib", __cuda_array_interface__=property(raising))
MATRIX = np.ones((3, 3))

KINDS = [
    (MATRIX, "host"),
    (MATRIX[0, 0], "host"),
    (np.ma.masked_array(MATRIX), "host"),
    ([[1.0]], "host"),
    (3, "host"),
    (None, "host"),
    ("text", "host"),
    (CUPY, "cupy"),
    (SUBCLASS, "cupy"),
    (TENSOR, "torch"),
    (HOST_TENSOR, "torch"),
    (INTERFACE, "other"),
    (ON_CUDA, "other"),
    (MANAGED, "other"),
    (ON_HOST, "host"),
    (ELSEWHERE, "host"),
]


@pytest.mark.parametrize(("x", "kind"), KINDS, ids=lambda v: type(v).__name__ if not isinstance(v, str) else v)
def test_arrays_are_known_without_their_library(x: Any, kind: str) -> None:
    assert array_kind(x) == kind
    assert array_kind(x) == kind  # from the cache now


@pytest.mark.parametrize(
    ("a", "b", "out", "named"),
    [
        (CUPY, MATRIX, None, ("a is a CuPy array on cuda:1", "b is a NumPy array on the host")),
        (MATRIX, CUPY, None, ("a is a NumPy array on the host", "b is a CuPy array on cuda:1")),
        (MATRIX, MATRIX, CUPY, ("a is a NumPy array on the host", "out is a CuPy array on cuda:1")),
        (CUPY, CUPY, MATRIX, ("b is a CuPy array on cuda:1", "out is a NumPy array on the host")),
        (TENSOR, MATRIX, None, ("a is a torch tensor on cuda:0", "b is a NumPy array on the host")),
        (TENSOR, CUPY, None, ("a is a torch tensor on cuda:0", "b is a CuPy array on cuda:1")),
        (HOST_TENSOR, CUPY, None, ("a is a torch tensor on cpu", "b is a CuPy array on cuda:1")),
        (HOST_TENSOR, MATRIX, None, ("a is a torch tensor on cpu", "b is a NumPy array on the host", "from_numpy")),
        (MATRIX, HOST_TENSOR, None, ("a is a NumPy array on the host", "b is a torch tensor on cpu", "from_numpy")),
        (MATRIX, MATRIX, HOST_TENSOR, ("b is a NumPy array on the host", "out is a torch tensor on cpu")),
        (INTERFACE, MATRIX, None, ("a is a numba DeviceNDArray on a CUDA device", "b is a NumPy array on the host")),
        (ON_CUDA, TENSOR, None, ("a is a jaxlib Array on a CUDA device", "b is a torch tensor on cuda:0")),
    ],
)
def test_mixing_is_an_error_that_names_all(a: Any, b: Any, out: Any, named: tuple[str, ...]) -> None:
    for function in (fmm.matmul, fmm.explain):
        with pytest.raises(TypeError) as caught:
            function(a, b, out)
        for words in named:
            assert words in str(caught.value)


def test_two_devices_are_an_error_that_names_both() -> None:
    other = foreign("ndarray", "cupy", data=foreign("MemoryPointer", "cupy", device_id=0))
    assert "a is a CuPy array on cuda:1, b is a CuPy array on cuda:0" in str(device_mismatch_error(CUPY, other))


@pytest.mark.parametrize("pair", [(MATRIX, [[1.0]]), (ON_HOST, MATRIX), (np.ma.masked_array(MATRIX), MATRIX)])
def test_what_is_on_the_host_is_numpys(pair: tuple[Any, Any]) -> None:
    assert library_of(*pair) is NUMPY


def test_what_stands_for_a_tensor_is_torchs_once_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have any attribute: torch.fx's proxies answer to all names, those of CUDA's arrays among them."""
    proxy = foreign(
        "Proxy", "torch.fx.proxy", __torch_function__=None, __cuda_array_interface__={}, device="proxy.device"
    )
    alone = foreign("Duck", "ducks", __torch_function__=None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert (array_kind(proxy), array_kind(alone)) == ("other", "host")
    monkeypatch.setitem(sys.modules, "torch", foreign("module", "torch"))
    assert (array_kind(proxy), array_kind(alone)) == ("torch", "torch")
    assert not is_on_device(proxy) and not is_on_device(alone) and is_on_device(TENSOR)
    assert describe_array(alone) == "a ducks Duck"


def test_without_cupy_other_arrays_are_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "fmm.arrays.cupy_library", raising=False)
    with pytest.raises(TypeError, match=r"numba DeviceNDArray on a CUDA device.*needs CuPy"):
        fmm.matmul(INTERFACE, INTERFACE)
    assert describe_array(INTERFACE) == "a numba DeviceNDArray on a CUDA device"


def test_arrays_on_the_host_load_neither_library() -> None:
    code = """
import sys, numpy as np, fmm
class Other:
    __cuda_array_interface__ = {}
fmm.matmul(np.ones((4, 4)), np.ones((4, 4)))
fmm.matmul([[1.0]], [[2.0]])
try: fmm.matmul(Other(), np.ones((4, 4)))
except TypeError: refused = True
assert refused
print([name for name in ("cupy", "torch") if name in sys.modules])
"""
    root = ROOT
    found = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, text=True, stdout=subprocess.PIPE)
    assert found.stdout.strip() == "[]"


# ---- what a call would do: on NumPy arrays, whose strides are a device array's


@pytest.fixture(autouse=True)
def an_h200(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "cuda_device", lambda index: H200)
    limits._workspace_readings.clear()
    yield
    limits._workspace_readings.clear()


def operand(x: Any) -> Operand:
    whole = not any(step % x.itemsize for step in x.strides)
    return Operand(x.shape, tuple(step // x.itemsize for step in x.strides) if whole else None, x.dtype.name)


def asked(a: Any, b: Any, out: Any = None, plan: Plan | None = LEVEL, dtype: str | None = "float64") -> ProblemQuery:
    target = None if out is None else operand(out)
    return ProblemQuery(operand(a), operand(b), target, ProductSetting(0, dtype), H200, PLENTY, plan)


def carried_out(call: PreparedCall, a: Any, b: Any, out: Any = None) -> Any:
    """The products of a call by NumPy, read and written through its addresses and layouts alone."""
    a, b = (np.ascontiguousarray(x) if pack else x for x, pack in zip((a, b), call.packs, strict=True))
    c = np.full(call.shape, np.nan) if out is None else out
    assert call.launches is not None
    problem = call.launches.problem
    for offsets in call.offsets:
        x, y, z = (
            placed(array, offset, shape, layout)
            for array, offset, shape, layout in zip(
                (a, b, c), offsets, problem.matrix_shapes, problem.layouts, strict=True
            )
        )
        z[...] = x @ y
    return c


def placed(x: Any, offset: int, shape: tuple[int, int], layout: Any) -> Any:
    strides = (8 * layout.leading, 8) if layout.order == "C" else (8, 8 * layout.leading)
    place = np.lib.stride_tricks.as_strided(x.reshape(-1)[:1] if x.flags.c_contiguous else first(x), (1,), (8,))
    moved = np.lib.stride_tricks.as_strided(place, (1 + abs(offset) // 8,), (8,))[offset // 8 :]
    return np.lib.stride_tricks.as_strided(moved, shape, strides)


def first(x: Any) -> Any:
    return x[(slice(0, 1),) * x.ndim].reshape(-1) if x.size == 1 else x[(0,) * x.ndim + (None,)]


def draw(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng([1, *shape]).standard_normal(shape)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda shape: draw(shape),
    "columns": lambda shape: draw((*shape[:-2], shape[-1], shape[-2])).swapaxes(-1, -2),
    "a part": lambda shape: draw((*shape[:-2], shape[-2] + 3, shape[-1] + 2))[..., 1:-2, 1:-1],
    "gaps along both": lambda shape: draw((*shape[:-2], 2 * shape[-2], 2 * shape[-1]))[..., ::2, ::2],
    "backward": lambda shape: draw(shape)[..., ::-1, :],
    "rows apart": lambda shape: np.moveaxis(draw((shape[-2], *shape[:-2], shape[-1])), 0, -2),
    "broadcast": lambda shape: np.broadcast_to(draw((1, shape[-1])), shape),
}
SHAPES = [
    ((5, 4), (4, 3)),
    ((1, 4), (4, 1)),
    ((5, 1), (1, 3)),
    ((2, 5, 4), (4, 3)),
    ((2, 5, 4), (1, 4, 3)),
    ((2, 5, 4), (2, 4, 3)),
    ((5, 4), (2, 4, 3)),
    ((3, 1, 5, 4), (2, 4, 3)),
    ((1, 1, 5, 4), (1, 4, 3)),
]


@pytest.mark.quick_cases(60)
@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize(("view_a", "view_b"), list(product(VIEWS, repeat=2)))
def test_every_product_of_a_call_is_where_it_says(left: Any, right: Any, view_a: str, view_b: str) -> None:
    a, b = VIEWS[view_a](left), VIEWS[view_b](right)
    call = prepare_query(asked(a, b))
    assert call.shape == np.matmul(a, b).shape
    np.testing.assert_allclose(carried_out(call, a, b), a @ b, atol=1e-12)


@pytest.mark.parametrize("view", ["rows", "columns", "a part"])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_out_is_written_in_place_where_blas_can(left: Any, right: Any, view: str) -> None:
    a, b = draw(left), draw(right)
    out = VIEWS[view](np.matmul(a, b).shape)
    call = prepare_query(asked(a, b, out))
    assert call.writes_out
    carried_out(call, a, b, out)
    np.testing.assert_allclose(out, a @ b, atol=1e-12)


@pytest.mark.parametrize("view", ["gaps along both", "backward", "broadcast"])
def test_out_is_filled_by_a_copy_where_blas_cannot_write(view: str) -> None:
    assert not prepare_query(asked(draw((5, 4)), draw((4, 3)), VIEWS[view]((5, 3)))).writes_out


@pytest.mark.parametrize(
    ("left", "right", "size", "count"),
    [
        ((2, 5, 4), (4, 3), (10, 4, 3), 1),  # all rows at once
        ((2, 3, 5, 4), (1, 1, 4, 3), (30, 4, 3), 1),
        ((2, 5, 4), (2, 4, 3), (5, 4, 3), 2),
        ((4,), (4, 3), (1, 4, 3), 1),
        ((5, 4), (4,), (5, 4, 1), 1),
    ],
)
def test_stacks_fold_into_one_product_where_they_can(left: Any, right: Any, size: Any, count: int) -> None:
    call = prepare_query(asked(draw(left), draw(right)))
    assert call.launches is not None
    problem = call.launches.problem
    assert (problem.m, problem.k, problem.n) == size
    assert len(call.offsets) == count
    np.testing.assert_allclose(carried_out(call, draw(left), draw(right)), draw(left) @ draw(right), atol=1e-12)


def test_only_what_blas_cannot_take_is_copied() -> None:
    expected = {"gaps along both", "backward", "broadcast"}
    found = {name for name, view in VIEWS.items() if prepare_query(asked(view((5, 4)), draw((4, 3)))).packs[0]}
    assert found == expected


def test_copies_count_against_the_workspace() -> None:
    a, b = VIEWS["backward"]((512, 512)), draw((512, 512))
    call = prepare_query(
        ProblemQuery(operand(a), operand(b), None, ProductSetting(0, "float64"), H200, Limits(10**7), None)
    )
    assert call.limits.workspace == 10**7 - 512 * 512 * 8


@given(
    starts=st.lists(st.integers(0, 60), min_size=3, max_size=3),
    flips=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_overlap_is_seen_exactly_where_the_byte_ranges_meet(starts: list[int], flips: list[bool]) -> None:
    memory = np.zeros(100)
    places = [memory[start : start + 9].reshape(3, 3) for start in starts]
    a, b, c = (x.T if flip else x for x, flip in zip(places, flips, strict=True))
    call = prepare_query(asked(a, b, c))
    pointers = [x.__array_interface__["data"][0] for x in (a, b, c)]
    assert call.may_c_share_memory(*pointers) == (np.may_share_memory(a, c) or np.may_share_memory(b, c))


@pytest.mark.parametrize(
    ("a", "b", "out", "dtype", "why"),
    [
        (draw((5, 4)), draw((5, 4)), None, "float64", "do not match"),
        (draw(()), draw((4, 3)), None, "float64", "do not match"),
        (draw((2, 5, 4)), draw((3, 4, 3)), None, "float64", "do not match"),
        (draw((0, 4)), draw((4, 3)), None, "float64", "nothing to multiply"),
        (draw((5, 0)), draw((0, 3)), None, "float64", "nothing to multiply"),
        (draw((5, 4)), draw((4, 3)), draw((5, 4)), "float64", "another shape"),
        (draw((5, 4)), draw((4, 3)), draw((5, 3)).astype("f4"), "float64", "another shape or type"),
        (draw((5, 4)).astype("g"), draw((4, 3)).astype("g"), None, "longdouble", "have no plan"),
        (draw((5, 4)), draw((4, 3)), None, None, "have no plan"),
    ],
)
def test_what_only_the_library_can_answer_says_why(a: Any, b: Any, out: Any, dtype: str | None, why: str) -> None:
    with pytest.raises(VendorOnlyError, match=why):
        prepare_query(asked(a, b, out, dtype=dtype))


def test_tf32_is_another_problem() -> None:
    big = contiguous_operand((16384, 16384), "float32")
    settings = [ProductSetting(0, "float32", "ieee"), ProductSetting(0, "float32", "tf32")]
    ieee, tf32 = (prepare_query(ProblemQuery(big, big, None, setting, H200, PLENTY)).decision for setting in settings)
    assert [d.problem.dtype for d in (ieee, tf32) if d.problem] == ["float32", "tf32"]
    assert ieee.plan != tf32.plan


# ---- decisions


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (H200, "H200"),
        (gpu_from_description("NVIDIA A100-SXM4-80GB", "8.0", 108), "A100"),
        (gpu_from_description("Tesla V100-SXM2-16GB", "7.0", 80), "V100"),
        (gpu_from_description("NVIDIA GeForce RTX 4090", "8.9", 128), "RTX 4090"),
        (gpu_from_description("NVIDIA H100 80GB HBM3", "9.0", 132), "H100"),
        (gpu_from_description("NVIDIA H100 PCIe", "9.0", 114), "H100 PCIe"),
        (gpu_from_description("NVIDIA H100 PCIe", "9.0", 112), None),  # fewer multiprocessors than the table's
        (gpu_from_description("NVIDIA H100 NVL", "9.0", 132), "H100 NVL"),  # not the H100 of as many multiprocessors
        (gpu_from_description("NVIDIA A100-SXM4-40GB", "8.0", 108), "A100 40GB"),
        (gpu_from_description("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "8.0", 42), None),  # a part of one
        (gpu_from_description("NVIDIA GeForce RTX 4090 D", "8.9", 114), None),
        (gpu_from_description("Some Card 5000", "9.9", 10), None),
    ],
)
def test_a_device_is_known_by_name_capability_and_size(device: devices.Device, name: str | None) -> None:
    assert (device.guess.name if device.guess else None) == name


def test_unknown_devices_and_types_are_the_vendors_and_say_why() -> None:
    unknown = decide_plan(
        Problem(8192, 8192, 8192, "float32"), PLENTY, gpu_from_description("Some Card 5000", "9.9", 10)
    )
    assert unknown.plan == VENDOR and "Some Card 5000" in unknown.reason
    old = decide_plan(
        Problem(8192, 8192, 8192, "bfloat16"), PLENTY, gpu_from_description("Tesla V100-SXM2-16GB", "7.0", 80)
    )
    assert old.plan == VENDOR and "no rate for bfloat16" in old.reason


def test_large_products_get_plans_and_small_ones_the_vendor() -> None:
    assert decide_plan(Problem(16384, 16384, 16384, "float32"), PLENTY, H200).plan != VENDOR
    assert decide_plan(Problem(300, 300, 300, "float32"), PLENTY, H200).plan == VENDOR


def test_leaner_plans_need_ever_less() -> None:
    problem = Problem(16384, 16384, 16384, "float32")
    best = decide_plan(problem, PLENTY, H200)
    plans = list(plans_with_less_memory(problem, best.plan, PLENTY, H200))
    needs = [decide_plan(problem, PLENTY, H200).workspace, *(fmm.Decision(p, problem, "").workspace for p in plans)]
    assert len(plans) > 1 and VENDOR not in plans
    assert needs == sorted(needs, reverse=True) and len(set(needs)) > 1


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fmm.Decision]:
    """A config whose one entry for an H200 is a plan with much workspace; its calibration is the datasheet's."""
    section = tuned.section(tuned.entry((16384, 16384, 16384), "strassen^3.batched.pad16 > vendor"), calibration=None)
    path = tuned.write(tmp_path / "config.json", H200.identity.key, "float32", section)
    monkeypatch.setenv("FMM_CONFIG", str(path))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    yield decide_plan(Problem(16384, 16384, 16384, "float32"), PLENTY, H200)
    files.clear_config_cache()


def test_after_an_entry_of_a_config_leaner_plans_are_the_models(entry: fmm.Decision) -> None:
    assert entry.problem is not None
    assert (entry.source, entry.candidates) == ("certified entry", ())
    plans = list(plans_with_less_memory(entry.problem, entry.plan, PLENTY, H200))
    needs = [fmm.Decision(p, entry.problem, "").workspace for p in plans]
    assert len(plans) > 1 and VENDOR not in plans
    assert needs == sorted(needs, reverse=True) and needs[0] < entry.workspace


def test_the_types_own_error_limits_the_choice() -> None:
    """Three levels of bfloat16: within the limit that holds unless another is given, and beyond 10."""
    problem = Problem(49152, 49152, 49152, "bfloat16")
    usual, strict = (decide_plan(problem, Limits(1 << 40, growth), H200) for growth in (H200.error_growth, 10.0))
    assert strict.error_growth <= 10 < usual.error_growth <= H200.error_growth
    assert "expected error: 13.8 times" in str(usual)


@pytest.mark.parametrize(("limit", "fits"), [(0, False), (10**8, False), (1 << 31, True), (1 << 40, True)])
def test_a_workspace_is_never_exceeded(limit: int, fits: bool) -> None:
    big = contiguous_operand((8192, 8192), "float32")
    call = prepare_query(ProblemQuery(big, big, None, ProductSetting(0, "float32"), H200, Limits(limit)))
    assert (call.launches.workspace if call.launches else 0) <= limit
    assert (call.launches is not None) == fits


@pytest.mark.parametrize(
    ("device", "index"), [(0, 0), (3, 3), (np.int64(1), 1), ("cuda", 0), ("cuda:0", 0), ("cuda:12", 12)]
)
def test_devices_by_name_and_number(device: Any, index: int) -> None:
    assert parse_cuda_index(device) == index


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", -1, True, None, 1.0])
def test_other_devices_are_errors_that_list_the_valid(device: Any) -> None:
    with pytest.raises(ValueError, match="valid: 'cpu', 'cuda'"):
        fmm.plan(8, 8, 8, device=device)


@pytest.mark.parametrize(
    ("device", "typed", "name"),
    [("v100", "v100", "V100"), ("RTX 4090", "rtx-4090", "RTX 4090"), ("gtx;1050", "gtx-1050", "GTX 1050")],
)
def test_a_device_of_the_datasheets_is_told_where_to_ask(device: str, typed: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"valid: 'cpu', 'cuda'.* 0, 1, ") as raised:
        fmm.plan(8, 8, 8, device=device)
    assert f"`fmm-tune predict --device {typed} M K N` predicts the plan from the datasheet of the {name}" in str(
        raised.value
    )


@pytest.mark.parametrize("device", ["gpu", "", "v1000", "cuda:x", -1])
def test_who_asks_for_no_device_at_all_is_not(device: Any) -> None:
    with pytest.raises(ValueError, match="unknown device") as raised:
        fmm.plan(8, 8, 8, device=device)
    assert "predict" not in str(raised.value)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("tf32", "tf32"), ("bfloat16", "bfloat16"), ("f4", "float32"), (np.float16, "float16"), (complex, "complex128")],
)
def test_types_by_any_name(dtype: Any, name: str) -> None:
    assert type_name(dtype) == name


def test_plans_for_a_device() -> None:
    decision = fmm.plan(16384, 16384, 16384, dtype="tf32", device="cuda:0", workspace=1 << 36)
    assert decision.problem is not None and decision.problem.dtype == "tf32"
    assert "H200" in str(decision.candidates[0].prediction.device)
    assert "have no plan" in fmm.plan(64, 64, 64, dtype="longdouble", device=0, workspace=0).reason


def test_a_plan_for_a_device_without_cupy_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # there is no H200
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ModuleNotFoundError, match=r"device=0 needs CuPy: pip install"):
        fmm.plan(64, 64, 64, device=0, workspace=0)


# ---- calls that are kept: a library over NumPy's arrays


class SpentError(Exception):
    """Out of memory, as the library says it."""


class HostArrays:
    """Arrays of a library that happens to keep them on the host; counts what is asked of it."""

    name, vendor_name, is_differentiable, processor = "test", "test.matmul", False, "cuda"
    out_of_memory_error: type[BaseException] = SpentError

    def __init__(self) -> None:
        self.cached_calls: dict[Any, Any] = {}
        self.vendors = self.asked = 0
        self.free = 1 << 36
        self.math: Any = "ieee"
        self.refusal = ""

    def vendor_product(self, a: Any, b: Any, out: Any = None) -> Any:
        self.vendors += 1
        return np.matmul(a, b, out=out)

    def wrap_foreign_arrays(self, a: Any, b: Any, out: Any) -> None:
        pass

    def call_key(self, a: Any, b: Any, out: Any) -> Any:
        target = None if out is None else (out.shape, out.strides)
        return a.shape, a.strides, b.shape, b.strides, self.math, target

    def decline_key_without_sizes(self, a: Any, b: Any) -> Any:
        return "short"

    def device_number(self, x: Any) -> int:
        return 0

    def product_setting(self, a: Any, b: Any, out: Any) -> ProductSetting:
        one, other = self.describe_operand(a).dtype, self.describe_operand(b).dtype
        return ProductSetting(0, one if one == other else None, self.math, self.refusal)

    def describe_result(self, a: Any, b: Any, shape: tuple[int, ...], dtype: str) -> Operand:
        return contiguous_operand(shape, dtype)

    def can_multiply_operands(self, a: Any, b: Any) -> bool:
        return bool(a.shape[-1] == b.shape[0])

    def describe_operand(self, x: Any) -> Operand:
        return operand(x)

    def data_pointer(self, x: Any) -> int:
        return int(x.__array_interface__["data"][0])

    def copy_into(self, source: Any, out: Any) -> None:
        out[...] = source

    def free_bytes(self, device: int) -> int:
        self.asked += 1
        return self.free


class Large(HostArrays):
    """Says that its arrays are large."""

    def describe_operand(self, x: Any) -> Operand:
        return contiguous_operand((8192, 8192), "float32")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for the module that runs tapes: notes what it is given, runs out of memory `fail` times."""
    calls: list[Any] = []

    class Runner:
        fail: int = 0
        error: type[Exception] = SpentError

        @staticmethod
        def run_call(arrays: Any, call: PreparedCall, a: Any, b: Any, out: Any, whatever: bool) -> Any:
            calls.append((call, out, whatever))
            if Runner.fail:
                Runner.fail -= 1
                raise Runner.error("for the test")
            return np.matmul(a, b, out=out)

    monkeypatch.setattr(product_call, "_runner_module", lambda processor: Runner)
    calls.append(Runner)
    return calls


def multiply(library: Any, a: Any, b: Any, out: Any = None, constraints: PlanConstraints = NO_CONSTRAINTS) -> Any:
    return product_call.run_matmul(library, a, b, out, constraints)


def test_a_call_is_prepared_once(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []
    original = prepare.prepare_query
    monkeypatch.setattr(prepare, "prepare_query", lambda q: prepared.append(q) or original(q))  # type: ignore[func-returns-value]
    library, a, constraints = HostArrays(), draw((64, 64)), PlanConstraints(LEVEL)
    for _ in range(3):
        multiply(library, a, a, constraints=constraints)
    assert len(prepared) == 1
    multiply(library, a.T, a, constraints=constraints)
    multiply(library, a, a, constraints=constraints._replace(error_growth=3.0))
    multiply(library, a, a, constraints=constraints._replace(workspace=10**8))
    library.math = "tf32"
    multiply(library, a, a, constraints=constraints)
    assert len(prepared) == 5
    assert len({id(call) for call, *_ in runs[1:]}) == 5


def test_prepared_calls_do_not_pile_up(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "MAX_CACHED_CALLS", 4)
    library = HostArrays()
    for n in range(8, 20):
        multiply(library, draw((n, n)), draw((n, n)))
        assert 1 <= len(library.cached_calls) <= 4


def test_the_free_memory_is_asked_for_once_a_second(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = HostArrays()
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    shares = []
    for tick, free in ((0.0, 1000), (0.9, 10**6), (1.1, 10**6), (5.0, 0)):
        now[0], library.free = 100 + tick, free
        shares.append(default_workspace_bytes(library, 0))
    assert shares[0] == shares[1] <= 500 and 0.37 * 10**6 < shares[2] <= 0.5 * 10**6 and shares[3] == 0
    assert library.asked == 3


def test_calls_are_decided_anew_when_the_free_memory_has_changed(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, library = [100.0], Large()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    needs = []
    for free in (1 << 36, 1 << 36, 1 << 24):
        library.free = free
        multiply(library, draw((8, 8)), draw((8, 8)))
        needs.append(runs[-1][0].workspace)
        kept = list(library.cached_calls.values())
        now[0] += 2
    assert needs[0] == needs[1] > 1 << 29
    assert library.vendors == 1 and kept[0].call.launches is None  # nothing fits any more


@pytest.mark.parametrize("constraints", [NO_CONSTRAINTS, PlanConstraints(LEVEL)], ids=["ours", "given"])
def test_a_call_that_launches_the_same_under_another_limit_stays_itself(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch, constraints: PlanConstraints
) -> None:
    """Or what stands ready for it, and the graphs that it is replayed as, would be made anew: as often as others take
    and give back memory of the device."""
    now, library = [100.0], Large()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for free in (1 << 36, 1 << 37, 5 << 34, 1 << 36):
        library.free = free
        multiply(library, draw((8, 8)), draw((8, 8)), constraints=constraints)
        now[0] += 2
    first = runs[1][0]
    assert library.asked == 4 and all(call is first for call, *_ in runs[1:])


def test_a_product_that_was_lost_is_lost_for_a_second(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    now, library, a = [100.0], HostArrays(), draw((8, 8))
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    arrays: Library = library  # type: ignore[assignment]
    assert not was_declined(arrays, a, a)
    multiply(library, a, a, constraints=PlanConstraints(VENDOR))
    assert not was_declined(arrays, a, a)  # constraints say nothing of calls without
    for out in (None, np.empty((8, 8))):
        multiply(library, a, a, out)
        assert was_declined(arrays, a, a)
        now[0] += limits.FREE_MEMORY_SECONDS + 0.01
        assert not was_declined(arrays, a, a)
    multiply(library, a, a, constraints=PlanConstraints(LEVEL))
    assert not was_declined(arrays, a, a)


@pytest.mark.parametrize("other", [3, [[1.0]], None, np.ones(3), np.ones((2, 3, 3))], ids=lambda x: type(x).__name__)
def test_what_is_no_pair_of_matrices_is_not_remembered(other: Any) -> None:
    library: Any = HostArrays()
    remember_decline(library, draw((8, 8)), other, fmm.Decision(VENDOR, None, "for the test"))
    assert not library.cached_calls


def test_a_decline_holds_for_its_sizes_and_its_beta() -> None:
    library: Any = HostArrays()
    stack, decision = draw((3, 8, 8)), fmm.Decision(VENDOR, None, "for the test")
    remember_decline(library, stack, stack, decision)
    assert was_declined(library, stack, stack)
    assert not was_declined(library, stack, stack[:1]) and not was_declined(library, stack, stack, beta=1)
    remember_decline(library, stack[0], stack[0], decision, beta=1)
    assert was_declined(library, stack[1], stack[2].T, beta=1) and not was_declined(library, stack[0], stack[0])


def test_out_that_overlaps_is_filled_by_a_copy(runs: list[Any]) -> None:
    library, a = HostArrays(), draw((64, 64))
    expected = a @ a
    assert multiply(library, a, a, a, PlanConstraints(LEVEL)) is a
    np.testing.assert_array_equal(a, expected)
    assert runs[-1][1] is None  # the plan was given no out
    out = np.empty((64, 64))
    multiply(library, a, a, out, PlanConstraints(LEVEL))
    assert runs[-1][1] is out


@pytest.mark.parametrize("failures", [1, 2, 1000])
def test_when_memory_runs_out_leaner_plans_are_tried_and_the_vendor_last(
    runs: list[Any], failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FMM_EMULATION", "0")  # float16 products need so little that there is nothing leaner
    runs[0].fail = failures
    library, a = Large(), draw((8, 8))
    np.testing.assert_array_equal(multiply(library, a, a), a @ a)
    needs = [call.decision.workspace for call, *_ in runs[1:]]
    assert library.vendors == (failures == 1000)
    assert len(needs) >= min(failures + 1, 3) and needs == sorted(needs, reverse=True)


@pytest.mark.parametrize("failures", quick_and_slow([1, 2], [1000]))
def test_where_a_plan_cannot_run_the_next_one_is_taken_and_the_vendor_last(runs: list[Any], failures: int) -> None:
    """A certified candidate of cuBLASLt, say, that is not there for lines that begin like these."""
    runs[0].fail, runs[0].error = failures, PlanError
    library, a = Large(), draw((8, 8))
    for out in (None, np.empty((8, 8))):
        np.testing.assert_array_equal(multiply(library, a, a, out), a @ a)
    tried = [call.decision.plan for call, *_ in runs[1:]]
    assert library.vendors == 2 * (failures == 1000)
    assert tried[0] != tried[1] and len(set(tried)) >= min(failures + 1, 3)


@pytest.mark.parametrize("error", [PlanError, SpentError])
def test_a_given_plan_is_not_replaced(runs: list[Any], error: type[Exception]) -> None:
    runs[0].fail, runs[0].error = 1, error
    library, a, out = Large(), draw((8, 8)), np.full((8, 8), 7.0)
    with pytest.raises(error, match="for the test"):
        multiply(library, a, a, out, PlanConstraints(LEVEL))
    assert library.vendors == 0 and len(runs) == 2 and (out == 7).all()


def test_a_plan_of_fmms_own_that_cannot_run_is_the_vendors(runs: list[Any]) -> None:
    """Nobody asked for it, so nobody is told."""
    library, a = HostArrays(), draw((8, 8))
    deep = Plan.parse(" > ".join(["winograd"] * 30 + ["vendor"]))
    np.testing.assert_array_equal(multiply(library, a, a, None, PlanConstraints(deep, replaceable=True)), a @ a)
    assert library.vendors == 1 and len(runs) == 1


class Apart(Large):
    """Says that its rows are so many numbers apart."""

    leading = 8192

    def describe_operand(self, x: Any) -> Operand:
        return Operand((8192, 8192), (self.leading, 1), "float32")


@pytest.mark.parametrize("leading", [8192, 8193])
def test_an_entry_that_does_not_fit_a_view_gives_way(
    leading: int, runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own kernel reads whole 16 bytes where every row begins at a multiple of them, and is slow elsewhere."""
    section = tuned.section(tuned.entry((8192, 8192, 8192), "strassen.fused.pad4 > tile"), calibration=None)
    path = tuned.write(tmp_path / "config.json", H200.identity.key, "float32", section)
    monkeypatch.setenv("FMM_CONFIG", str(path))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    library: Any = Apart()
    library.leading = leading
    found = product_call.explain_matmul(library, draw((8, 8)), draw((8, 8)), None, NO_CONSTRAINTS)
    files.clear_config_cache()
    assert (found.source, "fused" in str(found.plan)) == ("certified entry", leading == 8192)
    assert found.plan != VENDOR and found.kernels[0] != "test.matmul"
    assert ("cannot run on these arrays" in found.reason) == (leading == 8193)


def test_what_runs_is_told_for_the_addresses_of_the_arrays(runs: list[Any]) -> None:
    """Of 16-bit numbers our own kernel reads whole 16 bytes; the vendor answers for it where they do not begin so."""
    library: Any = HostArrays()
    memory = np.zeros(2 * 64 * 72, np.float16)
    start = -memory.__array_interface__["data"][0] % 256 // 2
    texts = []
    for shift in (0, 1):
        a = memory[start + shift : start + shift + 64 * 64].reshape(64, 64)
        texts.append(
            " ".join(product_call.explain_matmul(library, a, a, None, PlanConstraints(Plan.parse("tile"))).kernels)
        )
    assert "cuBLAS" not in texts[0]
    assert "cuBLAS, not tile, because an operand does not begin at a multiple of 16 bytes" in texts[1]


def test_a_decision_says_what_runs(runs: list[Any]) -> None:
    library: Any = Large()
    a = draw((8, 8))
    for constraints in (NO_CONSTRAINTS, PlanConstraints(LEVEL), PlanConstraints(Plan.parse("strassen.fused > tile"))):
        call = prepare.prepare_uncached(library, a, a, None, constraints)
        found = product_call.explain_matmul(library, a, a, None, constraints)
        assert call.launches is not None and found.kernels == call.launches.step_labels() != ()
        text = str(found)
        assert text.index("\nruns:\n  ") < text.index(found.kernels[0]) < text.index("expected error")
    assert product_call.explain_matmul(library, a, a, None, PlanConstraints(VENDOR)).kernels == ("test.matmul",)
    assert "numpy.matmul" in fmm.explain(a, a).kernels[0]
    assert fmm.plan(8192, 8192, 8192, dtype="float32", device=0, workspace=1 << 36).kernels == found_for_rows()
    assert fmm.plan(8, 8, 8, dtype="float32", device=0, workspace=0).kernels == ("the vendor's product",)


def found_for_rows() -> tuple[str, ...]:
    big = contiguous_operand((8192, 8192), "float32")
    call = prepare_query(
        ProblemQuery(big, big, None, ProductSetting(0, "float32"), H200, Limits(1 << 36, H200.error_growth))
    )
    assert call.launches is not None
    return call.launches.step_labels()


def test_where_a_plans_kernels_cannot_read_the_arrays_the_vendor_is_named(runs: list[Any]) -> None:
    """An entry's plan, say, that no list of launches can be made of."""
    library: Any = Large()
    a = draw((8, 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "launches_on_device", lambda plan, problem, device, given: None)
        found = product_call.explain_matmul(library, a, a, None, NO_CONSTRAINTS)
    assert found.plan != VENDOR and found.kernels[0].startswith("test.matmul, since")


def test_refusals_are_explained_and_a_given_plan_is_not_silently_dropped(runs: list[Any]) -> None:
    library, a = HostArrays(), draw((64, 64))
    library.refusal = "its compute type is set"
    decision = product_call.explain_matmul(library, a, a, None, NO_CONSTRAINTS)  # type: ignore[arg-type]
    assert decision.plan == VENDOR and decision.reason == "test multiplies: its compute type is set"
    with pytest.raises(PlanError, match="cannot run here: its compute type is set"):
        multiply(library, a, a, constraints=PlanConstraints(LEVEL))
    with pytest.raises(ValueError, match="matmul"):  # the library's own exception, where it rejects the shapes
        multiply(library, a, draw((3, 3)), constraints=PlanConstraints(LEVEL))
    assert library.vendors == 1


def test_a_plan_too_deep_for_the_product_is_refused(runs: list[Any]) -> None:
    """Before its tape, seven times as long for each level more, is recorded."""
    library, a = HostArrays(), draw((8, 8))
    constraints = PlanConstraints(Plan.parse(" > ".join(["winograd"] * 30 + ["vendor"])))
    for call in (multiply, product_call.explain_matmul):
        with pytest.raises(PlanError, match=r"cuts a 8 x 8 x 8 product into .* products; use fewer levels"):
            call(library, a, a, None, constraints)  # type: ignore[arg-type]
    assert library.vendors == 0 and len(runs) == 1
    multiply(library, a, a, constraints=PlanConstraints(Plan.parse(" > ".join(["winograd"] * 4 + ["vendor"]))))
    assert len(runs) == 2


# ---- the rescue


def test_after_rescues_plans_rest_ever_longer_and_come_back() -> None:
    trust, rescues, runs_of_rest = trust_of_streams.RecomputeBackoff(), 0, []
    for _ in range(12):
        rescues += 1
        rest = 0
        while not trust.allows_plan(rescues):
            rest += 1
        runs_of_rest.append(rest)
    assert runs_of_rest == [min(trust_of_streams.MIN_BACKOFF * 2**i, trust_of_streams.MAX_BACKOFF) for i in range(12)]
    assert all(trust.allows_plan(rescues) for _ in range(2 * trust_of_streams.MAX_BACKOFF))
    assert not trust.allows_plan(rescues + 1)  # long forgotten: the first rest again
    assert sum(not trust.allows_plan(rescues + 1) for _ in range(100)) == trust_of_streams.MIN_BACKOFF - 1


def test_every_type_has_a_rescue() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128"):
        for entry in (recompute.RECOMPUTE_ENTRY_NAME, recompute.SCAN_ENTRY_NAME):
            text = recompute.simple_recompute_source(dtype, entry)
            assert text.count(entry + "(") == 1 and text.count("__global__") == 1


# ---- torch's tensors on the host


def test_host_tensors_are_multiplied_through_numpy() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.from_numpy(draw((60, 50))), torch.from_numpy(draw((50, 40)))
    c = fmm.matmul(a, b, plan=LEVEL)
    assert type(c) is torch.Tensor
    torch.testing.assert_close(c, a @ b)
    out = torch.empty((60, 40), dtype=torch.float64)
    assert fmm.matmul(a, b, out, plan=LEVEL) is out
    torch.testing.assert_close(out, a @ b)
    z = torch.complex(a, -a)
    torch.testing.assert_close(fmm.matmul(z.mH, z, plan=LEVEL), z.mH @ z)  # a conjugate that is only marked as one


def test_host_tensors_explain_what_matmul_does_with_a_plan() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.from_numpy(draw((60, 50))), torch.from_numpy(draw((50, 40)))
    assert fmm.explain(a, b, plan=LEVEL).plan == LEVEL
    assert str(fmm.explain(a, b, plan=LEVEL)) == str(fmm.explain(a.numpy(), b.numpy(), plan=LEVEL))
    z = torch.complex(a, -a)
    assert fmm.explain(z.mH, z, plan=LEVEL).plan == LEVEL
    for x, y, out in (
        (a.half(), b.half(), None),
        (a[0], b, None),
        (a.int(), b.int(), None),
        (a, b, torch.ones((3, 3), dtype=a.dtype)),
        (a, b.as_subclass(type("Mine", (torch.Tensor,), {})), None),
    ):
        assert fmm.explain(x, y, out).plan == fmm.explain(x, y, out, plan=VENDOR).plan == VENDOR
        for call in (fmm.matmul, fmm.explain):
            with pytest.raises(PlanError, match=r"cannot run here: .*(have no plan|torch's own|another shape)"):
                call(x, y, out, plan=LEVEL)
    with pytest.raises(PlanError, match="use fewer levels"):
        fmm.explain(a, b, plan="strassen^4 > strassen^4 > vendor")
    assert "do not match" in fmm.explain(a, a).reason


def test_host_tensors_have_gradients() -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.from_numpy(draw(s)).requires_grad_() for s in ((2, 6, 5), (5, 4)))
    plan = Plan.parse("winograd > vendor")

    def product_of(x: Any, y: Any) -> Any:
        return fmm.matmul(x, y, plan=plan)

    assert type(product_of(a, b).grad_fn).__name__ == "ProductBackward"
    assert torch.autograd.gradcheck(product_of, (a, b))
    assert torch.autograd.gradgradcheck(product_of, (a, b))


def test_host_tensors_that_torch_rejects_are_its_errors() -> None:
    torch = pytest.importorskip("torch")
    a = torch.ones((4, 4))
    for b in (torch.ones((3, 3)), torch.ones((4, 4), dtype=torch.float64), 3):
        with pytest.raises((RuntimeError, TypeError)) as theirs:
            torch.matmul(a, b)
        for plan in (None, VENDOR, LEVEL):
            with pytest.raises(type(theirs.value)) as ours:
                fmm.matmul(a, b, plan=plan)
            assert str(ours.value) == str(theirs.value)
    with pytest.raises(TypeError, match="takes no order"):
        fmm.matmul(a, a, order="F")
    with pytest.raises(TypeError, match="takes no axes"):
        fmm.matmul(a, a, axes=[(0, 1)] * 3)
    with pytest.raises(TypeError, match="takes no axes, foo"):
        fmm.explain(a, a, axes=[(0, 1)] * 3, foo=1)


@pytest.mark.parametrize(
    ("size", "itemsize", "no"),
    [
        ((64, 64, 64), 4, True),
        ((800, 800, 800), 8, True),
        ((1536, 1536, 1536), 4, False),  # where one level of float32 wins on an H200
        ((1536, 1536, 1536), 2, True),
        ((2001, 2001, 2001), 2, False),  # rows that are not aligned
        ((2048, 2048, 2048), 2, False),
        ((2000, 2000, 2000), 2, True),
        ((1, 1 << 29, 1), 4, False),
    ],
)
def test_a_quick_no(size: tuple[int, int, int], itemsize: int, no: bool) -> None:
    assert early_declines.is_small_on_device(*size, itemsize) is no


SIDES = st.integers(1, 20000)


@given(SIDES, SIDES, SIDES, st.sampled_from((2, 4, 8, 16)))
def test_a_quick_no_by_bytes_and_sides_is_the_same(m: int, k: int, n: int, itemsize: int) -> None:
    library: Any = SimpleNamespace(is_differentiable=True, cached_calls={}, decline_key_without_sizes=lambda a, b: "")
    a, b = Exact(m, k, itemsize=itemsize), Exact(k, n, itemsize=itemsize)
    expected = early_declines.is_small_on_device(m, k, n, itemsize)
    assert early_declines.is_declined_on_device(library, a, b, a.nbytes * b.nbytes) is expected
    library.cached_calls[early_declines.decline_key(library, a, b)] = math.inf
    assert early_declines.is_declined_on_device(library, a, b, a.nbytes * b.nbytes)


def test_a_quick_no_of_what_is_no_pair_of_matrices() -> None:
    """A number, something of which a trace takes note; stacks, by all that they come to; whole numbers of 16 bits."""
    tensors: Any = SimpleNamespace(is_differentiable=True, cached_calls={}, decline_key_without_sizes=lambda a, b: "")
    arrays: Any = SimpleNamespace(is_differentiable=False, cached_calls={}, decline_key_without_sizes=lambda a, b: "")

    def quick_no(library: Any, a: Any, b: Any) -> bool:
        return early_declines.is_declined_on_device(library, a, b, a.nbytes * b.nbytes)

    assert not quick_no(tensors, Exact(), Exact(3, 3))
    traced: Any = np.int64(3)  # no int of Python's
    assert not quick_no(tensors, Exact(3, traced), Exact(3, 3))
    assert quick_no(tensors, Exact(30, 100, 100), Exact(100, 100))
    assert not quick_no(tensors, Exact(3000, 1000, 1000), Exact(1000, 1000))
    wide, whole = Exact(1536, 1536, itemsize=2), Exact(1536, 1536, itemsize=2)
    wide.dtype, whole.dtype = np.dtype("float16"), np.dtype("int16")
    assert quick_no(arrays, wide, wide) and not quick_no(arrays, whole, whole)
    narrow = Exact(900, 900, itemsize=1)
    assert not quick_no(arrays, Exact(900, 900, itemsize=8), narrow)
    assert quick_no(arrays, Exact(700, 700, itemsize=8), Exact(700, 700, itemsize=1))


@given(SIDES, SIDES, SIDES, st.sampled_from((2, 4, 8, 16)))
def test_a_quick_no_by_bytes_says_no_to_nothing_that_could_win(m: int, k: int, n: int, itemsize: int) -> None:
    """Either the product is hopeless anyway, or its inner side is short."""
    if (m * k * itemsize) * (k * n * itemsize) < early_declines.SMALL_BYTES_PRODUCT:
        work = m * k * n
        assert k < early_declines.SHORT_INNER_SIDE or work < (
            early_declines.SMALL_MULTIPLY_ADDS_UNALIGNED if itemsize == 2 else early_declines.SMALL_MULTIPLY_ADDS
        )


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "tf32", "complex64", "complex128"])
@pytest.mark.parametrize("k", [1, 7, 16, 33, 72, early_declines.SHORT_INNER_SIDE - 1])
@pytest.mark.parametrize("tall", [1, 8, 64])
def test_with_a_short_inner_side_no_plan_wins(dtype: str, k: int, tall: int) -> None:
    """Not even on the largest of the products that are so short and have so few bytes, their rows aligned or not."""
    itemsize = Problem(1, 1, 1, dtype).itemsize
    area = early_declines.SMALL_BYTES_PRODUCT // (k * itemsize) ** 2
    for m, n in (
        (int((area * tall) ** 0.5), int((area / tall) ** 0.5)),
        (int((area / tall) ** 0.5), int((area * tall) ** 0.5)),
    ):
        for odd in (0, 1):
            sides = max(m, 1), k, max(n - n % 16 + odd, 1)
            assert decide_plan(Problem(*sides, dtype), PLENTY, H200).plan == VENDOR, sides


# ---- the shortest way


class Exact:
    """An array of a library whose type fmm.matmul knows."""

    def __init__(self, *shape: int, itemsize: int = 4) -> None:
        self.shape, self.ndim, self.size = shape, len(shape), int(np.prod(shape))
        self.itemsize = itemsize
        self.dtype: Any = np.dtype(f"V{itemsize}")

    @property
    def nbytes(self) -> int:
        if not self.itemsize:
            raise RuntimeError("nbytes is not defined for sparse tensors")
        return self.size * self.itemsize


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way each call took."""
    taken: list[str] = []

    class Library:
        is_differentiable, processor, cached_calls, is_watched = False, "cuda", {}, False  # type: ignore[var-annotated]

        def are_torch_calls_recorded(self) -> bool:
            return self.is_watched

        is_tracing = property(lambda self: self.are_torch_calls_recorded)

        def fast_vendor_product(self, a: Any, b: Any) -> None:
            taken.append("quick vendor")

        def adapter_for_matmul_options(self, options: Any) -> Any:
            if options:
                taken.append(", ".join(options))
            return self

        def decline_key_without_sizes(self, a: Any, b: Any) -> Any:
            return ()

    def product(library: Any, a: Any, b: Any, out: Any, constraints: Any) -> None:
        taken.append("product")

    library: Any = Library()
    monkeypatch.setitem(select_library.PLAIN_TYPES, Exact, library)
    monkeypatch.setitem(select_library._libraries, Exact, library)
    for name in ("run_matmul", "run_matmul_any_library"):
        monkeypatch.setattr(product_call, name, product)
    return taken


def test_small_matrices_take_the_shortest_way_and_nothing_else_does(ways: list[str]) -> None:
    small, large, out = Exact(300, 300), Exact(2000, 2000), Exact(300, 300)
    fmm.matmul(small, small)
    assert ways == ["quick vendor"]
    for a, b in ((large, large), (Exact(3, 20, 20), Exact(20, 20)), (Exact(20), Exact(20, 20))):
        fmm.matmul(a, b)
    fmm.matmul(Exact(9, 9, itemsize=0), small)  # sparse
    first = ["product" if large else "quick vendor" for large in (0, 1, 0, 0, 0)]  # of small stacks and vectors too
    assert ways == first
    for constraints in ({"out": out}, {"plan": "vendor"}, {"workspace": 0}, {"max_error_growth": 2.0}):
        fmm.matmul(small, small, **constraints)
    assert ways == [*first, *["product"] * 4]


def test_options_reach_the_library_on_its_shortest_way_too(ways: list[str]) -> None:
    """Those that fmm itself does not know as well: dropped, they would be a wrong result."""
    options: list[dict[str, Any]] = [{"dtype": "float64"}, {"order": "F"}, {"casting": "unsafe"}]
    options += [{"axes": [(0, 1), (1, 0), (0, 1)]}, {"max_eror_growth": 1.0}, {"order": "F", "subok": False}]
    for small in (Exact(300, 300), Exact(2000, 2000)):
        for option in options:
            ways.clear()
            fmm.matmul(small, small, **option)
            assert ways == [", ".join(option), "product"]


def test_who_watches_a_librarys_calls_sees_its_own_product_and_nothing_else(
    ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")  # whose calls these are

    class Untouched(Exact):
        def __getattribute__(self, name: str) -> Any:
            assert name == "__class__"
            return type(self)

    def recorded(a: Any, b: Any, out: Any, constraints: Any) -> None:
        ways.append("recorded")

    library = select_library.PLAIN_TYPES[Exact]
    monkeypatch.setattr(library, "is_watched", True)
    monkeypatch.setattr("fmm.dispatch._traced_matmul", recorded)
    for known in (select_library.PLAIN_TYPES, select_library._libraries):
        monkeypatch.setitem(known, Untouched, library)
    x = Untouched(2000, 2000)
    fmm.matmul(x, x)
    fmm.matmul(x, x, x)
    fmm.matmul(x, x, plan=VENDOR, max_error_growth=2.0)
    fmm.matmul(x, x, plan=LEVEL)
    assert ways == ["recorded"] * 4


def test_what_is_quickly_known_to_be_the_vendors_is_known_by_both_types() -> None:
    x, y = np.ones((3, 3), np.float32), np.ones((3, 3))
    assert (
        NUMPY.decline_key_without_sizes(x, x)
        != NUMPY.decline_key_without_sizes(x, y)
        != NUMPY.decline_key_without_sizes(y, y)
    )
    assert NUMPY.decline_key_without_sizes(x, y) != NUMPY.decline_key_without_sizes(y, x)


def test_tensors_are_known_by_both_types_too() -> None:
    """A call of two types is torch's error; the next one of the first type alone may be worth a plan."""
    torch = pytest.importorskip("torch")
    from fmm.arrays.torch_library import TORCH, TORCH_ON_HOST

    x, y = torch.ones(3, 3), torch.ones(3, 3, dtype=torch.float64)
    for library in (TORCH, TORCH_ON_HOST):
        assert len({library.decline_key_without_sizes(*pair) for pair in ((x, x), (x, y), (y, x), (y, y))}) == 4


def test_host_tensors_take_the_shortest_way_too() -> None:
    torch = pytest.importorskip("torch")
    a = torch.ones((4, 4), requires_grad=True)
    assert type(fmm.matmul(a, a).grad_fn).__name__ == "MmBackward0"
    assert fmm.matmul(torch.eye(4).to_sparse(), a).shape == (4, 4)
    torch.testing.assert_close(fmm.matmul(torch.ones(3, 4, 4), a), torch.ones(3, 4, 4) @ a)


# ---- calls that recur


@pytest.mark.parametrize(
    ("n", "limit", "uses_graph"),
    [(1536, 1 << 40, True), (4096, 1 << 40, True), (8192, 1 << 40, False), (1536, 1 << 26, False)],
)
def test_small_plans_are_worth_a_graph_if_its_memory_is_allowed(n: int, limit: int, uses_graph: bool) -> None:
    x = contiguous_operand((n, n), "float32")
    call = prepare_query(ProblemQuery(x, x, None, ProductSetting(0, "float32"), H200, Limits(limit), LEVEL))
    assert call.launches is not None and call.uses_graph is uses_graph
    assert call.workspace - call.launches.workspace == (GRAPH_SCRATCH_BYTES if uses_graph else 0)


def test_a_graph_without_products_of_the_vendor_takes_no_memory() -> None:
    x = contiguous_operand((3072, 3072), "float32")
    call = prepare_query(
        ProblemQuery(x, x, None, ProductSetting(0, "float32"), H200, Limits(0), Plan.parse("strassen.fused > tile"))
    )
    assert call.uses_graph
    assert call.workspace == 0


def test_stacks_and_long_tapes_are_not_worth_a_graph() -> None:
    for shape, plan in (((100, 64, 64), LEVEL), ((700, 700), Plan.parse("strassen > strassen > vendor"))):
        x = contiguous_operand(shape, "float32")
        assert not prepare_query(ProblemQuery(x, x, None, ProductSetting(0, "float32"), H200, PLENTY, plan)).uses_graph

"""Calls on CuPy's arrays, on a CuPy that is made of NumPy: what reaches cupy.matmul, and how."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fmm
from fmm import dispatch
from fmm.arrays import select_library
from fmm.arrays.library import Library
from fmm.config.files import Configs
from fmm.config.schema import Tuning
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.problem import Problem
from fmm.runtime import devices, prepare
from fmm.runtime import matmul as product_call
from fmm.runtime.decisions import early_declines, limits
from fmm.runtime.decisions.decide import Decision, decide_plan
from tests.support import configs, numpy_cupy
from tests.support.devices import H200

PLAN = Plan.parse("strassen.batched.pad16 > vendor")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(devices, "cuda_device", lambda index: H200)
    plain_types: dict[type, Library] = {}
    for name in ("fmm.arrays.select_library.PLAIN_TYPES", "fmm.api.PLAIN_TYPES"):
        monkeypatch.setattr(name, plain_types)
    limits._workspace_readings.clear()
    with numpy_cupy.in_place(*numpy_cupy.ADAPTERS) as found:
        yield found
    limits._workspace_readings.clear()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every product gets a plan; what would run on the device is noted."""
    ran: list[Any] = []

    class Runner:
        @staticmethod
        def run_call(library: Any, call: Any, a: Any, b: Any, out: Any, given: bool) -> Any:
            ran.append(call.plan)
            return library.vendor_product(a, b, out)

    monkeypatch.setattr(prepare, "decide_plan", lambda problem, limits, device: Decision(PLAN, problem, "for the test"))
    monkeypatch.setattr(product_call, "_runner_module", lambda processor: Runner)
    monkeypatch.setattr(early_declines, "SMALL_MULTIPLY_ADDS", 100**3)
    monkeypatch.setattr("fmm.dispatch.SMALL_BYTES_PRODUCT", 100**2)
    return ran


def drawn(cupy: Any, side: int, dtype: str = "float32") -> Any:
    return cupy.ndarray(np.random.default_rng(side).standard_normal((side, side)).astype(dtype))


AXES = [(1, 0), (0, 1), (1, 0)]
OPTIONS: list[dict[str, Any]] = [
    {"axes": AXES},
    {"subok": False},
    {"order": "F"},
    {"dtype": "float64"},
    {"casting": "unsafe"},
    {"dtype": "float64", "axes": AXES},
]
UNKNOWN: list[dict[str, Any]] = [
    {"foo": 1},
    {"max_eror_growth": 1},
    {"workspce": 0},
    {"axes": AXES, "foo": 1},
]
SIDES = (4, 110)  # of which the smaller one takes the shortest way


@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("side", SIDES)
def test_options_reach_cupy(cupy: Any, planned: list[Any], side: int, options: dict[str, Any], with_out: bool) -> None:
    a, b = drawn(cupy, side), drawn(cupy, side)
    fmm.matmul(a, a)  # from now on the type is known, and the shortest way open
    planned.clear()
    cupy.calls.clear()
    out = cupy.ndarray((side, side), "float64") if with_out else None
    found = fmm.matmul(a, b, out, **options)
    assert cupy.calls == [options] and not planned
    assert (found is out) == with_out
    np.testing.assert_array_equal(found.host, np.matmul(a.host, b.host, out=out and np.empty_like(out.host), **options))


@pytest.mark.parametrize("options", UNKNOWN, ids=str)
@pytest.mark.parametrize("side", SIDES)
def test_what_nobody_knows_raises_what_cupy_raises(
    cupy: Any, planned: list[Any], side: int, options: dict[str, Any]
) -> None:
    a = drawn(cupy, side)
    fmm.matmul(a, a)
    with pytest.raises(TypeError) as theirs:
        cupy.matmul(a, a, **options)
    with pytest.raises(TypeError) as ours:
        fmm.matmul(a, a, **options)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("side", SIDES)
def test_wishes_are_checked_beside_options(cupy: Any, side: int) -> None:
    a = drawn(cupy, side)
    with pytest.raises(ValueError, match="workspace must be"):
        fmm.matmul(a, a, axes=AXES, workspace=-1)
    with pytest.raises(fmm.PlanError, match="cannot run here: axes was passed"):
        fmm.matmul(a, a, axes=AXES, plan=PLAN)
    assert fmm.explain(a, a, axes=AXES).plan == VENDOR


def test_a_plan_runs_where_nothing_else_is_asked(cupy: Any, planned: list[Any]) -> None:
    """Without this the tests above could pass because nothing ever takes a plan."""
    a = drawn(cupy, 110)
    fmm.matmul(a, a)
    assert planned == [PLAN] and cupy.calls == [{}]


class ByInterface:
    """An array of a library without an adapter, in the memory of a CuPy array."""

    def __init__(self, x: Any) -> None:
        self.x, self.__cuda_array_interface__ = x, {"shape": x.shape}


@pytest.mark.parametrize("foreign", ["", "a", "b", "c", "out", "a out", "a b c out"])
def test_gemm_and_gram_return_the_callers_out(cupy: Any, foreign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy, "asarray", lambda x: x.x, raising=False)
    arrays = {name: drawn(cupy, 110) for name in ("a", "b", "c", "out")}
    a, b, c, out = (ByInterface(x) if name in foreign.split() else x for name, x in arrays.items())
    ran: list[list[str]] = []

    def run(library: Library, *operands: Any) -> Any:
        ran.append([name for x in operands[:4] for name, array in arrays.items() if x is array])
        return arrays["out"]

    monkeypatch.setattr(dispatch, "run_gemm", run)
    monkeypatch.setattr(dispatch, "run_gram", run)
    assert fmm.gemm(a, b, c, beta=2, out=out) is fmm.gemm(a, b, c, beta=2, out=(out,)) is out
    assert fmm.gram(a, b, out) is fmm.gram(a, b, (out,)) is out
    assert ran == [["a", "b", "c", "out"]] * 2 + [["a", "b", "out"]] * 2


@pytest.mark.parametrize("foreign", ["a", "b", "a b"])
def test_gemm_and_gram_return_arrays_of_the_callers_library(
    cupy: Any, foreign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba's arrays are wrapped as CuPy's, and the result as Numba's, as fmm.matmul does."""
    monkeypatch.setattr(cupy, "asarray", lambda x: x.x, raising=False)
    monkeypatch.setattr(ByInterface, "__module__", "numba.cuda.cudadrv")
    numba = SimpleNamespace(cuda=SimpleNamespace(as_cuda_array=lambda x: ("Numba's", x)))
    monkeypatch.setitem(sys.modules, "numba", numba)
    product = drawn(cupy, 110)
    a, b = (ByInterface(drawn(cupy, 110)) if name in foreign.split() else drawn(cupy, 110) for name in ("a", "b"))
    for name in ("run_gemm", "run_gram"):
        monkeypatch.setattr(dispatch, name, lambda *operands: product)
    assert fmm.gemm(a, b) == fmm.gram(a, b) == ("Numba's", product)


@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16"])
def test_a_given_plan_is_explained_without_arrays(cupy: Any, dtype: str) -> None:
    found = fmm.plan(1536, 1024, 2048, dtype=dtype, device=0, plan=PLAN)
    assert found.plan == PLAN and found.problem is not None and found.problem.dtype == dtype
    assert found.reason.startswith("this plan was passed") and len(found.kernels) >= 3  # sums, products, sums
    assert fmm.plan(0, 8, 8, dtype=dtype, device=0, plan=PLAN).plan == VENDOR
    with pytest.raises(fmm.PlanError, match=r"cannot run here: vendor multiplies .* there, not int8"):
        fmm.plan(64, 64, 64, dtype="int8", device=0, plan=PLAN)


@pytest.mark.parametrize("side", SIDES)
def test_the_shortest_way_is_taken(cupy: Any, planned: list[Any], side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By small products, and by what was CuPy's own a moment ago; the tests above are about what may not take it."""
    a = drawn(cupy, side)
    fmm.matmul(a, a)
    library = select_library.cupy_library()
    library.cached_calls[early_declines.decline_key(library, a, a)] = math.inf
    monkeypatch.setattr(product_call, "run_matmul", lambda *call: pytest.fail("the long way"))
    fmm.matmul(a, a)


def test_a_call_of_two_types_decides_nothing_for_the_next(cupy: Any, planned: list[Any]) -> None:
    a, integers = drawn(cupy, 110), drawn(cupy, 110, "int64")
    fmm.matmul(integers, integers)  # CuPy's own, which is remembered
    assert planned == []
    fmm.matmul(a, integers)  # a product of float64
    fmm.matmul(integers, a)
    fmm.matmul(a, a)
    assert planned == [PLAN] * 3
    library: Library = select_library.cupy_library()
    kinds = [
        library.decline_key_without_sizes(*pair)
        for pair in ((a, a), (a, integers), (integers, a), (integers, integers))
    ]
    assert len(set(kinds)) == 4


def test_the_keys_of_a_product_of_two_types_have_the_products_compute_type(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: Library = select_library.cupy_library()
    modes: dict[str, int] = {}
    monkeypatch.setattr("fmm.arrays.cupy_library.get_compute_type", lambda dtype: modes.get(dtype.name, 1))
    pairs = [(drawn(cupy, 4, x), drawn(cupy, 4, y)) for x, y in (("float32", "int64"), ("int64", "float32"))]

    def keys() -> list[Any]:
        return [
            key(*x) for x in pairs for key in (library.decline_key_without_sizes, partial(library.call_key, out=None))
        ]

    before = keys()
    modes["float32"] = 2
    assert keys() == before
    modes["float64"] = 2
    assert not any(new == old for new, old in zip(keys(), before, strict=True))


def test_a_call_on_another_device_decides_nothing_for_the_next(cupy: Any, planned: list[Any]) -> None:
    a = cupy.ndarray(np.ones((110, 110), np.float32), device=1)
    fmm.matmul(a, a)  # CuPy's own, since its current device is another
    assert planned == [] and "not on the current device" in fmm.explain(a, a).reason
    with cupy.cuda.Device(1):
        fmm.matmul(a, a)
    assert planned == [PLAN]


@pytest.mark.parametrize("device", [5, "cuda:7"])  # that no machine has, whose answer would be kept
def test_a_driver_without_devices_is_an_error_that_says_so(device: Any) -> None:
    said = r"there is no device cuda:[57]: cudaErrorNoDevice: no CUDA-capable"
    with numpy_cupy.in_place(*numpy_cupy.ADAPTERS), pytest.raises(ValueError, match=said):
        fmm.plan(64, 64, 64, device=device)


def test_a_cupy_that_does_not_load_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ImportError("libcudart.so: cannot open shared object file")

    monkeypatch.setattr(devices, "cuda_device", lambda index: broken())
    with pytest.raises(ImportError, match=r"device=0 needs CuPy, which does not load: libcudart"):
        fmm.plan(64, 64, 64, device=0)


@pytest.mark.slow
def test_halves_that_are_known_are_asked_no_question(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look-up from the second call on, small or not; with anything else asked, by the usual way."""
    ran: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []

    class Runner:
        @staticmethod
        def run_call(library: Any, call: Any, a: Any, b: Any, out: Any, given: bool) -> Any:
            ran.append((str(call.plan), a.shape, b.shape))
            return cupy.ndarray(np.zeros(call.shape, a.dtype)) if out is None else out

    monkeypatch.setattr(product_call, "_runner_module", lambda processor: Runner)
    cupy.swapaxes = lambda x, i, j: cupy.ndarray(x.host.swapaxes(i, j))
    flat = cupy.ndarray(np.ones((70, 30), np.float32))
    x, larger, out = drawn(cupy, 70), drawn(cupy, 6144), drawn(cupy, 70)
    fmm.gram(x)  # CuPy is known from now on
    monkeypatch.setattr(type(select_library.library_of(x, x)), "write_triangle", lambda *given: None)
    for _ in range(2):
        fmm.gram(flat)
        fmm.gram(flat, rows=True)
        fmm.gram(flat, None, out, rows=True, fill="upper")
        fmm.gram(larger)
    ran.clear()
    with monkeypatch.context() as patch:
        patch.setattr("fmm.dispatch.run_gram", None)
        patch.setattr("fmm.runtime.prepare.prepare_query", None)
        assert fmm.gram(flat).shape == (30, 30) and fmm.gram(flat, rows=True).shape == (70, 70)
        assert fmm.gram(flat, None, out, rows=True, fill="upper") is out
        fmm.gram(larger)
        others: list[dict[str, Any]] = [{"alpha": 2}, {"alpha": True}, {"beta": False}, {"fill": "none"}]
        for given in others:
            with pytest.raises((TypeError, ValueError)):
                fmm.gram(flat, **given)
    plans, lefts, rights = zip(*ran, strict=True)
    assert plans[:3] == ("small",) * 3 and plans[3] not in ("small", "vendor")
    assert lefts[:3] == rights[:3] == ((70, 30),) * 3  # an address alone is asked for: no transposed view is made
    fmm.gram(x, None, x, fill="lower")  # shares memory with what it is made of: the product is made elsewhere
    assert len(ran) == 5


@pytest.mark.parametrize("fill", ["full", "lower", "upper"])
@pytest.mark.parametrize("rows", [False, True])
def test_a_known_half_whose_launch_fails_is_completed(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, rows: bool, fill: Any
) -> None:
    """By CuPy's own functions, as far as the device still can; whoever lacks memory goes the usual way again."""
    failure: list[Exception] = []

    class Runner:
        @staticmethod
        def run_call(library: Any, call: Any, a: Any, b: Any, out: Any, given: bool) -> Any:
            if failure:
                raise failure.pop()
            return cupy.ndarray(np.zeros(call.shape, a.dtype)) if out is None else out

    monkeypatch.setattr(product_call, "_runner_module", lambda processor: Runner)
    a, numbers = cupy.ndarray(np.arange(12, dtype=np.float32).reshape(4, 3)), np.arange(12).reshape(4, 3)
    product = numbers @ numbers.T if rows else numbers.T @ numbers
    out = cupy.ndarray(np.zeros(product.shape, np.float32))
    fmm.gram(a, None, out, rows=rows, fill=fill)
    finished: list[tuple[Any, Any, str]] = []
    library = select_library.library_of(a, a)
    monkeypatch.setattr(
        type(library), "write_triangle", lambda own, c, place, x, y, kept: finished.append((c, place, kept))
    )
    failure.append(ArithmeticError("launch failed"))
    with pytest.raises(ArithmeticError, match="launch failed"):
        fmm.gram(a, None, out, rows=rows, fill=fill)
    ((whole, place, kept),) = finished
    assert np.array_equal(whole.host, product) and kept == ("lower" if fill == "upper" else fill)
    assert place.host.ctypes.data == out.host.ctypes.data
    failure.append(MemoryError())  # as this CuPy has it
    assert fmm.gram(a, None, out, rows=rows, fill=fill) is out and not failure


def test_what_was_measured_of_a_small_half_answers_before_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    small, larger = (Problem(n, n, n, "float32", op="gram") for n in (256, 480))
    entry = replace(configs.entry(small.size, "gram > vendor"), op="gram")
    tuned = Tuning(H200.identity, "float32", datasheet_calibration("H200"), {entry.entry_key: entry})
    monkeypatch.delenv("FMM_TUNING_MODE", raising=False)
    monkeypatch.setattr(Configs, "find_tuning", lambda configs, identity, dtype: tuned)
    limits = Limits(1 << 34, H200.error_growth)
    assert [str(decide_plan(problem, limits, H200).plan) for problem in (small, larger)] == ["gram > vendor", "small"]
    # What no tuning measures is known all the same.
    unmeasured = replace(
        datasheet_calibration("H200"),
        rates={"float32": datasheet_calibration("H200").require_rate("float32")},
        call_of_small=0.0,
    )
    tuned = replace(tuned, calibration=unmeasured)
    assert str(decide_plan(larger, limits, H200).plan) == "small"


def test_products_and_halves_are_kept_alike(cupy: Any, planned: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of a call goes with the free memory, not with the second in which that is asked for again."""
    now, asked, free = [100.0], [0], [1 << 36]

    original = prepare.prepare_query

    def counted(question: Any) -> Any:
        asked[0] += 1
        return original(question)

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(prepare, "prepare_query", counted)
    cupy.swapaxes = lambda x, i, j: cupy.ndarray(x.host.swapaxes(i, j))
    a = drawn(cupy, 110)
    fmm.matmul(a, a)  # CuPy is known from now on
    library: Any = select_library.library_of(a, a)
    monkeypatch.setattr(type(library), "free_bytes", lambda library, number: free[0])
    calls: tuple[Callable[[], Any], ...] = (lambda: fmm.matmul(a, a), lambda: fmm.gram(a))
    for call in calls:
        library.cached_calls.clear()
        now[0] += 2
        questions = []
        for wait, bytes_free in ((0.0, 1 << 36), (0.1, 1 << 36), (2.0, 1 << 36), (2.0, 1 << 30)):
            now[0] += wait
            free[0], asked[0] = bytes_free, 0
            call()
            questions.append(asked[0])
        assert questions[0] and questions[1:3] == [0, 0] and questions[3]


def test_a_stack_is_multiplied_by_the_function_of_cupys_operator(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """cupy.matmul checks its options first, which takes longer than a small product. CuPy rejects other operands."""
    ran: list[tuple[int, ...]] = []

    def core_matmul(a: Any, b: Any) -> Any:
        ran.append(a.shape)
        return cupy.ndarray(np.matmul(a.host, b.host))

    fmm.matmul(cupy.ndarray(np.ones((2, 2))), cupy.ndarray(np.ones((2, 2))))  # loads the adapter
    monkeypatch.setattr("fmm.arrays.cupy_library.core_matmul", core_matmul)
    a, b = (cupy.ndarray(np.ones(shape, np.float32)) for shape in ((3, 4, 5), (3, 5, 6)))
    cupy.calls.clear()
    for product in (fmm.matmul, fmm.gemm):
        assert (product(a, b).host == 5).all()
    assert ran == [(3, 4, 5)] * 2 and not cupy.calls
    one, matrix, wide = (cupy.ndarray(np.ones(shape)) for shape in ((1, 5, 6), (5, 6), (3, 5, 6)))
    for other in (one, matrix, wide):
        fmm.matmul(a, other)
    with pytest.raises(ValueError, match="mismatch"):
        fmm.matmul(a, a)
    assert len(ran) == 2 and len(cupy.calls) == 4

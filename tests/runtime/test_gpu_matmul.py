"""fmm.matmul on device arrays, against the library's own product and float64 references, on a CUDA device."""

from __future__ import annotations

import itertools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays.select_library import library_of
from fmm.kernels.cuda.launch.graphs import CALLS_BEFORE_CAPTURE
from fmm.kernels.cuda.recompute import recompute
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.stability import expected_error_growth
from fmm.runtime import matmul, prepare
from fmm.runtime.decisions import early_declines, limits
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import PlanConstraints
from tests.support.device_arrays import (
    CORRUPTIONS,
    EPS,
    CupyLibrary,
    Gate,
    TorchLibrary,
    close,
    close_in_parts,
    draw,
    same_places,
)

pytestmark = pytest.mark.gpu

LEVEL = "strassen.batched.pad16 > vendor"
TWO_LEVELS = "winograd.pad16 > strassen.batched.pad16 > vendor"
IN_PLACE = "li-fig3.peel > vendor"  # its products go straight into C, with strips
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


# ---- libraries


@pytest.fixture(params=[CupyLibrary, TorchLibrary], ids=["cupy", "torch"])
def library(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """Every product that is left to fmm gets a plan, whatever its size; the list says which were decided."""
    decided: list[Plan] = []

    def decide(problem: Any, limits: Any, device: Any) -> Decision:
        plan = Plan.parse(LEVEL)
        if plan_workspace_bytes(plan, *problem.size, problem.itemsize) > limits.workspace:
            return Decision(VENDOR, problem, "no room")
        decided.append(plan)
        return Decision(plan, problem, "for the test")

    monkeypatch.setattr(prepare, "decide_plan", decide)
    for name in ("SMALL_MULTIPLY_ADDS", "SMALL_MULTIPLY_ADDS_16_BIT", "SMALL_MULTIPLY_ADDS_UNALIGNED"):
        monkeypatch.setattr(early_declines, name, 256**3)
    monkeypatch.setattr("fmm.dispatch.SMALL_BYTES_PRODUCT", 0)
    forget()
    yield decided
    forget()


def forget() -> None:
    """Prepared calls of other tests, or for this one only."""
    for module, name in (("fmm.arrays.cupy_library", "CUPY"), ("fmm.arrays.torch_library", "TORCH")):
        if module in sys.modules:
            getattr(sys.modules[module], name).cached_calls.clear()


# ---- values


@pytest.mark.parametrize("plan", [LEVEL, TWO_LEVELS, IN_PLACE])
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(library: Any, dtype: str, plan: str) -> None:
    a, b = library.array(draw((130, 257), dtype), dtype), library.array(draw((257, 191), dtype, 1), dtype)
    library.spoil(1 << 24)
    c = fmm.matmul(a, b, plan=plan)
    assert type(c) is library.array_type
    assert c.dtype == a.dtype
    assert c.device == a.device
    close(library, c, a, b, dtype)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.T,
    "part": lambda x: x[3:67, 5:69],
    "every second row": lambda x: x[::2],
    "every second column": lambda x: x[:, ::2],
    "transposed part": lambda x: x[3:67, 5:69].T,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128"])
def test_views(library: Any, view: Callable[[Any], Any], dtype: str) -> None:
    a, b = view(library.array(draw((128, 128), dtype), dtype)), library.array(draw((128, 96), dtype, 1), dtype)
    b = b[: a.shape[1]]
    close(library, fmm.matmul(a, b, plan=LEVEL), a, b, dtype)
    close(library, fmm.matmul(b.T, a.T, plan=LEVEL), b.T, a.T, dtype)


def test_backward_and_overlapping_views_of_cupy() -> None:
    library = CupyLibrary()
    x = library.array(draw((96, 96)), "float32")
    windows = library.xp.lib.stride_tricks.as_strided(x, (64, 64), (4, 4))
    for a in (x[::-1], x[:, ::-1], x[::-1, ::-1].T, library.xp.broadcast_to(x[:1], (96, 96)), windows):
        b = x[: a.shape[1]]
        close(library, fmm.matmul(a, b, plan=LEVEL), a, b, "float32")


SHAPES = [
    ((64, 64), (64, 64)),
    ((1, 64), (64, 1)),
    ((64,), (64, 33)),
    ((33, 64), (64,)),
    ((64,), (64,)),
    ((3, 40, 50), (50, 60)),  # folded
    ((2, 3, 40, 50), (1, 1, 50, 60)),  # folded too
    ((3, 40, 50), (3, 50, 60)),
    ((40, 50), (3, 50, 60)),
    ((2, 1, 40, 50), (3, 50, 60)),
    ((50,), (3, 50, 60)),
    ((3, 40, 50), (50,)),
    ((5, 1), (1, 7)),
    ((17, 200), (200, 5)),
]
EMPTY = [
    ((0, 5), (5, 3)),
    ((4, 0), (0, 3)),
    ((4, 5), (5, 0)),
    ((0, 4, 5), (5, 3)),
    ((2, 4, 0), (2, 0, 3)),
    ((0,), (0,)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_shapes(library: Any, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = library.array(draw(left), "float32"), library.array(draw(right, seed=1), "float32")
    theirs = library.matmul(a, b)
    library.spoil(1 << 22)
    ours = fmm.matmul(a, b, plan=LEVEL)
    assert ours.shape == theirs.shape
    close(library, ours, a, b, "float32")


def test_stacks_in_any_order(library: Any) -> None:
    a = library.array(draw((40, 3, 50)), "float32").swapaxes(0, 1)
    b = library.array(draw((2, 50, 60)), "float32")[:1]
    close(library, fmm.matmul(a, b, plan=LEVEL), a, b, "float32")
    out = library.empty((40, 3, 60), "float32").swapaxes(0, 1)
    assert fmm.matmul(a, b, out, plan=LEVEL) is out
    close(library, out, a, b, "float32")


@pytest.mark.parametrize(("left", "right"), EMPTY)
def test_nothing_to_multiply(library: Any, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = library.array(draw(left), "float32"), library.array(draw(right), "float32")
    ours, theirs = fmm.matmul(a, b), library.matmul(a, b)
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(library.host(ours), library.host(theirs))


# ---- out


def out_of(library: Any, kind: str, a: Any, b: Any) -> Any:
    m, n = a.shape[0], b.shape[1]
    return {
        "plain": lambda: library.empty((m, n), "float32"),
        "columns first": lambda: library.empty((n, m), "float32").T,
        "a part": lambda: library.empty((m + 3, n + 5), "float32")[2 : m + 2, 1 : n + 1],
        "every second column": lambda: library.empty((m, 2 * n), "float32")[:, ::2],
        "a itself": lambda: a,
        "b transposed": lambda: b.T,
    }[kind]()


@pytest.mark.parametrize(
    "kind", ["plain", "columns first", "a part", "every second column", "a itself", "b transposed"]
)
def test_out(library: Any, kind: str) -> None:
    a, b = library.array(draw((96, 96)), "float32"), library.array(draw((96, 96), seed=1), "float32")
    x, y = library.array(library.host(a), "float32"), library.array(library.host(b), "float32")
    out = out_of(library, kind, a, b)
    assert fmm.matmul(a, b, out, plan=LEVEL) is out
    close(library, out, x, y, "float32")
    if kind == "a part":
        around = library.host(out.base if library.name == "cupy" else out._base)
        assert np.isnan(around[:2]).all()
        assert np.isnan(around[:, :1]).all()


WRONG: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "shapes": lambda lib: (lib.array(draw((4, 5))), lib.array(draw((4, 5)))),
    "a scalar": lambda lib: (lib.array(draw(())), lib.array(draw((4, 5)))),
    "stacks": lambda lib: (lib.array(draw((2, 4, 5))), lib.array(draw((3, 5, 4)))),
    "types": lambda lib: (lib.array(draw((300, 300)), "float32"), lib.array(draw((300, 300)), "float64")),
    "the shape of out": lambda lib: (
        lib.array(draw((300, 300))),
        lib.array(draw((300, 300))),
        lib.empty((7, 3, 2), "float64"),
    ),
    "the type of out": lambda lib: (
        lib.array(draw((300, 300))),
        lib.array(draw((300, 300))),
        lib.empty((300, 300), "float32"),
    ),
    "a number": lambda lib: (lib.array(draw((4, 5))), 3),
    "a list": lambda lib: (lib.array(draw((2, 2))), [[1.0, 2.0], [3.0, 4.0]]),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_exceptions_and_casts_are_the_librarys(library: Any, wrong: Callable[[Any], tuple[Any, ...]]) -> None:
    def outcome(function: Callable[..., Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch resizes out, and says so
            try:
                return library.host(function(*wrong(library)))
            except Exception as error:
                return type(error), str(error)

    ours, theirs = outcome(fmm.matmul), outcome(library.matmul)
    if isinstance(theirs, tuple):
        assert ours == theirs
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_mixed_types_of_cupy_are_promoted() -> None:
    library = CupyLibrary()
    a, b = library.array(draw((65, 64)), "float32"), library.array(draw((64, 63)), "float64")
    c = fmm.matmul(a, b, plan=LEVEL)
    assert c.dtype == np.float64
    close(library, c, a, b, "float64")
    assert fmm.matmul(a, a.T.astype("int32")).dtype == library.xp.matmul(a, a.T.astype("int32")).dtype


def test_options_of_cupy_are_its_own() -> None:
    library = CupyLibrary()
    a = library.array(draw((64, 64)), "float32")
    out = library.empty((64, 64), "float32")
    assert fmm.matmul(a, a, (out,), plan=LEVEL) is out  # as NumPy takes it
    close(library, out, a, a, "float32")
    assert fmm.matmul(a, a, dtype="float64").dtype == np.float64
    assert fmm.matmul(a, a, order="F").flags.f_contiguous == library.xp.matmul(a, a, order="F").flags.f_contiguous
    with pytest.raises(PlanError, match="order"):
        fmm.matmul(a, a, order="F", plan=LEVEL)


def test_given_plans_that_cannot_run_say_so(library: Any) -> None:
    with pytest.raises(PlanError, match="cannot run here"):
        fmm.matmul(library.array(draw((64, 64)), "int32"), library.array(draw((64, 64)), "int32"), plan=LEVEL)


# ---- other arrays


def test_mixing_is_an_error_that_names_both(library: Any) -> None:
    a, x = library.array(draw((4, 4)), "float64"), draw((4, 4))
    for pair in ((a, x), (x, a)):
        with pytest.raises(TypeError, match="NumPy array on the host") as caught:
            fmm.matmul(*pair)
        assert "cuda:0" in str(caught.value)
    with pytest.raises(TypeError, match="cuda:0"):
        fmm.matmul(draw((4, 4)), draw((4, 4)), a)


def test_torch_and_cupy_together_are_an_error() -> None:
    with pytest.raises(TypeError, match=r"torch tensor on cuda:0.*CuPy array on cuda:0"):
        fmm.matmul(TorchLibrary().array(draw((4, 4))), CupyLibrary().array(draw((4, 4))))


class ByInterface:
    """An array of some other library: the CUDA array interface alone."""

    def __init__(self, x: Any) -> None:
        self.x = x

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.x.__cuda_array_interface__


class ByDlpack:
    """The same by DLPack alone."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


@pytest.mark.parametrize("wrap", [ByInterface, ByDlpack])
def test_other_arrays_come_back_as_cupys(wrap: Any) -> None:
    library = CupyLibrary()
    a, b = library.array(draw((64, 65)), "float32"), library.array(draw((65, 66)), "float32")
    c = fmm.matmul(wrap(a), wrap(b), plan=LEVEL)
    assert type(c) is library.array_type
    close(library, c, a, b, "float32")
    out = library.empty((64, 66), "float32")
    wrapped = wrap(out)
    assert fmm.matmul(wrap(a), b, wrapped, plan=LEVEL) is wrapped
    close(library, out, a, b, "float32")


def test_bfloat16_by_dlpack_of_torch() -> None:
    pytest.importorskip("ml_dtypes")
    library = TorchLibrary()
    a, b = library.array(draw((64, 64)), "bfloat16"), library.array(draw((64, 64), seed=1), "bfloat16")
    c = fmm.matmul(ByDlpack(a), ByDlpack(b), plan=LEVEL)
    assert c.dtype.name == "bfloat16"
    close(library, library.xp.from_dlpack(c), a, b, "bfloat16")


# ---- inf and NaN


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_inf_and_nan_stand_where_the_vendor_has_them(library: Any, dtype: str, corrupt: Any) -> None:
    x, y = draw((140, 133), dtype), draw((133, 150), dtype, 1)
    corrupt(x, y)
    a, b = library.array(x, dtype), library.array(y, dtype)
    for plan in (LEVEL, IN_PLACE):
        same_places(library, fmm.matmul(a, b, plan=plan), library.matmul(a, b))
    turned = fmm.matmul(b.T, a.T, library.empty((140, 150), dtype).T, plan=LEVEL)
    same_places(library, turned, library.matmul(b.T, a.T))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_overflow_of_the_result_and_of_sums(library: Any, dtype: str) -> None:
    largest = {"float16": 65504.0, "bfloat16": 3.3e38, "float32": 3.4e38, "float64": 1.7e308}[dtype]
    ones = np.ones((128, 128))
    cases = {
        "some results overflow": (ones * np.linspace(0, 1, 128)[:, None], ones * largest / 64),
        "sums of A overflow, no result does": (ones * largest, ones / 256),
        "sums of B overflow, no result does": (ones / 256, ones * largest),
        "none": (ones * largest / 256, ones / 2),
    }
    for name, (x, y) in cases.items():
        a, b = library.array(x, dtype), library.array(y, dtype)
        theirs = library.matmul(a, b)
        assert np.isinf(library.host(theirs)).any() == name.startswith("some"), name
        for plan in (LEVEL, TWO_LEVELS):
            same_places(library, fmm.matmul(a, b, plan=plan), theirs)


def test_stacks_with_inf(library: Any) -> None:
    x, y = draw((3, 70, 60)), draw((3, 60, 80))
    x[1, 4, 4] = np.inf
    for right in (y, y[0]):
        a, b = library.array(x, "float32"), library.array(right, "float32")
        same_places(library, fmm.matmul(a, b, plan=LEVEL), library.matmul(a, b))


def test_after_a_rescue_the_vendor_rests_the_plans_for_a_while(library: Any, eager: list[Plan]) -> None:
    """And comes back to them: the host learns of the rescue without waiting for it."""
    import cupy

    from fmm.kernels.cuda.recompute import flags

    x = draw((256, 256))
    good = library.array(x, "float32")
    x[0, 0] = np.inf
    bad = library.array(x, "float32")
    stream = cupy.cuda.Stream(non_blocking=True) if library.name == "cupy" else library.xp.cuda.Stream()
    with stream if library.name == "cupy" else library.xp.cuda.stream(stream):
        slot = flags.stream_flag(0, stream.ptr if library.name == "cupy" else stream.cuda_stream)
        before = slot.recomputed_count  # torch hands out the same few streams again and again
        fmm.matmul(bad, good)
        stream.synchronize()
        assert slot.recomputed_count == before + 1
        for rest in (recompute.MIN_BACKOFF, 2 * recompute.MIN_BACKOFF):
            for _ in range(rest):  # these would be computed again too, if they were not left to the vendor
                same_places(library, fmm.matmul(bad, good), library.matmul(bad, good))
            stream.synchronize()
            before = slot.recomputed_count
            same_places(library, fmm.matmul(bad, good), library.matmul(bad, good))
            stream.synchronize()
            assert slot.recomputed_count == before + 1
    assert eager


# ---- streams, threads, memory


def streams_of(library: Any) -> tuple[Any, Callable[[], Any]]:
    """A stream of the library's, and a context in which it and CuPy's are the same one."""
    import cupy

    if library.name == "cupy":
        stream = cupy.cuda.Stream(non_blocking=True)
        return stream, lambda: stream
    stream = library.xp.cuda.Stream()
    return stream, lambda: library.xp.cuda.stream(stream)


def busy(library: Any, stream: Any) -> bool:
    return not (stream.done if library.name == "cupy" else stream.query())


@pytest.mark.parametrize("what", ["launches", "a replay", "a capture"])
def test_nothing_waits_for_the_device_and_the_current_stream_is_used(
    library: Any, what: str, eager: list[Plan]
) -> None:
    x, y = draw((320, 310)), draw((310, 330))
    stream, use = streams_of(library)
    gate = Gate()
    with use():
        a, b = library.array(x, "float32"), library.array(y, "float32")
        late, out = library.array(np.zeros_like(x), "float32"), library.empty((320, 330), "float32")
        late[...] = a
        for _ in range(CALLS_BEFORE_CAPTURE + 1):  # compiles and loads all that will be launched: loading may wait
            fmm.matmul(a, b, out)
        for _ in range({"launches": 0, "a replay": CALLS_BEFORE_CAPTURE, "a capture": CALLS_BEFORE_CAPTURE - 1}[what]):
            fmm.matmul(late, b, out)
        found = fmm.matmul(late, b)
        late[...] = 0
        stream.synchronize()
        try:
            gate.close(library, stream)
            late[...] = a  # only after the gate
            assert busy(library, stream)
            fmm.matmul(late, b, out)
            found = fmm.matmul(late, b)
            assert busy(library, stream), "a call waited for the device"
        finally:
            gate.open()
        stream.synchronize()
    for c in (found, out):
        close(library, c, a, b, "float32")
    assert eager


def test_threads_and_streams_at_once(library: Any, eager: list[Plan]) -> None:
    """Each thread has its own shapes, some have an inf; two of them share one stream."""
    failures: list[BaseException] = []
    shared, use_shared = streams_of(library)

    def work(number: int) -> None:
        try:
            stream, use = (shared, use_shared) if number < 2 else streams_of(library)
            x, y = draw((256 + number, 280), seed=number), draw((280, 290), seed=number)
            if number % 2:
                x[number, number] = np.inf
            with use():
                a, b = library.array(x, "float32"), library.array(y, "float32")
                for _ in range(25):
                    c = fmm.matmul(a, b)
                stream.synchronize()
                same_places(library, c, library.matmul(a, b))
                stream.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


# ---- calls that recur


@pytest.fixture
def graphs(eager: list[Plan]) -> Iterator[Any]:
    """The graphs that calls are replayed as; none are left of other tests."""
    from fmm.kernels.cuda.recompute import flags
    from fmm.runtime.run_device import GRAPH_CACHE

    GRAPH_CACHE.clear()
    flags.reset_flags()  # no plan rests because of what other tests multiplied
    yield GRAPH_CACHE
    GRAPH_CACHE.clear()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128"])
@pytest.mark.parametrize("stream", ["its own", "default"])
def test_recurring_calls_are_replayed_on_whatever_is_there(library: Any, dtype: str, stream: str, graphs: Any) -> None:
    """Each call sees the numbers that are in its operands then; inf and NaN are rescued in a replay too."""
    _, use = streams_of(library)
    with use() if stream == "its own" else nullcontext():
        a, b = library.array(draw((300, 260), dtype), dtype), library.array(draw((260, 280), dtype), dtype)
        out = library.empty((300, 280), dtype)
        for i in range(2 * CALLS_BEFORE_CAPTURE):
            a[...] = library.array(draw((300, 260), dtype, seed=i), dtype)
            fmm.matmul(a, b, out)
            close(library, out, a, b, dtype)
        assert graphs.clear() == 1
        for _ in range(CALLS_BEFORE_CAPTURE):
            fmm.matmul(a, b, out)
        a[7, 9] = np.inf
        fmm.matmul(a, b, out)
        same_places(library, out, library.matmul(a, b))
        assert graphs.clear() == 1


def test_a_recurring_call_has_one_graph_whoever_shares_the_card(
    library: Any, graphs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others take and give back memory of the device, so that each call's limit is another one; what runs is not."""
    sharers = itertools.cycle((1, 3, 5))
    monkeypatch.setattr(limits, "FREE_MEMORY_SECONDS", -1.0)
    monkeypatch.setattr(limits, "count_gpu_processes", lambda number: next(sharers))
    a, out = library.array(draw((300, 300)), "float32"), library.empty((300, 300), "float32")
    for _ in range(2 * CALLS_BEFORE_CAPTURE):
        fmm.matmul(a, a, out)
    close(library, out, a, a, "float32")
    assert graphs.clear() == 1


@pytest.mark.parametrize(
    ("plan", "all_in_one"),
    [
        ("strassen.batched.pad16 > vendor", True),
        ("winograd^2.batched > lt0", True),
        ("winograd.sequential > vendor", False),  # cuBLAS itself reads A and B, or writes C
    ],
)
def test_a_graph_serves_arrays_wherever_they_are(library: Any, plan: str, all_in_one: bool, graphs: Any) -> None:
    """New operands and a new C each time, the last ones with an inf."""
    m, k, n, calls = 300, 264, 280, 4 * CALLS_BEFORE_CAPTURE
    out = [library.empty((m, n), "float32") for _ in range(calls)]
    left = [library.array(draw((m, k), seed=i), "float32") for i in range(calls)]
    right = [library.array(draw((k, n), seed=100 + i), "float32") for i in range(calls)]
    left[-1][7, 9] = np.inf
    for a, b, c in zip(left, right, out, strict=True):
        fmm.matmul(a, b, c, plan=plan)
    for a, b, c in zip(left[:-1], right, out, strict=False):
        close(library, c, a, b, "float32")
    same_places(library, out[-1], library.matmul(left[-1], right[-1]))
    assert graphs.clear() == all_in_one


def test_what_the_caller_frees_is_not_remembered(library: Any, graphs: Any) -> None:
    """Arrays come and go, in other sizes and at the same addresses; every result is that of its own operands."""
    sizes = [(256, 260, 300), (300, 256, 260), (256, 260, 304)]
    for i in range(12 * CALLS_BEFORE_CAPTURE):
        m, k, n = sizes[i % 7 % 3]
        a, b = library.array(draw((m, k), seed=i), "float32"), library.array(draw((k, n), seed=i), "float32")
        c = fmm.matmul(a, b)
        if i % 3:
            close(library, c, a, b, "float32")
        if i % 5 == 0:
            library.spoil(1 << 22)
        del a, b, c
    assert graphs.clear() > 0


def test_releasing_the_workspace_drops_the_graphs(library: Any, graphs: Any) -> None:
    a, out = library.array(draw((300, 300)), "float32"), library.empty((300, 300), "float32")
    for _ in range(CALLS_BEFORE_CAPTURE):
        fmm.matmul(a, a, out)
    fmm.release_workspace()
    assert graphs.clear() == 0
    fmm.matmul(a, a, out)
    close(library, out, a, a, "float32")


def test_streams_have_graphs_of_their_own(library: Any, graphs: Any) -> None:
    a, out = library.array(draw((300, 300)), "float32"), library.empty((300, 300), "float32")
    library.xp.cuda.Device().synchronize() if library.name == "cupy" else library.xp.cuda.synchronize()
    for _ in range(3):
        stream, use = streams_of(library)
        with use():
            for _ in range(CALLS_BEFORE_CAPTURE + 1):
                fmm.matmul(a, a, out)
            stream.synchronize()
        close(library, out, a, a, "float32")
    assert graphs.clear() >= 1


def test_a_workspace_is_a_limit_and_an_allocation_that_fails_is_answered(eager: list[Plan]) -> None:
    import cupy

    library = CupyLibrary()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    a, b = library.array(draw((1024, 1024)), "float32"), library.array(draw((1024, 1024)), "float32")
    bytes_of_c = 4 * 1024 * 1024
    try:
        pool.set_limit(size=pool.used_bytes() + bytes_of_c + (1 << 16))
        c = fmm.matmul(a, b, workspace=1 << 30)  # the plan was decided, and does not fit: C alone does
    finally:
        pool.set_limit(size=0)
    close(library, c, a, b, "float32")
    assert eager


def test_default_workspace_is_a_share_of_what_is_free(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fmm.arrays.cupy_library import CUPY

    monkeypatch.setattr(limits, "count_gpu_processes", lambda number: 1)  # (the tests' own processes share the card)
    free = CUPY.free_bytes(0)
    limits._workspace_readings.clear()
    assert 0.3 * free < limits.default_workspace_bytes(CUPY, 0) <= 0.5 * free
    a = library.array(draw((64, 64)), "float32")
    needs = [fmm.explain(a, a, workspace=w).workspace for w in (0, 10**6)]
    assert needs == [0, 0]


def test_a_stream_under_capture_is_left_to_the_vendor(eager: list[Plan]) -> None:
    library = TorchLibrary()
    a = library.array(draw((256, 256)), "float32")
    library.matmul(a, a)
    graph = library.xp.cuda.CUDAGraph()
    with library.xp.cuda.graph(graph):
        c = fmm.matmul(a, a)
    graph.replay()
    library.xp.cuda.synchronize()
    close(library, c, a, a, "float32")


def test_a_given_plan_does_not_run_on_a_stream_under_capture() -> None:
    """It says so; the capture goes on."""
    library = TorchLibrary()
    a = library.array(draw((256, 256)), "float32")
    library.matmul(a, a)
    graph = library.xp.cuda.CUDAGraph()
    with library.xp.cuda.graph(graph):
        with pytest.raises(PlanError, match="while its stream is captured"):
            fmm.matmul(a, a, plan=LEVEL)
        c = fmm.matmul(a, a)
    graph.replay()
    library.xp.cuda.synchronize()
    close(library, c, a, a, "float32")


@pytest.mark.parametrize("leaf", ["lt0", "lt7", "lt31"])
@pytest.mark.parametrize("stacked", [False, True], ids=["one", "a stack"])
def test_a_candidate_that_is_not_there_for_a_view_gives_way(leaf: str, stacked: bool, library: Any) -> None:
    """Columns from the second on of a 16-bit matrix: cuBLASLt has fewer candidates for lines that begin so."""
    if stacked and library.name == "cupy":
        pytest.skip("CuPy has no products of stacks of bfloat16")
    shape = (2, 192, 257) if stacked else (192, 257)
    whole = library.array(draw(shape), "bfloat16")
    a, b = whole[..., 1:], library.array(draw((256, 128)), "bfloat16")
    product = matmul.run_matmul(library_of(a, b, None), a, b, None, PlanConstraints(Plan.parse(leaf), replaceable=True))
    close(library, product, a, b, "bfloat16")
    out = library.empty((*shape[:-1], 128), "bfloat16")
    try:
        close(library, fmm.matmul(a, b, plan=leaf), a, b, "bfloat16")
        fmm.matmul(a, b, out, plan=leaf)
    except PlanError as error:
        assert "candidates for this product" in str(error)
        assert np.isnan(library.host(out)).all(), "refused only after some of it was computed"
    else:
        close(library, out, a, b, "bfloat16")


@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (8000, 6001, 9000)], ids=str)
@pytest.mark.parametrize("share", [0.1, 0.2, 0.35, 0.6, 1.0])
def test_composed_plans_are_right_within_any_workspace(shape: tuple[int, int, int], share: float, library: Any) -> None:
    """The limit is a share of what the three arrays take. Leaner plans may err more: li-fig23 above a fused level, for
    which a fifth is enough, by 4.5e-3 in a simulation, where the bound of sums without levels is 3.3e-3."""
    m, k, n = shape
    a, b = (library.array(x, "float32") for x in large_operands(shape))
    limit = int(share * 4 * (m * k + k * n + m * n))
    decision = fmm.explain(a, b, workspace=limit)
    assert decision.workspace <= limit
    close_in_parts(library, fmm.matmul(a, b, workspace=limit), a, b, "float32", max(decision.error_growth, 1.0))


@lru_cache(maxsize=2)
def large_operands(shape: tuple[int, int, int]) -> tuple[Any, Any]:
    rng, (m, k, n) = np.random.default_rng(shape), shape
    return rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)


@pytest.mark.parametrize("plan", [
    "strassen.sequential.pad16 > strassen.overlapped.pad16 > strassen^2.batched.pad16 > vendor",
    "li-fig2.pad16 > li-fig23.pad16 > strassen.batched.pad16 > vendor",
    "li-fig23.pad16 > strassen.pad16 > strassen^3.batched.pad16 > tile",
    "strassen.sequential.pad16 > li-fig2.pad16 > strassen.fused.pad4 > tile",
])  # fmt: skip
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (4001, 3000, 4100)], ids=str)
def test_plans_of_composed_levels_are_right(shape: tuple[int, int, int], plan: str, library: Any) -> None:
    m, k, n = shape
    a, b = library.array(draw((m, k)), "float32"), library.array(draw((k, n)), "float32")
    close(library, fmm.matmul(a, b, plan=plan), a, b, "float32", expected_error_growth(Plan.parse(plan), "float32"))


@pytest.fixture
def second_device() -> Any:
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two CUDA devices")
    return cupy.cuda.Device(1)


def test_arrays_on_two_devices_are_an_error_that_names_both(second_device: Any) -> None:
    library = CupyLibrary()
    a = library.array(draw((4, 4)))
    with second_device:
        b = library.array(draw((4, 4)))
    with pytest.raises(ValueError, match=r"a is a CuPy array on cuda:0, b is a CuPy array on cuda:1"):
        fmm.matmul(a, b)
    with pytest.raises(ValueError, match=r"out is a CuPy array on cuda:1"):
        fmm.matmul(a, a, b)
    torch = TorchLibrary()
    with pytest.raises(RuntimeError, match="cuda:1"):
        fmm.matmul(torch.array(draw((4, 4))), torch.array(draw((4, 4))).to("cuda:1"))


def test_the_device_of_the_arrays_is_used(second_device: Any, eager: list[Plan]) -> None:
    """torch's tensors wherever they are, CuPy's arrays on the current device; inf there too."""
    x = draw((300, 280))
    x[5, 5] = np.inf
    torch = TorchLibrary()
    a, b = (torch.array(v, "float32").to("cuda:1") for v in (x, draw((280, 290))))
    c = fmm.matmul(a, b)
    assert c.device == a.device
    same_places(torch, c, torch.matmul(a, b))
    library = CupyLibrary()
    with second_device:
        a, b = library.array(x, "float32"), library.array(draw((280, 290)), "float32")
        c = fmm.matmul(a, b)
        assert c.device == a.device
        same_places(library, c, library.matmul(a, b))
    assert len(eager) == 2


# ---- torch: gradients and settings


GRADIENTS = [((256, 260), (260, 270)), ((3, 256, 260), (260, 270)), ((3, 256, 260), (3, 260, 270))]
GRADIENTS += [((2, 1, 256, 260), (3, 260, 270))]


@pytest.mark.parametrize(("left", "right"), GRADIENTS)
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
def test_gradients(left: tuple[int, ...], right: tuple[int, ...], dtype: str, eager: list[Plan]) -> None:
    library = TorchLibrary()

    def gradients(function: Callable[..., Any]) -> list[Any]:
        a, b = (library.array(draw(s, dtype), dtype).requires_grad_() for s in (left, right))
        c = function(a, b)
        assert c.grad_fn is not None
        (c * c.detach().conj()).sum().abs().backward()
        return [a.grad, b.grad]

    for ours, theirs in zip(gradients(fmm.matmul), gradients(library.xp.matmul), strict=True):
        x, y = library.host(ours), library.host(theirs)
        assert x.shape == y.shape
        assert np.abs(x - y).max() <= 1e4 * EPS[dtype] * np.abs(y).max()
    assert eager


def test_second_gradients_and_parameters(eager: list[Plan]) -> None:
    torch = TorchLibrary().xp
    weight = torch.nn.Parameter(TorchLibrary().array(draw((256, 256))))
    x = TorchLibrary().array(draw((256, 256))).requires_grad_()

    def second(function: Callable[..., Any]) -> Any:
        (first,) = torch.autograd.grad(function(x, weight).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), weight)[0]

    assert torch.allclose(second(fmm.matmul), second(torch.matmul))
    assert eager


def test_conjugates_that_torch_only_marks(eager: list[Plan]) -> None:
    library = TorchLibrary()
    a = library.array(draw((256, 256), "complex64"), "complex64")
    for x, y in ((a.conj(), a), (a, a.mH), (a.conj().imag, a.real)):
        c = fmm.matmul(x, y)
        close(library, c, x.resolve_conj().resolve_neg(), y.resolve_conj(), "complex64")


def test_out_changes_the_version_of_a_tensor(eager: list[Plan]) -> None:
    library = TorchLibrary()
    a = library.array(draw((256, 256)), "float32")
    out = library.xp.empty_like(a)
    before = out._version
    fmm.matmul(a, a, out)
    assert out._version > before


def relative_error(library: Any, found: Any, a: Any, b: Any) -> float:
    expected = library.host(a) @ library.host(b)
    return float(np.linalg.norm(library.host(found) - expected) / np.linalg.norm(expected))


def test_tf32_is_torchs_setting(eager: list[Plan]) -> None:
    library = TorchLibrary()
    a = library.array(draw((512, 512)), "float32")
    before = library.xp.backends.cuda.matmul.fp32_precision
    try:
        errors = {}
        for precision in ("ieee", "tf32", "ieee"):
            library.xp.backends.cuda.matmul.fp32_precision = precision
            errors[precision] = relative_error(library, fmm.matmul(a, a), a, a)
            assert fmm.explain(a, a).problem is not None
            assert fmm.explain(a, a).problem.dtype == ("tf32" if precision == "tf32" else "float32")
    finally:
        library.xp.backends.cuda.matmul.fp32_precision = before
    assert errors["ieee"] < 1e-5 < errors["tf32"] < 1e-2


def test_tf32_is_cupys_setting(eager: list[Plan]) -> None:
    from cupy._core import _routines_linalg as linalg

    library = CupyLibrary()
    a = library.array(draw((512, 512)), "float32")
    before = linalg.get_compute_type(np.dtype("f4"))
    try:
        linalg.set_compute_type("f4", 7)
        rough = relative_error(library, fmm.matmul(a, a), a, a)
        linalg.set_compute_type("f4", 2)
        assert "compute type" in fmm.explain(a, a).reason
    finally:
        linalg.set_compute_type("f4", before)
    assert relative_error(library, fmm.matmul(a, a), a, a) < 1e-5 < rough < 1e-2


def test_autocast_and_transforms_are_torchs(eager: list[Plan]) -> None:
    library = TorchLibrary()
    torch = library.xp
    a = library.array(draw((256, 256)), "float32")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert fmm.matmul(a, a).dtype == torch.bfloat16
    stack = torch.stack([a, a])
    torch.testing.assert_close(torch.func.vmap(fmm.matmul)(stack, stack), torch.matmul(stack, stack))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, at its first forward gradient
        _, tangent = torch.func.jvp(fmm.matmul, (a, a), (a, a))
    torch.testing.assert_close(tangent, 2 * a @ a)
    assert not eager


# ---- decisions


def test_the_model_decides_and_explains(library: Any) -> None:
    import cupy

    a = library.array(draw((64, 64)), "float32")
    assert fmm.explain(a, a).plan == VENDOR
    known = fmm.plan(16384, 16384, 16384, dtype=a.dtype, device=0)
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    if "H200" in name:
        assert known.plan != VENDOR
        assert "H200" in str(known) or known.candidates
    assert fmm.plan(16, 16, 16, dtype="bfloat16", device="cuda:0").plan == VENDOR
    with pytest.raises(ValueError, match="no device cuda:99"):
        fmm.plan(16, 16, 16, device="cuda:99")


def test_a_large_product_is_right(library: Any) -> None:
    """One that the model itself gives to a plan, if it knows the device; sampled rows against float64."""
    import cupy

    n = 4096
    make = cupy.random.default_rng(1)
    a, b = (make.standard_normal((n, n), dtype=cupy.float32) for _ in range(2))
    if library.name == "torch":
        a, b = library.xp.from_dlpack(a), library.xp.from_dlpack(b)
    decision = fmm.explain(a, b)
    c = fmm.matmul(a, b)
    rows = slice(0, n, 512)
    expected = library.host(a[rows]) @ library.host(b)
    error = np.linalg.norm(library.host(c[rows]) - expected) / np.linalg.norm(expected)
    assert error < 16 * 2e-6, decision


# ---- the vendor's product by one call


@pytest.mark.parametrize("dtype", ["float16", "float32", "tf32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("size", [(2, 1, 1), (8, 8, 8), (5, 3, 7), (64, 64, 64), (300, 17, 1), (1, 400, 33)])
def test_small_products_are_cupys_own(dtype: str, size: tuple[int, int, int]) -> None:
    """To the last bit, whatever CuPy's compute type says."""
    cupy = pytest.importorskip("cupy")
    from fmm.arrays import cupy_library

    (m, k, n), kind = size, "float32" if dtype == "tf32" else dtype
    a, b = (cupy.asarray(draw(shape, dtype)).astype(kind) for shape in ((m, k), (k, n)))
    assert cupy_library.get_compute_type is not None
    before = cupy_library.get_compute_type(np.dtype("f4"))
    try:
        cupy._core.set_compute_type(
            "f4", cupy_library.COMPUTE_TF32 if dtype == "tf32" else cupy_library.COMPUTE_DEFAULT
        )
        found, theirs = cupy_library.cublas_product(a, b), cupy.matmul(a, b)
        cupy.testing.assert_array_equal(fmm.matmul(a, b), theirs)
    finally:
        cupy._core.set_compute_type("f4", before)
    assert type(found) is cupy.ndarray and found.dtype == kind and found.flags.c_contiguous
    cupy.testing.assert_array_equal(found, theirs)


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
def test_inner_products_are_as_cupys(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    a = cupy.full((1, 300), 300, dtype)  # 300 x 300 x 300 and even 300 x 300 are more than float16 holds
    cupy.testing.assert_allclose(fmm.matmul(a, a.T.copy()), cupy.matmul(a, a.T.copy()), rtol=1e-6)


def test_what_one_call_does_not_do_is_left_to_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    from fmm.arrays import cupy_library

    x, y = cupy.ones((6, 6), cupy.float32), cupy.ones((6, 6))
    empty = cupy.ones((0, 6), cupy.float32)
    for a, b in ((x, y), (x[:, ::2], x[:3]), (x.T, x[:, :2]), (x[0], x), (empty, x), (x, cupy.ones((5, 6), "f"))):
        assert cupy_library.cublas_product(a, b) is None
    assert fmm.matmul(empty, x).shape == (0, 6)
    with pytest.raises(ValueError, match=r".+"):
        fmm.matmul(x, cupy.ones((5, 6), "f"))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        assert float(fmm.matmul(x, x)[3, 3]) == 6.0

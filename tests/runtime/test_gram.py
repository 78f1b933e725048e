"""fmm.gram on NumPy's arrays: against a higher precision, bit for bit symmetric, and what it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays.library import Operand, ProductSetting
from fmm.kernels.cpu import numpy_backend, triangle_product
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.perfmodel.choose import Limits
from fmm.runtime import devices, gram, matmul, prepare, run_host
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import NO_CONSTRAINTS
from fmm.runtime.gram import TRIANGLES
from fmm.runtime.operands import ByteSpan
from fmm.runtime.prepare import PreparedCall, ProblemQuery, prepare_query
from tests.support.chips import H200

Matrix = np.ndarray[Any, Any]
PLANS = (None, "vendor", "gram^2 > strassen > vendor", "sforza(2) > vendor")


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Matrix:
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def adjoint(x: Matrix) -> Matrix:
    return np.swapaxes(x, -1, -2).conj()


def symmetric(x: Matrix) -> Matrix:
    return (x + adjoint(x)) / 2


def exact(a: Matrix, rows: bool) -> Matrix:
    wide = a.astype(np.result_type(a.dtype, np.longdouble))
    return wide @ adjoint(wide) if rows else adjoint(wide) @ wide


def strided(a: Matrix) -> Matrix:
    """The same numbers in no order that BLAS could read."""
    whole = np.zeros((*a.shape[:-2], 2 * a.shape[-1], 2 * a.shape[-2]), a.dtype)
    view: Matrix = np.swapaxes(whole[..., ::2, ::2], -1, -2)
    view[...] = a
    return view


def error(found: Matrix, wanted: Matrix, inner: int) -> float:
    """As a multiple of what a product is allowed to have."""
    scale = float(np.abs(wanted).max(initial=0)) or 1.0
    return float(np.abs(found - wanted).max(initial=0)) / scale / (float(np.finfo(found.dtype).eps) * (inner + 10))


@pytest.mark.quick_cases()
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_against_a_higher_precision(dtype: str, plan: str | None) -> None:
    """Odd, prime, tiny, thin and flat ones, stacks, transposed and strided views; exactly their own adjoints."""
    rng = np.random.default_rng(1)
    shapes = (1, 1), (1, 7), (13, 5), (31, 64), (97, 30), (2, 17, 9), (2, 1, 4, 3)
    for shape, rows, view in product(shapes, (False, True), (np.array, strided)):
        a = view(numbers(rng, shape, dtype))
        c = fmm.gram(a, rows=rows, plan=plan)
        assert c.dtype == a.dtype and np.array_equal(c, adjoint(c))
        assert (np.einsum("...ii->...i", c).imag == 0).all()
        assert error(c, exact(a, rows), a.shape[-1 if rows else -2]) < 4, (shape, rows, view)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_fill_alpha_and_beta(dtype: str, plan: str | None) -> None:
    """What is not asked for stays, and of `out` only the half is read that is written."""
    rng = np.random.default_rng(2)
    updates: tuple[tuple[float, float], ...] = (1, 0), (-2, 0), (0.5, 3)
    shapes: tuple[tuple[int, ...], ...] = (9, 33), (2, 40, 21)
    for shape, rows, fill, (alpha, beta), order in product(shapes, (False, True), TRIANGLES, updates, "CF"):
        a = numbers(rng, shape, dtype)
        n = shape[-2] if rows else shape[-1]
        old = symmetric(numbers(rng, (*shape[:-2], n, n), dtype))
        half = np.tri(n, dtype=bool) if fill != "upper" else np.tri(n, dtype=bool).T
        before = np.where(half, old if beta else np.full_like(old, np.nan), np.nan).astype(dtype)
        out = np.array(np.swapaxes(before, -1, -2)).swapaxes(-1, -2) if order == "F" else before.copy()
        assert fmm.gram(a, out=out, rows=rows, fill=fill, alpha=alpha, beta=beta, plan=plan) is out
        wanted = alpha * exact(a, rows) + (beta * old if beta else 0)
        assert error(out[..., half], wanted[..., half], a.shape[-1 if rows else -2]) < 8
        if fill == "full":
            assert np.array_equal(out, adjoint(out))
        else:
            assert np.isnan(out[..., ~half]).all()


def test_a_new_half_is_zero_elsewhere() -> None:
    a = np.random.default_rng(3).standard_normal((20, 10))
    for fill, half in (("lower", np.tril), ("upper", np.triu)):
        c = fmm.gram(a, fill=fill)  # type: ignore[arg-type]
        np.testing.assert_array_equal(c, half(c))
        np.testing.assert_allclose(c, half(a.T @ a))


def test_two_matrices() -> None:
    """A polynomial of a symmetric matrix times another; with gradients it would be the same."""
    rng = np.random.default_rng(4)
    for dtype in ("float32", "complex128"):
        x = symmetric(numbers(rng, (40, 40), dtype))
        y = x @ x + 2 * x
        for plan in (None, "gram^2 > winograd > vendor"):
            c = fmm.gram(x, y, plan=plan)
            assert np.array_equal(c, adjoint(c))
            assert error(c, x.astype(np.clongdouble) @ y, 40) < 10
    with pytest.raises(ValueError, match="cannot be combined with b"):
        fmm.gram(x, y, rows=True)
    with pytest.raises(PlanError, match="a matrix and its adjoint"):
        fmm.gram(x, y, plan="sforza > vendor")


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (3, 0, 4), (0, 3, 4)])
def test_nothing_to_multiply(shape: tuple[int, ...]) -> None:
    a = np.empty(shape)
    np.testing.assert_array_equal(fmm.gram(a), adjoint(a) @ a)
    out = np.ones((*shape[:-2], shape[-1], shape[-1]))
    assert (fmm.gram(a, out=out, beta=2) == 2).all()


@pytest.mark.parametrize("dtype", ["int64", "float16", "bool", "longdouble"])
def test_types_of_numpys_own(dtype: str) -> None:
    a = np.random.default_rng(5).integers(0, 2, (12, 7)).astype(dtype)
    c = fmm.gram(a)
    np.testing.assert_array_equal(c, a.T @ a)
    assert np.array_equal(c, c.T)
    with pytest.raises(PlanError, match="cannot run here"):
        fmm.gram(a, plan="gram > vendor")


def test_out_may_overlap_or_have_another_type() -> None:
    rng = np.random.default_rng(6)
    a = rng.standard_normal((50, 50))
    for plan in (None, "gram > strassen > vendor"):
        for fill in ("full", "lower"):
            x = a.copy()
            fmm.gram(x, out=x, fill=fill, beta=1, plan=plan)
            half = np.tri(50, dtype=bool)
            np.testing.assert_allclose(x[half], (a.T @ a + a)[half], rtol=1e-9, atol=1e-9)
            np.testing.assert_array_equal(x[~half], (x.T if fill == "full" else a)[~half])
    with pytest.raises(TypeError, match="out must be an array, not a list"):
        fmm.gram(a, out=[[0.0] * 50] * 50)
    single = np.zeros((50, 50), np.float32)
    np.testing.assert_allclose(fmm.gram(a, out=single), a.T @ a, rtol=1e-4, atol=1e-4)
    assert single.dtype == np.float32


@pytest.mark.parametrize("plan", [None, "gram > strassen > vendor"])
def test_out_of_a_type_that_cannot_hold_the_result_is_refused(plan: str | None) -> None:
    """As numpy.matmul refuses it; a wider one, complex too, is taken."""
    a = np.random.default_rng(6).standard_normal((50, 40))
    for dtype, asked in (("int64", {}), ("int64", {"fill": "lower"}), ("bool", {"alpha": 2.0})):
        out = np.zeros((40, 40), dtype)
        before = out.copy()
        with pytest.raises(TypeError, match="annot cast"):
            fmm.gram(a, out=out, plan=plan, **asked)
        np.testing.assert_array_equal(out, before)
    for fill in TRIANGLES:
        out = np.zeros((40, 40), complex)
        fmm.gram(a, out=out, fill=fill, plan=plan)
        half = {"full": out, "lower": np.tril(a.T @ a), "upper": np.triu(a.T @ a)}[fill]
        np.testing.assert_allclose(out, a.T @ a if fill == "full" else half)
    with pytest.raises(TypeError, match="annot cast"):
        fmm.gram(np.arange(12).reshape(3, 4), alpha=0.5)  # whole numbers stay such, as with fmm.gemm
    whole = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(fmm.gram(whole, alpha=2), 2 * whole.T @ whole)


@pytest.mark.parametrize("plan", [None, "gram^2 > winograd > vendor", "sforza(2) > vendor"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_inf_and_nan_as_the_vendor_has_them(dtype: str, plan: str | None) -> None:
    rng = np.random.default_rng(7)
    for value in (np.inf, np.nan, np.finfo(dtype).max):
        a = numbers(rng, (40, 40), dtype)
        a[3, 5] = value
        with np.errstate(all="ignore"):
            c, whole = fmm.gram(a, plan=plan), a.conj().T @ a
            out = fmm.gram(a, out=np.ones_like(c), beta=1, plan=plan)
        below = np.tri(40, k=-1, dtype=bool)
        np.testing.assert_array_equal(np.isfinite(c[below]), np.isfinite(whole[below]))
        np.testing.assert_array_equal(np.isfinite(out[below]), np.isfinite(whole[below]))
        np.testing.assert_array_equal(c[below], c.T.conj()[below])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"fill": "both"}, "full, lower, upper"),
        ({"alpha": 1j}, "alpha must be a real number"),
        ({"beta": True}, "beta must be a real number"),
        ({"alpha": 10**400}, "alpha must be a real number, not a number of 1329 bits"),
        ({"fill": np.array(["full", "lower"])}, "full, lower, upper"),
        ({"beta": 1}, "out, which was not passed"),
        ({"out": np.zeros((4, 4))}, "out is"),
        ({"plan": "strassen > vendor"}, "whole products"),
        ({"plan": "gram > tile"}, "GPU"),
        ({"max_error_growth": 0}, "above 0"),
    ],
)
def test_what_is_wrong_is_said(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fmm.gram(np.ones((40, 30)), **asked)


def test_no_matrix() -> None:
    for a in (np.ones(3), np.float64(2)):
        with pytest.raises(ValueError, match="square"):
            fmm.gram(a)
    with pytest.raises(ValueError, match="square"):
        fmm.gram(np.ones((3, 4)), np.ones((4, 5)))
    np.testing.assert_array_equal(fmm.gram([[1, 2], [3, 4]]), [[10, 14], [14, 20]])


def test_it_is_explained() -> None:
    a = np.ones((300, 200))
    found = fmm.explain_gram(a, plan="gram > strassen > vendor")
    assert found.problem is not None and (found.problem.op, found.problem.size) == ("gram", (200, 300, 200))
    text = str(found)
    assert "2 blocks on the diagonal, 1 products below it" in text and "lower triangle, then its mirror" in text
    assert "of one triangle" in text
    assert "syrk" in str(fmm.explain_gram(a)) and "mirror" in str(fmm.explain_gram(a))


def test_decisions_without_arrays() -> None:
    found = fmm.plan(500, 400, 500, op="gram")
    assert found.problem is not None and found.problem.op == "gram" and found.plan == VENDOR
    with pytest.raises(ValueError, match="square"):
        fmm.plan(500, 400, 501, op="gram")
    given = fmm.plan(500, 400, 500, op="gram", plan="gram > strassen > vendor")
    assert str(given.plan) == "gram > strassen > vendor" and given.problem is not None and given.problem.op == "gram"
    with pytest.raises(PlanError, match="whole products"):
        fmm.plan(500, 400, 500, op="gram", plan="strassen > vendor")


@pytest.mark.parametrize("plan", [None, "vendor", "gram > vendor", "gram^2 > strassen > vendor", "sforza(2) > vendor"])
def test_a_decision_of_nothing(plan: str | None) -> None:
    """As of other products: for no rows or columns nothing but the vendor is chosen, and no plan is refused."""
    for op in ("gram", "symmetric"):
        found = fmm.plan(0, 5, 0, op=op, plan=plan)
        assert found.plan == VENDOR and "vendor" in str(found)


def test_a_workspace_of_nothing() -> None:
    """Plans without temporaries are all that is left."""
    a = np.random.default_rng(8).standard_normal((700, 600))
    np.testing.assert_allclose(fmm.gram(a, workspace=0), a.T @ a)
    assert fmm.explain_gram(a, workspace=0).workspace == 0


# ---- products with a transpose in place


def question(n: int, k: int, dtype: str, adjoint: bool = True, math: Any = "ieee") -> ProblemQuery:
    """On an H200 of which only the datasheet is known: x x^T."""
    device = devices.gpu_from_description("NVIDIA H200", "9.0", 132, None, H200)
    a, b = Operand((n, k), (k, 1), dtype), Operand((k, n), (1, k), dtype)
    return ProblemQuery(
        a, b, None, ProductSetting(0, dtype, math, b_is_transposed_a=adjoint), device, Limits(1 << 37, 16.0)
    )


@pytest.mark.parametrize(
    ("dtype", "n", "k", "half"),
    [
        ("float32", 8192, 8192, True),
        ("float64", 8192, 8192, True),
        ("bfloat16", 8192, 8192, True),
        ("bfloat16", 16384, 2048, True),
        ("float32", 512, 512, False),  # too small to be sure
        ("bfloat16", 1024, 65536, False),  # cuBLAS cuts it along k
        ("complex64", 8192, 8192, False),  # x x^T of complex numbers is not its own adjoint
    ],
)
def test_a_transpose_in_place_on_a_gpu(dtype: str, n: int, k: int, half: bool) -> None:
    call = prepare_query(question(n, k, dtype))
    assert call.decision.problem is not None and (call.decision.problem.op == "gram") is half
    if half:
        assert (
            call.launches is not None and "mirror_triangle" in call.launches.step_labels()[-1]
        ) or call.plan != VENDOR
    other = prepare_query(question(n, k, dtype, adjoint=False))
    assert other.decision.problem is not None and other.decision.problem.op == "product"


def test_a_given_plan_is_a_plan_of_the_whole_product() -> None:
    plan = fmm.Plan.parse("strassen.batched.pad16 > vendor")
    call = prepare_query(replace(question(8192, 8192, "float32"), plan=plan))
    assert call.plan == plan and call.decision.problem is not None and call.decision.problem.op == "product"


def test_numpys_own_is_left_alone_without_evidence() -> None:
    """It calls syrk itself; what is asked for by name is not left alone."""
    x = np.random.default_rng(9).standard_normal((400, 300))
    found = fmm.explain(x, x.T)
    assert found.plan == VENDOR and "syrk" in found.reason
    np.testing.assert_array_equal(fmm.matmul(x, x.T), x @ x.T)
    assert fmm.explain(x, x.T, plan="strassen > vendor").plan != VENDOR


def test_leaner_calls_keep_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory: the next plan computes the same half."""
    tried: list[str] = []
    run = run_host.run_call

    def short_of_memory(library: Any, ready: Any, *rest: Any) -> Any:
        tried.append(str(ready.plan))
        if len(tried) == 1:
            raise MemoryError
        assert ready.decision.problem.op == "gram"
        return run(library, ready, *rest)

    monkeypatch.setattr(run_host, "run_call", short_of_memory)
    first, second = (fmm.Plan.parse(text) for text in ("gram > strassen > vendor", "gram > vendor"))
    monkeypatch.setattr(prepare, "decide_plan", lambda problem, *rest: Decision(first, problem, "for the test"))
    monkeypatch.setattr(matmul, "MEMORY_FAILURE", matmul.PlanFailure(lambda *rest: iter([second])))
    for side in ("SMALL_GRAM_MAX_ROWS", "THIN_GRAM_MAX_ROWS"):
        monkeypatch.setattr(gram, side, 50)
    a = np.random.default_rng(10).standard_normal((61, 53))
    np.testing.assert_allclose(fmm.gram(a), a.T @ a)
    assert tried == ["gram > strassen > vendor", "gram > vendor"]


def test_asked_is_part_of_a_prepared_calls_key() -> None:
    """The same arrays, once as a product and once as a half."""
    x = symmetric(np.random.default_rng(11).standard_normal((64, 64)))
    for _ in range(2):
        np.testing.assert_allclose(fmm.matmul(x, x, plan="strassen > vendor"), x @ x)
        np.testing.assert_allclose(fmm.gram(x, x, plan="gram > strassen > vendor"), x @ x)
        np.testing.assert_allclose(fmm.gram(x, x, alpha=3, plan="gram > strassen > vendor"), 3 * x @ x)
    assert GemmParams(3.0, 0, "symmetric") != GemmParams(1.0, 0, "symmetric")


@pytest.mark.parametrize(
    ("predicted", "plan", "copied"),
    [
        (0.7, "gram > strassen > vendor", True),  # of the vendor's time: that leaves room for a copy
        (0.9, "vendor", False),
    ],
)
def test_what_is_explained_runs_where_a_plan_cannot_write_into_out(
    predicted: float, plan: str, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU no plan that may have to begin anew adds to `out`."""
    fast, ran = fmm.Plan.parse("gram > strassen > vendor"), list[tuple[str, bool]]()

    def answered(library: Any, a: Any, b: Any, out: Any, constraints: Any) -> PreparedCall:
        chosen = constraints.plan or fast
        decision = Decision(chosen, None, "for the test", (SimpleNamespace(plan=fast, time=predicted),))  # type: ignore[arg-type]
        spans = (ByteSpan(0, 8),) * 3
        return PreparedCall(decision, ProductSetting(0), plan=chosen, writes_out=out is not None, spans=spans)

    def run(library: Any, ready: PreparedCall, a: Any, b: Any, out: Any, constraints: Any) -> Any:
        ran.append((str(ready.plan), out is None))
        return np.zeros((4, 4)) if out is None else out

    library = SimpleNamespace(
        processor="cuda",
        transposed_view=adjoint,
        is_complex=lambda x: False,
        data_pointer=id,
        write_triangle=lambda *_: None,
        record_array_change=lambda out: None,
    )
    for name, put in (("prepare_uncached", answered), ("prepare_call", answered), ("run_with_fallback", run)):
        monkeypatch.setattr(gram, name, put)
    monkeypatch.setattr(gram, "describe_kernels", lambda library, ready, a, b, out: ())
    a, request = np.ones((3, 4)), gram.GramParams(beta=1.0)
    out, constraints = np.ones((4, 4)), NO_CONSTRAINTS
    assert gram.run_gram(library, a, None, out, request, constraints) is out
    explained = gram.explain_gram(library, a, None, out, request, constraints)
    assert [(str(explained.plan), "copied" in explained.reason)] == ran == [(plan, copied)]


# ---- who writes the mirror on the host


@pytest.mark.parametrize("side", [40, 500, 600])
def test_a_small_half_is_numpys_own_and_a_large_one_is_mirrored_by_us(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy mirrors small ones faster, we large ones; fmm.matmul of a matrix and its transpose is the same product."""
    seen = list[int]()
    usual = triangle_product.triangle_product

    def noted(*given: Any, **asked: Any) -> None:
        seen.append(len(given[2]))
        usual(*given, **asked)

    monkeypatch.setattr(numpy_backend, "triangle_product", noted)
    monkeypatch.setattr(gram, "SMALL_GRAM_MAX_ROWS", 100)
    monkeypatch.setattr(prepare, "TILED_MIRROR_MIN_ROWS", large := 600)
    x = np.random.default_rng(3).standard_normal((side, 448))
    first, second = (np.full((side, side), np.nan) for _ in range(2))
    assert fmm.gram(x, out=first, rows=True) is first
    assert fmm.matmul(x, x.T, second) is second
    assert seen == ([side] * 2 if side >= large else [])
    np.testing.assert_allclose(first, x @ x.T, rtol=0, atol=1e-13 * 448)
    for out in (first, second):
        np.testing.assert_array_equal(out, first.T)
    for text in map(str, (fmm.explain_gram(x, rows=True), *([fmm.explain(x, x.T)] if side >= large else []))):
        assert "syrk" in text and "mirror" in text


def test_a_small_half_is_written_where_it_is_read() -> None:
    x = np.random.default_rng(4).standard_normal((30, 30))
    expected = x @ x.T
    assert fmm.gram(x, out=x, rows=True) is x
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("number", [1e200, np.inf, np.nan])
def test_numpy_tells_of_an_overflow_in_a_large_half_too(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "TILED_MIRROR_MIN_ROWS", 500)
    x = np.random.default_rng(5).standard_normal((512, 448))
    x[7, 9] = number
    with np.errstate(all="ignore"):
        expected = x @ x.T
    with np.errstate(over="raise", invalid="raise"):
        theirs, ours = (raised(lambda: x @ x.T), raised(lambda: fmm.matmul(x, x.T, out=np.empty((512, 512)))))
    assert theirs == ours
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(fmm.matmul(x, x.T), expected)


def raised(call: Callable[[], object]) -> type[BaseException] | None:
    try:
        call()
    except FloatingPointError as error:
        return type(error)
    return None


# ---- byte orders, and alpha = 0


def test_a_view_of_another_type_is_no_transpose() -> None:
    from fmm.arrays.numpy_library import same_memory_transposed

    x = np.arange(16.0).reshape(4, 4)
    assert same_memory_transposed(x, x.T)
    assert not same_memory_transposed(x, x.view(np.int64).T) and not same_memory_transposed(x, x.view(">f8").T)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_stack_that_the_vendor_completes_is_hermitian(dtype: str, rng: np.random.Generator) -> None:
    """The second matrix has an inf, after the plan has written the first matrix of `out`."""
    a = rng.standard_normal((2, 150, 150)).astype(dtype)
    a = a + 1j * rng.standard_normal(a.shape) if dtype == "complex128" else a
    a[1, 0, 0] = np.inf
    out = np.full_like(a, np.nan)
    with np.errstate(all="ignore"):
        fmm.gram(a, out=out, plan="gram > strassen > vendor")
    np.testing.assert_array_equal(out[0], out[0].conj().T)
    np.testing.assert_allclose(out[0], a[0].conj().T @ a[0], atol=1e-9)


@pytest.mark.parametrize("kind", [">f4", ">f8", ">c16"])
@pytest.mark.parametrize("shape", [(16, 59), (59, 16), (200, 150)])
@pytest.mark.parametrize("rows", [True, False])
def test_a_foreign_byte_order_gives_a_symmetric_result_in_native_order(
    kind: str, shape: tuple[int, int], rows: bool
) -> None:
    """NumPy casts both operands, and then does not notice that one is the other's transpose."""
    x = np.random.default_rng(0).standard_normal(shape).astype(kind)
    expected = fmm.gram(x.astype(x.dtype.newbyteorder("=")), rows=rows)
    for fill in ("full", "lower", "upper"):
        c = fmm.gram(x, rows=rows, fill=fill)
        assert c.dtype.isnative
        np.testing.assert_allclose(
            np.tril(c), np.tril(expected) if fill != "upper" else np.diag(np.diag(expected)), 1e-4, 1e-3
        )
        if fill == "full":
            np.testing.assert_array_equal(c, c.conj().T)


@pytest.mark.parametrize("plan", [None, "vendor", "gram > vendor"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_with_alpha_0_the_factors_are_not_read(plan: str | None, library: str, bad: float) -> None:
    x, out = np.ones((300, 300)), np.full((300, 300), 3.0)
    x[0, 0] = bad
    if library == "torch":
        torch = pytest.importorskip("torch")
        x, out = torch.from_numpy(x), torch.from_numpy(out)
    for _ in range(2):
        assert not fmm.gram(x, alpha=0, plan=plan).any()
        assert not fmm.gram(x, x, alpha=0, plan=plan).any()
    assert fmm.gram(x, alpha=0, beta=2, out=out, plan=plan) is out and (out == 6).all()
    assert "not read" in fmm.explain_gram(x, alpha=0, plan=plan).reason


@pytest.mark.parametrize("fill", TRIANGLES)
@pytest.mark.parametrize("rows", [False, True])
def test_a_device_plan_conjugates_the_adjoint(
    rows: bool, fill: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """A stand-in for a device multiplies the operands that a plan gets, and conjugates those that the plan names."""
    plans: list[str] = []

    def select(library: Any, operands: Any, constraints: Any, cached: bool) -> Any:
        decision = Decision(constraints.plan, None, "for the test")
        return PreparedCall(decision, ProductSetting(0), plan=constraints.plan), operands

    def run(library: Any, call: Any, left: Any, right: Any, out: Any, constraints: Any) -> Matrix:
        plans.append(str(call.plan))
        assert np.shares_memory(left, a) and np.shares_memory(right, a)  # no adjoint is copied
        operands = zip((left, right), call.plan.conjugated_operands, strict=True)
        x, y = (operand.conj() if conjugated else operand for operand, conjugated in operands)
        product: Matrix = x @ y
        return product

    monkeypatch.setattr(gram, "_select_gram_call", select)
    monkeypatch.setattr(gram, "run_with_fallback", run)
    monkeypatch.setattr(gram, "describe_kernels", lambda library, call, *operands: (str(call.plan),))
    device: Any = SimpleNamespace(
        processor="gpu",
        transposed_view=lambda x: np.swapaxes(x, -1, -2),
        new_zeros=lambda shape, like: np.zeros(shape, like.dtype),
        out_of_memory_error=MemoryError,
    )
    a = numbers(rng, (9, 5), "complex128")
    constraints = NO_CONSTRAINTS._replace(plan=fmm.Plan.parse("residues2m(15) > bytes"))
    found = gram.run_gram(device, a, None, None, gram.GramParams(rows, fill), constraints)
    np.testing.assert_allclose(found, exact(a, rows).astype(complex), atol=1e-12)
    assert plans == [f"residues2m(15).conj-{'a' if rows == (fill == 'upper') else 'b'} > bytes"]
    explained = gram.explain_gram(device, a, None, None, gram.GramParams(rows, fill), constraints)
    assert [str(explained.plan)] == list(explained.kernels) == plans

"""fmm.gram on device arrays, against float64 references and the library's own product, on a CUDA device."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.plans.plan import Plan
from fmm.runtime import prepare
from fmm.runtime.gram import TRIANGLES
from tests.support.device_arrays import CupyLibrary, TorchLibrary, close, draw

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
OWN = ("tile", "gram^2 > tile", "gram.tile > vendor")
OWN_EPS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-13}
PLANS = ("vendor", "gram^2 > vendor", "gram^2 > strassen.batched.pad16 > vendor", "sforza(2) > vendor")


@pytest.fixture(params=[CupyLibrary, TorchLibrary], ids=["cupy", "torch"])
def library(request: pytest.FixtureRequest) -> Any:
    return request.param()


def adjoint(x: Any) -> Any:
    return np.swapaxes(x, -1, -2).conj()


def turned(library: Any, x: Any) -> Any:
    """The adjoint, in the library's own array."""
    return x.mH if library.name == "torch" else library.xp.swapaxes(x, -1, -2).conj()


def is_adjoint(library: Any, c: Any) -> None:
    """Bit for bit its own; the diagonal real."""
    found = library.host(c)
    np.testing.assert_array_equal(found, adjoint(found))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(library: Any, dtype: str, plan: str) -> None:
    for shape, rows in product([(130, 257), (300, 96), (7, 3), (2, 65, 40)], (False, True)):
        a = library.array(draw(shape, dtype), dtype)
        library.spoil(1 << 22)
        c = fmm.gram(a, rows=rows, plan=plan)
        assert type(c) is library.array_type and c.dtype == a.dtype
        is_adjoint(library, c)
        wide = library.host(a)
        left, right = (wide, adjoint(wide)) if rows else (adjoint(wide), wide)
        expected = np.matmul(left, right)
        eps = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "complex64": 1e-5}.get(dtype, 1e-13)
        assert np.abs(library.host(c) - expected).max() <= 4 * eps * np.abs(expected).max()


@pytest.mark.parametrize("plan", OWN)
@pytest.mark.parametrize("dtype", OWN_EPS)
def test_by_our_own_kernel(library: Any, dtype: str, plan: str) -> None:
    """Only tiles on and below the diagonal: more of them than the device has room for, odd edges."""
    for n, k in ((4104, 128), (2048, 520), (1000, 264), (257, 64), (130, 17), (8, 8)):
        a = library.array(draw((n, k)), dtype)
        library.spoil(1 << 22)
        wide = library.host(a)
        expected = wide @ wide.T
        for b in (None, a.T):
            c = fmm.gram(a, b, rows=b is None, plan=plan)
            is_adjoint(library, c)
            assert np.abs(library.host(c) - expected).max() <= 4 * OWN_EPS[dtype] * np.abs(expected).max(), (n, k)
        down = library.host(fmm.gram(a, plan=plan))
        assert np.abs(down - wide.T @ wide).max() <= 4 * OWN_EPS[dtype] * np.abs(down).max(), (n, k)


@pytest.mark.parametrize("plan", OWN)
@pytest.mark.parametrize("dtype", OWN_EPS)
def test_updates_by_our_own_kernel(library: Any, dtype: str, plan: str) -> None:
    """The lower half alone, and all of it; added to what stands there."""
    for fill, (alpha, beta), n in product(TRIANGLES, ((2, 0), (0.5, -3), (-1, 1)), (264, 1032, 97)):
        check_update(library, dtype, n, fill, alpha, beta, plan)


@pytest.mark.parametrize("plan", [None, *PLANS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128"])
def test_fill_alpha_and_beta(library: Any, dtype: str, plan: str | None) -> None:
    """The other half keeps its numbers, whoever computes."""
    updates: tuple[tuple[float, float], ...] = (1, 0), (2, 0), (0.5, -3)
    for fill, (alpha, beta), n in product(TRIANGLES, updates, (33, 200)):
        check_update(library, dtype, n, fill, alpha, beta, plan)


def check_update(library: Any, dtype: str, n: int, fill: Any, alpha: float, beta: float, plan: str | None) -> None:
    """alpha a a^H + beta out in the wanted half, and nothing else written."""
    a = library.array(draw((n, 40), dtype), dtype)
    square = draw((n, n), dtype, 1)
    old = library.array(square + square.conj().T, dtype)
    before = library.host(old)
    out = fmm.gram(a, out=old, rows=True, fill=fill, alpha=alpha, beta=beta, plan=plan)
    assert out is old
    wide = library.host(a)
    wanted, found = alpha * wide @ wide.conj().T + beta * before, library.host(out)
    half = np.tri(n, dtype=bool) if fill != "upper" else np.tri(n, dtype=bool).T
    if fill == "full":
        is_adjoint(library, out)
    else:
        np.testing.assert_array_equal(found[~half], before[~half])
    eps = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "complex64": 1e-5}.get(dtype, 1e-13)
    assert np.abs(found - wanted)[half].max() <= 4 * eps * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_views_and_two_matrices(library: Any, dtype: str) -> None:
    x = library.array(draw((128, 96), dtype), dtype)
    for a in (x.T, x[3:67, 5:69], x[::2], x[:, ::2], x[3:67, 5:69].T):
        for plan in ("vendor", "gram > strassen.batched.pad16 > vendor"):
            c = fmm.gram(a, rows=True, plan=plan)
            is_adjoint(library, c)
            close(library, c, a, turned(library, a), dtype)
    s = fmm.gram(x)
    for chosen in (None, "vendor", "gram^2 > vendor"):
        c = fmm.gram(s, s, plan=chosen)
        is_adjoint(library, c)
        close(library, c, s, s, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "float64"])
@pytest.mark.parametrize("plan", [*PLANS, "tile", "gram.tile > vendor"])
def test_inf_and_nan_as_the_library_has_them(library: Any, dtype: str, plan: str) -> None:
    if not Plan.parse(plan).accepts_type(dtype):
        pytest.skip(f"{plan} is not for {dtype}")
    for value in (np.inf, np.nan):
        numbers = draw((200, 120), dtype)
        numbers[3, 5] = value
        a = library.array(numbers, dtype)
        found = library.host(fmm.gram(a, rows=True, plan=plan))
        whole = library.host(library.matmul(a, turned(library, a)))
        below = np.tri(200, k=-1, dtype=bool)
        np.testing.assert_array_equal(np.isfinite(found[below]), np.isfinite(whole[below]))
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(found.T))
        old = library.array(draw((200, 200), dtype, 1), dtype)
        before = library.host(old)
        lower = library.host(fmm.gram(a, out=old, rows=True, fill="lower", plan=plan))
        np.testing.assert_array_equal(np.isfinite(lower[below]), np.isfinite(whole[below]))
        np.testing.assert_array_equal(lower[below.T], before[below.T])


def test_out_overlaps_the_operand(library: Any) -> None:
    numbers = draw((160, 160))
    for plan in ("vendor", "gram > strassen.batched.pad16 > vendor"):
        a = library.array(numbers, "float32")
        fmm.gram(a, out=a, plan=plan)
        wide = numbers.astype(np.float32).astype(np.float64)
        np.testing.assert_allclose(library.host(a), wide.T @ wide, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_product_with_its_own_transpose(library: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognised at the second call of it too, and never taken for another product of that shape."""
    monkeypatch.setattr("fmm.dispatch.SMALL_BYTES_PRODUCT", 0)
    for name in ("SMALL_MULTIPLY_ADDS", "SMALL_MULTIPLY_ADDS_16_BIT", "SMALL_MULTIPLY_ADDS_UNALIGNED"):
        monkeypatch.setattr(f"fmm.runtime.decisions.early_declines.{name}", 0)
    monkeypatch.setattr(prepare, "is_gram_faster", lambda *asked: True)
    x = library.array(draw((640, 640)), dtype)
    y = library.array(draw((640, 640), seed=1), dtype)
    for _ in range(3):
        close(library, fmm.matmul(x, y), x, y, dtype)
        c = fmm.matmul(x, x.T)
        is_adjoint(library, c)
        close(library, c, x, x.T, dtype)
        close(library, fmm.matmul(y.T, y), y.T, y, dtype)
    found = fmm.explain(x, x.T)
    # Of 16-bit numbers the vendor has no half, so that one that it would compute is no gain.
    assert found.problem is not None and found.problem.op == ("product" if dtype == "bfloat16" else "gram")
    other = fmm.explain(x, y.T).problem
    assert other is None or other.op == "product"


def test_gradients() -> None:
    torch = pytest.importorskip("torch")
    library = TorchLibrary()
    a = library.array(draw((40, 24)), "float64").requires_grad_()
    assert torch.autograd.gradcheck(lambda x: fmm.gram(x, plan="gram > vendor"), (a,))
    assert torch.autograd.gradcheck(lambda x: fmm.gram(x, rows=True, fill="upper", alpha=2), (a,))


def test_recurring_calls_are_graphs_and_stay_right(library: Any) -> None:
    for seed in range(12):
        a = library.array(draw((256, 192), seed=seed), "float32")
        c = fmm.gram(a, plan="gram^2 > vendor")
        close(library, c, a.T, a, "float32")
        is_adjoint(library, c)


@pytest.mark.parametrize("dtype", OWN_EPS)
def test_small_ones_in_one_launch(library: Any, dtype: str) -> None:
    """Odd sides, all fills, views that are not contiguous; the other half stays as it is. Again, when it is known."""
    for n, k in ((1, 1), (31, 5), (64, 64), (130, 257), (480, 477)):
        whole = library.array(draw((n, k + 3)), dtype)
        for a, rows in ((whole, True), (whole[:, :k], True), (whole[:, :k], False), (whole.T, False)):
            wide = library.host(a)
            expected = wide @ wide.T if rows else wide.T @ wide
            assert str(fmm.explain_gram(a, rows=rows).plan) == "small"
            for _ in range(3):
                library.spoil(1 << 20)
                c = fmm.gram(a, rows=rows)
                is_adjoint(library, c)
                assert np.abs(library.host(c) - expected).max() <= 4 * OWN_EPS[dtype] * np.abs(expected).max()
            for fill in ("lower", "upper"):
                out = library.array(np.full(expected.shape, 7.0), dtype)
                for _ in range(2):
                    assert fmm.gram(a, None, out, rows=rows, fill=fill) is out
                below = np.tri(len(expected), dtype=bool) if fill == "lower" else np.tri(len(expected), dtype=bool).T
                found = library.host(out)
                assert (found[~below] == 7).all()
                np.testing.assert_array_equal(found[below], library.host(c)[below])


def test_small_ones_keep_inf_and_nan_where_they_are(library: Any) -> None:
    x = draw((70, 40))
    x[3, 5], x[10, 39] = np.inf, np.nan
    a = library.array(x, "float32")
    with np.errstate(invalid="ignore"):
        expected = x @ x.T
    c = library.host(fmm.gram(a, rows=True))
    np.testing.assert_array_equal(np.isnan(c), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(c), np.isinf(expected))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_small_products_with_a_transpose_have_the_librarys_bits(dtype: str) -> None:
    """By one call of cuBLAS, told what CuPy tells it."""
    library = CupyLibrary()
    for m, k, n in ((5, 7, 3), (64, 64, 64), (33, 129, 65), (1, 9, 4), (4, 1, 9), (9, 4, 1)):
        a, b = library.array(draw((m, k)), dtype), library.array(draw((k, n)), dtype)
        pairs = [(a, a.T), (a.T, a), (a, b), (b.T, a.T), (library.xp.asfortranarray(a), b)]
        for x, y in pairs:
            np.testing.assert_array_equal(library.host(fmm.matmul(x, y)), library.host(library.xp.matmul(x, y)))


@pytest.mark.parametrize(
    ("dtype", "plan"), [("float64", "residues(14) > bytes"), ("complex128", "residues2m(15) > bytes")]
)
def test_halves_by_residues(library: Any, dtype: str, plan: str) -> None:
    """Tiles on and below the diagonal; the other half stays, or is the mirror; inf is found."""
    for n, k in ((1000, 520), (2049, 300), (130, 1031), (64, 64)):
        a = library.array(draw((n, k), dtype), dtype)
        wide = library.host(a)
        for rows in (True, False):
            expected = wide @ adjoint(wide) if rows else adjoint(wide) @ wide
            library.spoil(1 << 24)
            c = fmm.gram(a, rows=rows, plan=plan)
            is_adjoint(library, c)
            found = library.host(c)
            assert np.abs(found - expected).max() <= 1e-13 * np.abs(expected).max()
            below = np.tri(len(expected), dtype=bool)
            triangles: tuple[tuple[Any, Any], ...] = (("lower", below), ("upper", below.T))
            for fill, written in triangles:
                out = library.array(np.full(expected.shape, 7.0, dtype), dtype)
                fmm.gram(a, None, out, rows=rows, fill=fill, plan=plan)
                triangle = library.host(out)
                assert (triangle[~written] == 7).all()
                np.testing.assert_array_equal(triangle[written], found[written])
                fmm.gram(a, None, out, rows=rows, fill=fill, alpha=-2, beta=3, plan=plan)
                updated = np.where(written, -2 * found + 3 * triangle, 7)
                assert np.abs(library.host(out) - updated).max() <= 1e-14 * np.abs(expected).max()
    a = library.array(np.where(np.arange(600)[:, None] == 17, np.inf, draw((600, 200), dtype)), dtype)
    c = library.host(fmm.gram(a, rows=True, plan=plan))
    assert not np.isfinite(c[17]).any() and np.isfinite(np.delete(np.delete(c, 17, 0), 17, 1)).all()
    finite = np.delete(library.host(a), 17, 0)
    expected = finite @ adjoint(finite)
    assert np.abs(np.delete(np.delete(c, 17, 0), 17, 1) - expected).max() <= 1e-13 * np.abs(expected).max()

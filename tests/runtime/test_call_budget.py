"""Budgets of function calls for products that were prepared before: a small product waits for the host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays.numpy_library import NUMPY
from fmm.kernels.cpu import triangle_product
from fmm.kernels.cuda.target import ALLOCATOR_ALIGNMENT
from fmm.runtime.decisions import early_declines
from fmm.runtime.decisions.early_declines import decline_key
from tests.support.marks import quick_and_slow
from tests.support.own_calls import called_functions


@cache
def measured_calls() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.support.short_ways"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("call", "most"),
    [
        ("a half by one launch", 16),
        ("the same, the lower one into a place", 21),
        ("a half by the vendor", 26),
        ("a complex half by the vendor", 33),
        ("a complex half of rows by the vendor", 33),
        ("a complex upper half into a place", 26),
        ("a small product", 4),
        ("a product that is the library's by its sides", 6),
        ("a product by a plan", 20),
        ("a declined gemm", 4),
        ("a large declined gemm", 9),
        ("a declined gemm of a transpose", 10),
    ],
)
def test_a_call_like_one_before_asks_little(call: str, most: int) -> None:
    found = measured_calls()["calls"][call]
    assert found["launches"] == (2 if call.startswith("a complex half") else 1)  # herk, and the mirror of its triangle
    assert len(found["functions"]) <= most, found["functions"]


def test_a_small_product_of_tensors_takes_few_calls() -> None:
    """A tensor's attributes take torch a tenth of a microsecond each, so few are read."""
    torch: Any = pytest.importorskip("torch")
    from fmm.arrays.torch_library import TORCH

    small, half = torch.ones(4, 4), torch.ones((1024, 1024), dtype=torch.bfloat16)
    fmm.matmul(small, small)  # torch's library is loaded now
    assert count_calls(lambda: fmm.matmul(small, small)) <= 3
    assert count_calls(lambda: fmm.matmul(small, small, torch.empty(4, 4))) <= 7
    assert count_calls(lambda: fmm.matmul(half, half)) <= 4
    large = torch.ones(1024, 1024)
    TORCH.cached_calls[decline_key(TORCH, large, large)] = float("inf")
    try:
        assert count_calls(lambda: fmm.matmul(large, large)) <= 6
    finally:
        TORCH.cached_calls.clear()


def test_what_lies_elsewhere_is_played_by_a_list_of_its_own() -> None:
    usual, again, moved, last = (tuple(x) for x in measured_calls()["alignments"])
    assert usual == again == last == ALLOCATOR_ALIGNMENT != moved


def test_herk_needs_no_adjoint_of_a_row_major_matrix_alone() -> None:
    """The result in rows is the conjugate of what herk makes of a matrix in columns."""
    assert measured_calls()["complex"] == {"C": 6, "F": 0}


def count_calls(call: Callable[[], object]) -> int:
    """The functions of fmm that a call enters; comprehensions are functions up to Python 3.11 and do not count."""
    return sum(not name.endswith(">") for name in called_functions(call))


def test_a_small_numpy_product_takes_few_calls() -> None:
    x = np.ones((3, 4))
    for call in (lambda: fmm.matmul(x, x.T), lambda: fmm.matmul(x, x.T, np.empty((3, 3)))):
        assert count_calls(call) == 1
    thin, wide = np.ones((3000, 7)), np.ones((7, 40))
    assert count_calls(lambda: fmm.matmul(thin, wide)) <= 2


def test_a_stack_of_small_numpy_matrices_takes_few_calls() -> None:
    """No plan is looked for: the sides are too short for any."""
    for shape in ((50, 8, 8), (3, 100, 100), (2, 256, 256)):
        x, y = np.ones(shape), np.ones(shape)
        assert count_calls(partial(fmm.matmul, x, y)) <= 2
        assert count_calls(partial(fmm.gram, x, rows=True)) <= 3
        gram = fmm.gram(x)
        np.testing.assert_array_equal(gram, gram.swapaxes(1, 2))


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": np.float64},
        {"casting": "no", "order": "F"},
        {"plan": None},
        {"dtype": None, "plan": None, "max_error_growth": None, "workspace": None},
    ],
)
def test_a_small_numpy_product_with_numpys_options_takes_few_calls(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, out = np.ones((3, 4)), np.empty((3, 3))
    assert count_calls(lambda: fmm.matmul(x, x.T, **options)) <= 3
    assert fmm.matmul(x, x.T, out, **options) is out and (out == 4).all()
    monkeypatch.setattr(early_declines, "MIN_PLAN_ENTRIES", 0)
    monkeypatch.setattr(early_declines, "MIN_PLAN_SIDE", 1)
    libraries = []

    def product(library: Any, a: Any, b: Any, out: Any, constraints: Any) -> str:
        libraries.append(library)
        return "multiplied"

    monkeypatch.setattr("fmm.runtime.matmul.run_matmul", product)
    assert fmm.matmul(x, x.T, **options) == "multiplied"
    changed = {name: value for name, value in options.items() if value is not None}
    assert libraries[0].options == changed and (libraries[0] is NUMPY) is not bool(changed)


@pytest.mark.parametrize("options", [{"plan": "vendor"}, {"subok": True}, {"dtype": None, "workspace": 0}])
def test_other_options_of_a_small_product_are_checked(options: dict[str, Any]) -> None:
    x = np.ones((3, 4))
    assert (fmm.matmul(x, x.T, **options) == 4).all()
    with pytest.raises((TypeError, ValueError)):
        fmm.matmul(x, x.T, max_error_growth=-1, **options)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_small_plain_products_by_gemm_are_numpys(dtype: str) -> None:
    x, out = np.ones((3, 4), dtype), np.empty((3, 3), dtype)
    assert count_calls(lambda: fmm.gemm(x, x.T)) == count_calls(lambda: fmm.gemm(x, x.T, out=out)) == 1
    assert (out == 4).all() and np.array_equal(fmm.gemm(x, x.T), out)
    for wrong in (np.empty((3, 4), dtype), np.empty((2, 3, 3), dtype)):
        with pytest.raises(ValueError, match="the product"):
            fmm.gemm(x, x.T, out=wrong)
    with pytest.raises(ValueError, match="match"):
        fmm.gemm(x, x)
    assert fmm.gemm(x, x.T, alpha=2)[0, 0] == 8


@pytest.mark.parametrize(("dtype", "more"), [("float32", 0), ("float64", 0), ("complex64", 4), ("complex128", 4)])
def test_small_halves_of_numpys_are_blas_s_at_once(dtype: str, more: int) -> None:
    x, out = np.ones((3, 4), dtype), np.empty((4, 4), dtype)
    calls: list[Callable[[], object]] = [lambda: fmm.gram(x, rows=True), lambda: fmm.gram(x, out=out)]
    for call in calls:
        call()
        assert count_calls(call) <= 2 + more


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_thin_halves_of_numpys_are_blas_s_at_once(dtype: str) -> None:
    """However long the inner side is: the way to a plan takes half a millisecond."""
    x = np.ones((54, 2598), dtype)
    fmm.gram(x, rows=True)
    assert count_calls(lambda: fmm.gram(x, rows=True)) <= 20


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("side", [60, 1100])  # at once, and the usual way
def test_halves_of_what_blas_cannot_read_are_symmetric_bit_for_bit(dtype: str, side: int) -> None:
    """NumPy's own product makes two copies of them, and then computes no half."""
    whole = np.random.default_rng(7).standard_normal((2 * side, 96)).astype(dtype)
    x = whole[::2, ::3]
    for a in (x, whole[:side][::-1, ::-1], np.broadcast_to(x[:1], x.shape)):
        for rows in (True, False):
            c = fmm.gram(a, rows=rows)
            assert np.array_equal(c, c.T)
            expected = a @ a.T if rows else a.T @ a
            np.testing.assert_allclose(c, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    "shape",
    quick_and_slow(
        [(1, 1), (5, 1), (1, 6), (0, 3), (3, 0), (200, 0), (53, 37), (256, 32), (130, 131)],
        [((300, 9),), ((9, 1025),), ((500, 9),)],
    ),
)
def test_small_complex_halves_are_hermitian_bit_for_bit(shape: tuple[int, int], rows: bool) -> None:
    rng = np.random.default_rng(shape)
    x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    for a in (x, np.asfortranarray(x), x[::-1, ::-1]):
        expected = a @ a.conj().T if rows else a.conj().T @ a
        out, turned = np.full_like(expected, np.nan), np.full_like(expected, np.nan).T
        apart = np.full((2 * len(expected),) * 2, np.nan + 0j)[::2, ::2]
        for c in (fmm.gram(a, rows=rows), *(fmm.gram(a, out=place, rows=rows) for place in (out, turned, apart))):
            assert np.array_equal(c, c.conj().T) and not c.imag.diagonal().any()
            np.testing.assert_allclose(c, expected, rtol=1e-12, atol=1e-12 * max(shape))


def test_small_complex_halves_are_explained_as_they_are_computed() -> None:
    x, larger, largest = (np.ones(shape, "complex128") for shape in ((40, 30), (500, 300), (200, 1100)))
    whole = ("numpy.matmul: a whole product, with one triangle mirrored",)
    assert fmm.explain_gram(x).kernels == fmm.explain_gram(x, out=np.empty((30, 30), complex)).kernels == whole
    assert fmm.explain_gram(larger).kernels == ("numpy.matmul: one triangle in panels of rows, each mirrored",)
    for found in (fmm.explain_gram(largest), fmm.explain_gram(x, plan="vendor")):
        assert "mirrored" not in "".join(found.kernels) and "threads" in "".join(found.kernels)


def test_small_halves_of_what_blas_cannot_read_are_explained_as_copies() -> None:
    x = np.ones((40, 30))
    lying = "numpy.matmul: BLAS's syrk, one triangle, and NumPy's mirror"
    copied = "numpy.matmul of a copy: BLAS's syrk, one triangle, and NumPy's mirror"
    for a, kernel in ((x, lying), (x.T, lying), (x[:, 3:], lying), (x[::-1, ::-1], copied), (x[::2, ::2], copied)):
        side = a.shape[1]
        assert fmm.explain_gram(a).kernels == fmm.explain_gram(a, out=np.empty((side, side))).kernels == (kernel,)
    assert fmm.explain_gram(x[::-1, ::-1], alpha=2).kernels != (copied,)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (3, 4), (0, 3), (3, 0), (40, 30), (1200, 0)])
def test_a_place_that_does_not_fit_is_refused_in_the_same_words(dtype: str, shape: tuple[int, int]) -> None:
    """Small halves are written there by NumPy, which would take some of them, and says other things of the rest."""
    x = np.ones(shape, dtype)
    for rows in (True, False):
        side = shape[0] if rows else shape[1]
        expected = np.ones((side, side), dtype) * shape[rows]
        fits = np.full((side, side), 7, dtype)
        assert fmm.gram(x, out=fits, rows=rows) is fits and np.array_equal(fits, expected)
        wider = np.zeros((side, side), "complex128" if "complex" in dtype else "float64")
        assert fmm.gram(x, out=wider, rows=rows) is wider and np.array_equal(wider, expected)
        for wrong in ((side + 1, side + 1), (5, 5), (2, side, side), (side,)):
            if wrong != (side, side):
                place = np.full(wrong, 7, dtype)
                with pytest.raises(ValueError, match=r"out is \(.*, the product "):
                    fmm.gram(x, out=place, rows=rows)
                assert (place == 7).all()


def test_small_halves_are_numpys_own_bit_for_bit_and_tell_what_it_tells() -> None:
    rng = np.random.default_rng(11)
    for dtype in ("float32", "float64"):
        whole = rng.standard_normal((60, 70)).astype(dtype)
        locked = whole.copy()
        locked.flags.writeable = False
        for x in (whole, whole.T, whole[:20, :30], locked, np.empty((0, 4), dtype), np.empty((4, 0), dtype)):
            assert np.array_equal(fmm.gram(x, rows=True), x @ x.T) and np.array_equal(fmm.gram(x), x.T @ x)
        huge = np.full((3, 3), np.finfo(dtype).max)
        with np.errstate(over="raise"):
            for call in (partial(np.matmul, huge.T, huge), partial(fmm.gram, huge), partial(fmm.gram, huge, out=huge)):
                with pytest.raises(FloatingPointError, match="overflow encountered in matmul"):
                    call()
    for wrong in (np.ones(3), np.float64(1), np.ones(())):
        with pytest.raises((ValueError, TypeError, AttributeError)):
            fmm.gram(wrong)
    assert fmm.gram(np.ones((2, 3, 4))).shape == (2, 4, 4)


def test_a_small_complex_half_may_be_written_where_its_matrix_is() -> None:
    rng = np.random.default_rng(9)
    for side in (20, 90):
        x = rng.standard_normal((side, side)) + 1j * rng.standard_normal((side, side))
        expected = x @ x.conj().T
        assert fmm.gram(x, out=x, rows=True) is x and np.array_equal(x, x.conj().T)
        np.testing.assert_allclose(x, expected, rtol=1e-12, atol=1e-12 * side)


def test_a_panel_that_fails_leaves_a_whole_product(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = triangle_product._triangle_panel_calls

    def some_steps(*given: Any) -> Any:
        yield from list(steps(*given))[:4]
        yield lambda: 1 / 0

    monkeypatch.setattr(triangle_product, "_triangle_panel_calls", some_steps)
    x, out = np.random.default_rng(10).standard_normal((200, 40)) * (1 + 1j), np.zeros((200, 200), complex)
    with pytest.raises(ZeroDivisionError):
        fmm.gram(x, out=out, rows=True)
    np.testing.assert_allclose(out, x @ x.conj().T, rtol=0, atol=1e-10)


def test_the_short_way_has_the_function_s_face() -> None:
    with pytest.raises(TypeError, match="missing"):
        fmm.matmul(np.ones((2, 2)))
    with pytest.raises(TypeError, match="axess"):
        fmm.matmul(np.ones((2, 2)), np.ones((2, 2)), axess=3)
    assert "numpy.matmul" in (fmm.matmul.__doc__ or "") and fmm.matmul.__module__ == "fmm.api"

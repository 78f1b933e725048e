"""Integers through fmm.matmul on the host: NumPy's results bit for bit, by products of digits if that is faster."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays.numpy_library import NUMPY
from fmm.dtypes import INTEGERS, RING_TYPES
from fmm.kernels.cpu import exact_product
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.kernels.registry import clear_caches
from fmm.runtime import run_host
from fmm.runtime.decisions import decide, early_declines
from fmm.runtime.decisions.early_declines import is_small_on_host
from tests.support import random_integers
from tests.support.integers import INTEGER_KINDS, draw_integers, python_product, uniform_integers, with_layout

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Many blocks of all sides, tiles and panels, on threads of ours, at sizes that NumPy multiplies at once."""
    for name, value in (
        ("BLOCK_SIDE", 40),
        ("PLANE_DEPTH", 64),
        ("TILE_ROWS", 12),
        ("MIN_TILE_SIDE", 4),
        ("PANEL_BYTES", 1024),
    ):
        monkeypatch.setattr(exact_product, name, value)
    monkeypatch.setattr(exact_product, "MIN_THREADED_ELEMENTS", 0)
    monkeypatch.setattr(run_host, "SMALL_ARRAY_BYTES", 0)
    forget()
    yield
    forget()


def forget() -> None:
    """How much memory a product takes depends on the blocks."""
    clear_caches()
    NUMPY.cached_calls.clear()


# ---- products


@pytest.mark.parametrize("kind", range(len(INTEGER_KINDS)))
@pytest.mark.parametrize("dtype", RING_TYPES)
def test_numbers_of_each_kind(dtype: str, kind: int) -> None:
    draw = np.random.default_rng(kind)
    a, b = draw_integers(draw, dtype, (9, 37), kind), draw_integers(draw, dtype, (37, 11), kind)
    found = fmm.matmul(a, b, plan="digits")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, python_product(a, b))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_random_products(count: int) -> None:
    """Shapes, types, ranges, layouts and plans, against Python's integers."""
    draw, choose = np.random.default_rng(count), random.Random(count)
    for _ in range(count):
        m, k, n = (choose.choice([1, 2, 3, 13, 40, 41, choose.randint(1, 90)]) for _ in range(3))
        dtype = choose.choice(INTEGERS)
        a, b = (with_layout(draw_integers(draw, dtype, shape), choose.randint(0, 3)) for shape in ((m, k), (k, n)))
        plan = choose.choice(["digits"] if dtype == "bool" else ["digits", "digits", "strassen > digits"])
        out = choose.choice([None, with_layout(np.ones((m, n), dtype), choose.randint(0, 2))])
        found = fmm.matmul(a, b, out=out, plan=plan)
        assert found is out or out is None
        np.testing.assert_array_equal(found, python_product(a, b), err_msg=f"{dtype} {m} {k} {n} {plan}")


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_the_usual_blocks(dtype: str) -> None:
    """On several threads, over more than one block of the inner side, and unasked."""
    draw = np.random.default_rng(3)
    a, b = draw_integers(draw, dtype, (200, 2100), 0), draw_integers(draw, dtype, (2100, 131), 0)
    assert str(fmm.explain(a, b).plan) == "digits"
    np.testing.assert_array_equal(fmm.matmul(a, b), np.matmul(a, b))


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_levels_are_exact_modulo_two_to_the_bits() -> None:
    draw = np.random.default_rng(4)
    for dtype in ("int64", "uint64", "int8", "uint16"):
        a, b = draw_integers(draw, dtype, (70, 70), 2), draw_integers(draw, dtype, (70, 70), 0)
        for plan in ("winograd > digits", "strassen > strassen > digits", "li-fig3.peel > digits", "hasa > digits"):
            np.testing.assert_array_equal(fmm.matmul(a, b, plan=plan), python_product(a, b))


def test_bytes_of_bool_that_are_neither_zero_nor_one() -> None:
    a = np.array([[2, 0], [0, 255]], np.uint8).view(bool)
    b = np.array([[0, 128], [0, 0]], np.uint8).view(bool)
    np.testing.assert_array_equal(fmm.matmul(a, b, plan="digits"), np.array([[False, True], [False, False]]))


def test_how_many_products_the_numbers_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    def counted(a: Array, b: Array, out: Array) -> Any:
        calls.append((a.shape[1], a.itemsize))
        return np.matmul(a, b, out=out)

    monkeypatch.setattr(exact_product, "matmul", counted)
    for most, expected in ((1, [(50, 4)]), (2**20, [(50, 8)]), (2**62, [(50, 8)] * 3 + [(100, 8)])):
        calls.clear()
        a = np.full((30, 50), most)
        assert (fmm.matmul(a, a.T.copy(), plan="digits") == (50 * most * most) % 2**64).all()
        assert calls == expected


# ---- as NumPy does it

CALLS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("a narrower operand", "int8", "int64", {}),
    ("signed and unsigned", "uint8", "int8", {}),
    ("bool and int", "bool", "int32", {}),
    ("a wider type", "int16", "int16", {"dtype": "int64"}),
    ("a narrower type", "int64", "int64", {"dtype": "int32", "casting": "same_kind"}),
    ("a type without signs", "int64", "int64", {"dtype": "uint16", "casting": "unsafe"}),
    ("by columns", "int32", "int32", {"order": "F"}),
    ("another byte order", ">i4", "int32", {}),
    ("to floats", "int32", "int32", {"dtype": "float64"}),
    ("64 bits with and without signs", "int64", "uint64", {}),  # float64
]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("what", "left", "right", "options"), CALLS, ids=[call[0] for call in CALLS])
def test_options_are_numpys(what: str, left: str, right: str, options: dict[str, Any]) -> None:
    draw = np.random.default_rng(5)
    a, b = (
        draw.integers(0, 2, (40, 40)).astype(bool)
        if t == "bool"
        else uniform_integers(draw, np.dtype(t).name, (40, 40)).astype(t)
        for t in (left, right)
    )
    expected = np.matmul(a, b, **options)
    found = fmm.matmul(a, b, **options)
    assert (found.dtype, found.strides) == (expected.dtype, expected.strides)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.fixture
def eager(small_by_plans: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products by plans too."""
    monkeypatch.setattr(early_declines, "MIN_INTEGER_PLAN_SIDE", 1)
    monkeypatch.setattr(decide, "MIN_INTEGER_PLAN_SIDE", 1)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("char", "bBhHiIlLqQ?")
def test_types_keep_their_names(char: str) -> None:
    """On Linux `long` and `long long` are the same numbers, and two types."""
    a = np.ones((20, 20), char)
    found, expected = fmm.matmul(a, a), np.matmul(a, a)
    assert found.dtype.char == expected.dtype.char
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("out_type", ["int64", "float64", "complex64", "object"])
def test_out_of_other_types(out_type: str) -> None:
    a = np.arange(12).reshape(3, 4).astype(np.int32)
    out, expected = np.empty((3, 3), out_type), np.empty((3, 3), out_type)
    assert fmm.matmul(a, a.T, out=out, plan="digits") is out
    np.testing.assert_array_equal(out, np.matmul(a, a.T, out=expected))


@pytest.mark.parametrize(
    "shapes", [((4, 5, 6), (6, 3)), ((2, 1, 5, 6), (3, 6, 2)), ((6,), (6, 3)), ((5, 6), (6,)), ((6,), (6,))]
)
def test_stacks_and_vectors(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    draw = np.random.default_rng(6)
    a, b = (uniform_integers(draw, "int64", shape) for shape in shapes)
    found = fmm.matmul(a, b, plan="digits")
    np.testing.assert_array_equal(found, np.matmul(a, b))
    assert type(found) is type(np.matmul(a, b))


def test_out_that_is_an_operand() -> None:
    a = uniform_integers(np.random.default_rng(7), "int64", (50, 50))
    expected = python_product(a, a)
    assert fmm.matmul(a, a, out=a, plan="digits") is a
    np.testing.assert_array_equal(a, expected)


def test_errors_are_numpys() -> None:
    x = np.ones((3, 4), int)
    for a, b in ((x, x), (x, np.ones((), int)), (np.ones((), int), x)):
        with pytest.raises(ValueError, match="matmul"):
            fmm.matmul(a, b)
    with pytest.raises(TypeError):
        fmm.matmul(x, x.T, out=np.empty((3, 3), np.int8), casting="safe")


# ---- what is decided


def test_small_products_are_numpys() -> None:
    for side in (1, 16, 128):
        a = np.ones((side, side), int)
        assert is_small_on_host(a, a) and fmm.explain(a, a).plan == VENDOR
    a = np.ones((200, 200), int)
    assert not is_small_on_host(a, a) and is_small_on_host(a.astype(float), a)


def test_what_is_explained() -> None:
    a = np.zeros((1000, 1000), int)
    said = str(fmm.explain(a, a))
    assert (
        "exact: int64 by at most 5 float64 products of digits of 22 bits, fewer where the numbers are smaller" in said
    )
    assert "integers are exact" in said
    assert "exact: int8 by 1 float32 product" in str(fmm.plan(1000, 1000, 1000, dtype="int8"))
    assert "or-and by 1 float32 product" in str(fmm.plan(1000, 1000, 1000, dtype=bool))
    assert fmm.plan(1000, 1000, 1000, dtype="int64").plan == fmm.explain(a, a).plan


def test_limits_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fmm.plan(1000, 1000, 1000, dtype="int64", workspace=0).plan == VENDOR
    assert fmm.plan(1000, 1000, 1000, dtype="int64").workspace > 10**7
    monkeypatch.setenv("FMM_DISABLE", "1")
    assert fmm.plan(1000, 1000, 1000, dtype="int64").plan == VENDOR


@pytest.mark.slow
def test_no_memory_means_numpys_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> Any:
        raise MemoryError

    a = uniform_integers(np.random.default_rng(8), "int64", (300, 300))
    monkeypatch.setattr(exact_product, "_split_panel", none)
    out = np.zeros((300, 300), int)
    expected = np.matmul(a, a)
    np.testing.assert_array_equal(fmm.matmul(a, a, out=out), expected)
    np.testing.assert_array_equal(fmm.matmul(a, a), expected)


@pytest.mark.parametrize(
    ("plan", "dtype"),
    [("strassen > digits", "bool"), ("dps > digits", "int64"), ("digits", "float64"), ("winograd > vendor", "int64")],
)
def test_plans_that_are_refused(plan: str, dtype: str) -> None:
    x = np.ones((8, 8), dtype)
    with pytest.raises(PlanError):
        fmm.matmul(x, x, plan=plan)


def test_gemm_and_gram_are_left_to_numpy() -> None:
    a = uniform_integers(np.random.default_rng(9), "int64", (20, 20))
    np.testing.assert_array_equal(fmm.gemm(a, a, alpha=3), np.matmul(a, a) * 3)
    np.testing.assert_array_equal(fmm.gemm(a, a, a, alpha=-2, beta=5), np.matmul(a, a) * -2 + a * 5)
    np.testing.assert_array_equal(fmm.gram(a), a.T @ a)
    np.testing.assert_array_equal(fmm.matmul(a, a.T, plan="digits"), a @ a.T)


def test_a_number_has_the_type_of_its_vectors_however_often_it_is_asked() -> None:
    """NumPy's `long long` equals its `long`, and is another type: a call prepared for one is not the other's."""
    for kind in ("l", "q", "l", "L", "Q"):
        v = np.arange(200, dtype=kind)
        assert type(fmm.matmul(v, v, plan="digits" if kind in "lL" else None)) is np.dtype(kind).type


@pytest.mark.slow
def test_random_products_as_the_command_draws_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert random_integers.main(["--device", "cpu", "--count", "80"]) == 0
    assert capsys.readouterr().out == "80 random products of integers, all equal to Python's\n"


@pytest.mark.slow
def test_random_products_in_several_processes(capfd: pytest.CaptureFixture[str]) -> None:
    assert random_integers.main(["--device", "cpu", "--count", "20", "--workers", "2"]) == 0
    assert capfd.readouterr().out == 2 * "10 random products of integers, all equal to Python's\n"


def test_the_command_finds_a_wrong_entry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(x: random_integers.RandomProduct, plan: str) -> Any:
        found = multiply_on_host(x, plan)
        found[-1, -1] ^= found.dtype.type(1)
        return found

    multiply_on_host = random_integers.multiply_on_host
    monkeypatch.setattr(random_integers, "multiply_on_host", wrong)
    assert random_integers.main(["--device", "cpu", "--count", "9"]) == 1
    assert "seed 0: " in capsys.readouterr().out


# ---- factors


@pytest.mark.parametrize("alpha", [2, 2.0, np.float32(2), np.int8(2), -3.0])
def test_factors_are_whole_however_they_are_written(alpha: Any) -> None:
    a = uniform_integers(np.random.default_rng(9), "int64", (20, 20))
    whole = int(alpha)
    np.testing.assert_array_equal(fmm.gemm(a, a, a, alpha=alpha, beta=alpha), np.matmul(a, a) * whole + a * whole)
    symmetric = a.T @ a
    np.testing.assert_array_equal(fmm.gram(a, alpha=alpha), symmetric * whole)
    np.testing.assert_array_equal(fmm.gram(a, None, symmetric.copy(), alpha=alpha, beta=alpha), symmetric * whole * 2)


def test_a_factor_that_is_no_float() -> None:
    a, most = np.ones((3, 3), np.int64), 2**53 + 1
    assert (fmm.gemm(a, a[:, :1], alpha=most) == 3 * most).all() and (fmm.gram(a, alpha=most) == 3 * most).all()
    assert (fmm.gram(a.astype(float), alpha=2**70) == 3.0 * 2**70).all()


OUTSIDE: tuple[tuple[str, Any, type[Exception], str], ...] = (
    ("uint8", -1, ValueError, "alpha must be a number that uint8 holds, 0 to 255, not -1"),
    ("int8", 128, ValueError, "alpha must be a number that int8 holds, -128 to 127, not 128"),
    ("uint64", -2.0, ValueError, "alpha must be a number that uint64 holds, .* not -2"),
    ("int64", 1e300, ValueError, "alpha must be a number that int64 holds"),
    ("bool", 2, ValueError, "alpha must be a number that bool holds, 0 to 1, not 2"),
    ("int32", 0.5, TypeError, "alpha must be a whole number, not 0.5: cannot cast the multiples to int32"),
    ("int32", float("nan"), TypeError, "alpha must be a whole number"),
)


@pytest.mark.parametrize(("dtype", "factor", "error", "message"), OUTSIDE)
def test_factors_that_the_type_does_not_hold(dtype: str, factor: Any, error: type[Exception], message: str) -> None:
    """Refused by the argument's name, before anything is written."""
    a, out = np.ones((4, 4), dtype), np.ones((4, 4), dtype)
    for call in (
        lambda: fmm.gemm(a, a, alpha=factor),
        lambda: (
            fmm.gemm(a.tolist(), a, a, alpha=factor, beta=1, out=out)
            if dtype == "int64"
            else fmm.gemm(a, a, a, alpha=factor, beta=1, out=out)
        ),
        lambda: fmm.explain_gemm(a, a, alpha=factor),
        lambda: fmm.gram(a, None, out, alpha=factor),
        lambda: fmm.explain_gram(a, alpha=factor),
    ):
        with pytest.raises(error, match=message):
            call()
    with pytest.raises(error, match=message.replace("alpha", "beta")):
        fmm.gemm(a, a, a, beta=factor)
    assert (out == 1).all()


def test_a_result_in_floats_takes_any_factor() -> None:
    a, out = np.arange(6).reshape(2, 3), np.zeros((3, 3))
    np.testing.assert_array_equal(fmm.gram(a, None, out, alpha=0.5), a.T @ a / 2)
    np.testing.assert_array_equal(fmm.gemm(a, a.T, np.ones((2, 2)), alpha=0.5, beta=0.5), a @ a.T / 2 + 0.5)
    both = fmm.gemm(a, a.T.astype(np.uint64), alpha=0.5)  # no integer type holds both
    np.testing.assert_array_equal(both, a @ a.T / 2)


@pytest.mark.parametrize(
    ("plan", "dtype", "said"),
    [
        (
            "winograd > vendor",
            "int32",
            "float64, float32, complex64, complex128 there, not int32; winograd > digits does",
        ),
        ("winograd > digits", "float32", "there, not float32; winograd > vendor does"),
        ("strassen > digits", "bool", "there, not bool$"),
    ],
)
def test_the_leaf_that_multiplies_them_is_named(plan: str, dtype: str, said: str) -> None:
    x = np.ones((8, 8), dtype)
    for call in (fmm.matmul, fmm.explain):
        with pytest.raises(PlanError, match=said):
            call(x, x, plan=plan)
    with pytest.raises(PlanError, match=said):
        fmm.plan(8, 8, 8, dtype=dtype, plan=plan)

"""What a call that was made before takes the host, counted in functions: a small product on a GPU takes no longer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.cuda.target import ALIGNED
from tests.support.own_calls import own_calls


@cache
def told() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.support.short_ways"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("call", "most"),
    [
        ("a half by one launch", 21),
        ("the same, the lower one into a place", 26),
        ("a half by the vendor", 31),
        ("a small product", 5),
        ("a product that is the library's by its sides", 9),
        ("a product by a plan", 25),
    ],
)
def test_a_call_like_one_before_asks_little(call: str, most: int) -> None:
    found = told()["calls"][call]
    assert found["launches"] == 1
    assert len(found["functions"]) <= most, found["functions"]


def test_a_half_by_the_vendor_is_its_one_call() -> None:
    names = told()["calls"]["a half by the vendor"]["functions"]
    assert "fmm.kernels.cuda.launch.cublas.prepared" in names


def test_what_lies_elsewhere_is_played_by_a_list_of_its_own() -> None:
    usual, again, moved, last = (tuple(x) for x in told()["alignments"])
    assert usual == again == last == ALIGNED != moved


def own_functions(call: Callable[[], object]) -> list[str]:
    """Of fmm's, that it runs, by name."""
    return [name.rpartition(".")[2] for name in own_calls(call)]


def test_small_products_of_numpys_are_answered_before_options_are_looked_at() -> None:
    x = np.ones((3, 4))
    for call in (lambda: fmm.matmul(x, x.T), lambda: fmm.matmul(x, x.T, np.empty((3, 3)))):
        assert own_functions(call) == ["matmul", "small_enough_for_numpy"]


@pytest.mark.parametrize(("dtype", "more"), [("float32", 0), ("float64", 0), ("complex64", 2), ("complex128", 2)])
def test_small_halves_of_numpys_are_numpys_product(dtype: str, more: int) -> None:
    x, out = np.ones((3, 4), dtype), np.empty((4, 4), dtype)
    short = ["gram", "asks_half_alone", "known_gram", "_small_gram", *["_is_mirrored_whole"] * (more > 0), "vendor"]
    calls: tuple[tuple[Callable[[], object], int], ...] = (
        (lambda: fmm.gram(x, rows=True), 0),
        (lambda: fmm.gram(x, out=out), 1),
    )
    for call, copies in calls:
        call()
        names = own_functions(call)
        assert names[: len(short)] == short and len(names) <= len(short) + more + copies * bool(more), names


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_thin_halves_of_numpys_are_numpys_product(dtype: str) -> None:
    """However long the inner side is: the way to a plan takes half a millisecond."""
    x = np.ones((54, 2598), dtype)
    fmm.gram(x, rows=True)
    assert own_functions(lambda: fmm.gram(x, rows=True))[3] == "_small_gram"
    assert "prepared" not in own_functions(lambda: fmm.gram(x, rows=True))


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 1), (5, 1), (1, 6), (53, 37), (256, 32), (300, 9), (9, 1025), (500, 9), (130, 131)]
)
def test_small_complex_halves_are_hermitian_bit_for_bit(shape: tuple[int, int], rows: bool) -> None:
    rng = np.random.default_rng(shape)
    x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    for a in (x, np.asfortranarray(x), x[::-1, ::-1]):
        expected = a @ a.conj().T if rows else a.conj().T @ a
        out = np.full_like(expected, np.nan)
        for c in (fmm.gram(a, rows=rows), fmm.gram(a, out=out, rows=rows)):
            assert np.array_equal(c, c.conj().T) and not c.imag.diagonal().any()
            np.testing.assert_allclose(c, expected, rtol=1e-12, atol=1e-12 * max(shape))


def test_small_complex_halves_are_explained_as_they_are_computed() -> None:
    x, larger = np.ones((40, 30), "complex128"), np.ones((500, 300), "complex128")
    assert fmm.explain_gram(x).kernels == ("numpy.matmul: a whole product, of which one half is mirrored",)
    for found in (fmm.explain_gram(x, alpha=2), fmm.explain_gram(larger), fmm.explain_gram(x, plan="vendor")):
        assert "mirrored" not in "".join(found.kernels)


def test_the_short_way_has_the_function_s_face() -> None:
    with pytest.raises(TypeError, match="missing"):
        fmm.matmul(np.ones((2, 2)))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="axess"):
        fmm.matmul(np.ones((2, 2)), np.ones((2, 2)), axess=3)
    assert "numpy.matmul" in (fmm.matmul.__doc__ or "") and fmm.matmul.__module__ == "fmm.api"

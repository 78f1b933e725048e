"""The kernels that scale by powers of two: run on the host with threads in turns, and compiled for every
architecture."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cpu.numpy_backend import rescale_arrays
from fmm.kernels.cuda.launch_list import FLAG, Launch
from fmm.kernels.cuda.sums.mirror_rescale import (
    RESCALE_ENTRY_NAME,
    RESCALE_THREADS,
    LineExponentsOp,
    RescaleOp,
    exponents_launch,
    rescale_launch,
    rescale_source,
)
from fmm.kernels.plans.sums import exponent_step, rescaling_step, whole_matrix
from tests.support.host_launch import launch_words, parameter_words, view_of
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import EACH_ARCHITECTURE, flushes_subnormals, report
from tests.support.sums_on_host import kernel_in_turns

DRIVER = f"""
template <class Told> int told_bytes(void (*)(Told)) {{ return sizeof(Told); }}
template <class Told> void enter(const void* p) {{ {RESCALE_ENTRY_NAME}(*static_cast<const Told*>(p)); }}
template <class Told> void start(void (*)(Told), const void* p, int blocks) {{
    run(enter<Told>, p, blocks, 1, {RESCALE_THREADS});
}}
extern "C" int launch(const void* parameters, int blocks) {{
    start({RESCALE_ENTRY_NAME}, parameters, blocks);
    return told_bytes({RESCALE_ENTRY_NAME});
}}
"""
Matrix = np.ndarray[Any, Any]


@cache
def on_host(*given: Any) -> Any:
    return kernel_in_turns(rescale_source(*given), DRIVER)


def play(launch: Launch, bases: dict[str, Matrix]) -> None:
    words = parameter_words(launch.parameters, launch.slots, bases)
    launch_words(on_host(*launch.kernel.source_arguments).launch, words, launch.grid[0])


def matrix(rows: int, cols: int, dtype: str, order: str, rng: np.random.Generator) -> Matrix:
    """Numbers of all magnitudes, lines of zeros, an inf, a NaN and subnormals; lines are not contiguous."""
    room = np.zeros((rows, cols + 3) if order == "C" else (cols, rows + 3), dtype)
    found = room[:, :cols] if order == "C" else room[:, :rows].T
    sizes = np.exp2(rng.integers(-30, 30, (rows, cols)).astype(float))
    values = rng.standard_normal((rows, cols)) * sizes
    found[...] = values + 1j * values[::-1] if dtype[0] == "c" else values
    found[rows // 2], found[:, cols // 3] = 0, 0
    tiny = np.finfo(dtype).smallest_subnormal
    found[0, :] = 5 * tiny
    return found


@pytest.mark.parametrize("dtype", quick_and_slow(["float32"], ["float64", "complex64", "complex128"]))
def test_exponents_as_numpy_finds_them(dtype: str) -> None:
    rng = np.random.default_rng(3)
    for (m, n), order, axis, sign, against in product(((1, 1), (37, 70)), "CF", (0, 1), (0, 1, -1), (False, True)):
        x = matrix(m, n, dtype, order, rng)
        if m > 1:
            x[3, 5], x[4, 6] = np.inf, np.nan
        lines, length = (m, n) if axis == 0 else (n, m)
        shifts, other = (rng.integers(-40, 40, (1, count)).astype(dtype) for count in (length, lines))
        found, wanted = np.full((1, lines), 77, dtype), np.full((1, lines), 77, dtype)
        held = {"A": x, "S": shifts, "O": other, "D": found}
        op = LineExponentsOp(
            "x", view_of("A", x), view_of("D", found), axis, (view_of("S", shifts) if sign else None, sign),
            view_of("O", other) if against else None,
        )  # fmt: skip
        play(exponents_launch(op), held)
        vectors = [
            *([whole_matrix("S", 1, length)] if sign else []),
            *([whole_matrix("O", 1, lines)] if against else []),
        ]
        step = exponent_step(
            "x", whole_matrix("A", m, n), axis, whole_matrix("D", 1, lines), vectors[0] if sign else None, sign,
            vectors[-1] if against else None,
        )  # fmt: skip
        rescale_arrays(step, [held[p.name] for p in step.reads], wanted)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", quick_and_slow(["float32"], ["float64", "complex64", "complex128"]))
def test_copies_as_numpy_scales_them(dtype: str) -> None:
    rng = np.random.default_rng(4)
    for (m, n), orders, signs, flagged in product(
        ((1, 1), (37, 70)), ("CC", "FF", "CF"), ((1, 1), (-1, 0), (0, 1)), (False, True)
    ):
        x, y = (matrix(m, n, dtype, order, rng) for order in orders)
        wanted = y.copy()
        rows, cols = (rng.integers(-9, 9, (1, count)).astype(dtype) for count in (m, n))
        held = {"A": x, "C": y, "R": rows, "Q": cols, FLAG: np.zeros(2, np.int32)}
        given = [(view_of(name, held[name]) if sign else None, sign) for name, sign in zip("RQ", signs, strict=True)]
        play(rescale_launch(RescaleOp("x", view_of("A", x), view_of("C", y), *given), flagged), held)
        places = [(whole_matrix(name, 1, count) if sign else None, sign) for name, count, sign in
                  zip("RQ", (m, n), signs, strict=True)]  # fmt: skip
        step = rescaling_step("x", whole_matrix("A", m, n), whole_matrix("C", m, n), *places)
        rescale_arrays(step, [held[p.name] for p in step.reads], wanted)
        np.testing.assert_allclose(y, wanted, rtol=0, atol=float(np.finfo(dtype).smallest_subnormal))
        assert held[FLAG][0] == 0


def test_an_inf_raises_the_flag() -> None:
    x, big = np.full((3, 3), 1.5e38, np.float32), np.full((1, 3), 4, np.float32)
    held = {"C": x, "R": big, FLAG: np.zeros(2, np.int32)}
    play(rescale_launch(RescaleOp("x", view_of("C", x), view_of("C", x), (view_of("R", big), 1)), True), held)
    assert np.isinf(x).all() and held[FLAG][0] == 1


@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
def test_it_compiles(architecture: str) -> None:
    for given in (
        ("line_exponents", "LineExponents", "complex128", (True,)),
        ("rescale", "Rescaled", "float32", (False, True)),
    ):
        assert report(given[0], rescale_source(*given), architecture).local == 0


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_subnormal_numbers_are_scaled(dtype: str) -> None:
    x, row = np.zeros((3, 3), dtype), np.zeros((1, 3), dtype)
    found = exponents_launch(LineExponentsOp("x", view_of("A", x), view_of("D", row), 0))
    scaled = rescale_launch(RescaleOp("x", view_of("A", x), view_of("C", x), (view_of("R", row), 1)), True)
    assert not flushes_subnormals(found.kernel) and not flushes_subnormals(scaled.kernel)

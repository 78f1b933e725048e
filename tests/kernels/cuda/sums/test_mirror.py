"""The mirror kernel: run on the host with threads in turns, and compiled for every architecture."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import FLAG, Launch
from fmm.kernels.cuda.ops import DeviceView, MirrorOp
from fmm.kernels.cuda.sums.mirror_rescale import MIRROR_ENTRY_NAME, MIRROR_THREADS, mirror_launch, mirror_source
from tests.support.host_launch import launch_words, parameter_words, view_of
from tests.support.nvrtc import EACH_ARCHITECTURE, flushes_subnormals, report
from tests.support.sums_on_host import kernel_in_turns

MORE = """
extern "C" double sqrt(double);
#define __align__(x)
"""
DRIVER = f"""
extern "C" int launch(const void* parameters, int blocks) {{
    auto entry = [](const void* p) {{ {MIRROR_ENTRY_NAME}(*static_cast<const fmm::TriangleMirror*>(p)); }};
    run(entry, parameters, blocks, 1, {MIRROR_THREADS});
    return sizeof(fmm::TriangleMirror);
}}
"""
Matrix = np.ndarray[Any, Any]


@cache
def on_host(*given: Any) -> Any:
    """The kernel of a launch, compiled for the host."""
    return kernel_in_turns(mirror_source(*given), DRIVER, MORE)


def launched(op: MirrorOp, bases: dict[str, Matrix]) -> Launch:
    launch = mirror_launch(op, FLAG in bases)
    words = parameter_words(launch.parameters, launch.slots, bases)
    launch_words(on_host(*launch.kernel.source_arguments).launch, words, launch.grid[0])
    return launch


def matrix(n: int, dtype: str, order: str, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Memory full of -7, and an n x n matrix in it whose lines are not contiguous."""
    memory = np.full((n, n + 3), -7, dtype)
    inside = memory[:, :n] if order == "C" else memory[:, :n].T
    parts = [rng.integers(-9, 9, (n, n)) for _ in range(2)]
    inside[...] = parts[0] + 1j * parts[1] if DTYPES[dtype].is_complex else parts[0]
    return memory, inside


def expected(source: Matrix, dest: Matrix, alpha: float, beta: float, full: bool) -> Matrix:
    value = (alpha * source if alpha else 0) + (beta * dest if beta else 0)
    lower = np.tril(value).astype(dest.dtype)
    if np.iscomplexobj(dest):
        np.einsum("ii->i", lower).imag[...] = 0
    return lower + np.tril(lower, -1).conj().T if full else np.where(np.tri(len(dest), dtype=bool), lower, dest)


CASES = tuple(product(("float32", "float64", "complex64", "complex128"), ("CC", "FF", "CF"), (True, False)))


@pytest.mark.quick_cases()
@pytest.mark.parametrize(("dtype", "orders", "full"), CASES[::3] + CASES[1:2])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2, -0.5), (0, 2)])
def test_a_triangle_from_a_temporary(dtype: str, orders: str, full: bool, alpha: float, beta: float) -> None:
    """Exact, and nothing outside the triangle is written."""
    rng = np.random.default_rng(5)
    for n in (1, 16, 33, 70):
        (_, source), (memory, dest) = (matrix(n, dtype, order, rng) for order in orders)
        wanted = expected(source, dest, alpha, beta, full)
        op = MirrorOp(view_of("W", source), view_of("C", dest), alpha, beta, full)
        launched(op, {"W": source, "C": dest})
        np.testing.assert_array_equal(dest, wanted)
        assert (memory[:, n:] == -7).all()


@pytest.mark.parametrize(
    ("dtype", "order"), [("float32", "C"), ("float64", "F"), ("complex64", "C"), ("complex128", "F")]
)
def test_in_place(dtype: str, order: str) -> None:
    """The lower triangle stays bit for bit, also an inf and a NaN; the diagonal becomes real."""
    rng = np.random.default_rng(6)
    for n in (1, 17, 65):
        memory, x = matrix(n, dtype, order, rng)
        x[n - 1, 0], x[n // 2, n // 2] = np.inf, np.nan
        before = x.copy()
        launched(MirrorOp(view_of("C", x), view_of("C", x)), {"C": x})
        below = np.tri(n, k=-1, dtype=bool)
        np.testing.assert_array_equal(x[below], before[below])
        np.testing.assert_array_equal(x.T[below], before[below].conj())
        np.testing.assert_array_equal(np.diag(x).real, np.diag(before).real)
        assert (np.diag(x).imag == 0).all()
        assert (memory[:, n:] == -7).all()


@pytest.mark.parametrize(("entry", "raised"), [(None, 0), ((40, 3), 1), ((40, 40), 1), ((3, 40), 0)])
def test_nonfinite_entries_of_the_lower_triangle_raise_the_flag(entry: tuple[int, int] | None, raised: int) -> None:
    x = np.ones((50, 50), np.float32)
    if entry:
        x[entry] = np.inf
    flag = np.zeros(4, np.uint32)
    launch = launched(MirrorOp(view_of("C", x), view_of("C", x)), {"C": x, FLAG: flag})
    assert flag[0] == raised and launch.does == "sums"


@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128"])
def test_every_architecture_compiles_it(dtype: str, architecture: str) -> None:
    """No register spills, and a tile of the largest type fits."""
    x = DeviceView("C", 0, 100, 100, 100, 1, dtype)
    for op in (MirrorOp(x, x), MirrorOp(x._replace(base="W"), x, 2, 3, False)):
        launch = mirror_launch(op, True)
        found = report(dtype, launch.kernel.cuda_source, architecture)
        assert found.local == 0 and found.shared <= 48 << 10 and found.registers <= 64


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64"])
def test_the_other_types_compile(dtype: str) -> None:
    x = DeviceView("C", 0, 100, 100, 100, 1, dtype)
    assert report(dtype, mirror_launch(MirrorOp(x, x), True).kernel.cuda_source, "sm_75").local == 0


@pytest.mark.parametrize("in_place", [True, False])
def test_a_mirror_of_subnormal_numbers_is_exact(in_place: bool) -> None:
    x = DeviceView("C", 0, 100, 100, 100, 1, "complex64")
    op = MirrorOp(x, x) if in_place else MirrorOp(x._replace(base="W"), x, 2, 3)
    assert not flushes_subnormals(mirror_launch(op, True).kernel)

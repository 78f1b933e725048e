"""The launches of a stack's iteration: their number and kernels, and their results by the emulated kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.launch_list import Launch, VendorCall
from fmm.kernels.cuda.products.stacked_products import stack_view, stacked_gemm, stacked_launch
from fmm.newton_schulz import hopper_launches
from fmm.newton_schulz.coefficients import MUON
from fmm.newton_schulz.hopper_launches import Stack, StepUnit, group_steps_into_pairs, iteration_launches
from tests.kernels.cuda.products.test_wgmma_kernels import POISON, bits_of, numbers_of
from tests.support.host_launch import aligned
from tests.support.marks import quick_and_slow
from tests.support.warpgroups_on_host import play

H100 = 132


def own_launches(monkeypatch: pytest.MonkeyPatch, stack: Stack, *units: StepUnit) -> list[Launch]:
    """Return the launches without calls of the vendor."""
    monkeypatch.setattr(hopper_launches, "vendor_stack_seconds", lambda op, multiprocessors: float("inf"))
    found = iteration_launches.__wrapped__(stack, units, 4)
    assert found is not None and all(isinstance(x, Launch) for x in found.steps)
    return list(found.launches)


def test_small_stacks_need_two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first step compiles the kernel of both symmetric products and the kernel of the complete product."""
    for shape in ((1024, 1024), (3072, 768), (8, 8), (264, 40)):
        launches = own_launches(monkeypatch, Stack(1, *shape, "bfloat16"), *((MUON,),) * 5)
        assert len(launches) == 15
        assert len({x.kernel.description.along for x in launches}) == 2
        assert [x.overlaps for x in launches] == [False] + [True] * 14


def test_the_vendor_computes_large_complete_products() -> None:
    for shape in ((4096, 4096), (2048, 8192), (8192, 2048)):
        launches = iteration_launches(Stack(8, *shape, "float16"), ((MUON,),), H100)
        assert launches is not None
        assert [isinstance(x, VendorCall) for x in launches.steps] == [False, False, True]
        assert launches.workspace == 2 * 8 * min(shape) ** 2 * 2


def test_where_launches_are_faster() -> None:
    """As measured on an H100: many small matrices leave most of each tile empty."""
    faster = [
        (1, 32, 32),
        (64, 64, 64),
        (64, 256, 1024),
        (4, 768, 768),
        (3, 3072, 768),
        (64, 512, 512),
        (1, 4096, 4096),
    ]
    assert all(hopper_launches.is_faster_by_launches(Stack(*shape, "bfloat16"), H100) for shape in faster)
    assert not any(
        hopper_launches.is_faster_by_launches(Stack(*shape, "bfloat16"), H100)
        for shape in ((1024, 32, 32), (9999, 64, 64))
    )


def test_unsupported_stacks_have_no_launches() -> None:
    assert iteration_launches(Stack(1, 12, 20, "bfloat16"), ((MUON,),), H100) is None  # rows of 40 bytes
    assert iteration_launches(Stack(1, 16, 16, "bfloat16"), (((1.5, -0.5, 0.0),),), H100) is None  # no term A A


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dtype"),
    quick_and_slow(
        [((16, 40), "bfloat16"), ((40, 24), "float16")],
        [((136, 264), "float16"), ((264, 136), "bfloat16"), ((264, 264), "bfloat16")],
    ),
)
def test_one_step_of_a_stack(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], dtype: str) -> None:
    """The kernel's results beside the definition, within the rounding of P and of the result."""
    rng, stack = np.random.default_rng(4), Stack(3, *shape, dtype)
    x = (rng.random((3, *shape)) < 0.15).astype(int) * rng.choice([-1, 1], (3, *shape))
    a, b, c = 3, -2, 1
    launches = own_launches(monkeypatch, stack, ((a, b, c),))
    sizes = {"A": x.size, "C": x.size, "W": stack.symmetric_matrix_bytes}
    memory = {base: aligned(size, np.uint16, POISON[dtype]) for base, size in sizes.items()}
    memory["A"][:] = bits_of(x, dtype).ravel()
    for launch in launches:
        play(launch, memory)
    wide = x if shape[0] <= shape[1] else x.swapaxes(1, 2)
    gram = wide @ wide.swapaxes(1, 2)
    polynomial = a * np.eye(min(shape)) + b * gram + c * gram @ gram
    found = numbers_of(memory["C"], dtype).reshape(x.shape)
    found = found if shape[0] <= shape[1] else found.swapaxes(1, 2)
    room = 2.0 ** -(7 if dtype == "bfloat16" else 10) * (abs(polynomial) @ abs(wide))
    assert (abs(found - polynomial @ wide) <= room).all()
    first_gram = numbers_of(memory["W"][: gram.size], dtype).reshape(gram.shape)
    np.testing.assert_array_equal(first_gram, gram)


def test_long_matrices_have_pairs_of_steps() -> None:
    """A pair saves one of two products with X, and adds three products of symmetric matrices."""
    for shape, lengths in (((2048, 8192), [2, 2, 1]), ((3072, 768), [2, 2, 1]), ((1024, 1024), [1] * 5)):
        units = group_steps_into_pairs(Stack(24, *shape, "bfloat16"), (MUON,) * 5, H100)
        assert [len(unit) for unit in units] == lengths
        assert [step for unit in units for step in unit] == [MUON] * 5
    launches = iteration_launches(Stack(8, 2048, 8192, "float16"), ((MUON, MUON), (MUON,)), H100)
    assert launches is not None
    assert len(launches.steps) == 7 + 3 and launches.workspace == 3 * 8 * 2048**2 * 2


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "dtype"), [((16, 72), "bfloat16"), ((72, 24), "float16")])
def test_a_pair_of_steps(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], dtype: str) -> None:
    """The result of a pair is that of two steps, within the rounding of both."""
    rng, stack = np.random.default_rng(6), Stack(3, *shape, dtype)
    x = numbers_of(bits_of(rng.standard_normal((3, *shape)) / np.sqrt(np.prod(shape)), dtype), dtype)
    pair = (MUON, (3.0, -3.2, 1.2))
    launches = own_launches(monkeypatch, stack, pair)
    sizes = {"A": x.size, "C": x.size, "W": 3 * stack.symmetric_matrix_bytes // 2}
    memory = {base: aligned(size, np.uint16, POISON[dtype]) for base, size in sizes.items()}
    memory["A"][:] = bits_of(x, dtype).ravel()
    for launch in launches:
        play(launch, memory)
    expected = x.astype(np.float64) if shape[0] <= shape[1] else x.astype(np.float64).swapaxes(1, 2)
    for a, b, c in pair:
        gram = expected @ expected.swapaxes(1, 2)
        expected = a * expected + (b * gram + c * gram @ gram) @ expected
    found = numbers_of(memory["C"], dtype).reshape(x.shape)
    found = found if shape[0] <= shape[1] else found.swapaxes(1, 2)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < 4 * 2.0 ** -(8 if dtype == "bfloat16" else 11)


def test_addends_of_a_stack_have_their_own_distance() -> None:
    rng, count, n = np.random.default_rng(5), 3, 24
    x, added = (rng.integers(-2, 3, (count, n, n)) for _ in range(2))
    views: Any = {base: stack_view(base, n, n, "bfloat16") for base in "XYZ"}
    op = stacked_gemm(count, views["X"], views["X"], views["Y"], alpha=2, beta=-3, addend=views["Z"])
    launch = stacked_launch(op, 4)
    memory = {base: aligned(x.size, np.uint16, 0x7E01) for base in "XYZ"}
    memory["X"][:], memory["Z"][:] = (bits_of(y, "bfloat16").ravel() for y in (x, added))
    assert launch is not None
    play(launch, memory)
    np.testing.assert_array_equal(numbers_of(memory["Y"], "bfloat16").reshape(x.shape), 2 * x @ x - 3 * added)

"""Kernels over semirings: run on the host, whose threads take turns, and compiled for every architecture."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.launch_list import MAX_PARAMETER_BYTES
from fmm.semirings.closure_launches import (
    ARGUMENT_BUFFER_PREFIX,
    DOUBLED_BUFFER,
    WORKSPACE_BUFFER,
    closure_launches,
    padded_leading_dimension,
)
from fmm.semirings.closure_steps import CLOSED_MATRIX_NAME
from fmm.semirings.minplus_kernel import (
    TROPICAL_RINGS,
    DeviceMatrix,
    MinplusKernel,
    SemiringProduct,
    TropicalRing,
    candidate_tile_sizes,
    close_tile_source,
    duplicate_entries_launch,
    duplicate_entries_source,
    fastest_minplus_sizes,
    largest_tile_side,
    minplus_launch,
    minplus_source,
)
from tests.support.host_compiler import required_compiler
from tests.support.marks import quick_and_slow
from tests.support.minplus_on_host import lines_of, play
from tests.support.nvrtc import ARCHITECTURES, in_parallel, report

Matrix = np.ndarray[Any, Any]
COMPUTED_TYPES = {"float": np.float32, "double": np.float64, "int": np.int32, "unsigned": np.uint32}
POISON = 77


def dtype_of(ring: TropicalRing) -> Any:
    return np.uint16 if ring.per_word > 1 else COMPUTED_TYPES[ring.word]


def none_of(ring: TropicalRing) -> Any:
    if ring.word in ("float", "double"):
        return -np.inf if "greatest" in ring.name else np.inf
    return {"Integers": 2**30 - 1, "NaturalPairs": 2**15 - 1}.get(ring.cpp, 2**31 - 1)


def matrix(rows: int, cols: int, ring: TropicalRing, rng: np.random.Generator) -> Matrix:
    """Whole numbers, a fifth of them "no edge"; behind each row's end, numbers that would be the best."""
    found = lines_of(rows, padded_leading_dimension(cols), 0 if ring.per_word == 1 else none_of(ring), dtype_of(ring))
    values = rng.integers(0 if "none negative" in ring.name else -50, 50, (rows, cols)).astype(float)
    values[rng.random((rows, cols)) < 0.2] = none_of(ring)
    found[:, :cols] = values
    return found


def whole(base: str, x: Matrix, cols: int) -> DeviceMatrix:
    return DeviceMatrix(base, 0, x.shape[0], cols, x.shape[1])


def best(ring: TropicalRing, a: Matrix, b: Matrix, old: Matrix | None) -> tuple[Matrix, Matrix]:
    """The results, and the first step that is better than what was there."""
    none = none_of(ring)
    sums = a[:, :, None].astype(float) + b[None].astype(float)
    if "int" in ring.name:
        sums[(a[:, :, None] == none) | (b[None] == none)] = none
    start = np.full((len(a), 1, b.shape[1]), float(none)) if old is None else old[:, None].astype(float)
    every = np.concatenate([start, sums], axis=1)
    greatest = "greatest" in ring.name
    return (every.max if greatest else every.min)(1), (every.argmax if greatest else every.argmin)(1) - 1


def launched(ring: TropicalRing, sizes: Any, shape: tuple[int, int, int], with_arguments: bool, with_old: bool) -> None:
    m, k, n = shape
    rng = np.random.default_rng(sum(shape))
    memory = {"A": matrix(m, k, ring, rng), "B": matrix(k, n, ring, rng), "O": matrix(m, n, ring, rng)}
    memory |= {
        base: lines_of(m, padded_leading_dimension(n), POISON, kind)
        for base, kind in (("C", dtype_of(ring)), ("G", np.int32))
    }
    left, launches = whole("A", memory["A"], k), []
    if ring.per_word > 1:
        memory["A2"] = lines_of(m, padded_leading_dimension(k), POISON, np.uint32)
        launches.append(duplicate_entries_launch(left, whole("A2", memory["A2"], k)))
        left = whole("A2", memory["A2"], k)
    old = whole("O", memory["O"], n) if with_old else None
    args = whole("G", memory["G"], n) if with_arguments else None
    product = SemiringProduct(left, whole("B", memory["B"], n), whole("C", memory["C"], n), old, args)
    play([*launches, minplus_launch(ring, sizes, [product])], memory)
    before = memory["O"][:, :n] if with_old else None
    wanted, step = best(ring, memory["A"][:, :k], memory["B"][:, :n], before)
    np.testing.assert_array_equal(memory["C"][:, :n], wanted)
    beyond = n + n % ring.per_word
    assert (memory["C"][:, beyond:] == POISON).all()
    if with_arguments:
        np.testing.assert_array_equal(memory["G"][:, :n], step)
        assert (memory["G"][:, n:] == POISON).all()


VARIANTS = [
    (name, with_arguments)
    for name, ring in TROPICAL_RINGS.items()
    for with_arguments in (False, True)[: 3 - ring.per_word]
]
QUICK = [("float32, none negative", False), ("float64", True), ("int16, none negative", False)]


@pytest.mark.parametrize(("name", "with_arguments"), quick_and_slow(QUICK, [x for x in VARIANTS if x not in QUICK]))
def test_products_on_the_host(name: str, with_arguments: bool) -> None:
    """With every tile size on sizes that divide nothing; nothing beside the result is touched."""
    required_compiler()
    ring = TROPICAL_RINGS[name]
    for sizes in candidate_tile_sizes(ring, with_arguments)[-1:]:
        for shape in ((1, 1, 1), (35, 21, 71), (33, 64, 40)):
            for with_old in (False, True):
                launched(ring, sizes, shape, with_arguments, with_old)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "with_arguments"), VARIANTS)
def test_the_larger_tiles_on_the_host(name: str, with_arguments: bool) -> None:
    required_compiler()
    for sizes in candidate_tile_sizes(TROPICAL_RINGS[name], with_arguments)[:-1]:
        launched(TROPICAL_RINGS[name], sizes, (130, 19, 263), with_arguments, True)


@pytest.mark.parametrize("name", ["float32", "int16, none negative"])
def test_an_empty_inner_dimension_is_no_edge(name: str) -> None:
    required_compiler()
    launched(TROPICAL_RINGS[name], candidate_tile_sizes(TROPICAL_RINGS[name], False)[-1], (3, 0, 5), False, False)


def test_numbers_below_zero_are_compared_by_their_bits() -> None:
    """From the step on at which all that a warp has are negative: both infinities, NaN, and what is tiny too."""
    required_compiler()
    ring, (m, k, n), rng = TROPICAL_RINGS["float32"], (33, 70, 40), np.random.default_rng(7)
    memory = {base: lines_of(rows, padded_leading_dimension(cols), np.float32(-9), np.float32) for base, rows, cols in
              (("A", m, k), ("B", k, n), ("C", m, n))}  # fmt: skip
    a, b = memory["A"][:, :k], memory["B"][:, :n]
    a[...], b[...] = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    a[:, 0], b[0] = -1e-40, 0  # from the first step on all are negative
    a[1, 20:30], b[25, 5], b[40, 7], a[2, 50] = np.inf, -np.inf, np.nan, np.nan
    a[3:8, 1:], b[1:, 9:12] = abs(a[3:8, 1:]), 1
    product = SemiringProduct(whole("A", memory["A"], k), whole("B", memory["B"], n), whole("C", memory["C"], n))
    play([minplus_launch(ring, candidate_tile_sizes(ring, False)[-1], [product])], memory)
    with np.errstate(invalid="ignore"):
        sums = a[:, :, None] + b[None]
    np.testing.assert_array_equal(memory["C"][:, :n], np.fmin.reduce(sums, axis=1))


def closed_by_launches(name: str, n: int, with_arguments: bool) -> tuple[Matrix, Matrix, Matrix | None]:
    """A random graph, its closure, and the nodes before the ends of the ways."""
    ring, rng = TROPICAL_RINGS[name], np.random.default_rng(n)
    none, dtype = none_of(ring), dtype_of(ring)
    edges = np.full((n, n), float(none))
    there = rng.random((n, n)) < min(1, 4 / n)
    edges[there] = rng.integers(1, 90, (n, n))[there]
    np.fill_diagonal(edges, 0)
    found = closure_launches(ring, n, with_arguments, 132)
    d = lines_of(n, padded_leading_dimension(n), none, dtype)
    d[:, :n] = edges
    memory = {CLOSED_MATRIX_NAME: d, WORKSPACE_BUFFER: lines_of(1, max(found.numbers, 1), POISON, dtype)}
    memory[DOUBLED_BUFFER] = lines_of(1, max(found.doubled_bytes, 4), POISON, np.uint8)
    nodes = None
    if with_arguments:
        nodes = lines_of(n, padded_leading_dimension(n), -9999, np.int32)
        nodes[:, :n] = np.where(edges == none, -9999, np.arange(n)[:, None])
        nodes[range(n), range(n)] = -9999
        memory |= {
            ARGUMENT_BUFFER_PREFIX + CLOSED_MATRIX_NAME: nodes,
            ARGUMENT_BUFFER_PREFIX + WORKSPACE_BUFFER: lines_of(1, max(found.numbers, 1), POISON, np.int32),
        }
    play(found.launches, memory)
    return edges, d[:, :n], None if nodes is None else nodes[:, :n]


@pytest.mark.parametrize(
    ("name", "with_arguments"),
    quick_and_slow(
        [("float32", False), ("int16, none negative", False), ("float64", True)],
        [("float32", True), ("int32", True), ("int32, none negative", False), ("float32, none negative", False)],
    ),
)
def test_closures_on_the_host(name: str, with_arguments: bool) -> None:
    required_compiler()
    none = none_of(TROPICAL_RINGS[name])
    for n in (1, 5, largest_tile_side(with_arguments) + 3):
        edges, found, nodes = closed_by_launches(name, n, with_arguments)
        wanted = np.where(edges == none, np.inf, edges)
        for k in range(n):
            np.minimum(wanted, wanted[:, k, None] + wanted[k], out=wanted)
        np.testing.assert_array_equal(np.where(found == none, np.inf, found), wanted)
        if nodes is not None:
            i, j = np.nonzero(np.isfinite(wanted) & ~np.eye(n, dtype=bool))
            assert (nodes[i, j] >= 0).all() and (found[i, nodes[i, j]] + edges[nodes[i, j], j] == found[i, j]).all()
            assert (nodes[~np.isfinite(wanted)] == -9999).all() and (np.diag(nodes) == -9999).all()


def test_a_launch_is_told_what_fits() -> None:
    launches = closure_launches(TROPICAL_RINGS["float64"], 300, True, 132).launches
    assert max(len(launch.parameters) for launch in launches) <= MAX_PARAMETER_BYTES
    assert {launch.grid[1:] for launch in launches} == {(1, 1)}


def test_small_products_have_small_tiles() -> None:
    ring = TROPICAL_RINGS["int32"]
    names = [fastest_minplus_sizes(ring, False, [(n, n, n)], 132).name for n in (128, 1024, 16384)]
    assert names == ["Small", "Medium", "Square"]


def compile_jobs(architecture: str, name: str, with_arguments: bool) -> list[tuple[str, str, str]]:
    """From the largest tiles to the smallest, then the kernel that closes a tile."""
    kernels = [
        MinplusKernel(name, s, with_arguments) for s in candidate_tile_sizes(TROPICAL_RINGS[name], with_arguments)
    ]
    jobs = [(f"{name} {kernel.sizes.name}", minplus_source(kernel), architecture) for kernel in kernels]
    return [
        *jobs,
        (f"close {name}", close_tile_source(name, largest_tile_side(with_arguments), with_arguments), architecture),
    ]


def compiled_jobs(architecture: str, name: str, with_arguments: bool) -> list[tuple[str, str, str]]:
    """For Hopper all; for each of the others one of every variant, in turns. FMM_ALL_KERNELS=1: all."""
    jobs = compile_jobs(architecture, name, with_arguments)
    if architecture == "sm_90" or os.environ.get("FMM_ALL_KERNELS") == "1":
        return jobs
    turn = list(TROPICAL_RINGS).index(name) + ARCHITECTURES.index(architecture)
    return [jobs[turn % len(jobs)]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "float32, none negative", "int16, none negative"])
def test_nothing_is_spilled_on_hopper(name: str) -> None:
    """Where registers are scarcest: 128 for each thread."""
    jobs = [job for job in compile_jobs("sm_90", name, False) if job[0].endswith("Medium")]
    (found,) = in_parallel(report, jobs)
    assert found.local == 0 and 64 < found.registers <= 128


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("name", "with_arguments"), VARIANTS)
def test_every_architecture_compiles_all(name: str, with_arguments: bool, architecture: str) -> None:
    """Without local memory, with as few registers as the thread blocks on a multiprocessor ask for."""
    for found in in_parallel(report, compiled_jobs(architecture, name, with_arguments)):
        assert found.local == 0 and found.registers <= 255, found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_of_every_kind_are_compiled_everywhere(architecture: str) -> None:
    """With and without arguments, of every type, tiles of every size and the closing of one."""
    found = {
        (with_arguments, TROPICAL_RINGS[name].word, job[0].removeprefix(f"{name} ").split()[0])
        for name, with_arguments in VARIANTS
        for job in compiled_jobs(architecture, name, with_arguments)
    }
    assert {kind for _, _, kind in found} == {"Square", "Medium", "Small", "Half", "close"}
    assert {word for _, word, _ in found} == {ring.word for ring in TROPICAL_RINGS.values()}
    assert {with_arguments for with_arguments, _, _ in found} == {False, True}


def test_numbers_are_written_twice_everywhere() -> None:
    assert report("write_twice", duplicate_entries_source(), "sm_90").local == 0


@pytest.mark.parametrize(("name", "with_arguments"), VARIANTS)
def test_shared_memory_fits(name: str, with_arguments: bool) -> None:
    """On every architecture one thread block; on Hopper as many as the compiler leaves registers for."""
    for s in candidate_tile_sizes(TROPICAL_RINGS[name], with_arguments):
        shared = MinplusKernel(name, s, with_arguments).minplus_shared_memory_bytes
        assert shared <= 64 << 10 and s.blocks * (shared + 1024) <= 228 << 10

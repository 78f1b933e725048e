"""Products by residues have the same bits in NumPy, in kernels compiled for the host, and on every GPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.plans.levels.residues import MAX_INNER_LEVELS
from tests.support.residue_products import product_on_host
from tests.support.residues_in_numpy import product_by_residues
from tests.support.same_bits import DIGESTS, digest, fixed_operands

BELOW = ("", " > strassen", " > strassen^2")
CASES = [
    (dtype, level, f"{level}{below} > bytes")
    for dtype, level in DIGESTS
    for below in BELOW[: MAX_INNER_LEVELS[dtype] + 1]
]
REAL_CASES = [(dtype, level) for dtype, level in DIGESTS if not dtype.startswith("complex")]
LARGE = 700, 1500, 900


def moduli_of(level: str) -> int:
    return int(level.partition("(")[2].rstrip(")"))


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize(("dtype", "level", "plan"), CASES)
def test_kernels_compiled_for_the_host(dtype: str, level: str, plan: str) -> None:
    """Every memory order, with a level of Strassen's algorithm below and without."""
    a, b = fixed_operands(dtype)
    for layouts in ("CCC", "FFC", "CFF"):
        assert digest(product_on_host(a, b, plan, layouts)[0]) == DIGESTS[dtype, level], layouts


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("dtype", "level"), REAL_CASES)
def test_numpy(dtype: str, level: str) -> None:
    a, b = fixed_operands(dtype)
    assert digest(product_by_residues(a, b, moduli_of(level))) == DIGESTS[dtype, level]


@pytest.fixture
def cupy_with_bytes() -> Any:
    """Return CuPy if the GPU has matrix instructions for bytes."""
    cupy = pytest.importorskip("cupy")
    from fmm.kernels.cuda.launch.device_facts import cuda_device_chip

    if not cuda_device_chip(cupy.cuda.runtime.getDevice()).has_warp_mma:
        pytest.skip("matrix instructions for bytes need compute capability 8.0")
    return cupy


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "level", "plan"), CASES)
def test_a_gpu(cupy_with_bytes: Any, dtype: str, level: str, plan: str) -> None:
    """Every memory order, on the default stream and on another one."""
    cupy = cupy_with_bytes
    a, b = fixed_operands(dtype)
    for orders, stream in product(("CC", "FC", "CF", "FF"), (cupy.cuda.Stream.null, cupy.cuda.Stream())):
        with stream:
            x, y = (cupy.asarray(v, order=order) for v, order in zip((a, b), orders, strict=True))
            c = cupy.asnumpy(fmm.matmul(x, y, plan=plan))
        assert digest(c) == DIGESTS[dtype, level], orders


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "level"), REAL_CASES)
def test_a_gpu_and_numpy_on_a_larger_product(cupy_with_bytes: Any, dtype: str, level: str) -> None:
    cupy = cupy_with_bytes
    a, b = fixed_operands(dtype, LARGE)
    expected = product_by_residues(a, b, moduli_of(level))
    for below in BELOW[: MAX_INNER_LEVELS[dtype] + 1]:
        c = cupy.asnumpy(fmm.matmul(cupy.asarray(a), cupy.asarray(b), plan=f"{level}{below} > bytes"))
        assert np.array_equal(c, expected), (below, int((c != expected).sum()))

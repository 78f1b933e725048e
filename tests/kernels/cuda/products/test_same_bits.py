"""Products by residues have the same bits in NumPy and in kernels compiled for the host."""

from __future__ import annotations

import pytest

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


def moduli_of(level: str) -> int:
    return int(level.partition("(")[2].rstrip(")"))


@pytest.mark.parametrize(("dtype", "level", "plan"), CASES)
def test_kernels_compiled_for_the_host(dtype: str, level: str, plan: str) -> None:
    """Every memory order, with a level of Strassen's algorithm below and without."""
    a, b = fixed_operands(dtype)
    for layouts in ("CCC", "FFC", "CFF"):
        assert digest(product_on_host(a, b, plan, layouts)[0]) == DIGESTS[dtype, level], layouts


@pytest.mark.parametrize(("dtype", "level"), REAL_CASES)
def test_numpy(dtype: str, level: str) -> None:
    a, b = fixed_operands(dtype)
    assert digest(product_by_residues(a, b, moduli_of(level))) == DIGESTS[dtype, level]

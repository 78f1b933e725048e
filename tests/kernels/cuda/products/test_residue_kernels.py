"""Products of residue planes by the kernel itself, on the host: clusters, moduli, levels below, triangles, edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.products.residues import residue_product_launch
from fmm.problem import Problem
from tests.support.host_launch import aligned
from tests.support.marks import quick_and_slow
from tests.support.residue_products import ALIGNED, op_of
from tests.support.residues_on_host import mapped_view, multiplied
from tests.support.warpgroups_on_host import play

CASES = [
    ("residues(13) > bytes", "float64", (1, 1, 1)),
    ("residues(13) > strassen > bytes", "float64", (150, 70, 200)),
]
SLOW = [
    ("residues(14) > strassen^2 > bytes", "float64", (300, 140, 270)),
    ("residues > bytes", "int16", (257, 513, 30)),
    ("residues > bytes", "int8", (256, 400, 144)),
    ("residues(7) > bytes", "float32", (17, 2000, 129)),
]
AT_ONCE = 2  # moduli: all that there are would take long


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(("plan", "dtype", "size"), quick_and_slow(CASES, SLOW))
def test_products_of_planes(plan: str, dtype: str, size: tuple[int, int, int], lower: bool) -> None:
    """Equal to NumPy's modulo each number; memory behind the planes stays as it is."""
    m, k, n = size
    n = m if lower else n
    op = replace(op_of(Problem(m, k, n, dtype), plan, ALIGNED), lower_only=lower)
    if lower and (op.geometry.levels or op.writes_c):
        pytest.skip("halves have no level below")
    groups = [moduli[:AT_ONCE] for moduli in op.modulus_groups]
    maps = [x for moduli in groups for x in op.plane_product_op(0, len(moduli)).maps]
    rng, first = np.random.default_rng(4), 0
    room = 1 + max(x.piece.offset + ((x.layers - 1) * x.layer + (x.lines - 1) * x.leading + x.length) for x in maps)
    names = sorted({x.piece.base for x in maps})
    found = {name: aligned(room, np.uint8) for name in names}
    for x in found.values():
        x[:] = rng.integers(0, 256, room)
    for moduli in groups[:1]:
        left, right, to = op.plane_product_op(first, len(moduli)).maps
        for plane in (mapped_view(left, found), mapped_view(right, found)):
            plane[...] = rng.integers(-128, 128, plane.shape)
        copies = {name: aligned(room, np.uint8) for name in names}
        for name in names:
            copies[name][:] = found[name]
        before = {name: found[name].copy() for name in names}
        play(residue_product_launch(op, first, moduli), found)
        multiplied(op, first, moduli, copies)
        ours, theirs = mapped_view(to, found), mapped_view(to, copies)
        wanted: Any = np.tri(to.lines, to.length, dtype=bool) if lower else np.ones((to.lines, to.length), bool)
        np.testing.assert_array_equal(ours[:, wanted], theirs[:, wanted])
        np.testing.assert_array_equal(_beside(to, found), _beside(to, before))
        first += len(moduli)


def _beside(x: Any, memory: dict[str, Any]) -> Any:
    """Return the memory outside of the result."""
    rest = {name: value.copy() for name, value in memory.items()}
    mapped_view(x, rest)[...] = 0
    return np.concatenate([rest[name] for name in sorted(rest)])

"""The kernels over semirings, all of them."""

from __future__ import annotations

from fmm.kernels.cuda.launch_list import Kernel
from fmm.semirings.minplus_kernel import (
    RINGS,
    Rect,
    SemiringProduct,
    close_launch,
    doubling_launch,
    minplus_launch,
    sizes_for,
)


def every_kernel() -> set[Kernel]:
    """As launches have them: each ring with each tile size, with and without arguments."""
    some = Rect("A", 0, 8, 8, 16)
    found = {doubling_launch(some, some).kernel}
    for ring in RINGS.values():
        for noted in (False, True)[: 3 - ring.per_word]:
            product = SemiringProduct(some, some, some, args=some if noted else None)
            found |= {minplus_launch(ring, sizes, [product]).kernel for sizes in sizes_for(ring, noted)}
            found.add(close_launch(ring, some, some if noted else None).kernel)
    return found

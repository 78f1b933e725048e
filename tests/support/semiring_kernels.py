"""All kernels over semirings."""

from __future__ import annotations

from fmm.kernels.cuda.launch_list import Kernel
from fmm.semirings.minplus_kernel import (
    CPP_LENGTH_TYPES,
    TROPICAL_RINGS,
    DeviceMatrix,
    SemiringProduct,
    candidate_tile_sizes,
    close_tile_launch,
    duplicate_entries_launch,
    graph_edges_launch,
    minplus_launch,
)
from fmm.semirings.path_request import EdgeRule


def every_kernel() -> set[Kernel]:
    """Return the kernels of launches over each ring, with each tile size, with and without arguments."""
    some = DeviceMatrix("A", 0, 8, 8, 16)
    found = {duplicate_entries_launch(some, some).kernel}
    found |= {graph_edges_launch(dtype, 8, (8, 1), EdgeRule(0, 0)).kernel for dtype in CPP_LENGTH_TYPES}
    for ring in TROPICAL_RINGS.values():
        for with_arguments in (False, True)[: 3 - ring.per_word]:
            product = SemiringProduct(some, some, some, args=some if with_arguments else None)
            found |= {
                minplus_launch(ring, sizes, [product]).kernel for sizes in candidate_tile_sizes(ring, with_arguments)
            }
            found.add(close_tile_launch(ring, some, some if with_arguments else None).kernel)
    return found

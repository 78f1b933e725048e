"""The kernels of `f16x3` (float32 by three float16 products) compiled for the host: the split, and the
product of planes. The split has no clusters here: the constants of the cluster size are 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from fmm.kernels.cuda.launch_list import FLAG, Launch
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products import f16_planes, f16x3
from fmm.kernels.cuda.products.f16x3 import F16x3Op, f16x3_launch, f16x3_op, missing_plane_launches
from fmm.kernels.cuda.products.wgmma_tiles import WgmmaSizes
from tests.support.host_launch import aligned
from tests.support.warpgroups_on_host import play, replaced

Array = np.ndarray[Any, Any]
MULTIPROCESSORS = 3  # so that a thread block has more than one tile
DIVIDES = {name: 64 for name in ("A", "B", "C", "W")}


def without_cluster(source: str) -> str:
    """Return a kernel's source with clusters of one thread block."""
    return replaced(r"constexpr int CLUSTER = 8;", "constexpr int CLUSTER = 1;", source)


@contextmanager
def without_clusters(sizes: WgmmaSizes) -> Iterator[None]:
    """Patch the tile sizes, and the clusters of the split to one thread block."""
    with mock.patch.object(f16_planes, "SPLIT_CLUSTER_BLOCKS", 1), mock.patch.object(f16x3, "F16X3_SIZES", (sizes,)):
        yield


def launches_of(op: GemmOp, sizes: WgmmaSizes) -> tuple[F16x3Op, list[Launch]]:
    with without_clusters(sizes):
        made = f16x3_op(op, MULTIPROCESSORS)
        assert made is not None
        return made, [*missing_plane_launches(made, MULTIPROCESSORS, DIVIDES), f16x3_launch(made, True)]


def multiplied(op: GemmOp, sizes: WgmmaSizes, memory: dict[str, Array], room: int) -> bool:
    """Run all launches of a product, and return True if the flag was raised. `room` is the workspace in
    bytes, filled with NaN."""
    _, launches = launches_of(op, sizes)
    memory = {**memory, "W": aligned(room), FLAG: aligned(64, fill=0)}
    for launch in launches:
        kernel = replace(launch.kernel, generate=without_cluster, source_arguments=(launch.kernel.cuda_source,))
        play(replace(launch, kernel=kernel), memory)
    return bool(memory[FLAG].any())

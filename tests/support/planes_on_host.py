"""float32 by three float16 products compiled for the host: the split, and the product of planes.

The split has no clusters here. The sizes determine the kernel: Hopper's, or the portable one."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from fmm.kernels.cuda.launch_list import FLAG, Launch
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products import f16x3, f16x3_mma
from fmm.kernels.cuda.products.f16x3 import f16x3_launch, f16x3_op, missing_plane_launches
from fmm.kernels.cuda.products.f16x3_mma import f16x3_mma_launches
from fmm.kernels.cuda.products.mma_tiles import MmaSizes
from fmm.kernels.cuda.products.wgmma_tiles import WgmmaSizes
from tests.support import mma_on_host, warpgroups_on_host
from tests.support.chips import A100
from tests.support.host_launch import aligned

Array = np.ndarray[Any, Any]
MULTIPROCESSORS = 3  # so that a thread block has more than one tile
DIVIDES = {name: 64 for name in ("A", "B", "C", "W")}


def launches_of(op: GemmOp, sizes: WgmmaSizes | MmaSizes) -> tuple[Launch, ...]:
    if isinstance(sizes, MmaSizes):
        with mock.patch.object(f16x3_mma, "F16X3_MMA_SIZES", (sizes,)):
            return f16x3_mma_launches(op, A100, DIVIDES, True)
    with mock.patch.object(f16x3, "F16X3_SIZES", (sizes,)):
        made = f16x3_op(op, MULTIPROCESSORS)
    assert made is not None
    return *missing_plane_launches(made, MULTIPROCESSORS, DIVIDES, 1), f16x3_launch(made, True)


def multiplied(op: GemmOp, sizes: WgmmaSizes | MmaSizes, memory: dict[str, Array], room: int) -> bool:
    """Run all launches of a product, and return True if the flag was raised; `room`: bytes of workspace, NaN before."""
    memory = {**memory, "W": aligned(room), FLAG: aligned(64, fill=0)}
    for launch in launches_of(op, sizes):
        of_warps = launch.label.startswith("gemm_f16x3_mma")
        (mma_on_host if of_warps else warpgroups_on_host).play(launch, memory)
    return bool(memory[FLAG].any())

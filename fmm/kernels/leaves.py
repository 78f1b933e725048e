"""The leaves that fmm ships: kernels that compute the matrix products at the end of a plan.

Importing fmm.kernels registers all leaves.

The leaf `vendor` is one call of the vendor's BLAS. The other leaves for floating-point numbers run on a GPU:

* `lt0` to `lt31`: numbered algorithms that cuBLASLt's heuristic proposes for the product.
* `vendor-emulated`: cuBLAS's emulation of float64 and complex128.
* `vendor3m`: cuBLAS's complex product, computed as three real products.
* `tile`: fmm's own GEMM kernel for float32 and float64, which can form sums inside the product. On Hopper, another
  kernel of fmm multiplies 16-bit types and TF32, without sums.
* `small`: one triangle of small Gram products.
* `f16x3`: float32 products by three float16 products.
* `bytes`: products of 8-bit integers, only below a level `residues` (fmm.kernels.plans.levels.residues).

If a leaf cannot read the layout of an operand, the vendor's BLAS computes the product. `tile.huge` and similar names
select another block strategy for float32 and float64. With the suffix `.plain`, tiles are copied to shared memory
through registers. With the suffix `.texture`, tiles of the left operand are loaded through the read-only data path, as
in tStrassen and tWinograd of Li, Ranka and Sahni.

On a CPU, the leaf `digits` multiplies integers. Products of floating-point numbers by a level `residues` directly above
`bytes` also run on a CPU, with the same bits as on a GPU. On a CPU, plans with residues are slow and are no
candidates.

The suffixes `.inner` and `.outer` of a leaf set the layout of the last level's sums, which are the operands of the
leaf. With `.inner`, both operands are contiguous along the inner dimension k; with `.outer`, along the outer dimensions
m and n. On a CPU, sums always have the layouts of A and B.
"""

from __future__ import annotations

from math import sqrt

from fmm.dtypes import BYTE_TYPE, COMPLEX_TYPES, FLOAT_TYPES, INTEGERS, RING_TYPES
from fmm.kernels.cpu.exact_product import exact_product, exact_workspace_bytes
from fmm.kernels.cpu.numpy_backend import numpy_product
from fmm.kernels.cuda.products.kernel_sizes import (
    ALL_STRATEGIES,
    FUSED_SIZES,
    H200_STRATEGIES,
    MAX_SMALL_ROWS,
    SMALL_TYPES,
    STRATEGIES,
    f16x3_workspace,
    prepared_plane_bytes,
)
from fmm.kernels.plans.leaf import Leaf, LeafOption, register_leaf

# names of leaf rates in a calibration
F16X3_RATE, DIGITS_RATE, SMALL_RATE, VENDOR3M_RATE = "f16x3", "digits-{}", "small-{}", "vendor3m-{}"
LT_SCRATCH_BYTES = 32 << 20  # bytes of workspace that an algorithm of cuBLASLt may use

# Types that the leaf `tile` multiplies with the kernels of gemm_simt.cuh, gemm_tma.cuh and gemm_mma_f64.cuh, which can
# form sums.
TILED_TYPES = tuple(FUSED_SIZES)
WARPGROUP_TYPES = ("float16", "bfloat16", "tf32")  # types of the kernel gemm_wgmma.cuh, which cannot form sums
# Block strategies (tile sizes) as options of the leaf `tile`. The tuner's search tries the strategies of Huang, Yu and
# van de Geijn, and the strategies that fill the registers of current GPUs. If a plan names no strategy, Huang's
# block-parameter model chooses one, also among the strategies of kernels with the copy engine (TMA); the tuner's search
# skips the TMA strategies.
TILE_STRATEGIES = tuple(
    LeafOption(s.name.lower(), s.types, searched=s in (*STRATEGIES, *H200_STRATEGIES)) for s in ALL_STRATEGIES
)
# Options for copying tiles to shared memory, as in tStrassen and tWinograd of Li, Ranka and Sahni. By default, tiles
# are copied asynchronously or by the copy engine (TMA).
TILE_COPY_OPTIONS = (LeafOption("plain", TILED_TYPES, fused=False), LeafOption("texture", TILED_TYPES, fused=False))

VENDOR_LEAF = Leaf(
    "vendor",
    "the vendor's BLAS as it comes",
    ("cpu", "cuda"),
    types=FLOAT_TYPES,
    types_alone=INTEGERS,  # integer products are computed by the array library's own loops
    blas_triangles=("float32", "float64", "complex64", "complex128"),
    whole_product_rows=1024,
    call_text="one BLAS call",
    host_product=numpy_product,
    forms=("alone", "nested", "one pass", "outer", "in place", "copied"),
)
VENDOR3M_LEAF = Leaf(
    "vendor3m",
    "cuBLAS's own complex product by three real ones",
    ("cuda",),
    types=COMPLEX_TYPES,
    call_text="one BLAS call",
    forms=("alone", "peer"),
    unprobed=("alone",),
    saves_products=True,
    rate=VENDOR3M_RATE,
    relative_error=sqrt(5),  # the error of the level `3m` on entries of one sign
)
EMULATED_LEAF = Leaf(
    "vendor-emulated",
    "cuBLAS's own emulation by products of 8-bit integers, at its full accuracy (cuBLAS 13.0 update 2 or newer)",
    ("cuda",),
    types=("float64", "complex128"),
    call_text="one BLAS call",
    # The leaf is no candidate: it runs only if a caller's plan names it, and no tuning measures its rate.
    forms=(),
    emulates=True,
    relative_error=0.07,  # the error is about 7e-17, relative in the Frobenius norm
    norm_bound="2^-52 sqrt(k)",
    rate="vendor-emulated-{}",
)
LT_LEAF = Leaf(
    "lt",
    "a numbered candidate of cuBLASLt's own list for the product",
    ("cuda",),
    types=FLOAT_TYPES,
    call_text="one BLAS call",
    scratch=lambda m, k, n, count: LT_SCRATCH_BYTES,
    numbers=32,
    forms=("peer",),
)
TILE_LEAF = Leaf(
    "tile",
    "this package's own tiled kernel",
    ("cuda",),
    types=(*TILED_TYPES, *WARPGROUP_TYPES),
    types_with_sums=TILED_TYPES,
    kernel_triangles=TILED_TYPES,
    loose_triangles=WARPGROUP_TYPES,
    mirrors=True,
    options=(TILE_STRATEGIES, TILE_COPY_OPTIONS),
    # Types that the leaf `tile` can multiply faster than the vendor. Other types are slower on an H200: in float64,
    # `tile` has 0.95 of cuBLAS's speed, and 0.78 with sums inside the kernel. In TF32, sums must be written transposed
    # for `tile`, and `tile` is slower than cuBLASLt's best algorithm.
    candidate_types=("float32", "float16", "bfloat16"),
    alignment=16,  # bytes; if rows are not aligned, the kernel reads them one entry at a time
    forms=("inside", "alone", "one pass", "outer"),
    unprobed=("alone", "one pass", "outer"),
    time_formula="tiles",
    slow_columns=("float32",),
)
SMALL_LEAF = Leaf(
    "small",
    "one triangle of small Gram products in one launch, for any type and layout",
    ("cuda",),
    types=SMALL_TYPES,
    kernel_triangles=SMALL_TYPES,
    mirrors=True,
    orders=(),
    longest=MAX_SMALL_ROWS,
    forms=("half",),
    unprobed=("half",),
    rate=SMALL_RATE,
)
F16X3_LEAF = Leaf(
    "f16x3",
    "float32 by three float16 products of the tensor cores, added up in float32",
    ("cuda",),
    types=("float32",),
    kernel_triangles=("float32",),
    mirrors=True,
    call_text="two launches",
    launches=2,
    scratch=f16x3_workspace,
    forms=("alone", "one pass", "outer", "in place"),
    emulates=True,
    norm_bound="2^-18 (2^-16 where there are none of Hopper's instructions and the vendor multiplies)",
    checks_entries=True,
    prepared_layout=prepared_plane_bytes,
    prepared_by_sums=True,
    rate=F16X3_RATE,
    fills_device=True,
)
DIGITS_LEAF = Leaf(
    "digits",
    "integers exactly, by BLAS's products of planes of digits",
    ("cpu",),
    types=RING_TYPES,
    types_alone=("bool",),
    types_in_blocks=("bool",),
    call_text="products of digits",
    launches=8,
    scratch=exact_workspace_bytes,
    host_product_with_scratch=exact_product,
    forms=("alone", "nested"),
    unprobed=("alone", "nested"),
    rate=DIGITS_RATE,
)
BYTES_LEAF = Leaf(
    "bytes",
    "this package's own products of 8-bit integers, with each sum reduced modulo a number",
    ("cuda",),
    types=(BYTE_TYPE.name,),
    orders=(),
    forms=(),
    only_below_levels=True,
)

for _row in (
    VENDOR_LEAF,
    LT_LEAF,
    TILE_LEAF,
    SMALL_LEAF,
    F16X3_LEAF,
    BYTES_LEAF,
    VENDOR3M_LEAF,
    EMULATED_LEAF,
    DIGITS_LEAF,
):
    register_leaf(_row)

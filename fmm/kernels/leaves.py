"""The leaves that fmm ships, one row each; registered when fmm.kernels is imported.

`vendor` is the plain BLAS. On a GPU there are also `lt0`, `lt1`, ... (candidates of cuBLASLt's own list for the
product), `vendor3m` (cuBLAS's complex products by three real ones each) and `tile`, this package's own kernel: for
float32 and float64, and, without sums inside, for 16-bit numbers and TF32 by Hopper's warpgroup instructions. Products
that these cannot read go to the vendor. `tile.huge` and the like multiply float32 and float64 by another of its
strategies; with `.plain` behind it, tiles come to shared memory through registers, with `.texture` the tiles of the
left operand come by loads of the read-only path: Li, Ranka and Sahni's tStrassen and tWinograd.

`bytes` multiplies only below residues (fmm.kernels.plans.levels.residues).

With `.inner` after any other leaf, the sums of the last level are written so that both operands of a leaf product are
contiguous along its inner dimension; with `.outer`, along the outer ones. (The sums of a CPU always have the layouts of
A and B, for all leaves.)
"""

from __future__ import annotations

from math import sqrt

from fmm.dtypes import BYTE, COMPLEX, FLOATS, INTEGERS, RINGS
from fmm.kernels.cpu.exact_product import exact_product, exact_workspace
from fmm.kernels.cpu.numpy_backend import numpy_product
from fmm.kernels.cuda.products.kernel_sizes import (
    FUSED_SIZES,
    LARGEST_SMALL,
    PRESETS,
    SMALL_TYPES,
    STRATEGIES,
    TUNED,
    f16x3_workspace,
    prepared_bytes,
)
from fmm.kernels.plans.leaf import Leaf, LeafOption, register_leaf

F16X3_RATE, DIGITS_RATE, SMALL_RATE = "f16x3", "digits-{}", "small-{}"  # in a calibration
LT_SCRATCH_BYTES = 32 << 20  # bytes that a candidate of cuBLASLt may use

# By gemm_simt.cuh and, for float64, gemm_mma_f64.cuh, with sums inside if there are any.
TILED_TYPES = tuple(FUSED_SIZES)
WARPGROUP_TYPES = ("float16", "bfloat16", "tf32")  # by gemm_wgmma.cuh, without sums inside
# Strategies of that kernel. A search names Huang, Yu and van de Geijn's and those that fill today's registers; `tile`
# itself selects those of the copy engine.
TILE_STRATEGIES = tuple(LeafOption(s.name.lower(), s.types, searched=s in (*STRATEGIES, *TUNED)) for s in PRESETS)
# Paths of tiles to shared memory beside the usual ones (asynchronous copies, or the copy engine): Li, Ranka and Sahni's
# tStrassen and tWinograd.
SHARED_MEMORY_PATHS = (LeafOption("plain", TILED_TYPES, fused=False), LeafOption("texture", TILED_TYPES, fused=False))

VENDOR = Leaf(
    "vendor",
    "the vendor's BLAS as it comes",
    ("cpu", "cuda"),
    types=FLOATS,
    types_alone=INTEGERS,  # integers by the library's own loops
    blas_triangles=("float32", "float64", "complex64", "complex128"),
    whole_product_rows=1024,
    call_text="one BLAS call",
    host_product=numpy_product,
    forms=("alone", "nested", "one pass", "outer", "in place", "copied"),
)
VENDOR3M = Leaf(
    "vendor3m",
    "cuBLAS's own complex product by three real ones",
    ("cuda",),
    types=COMPLEX,
    call_text="one BLAS call",
    forms=("alone", "peer"),
    unprobed=("alone",),
    saves_products=True,
    relative_error=sqrt(5),  # as of the level 3m, on numbers of one sign
)
LT = Leaf(
    "lt",
    "a numbered candidate of cuBLASLt's own list for the product",
    ("cuda",),
    types=FLOATS,
    call_text="one BLAS call",
    scratch=lambda m, k, n, count: LT_SCRATCH_BYTES,
    numbers=32,
    forms=("peer",),
)
TILE = Leaf(
    "tile",
    "this package's own tiled kernel",
    ("cuda",),
    types=(*TILED_TYPES, *WARPGROUP_TYPES),
    types_with_sums=TILED_TYPES,
    kernel_triangles=TILED_TYPES,
    loose_triangles=WARPGROUP_TYPES,
    mirrors=True,
    options=(TILE_STRATEGIES, SHARED_MEMORY_PATHS),
    # Types that it multiplies faster than the vendor. (On an H200 float64 has 0.95 of cuBLAS's speed, and 0.78 with its
    # sums inside; TF32, which needs transposed sums, less than cuBLASLt's best.)
    candidate_types=("float32", "float16", "bfloat16"),
    alignment=16,  # bytes that it reads at a time; of other rows it reads single numbers
    forms=("inside", "alone", "one pass", "outer"),
    unprobed=("alone", "one pass", "outer"),
    time_formula="tiles",
    slow_columns=("float32",),
)
SMALL = Leaf(
    "small",
    "one triangle of small Gram products in one launch, for any type and layout",
    ("cuda",),
    types=SMALL_TYPES,
    kernel_triangles=SMALL_TYPES,
    mirrors=True,
    orders=(),
    longest=LARGEST_SMALL,
    forms=("half",),
    unprobed=("half",),
    rate=SMALL_RATE,
)
F16X3 = Leaf(
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
    prepared_layout=prepared_bytes,
    prepared_by_sums=True,
    rate=F16X3_RATE,
    fills_device=True,
)
DIGITS = Leaf(
    "digits",
    "integers exactly, by BLAS's products of planes of digits",
    ("cpu",),
    types=RINGS,
    types_alone=("bool",),
    types_in_blocks=("bool",),
    call_text="products of digits",
    launches=8,
    scratch=exact_workspace,
    host_product_with_scratch=exact_product,
    forms=("alone", "nested"),
    unprobed=("alone", "nested"),
    rate=DIGITS_RATE,
)
BYTES = Leaf(
    "bytes",
    "this package's own products of 8-bit integers, with each sum reduced modulo a number",
    ("cuda",),
    types=(BYTE.name,),
    orders=(),
    forms=(),
    only_below_levels=True,
)

for _row in (VENDOR, LT, TILE, SMALL, F16X3, BYTES, VENDOR3M, DIGITS):
    register_leaf(_row)

"""The leaves that fmm comes with, one row each; registered when fmm.kernels is imported.

`vendor` is BLAS as it comes. On a GPU there are also `lt0`, `lt1`, ... (so many-th candidate of cuBLASLt's own list for
the product), `vendor3m` (cuBLAS's complex products by three real ones each) and `tile`, this package's own kernel: of
float32 and float64, and of 16-bit numbers and TF32, without sums inside, by Hopper's warpgroups; what these cannot read
is the vendor's. `tile.huge` and the like multiply float32 and float64 by another of its strategies; with `.plain`
behind it, tiles come to shared memory through registers, with `.texture` those of the left operand by loads of the
read-only path: Li, Ranka and Sahni's tStrassen and tWinograd.

`bytes` multiplies below residues alone (fmm.kernels.plans.levels.residues), which a device does whole with it.

With `.inner` after any other leaf, the sums of the last level are written so that both operands of a leaf product are
contiguous along its inner dimension; with `.outer`, along the outer ones. (A CPU's sums are always written as A and B
lie in memory, for all leaves.)
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
from fmm.kernels.plans.leaf import Leaf, register_leaf
from fmm.kernels.plans.leaf_parts import (
    LeafCall,
    LeafCandidacy,
    LeafError,
    LeafHalves,
    LeafNames,
    LeafOnHost,
    LeafOption,
    LeafPreparation,
    LeafTime,
    LeafTypes,
)

F16X3_RATE, DIGITS_RATE, SMALL_RATE = "f16x3", "digits-{}", "small-{}"  # in a calibration
LT_SCRATCH = 32 << 20  # bytes that a candidate of cuBLASLt may use


ALL = FLOATS
TILED = tuple(FUSED_SIZES)  # by gemm_simt.cuh and, for float64, gemm_mma_f64.cuh, with sums inside if there are any
WARPGROUPS = ("float16", "bfloat16", "tf32")  # by gemm_wgmma.cuh, without sums inside; what it cannot read: the vendor
# Strategies of that kernel. A search names Huang, Yu and van de Geijn's and those that fill today's registers; those of
# the copy engine `tile` takes by itself.
NAMED_TILES = tuple(LeafOption(s.name.lower(), s.types, searched=s in (*STRATEGIES, *TUNED)) for s in PRESETS)
# How tiles come to shared memory, if not as usual (by asynchronous copies, or by the copy engine): Li, Ranka and
# Sahni's tStrassen and tWinograd.
PATHS = (LeafOption("plain", TILED, fused=False), LeafOption("texture", TILED, fused=False))

VENDOR = Leaf(
    "vendor",
    "the vendor's BLAS as it comes",
    ("cpu", "cuda"),
    LeafTypes(ALL, alone=INTEGERS),  # integers by the library's own loops
    LeafHalves(by_blas=("float32", "float64", "complex64", "complex128"), whole_rows=1024),
    LeafCall("one BLAS call"),
    host=LeafOnHost(numpy_product),
    candidacy=LeafCandidacy(forms=("alone", "nested", "one pass", "outer", "in place", "copied")),
)
VENDOR3M = Leaf(
    "vendor3m",
    "cuBLAS's own complex product by three real ones",
    ("cuda",),
    LeafTypes(COMPLEX),
    call=LeafCall("one BLAS call"),
    candidacy=LeafCandidacy(forms=("alone", "peer"), unprobed=("alone",)),
    error=LeafError(saves_products=True, relative=sqrt(5)),  # as of the level 3m, on numbers of one sign
)
LT = Leaf(
    "lt",
    "so many-th candidate of cuBLASLt's own list for the product",
    ("cuda",),
    LeafTypes(ALL),
    call=LeafCall("one BLAS call", scratch=lambda m, k, n, count: LT_SCRATCH),
    names=LeafNames(numbers=32),
    candidacy=LeafCandidacy(forms=("peer",)),
)
TILE = Leaf(
    "tile",
    "this package's own tiled kernel",
    ("cuda",),
    LeafTypes((*TILED, *WARPGROUPS), inside=TILED),
    LeafHalves(by_kernel=TILED, loose=WARPGROUPS, mirrors=True),
    names=LeafNames(options=(NAMED_TILES, PATHS)),
    candidacy=LeafCandidacy(
        # Those that it multiplies faster than the vendor. (On an H200 float64 has 0.95 of cuBLAS's speed, and 0.78 with
        # its sums inside; TF32, which needs sums that are turned, less than cuBLASLt's best.)
        ("float32", "float16", "bfloat16"),
        alignment=16,  # bytes that it reads at a time; of other rows it reads single numbers
        forms=("inside", "alone", "one pass", "outer"),
        unprobed=("alone", "one pass", "outer"),
    ),
    time=LeafTime(formula="tiles", slow_columns=("float32",)),
)

SMALL = Leaf(
    "small",
    "small halves in one launch, whatever their type and layout",
    ("cuda",),
    LeafTypes(SMALL_TYPES),
    LeafHalves(by_kernel=SMALL_TYPES, mirrors=True),
    names=LeafNames(orders=()),
    candidacy=LeafCandidacy(longest=LARGEST_SMALL, forms=("half",), unprobed=("half",)),
    time=LeafTime(SMALL_RATE),
)

F16X3 = Leaf(
    "f16x3",
    "float32 by three float16 products of the tensor cores, added up in float32",
    ("cuda",),
    LeafTypes(("float32",)),
    LeafHalves(by_kernel=("float32",), mirrors=True),
    LeafCall("two launches", starts=2, scratch=f16x3_workspace),
    candidacy=LeafCandidacy(forms=("alone", "one pass", "outer", "in place")),
    error=LeafError(
        emulates=True,
        norm_bound="2^-18 (2^-16 where there are none of Hopper's instructions and the vendor multiplies)",
        checks_entries=True,
    ),
    preparation=LeafPreparation(prepared_bytes, by_sums=True),
    time=LeafTime(F16X3_RATE, fills_device=True),
)

DIGITS = Leaf(
    "digits",
    "integers exactly, by BLAS's products of planes of digits",
    ("cpu",),
    LeafTypes(RINGS, alone=("bool",), in_blocks=("bool",)),
    call=LeafCall("products of digits", starts=8, scratch=exact_workspace),
    host=LeafOnHost(multiply_inside=exact_product),
    candidacy=LeafCandidacy(forms=("alone", "nested"), unprobed=("alone", "nested")),
    time=LeafTime(DIGITS_RATE),
)

BYTES = Leaf(
    "bytes",
    "this package's own products of 8-bit integers, whose sums are reduced modulo a number each",
    ("cuda",),
    LeafTypes((BYTE.name,)),
    names=LeafNames(orders=()),
    candidacy=LeafCandidacy(forms=()),
    below_levels=True,
)

for _row in (VENDOR, LT, TILE, SMALL, F16X3, BYTES, VENDOR3M, DIGITS):
    register_leaf(_row)

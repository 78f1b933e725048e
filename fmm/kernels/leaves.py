"""The leaves that fmm comes with, one row each; registered when fmm.kernels is imported.

`vendor` is BLAS as it comes. On a GPU there are also `lt0`, `lt1`, ... (so many-th candidate of cuBLASLt's own list for
the product), `vendor3m` (cuBLAS's complex products by three real ones each) and `tile`, this package's own kernel: of
float32 and float64, and of 16-bit numbers and TF32, without sums inside, by Hopper's warpgroups; what these cannot read
is the vendor's. `tile.huge` and the like multiply float32 and float64 by another of its strategies; with `.plain`
behind it, tiles come to shared memory through registers, with `.texture` those of the left operand by loads of the
read-only path: Li, Ranka and Sahni's tStrassen and tWinograd.

With `.inner` after any leaf, the sums of the last level are written so that both operands of a leaf product are
contiguous along its inner dimension; with `.outer`, along the outer ones. (A CPU's sums are always written as A and B
lie in memory, for all leaves.)
"""

from __future__ import annotations

from functools import partial
from math import sqrt

from fmm.dtypes import COMPLEX, DTYPES, FLOATS, INTEGERS, RINGS
from fmm.kernels.cpu.exact_product import exact_product, exact_scratch
from fmm.kernels.cpu.numpy_backend import numpy_product
from fmm.kernels.cuda.products.bytes.residue_planes import (
    DOUBLE_LEAVES,
    PRODUCTS,
    SINGLE_LEAVES,
    SUMMED,
    WHOLE_LEAVES,
    residue_scratch,
    whole_scratch,
)
from fmm.kernels.cuda.products.bytes.residue_planes import kept_room as kept_residues
from fmm.kernels.cuda.products.float16.f16_planes import f16x3_scratch, kept_room
from fmm.kernels.cuda.products.tiles.tile_sizes import PRESETS, SMALL_TYPES, SUMMING
from fmm.kernels.plans.leaf import Leaf, LeafOption, register_leaf

F16X3_RATE, DIGITS_RATE = "f16x3", "digits-{}"  # in a calibration
LT_SCRATCH = 32 << 20  # bytes that a candidate of cuBLASLt may use


ALL = FLOATS
TILED = tuple(SUMMING)  # by gemm_simt.cuh and, for float64, gemm_mma_f64.cuh, with sums inside if there are any
WARPGROUPS = ("float16", "bfloat16", "tf32")  # by gemm_wgmma.cuh, without sums inside; what it cannot read: the vendor
# How tiles come to shared memory, if not as usual (by asynchronous copies, or by the copy engine): Li, Ranka and
# Sahni's tStrassen and tWinograd.
PATHS = (LeafOption("plain", TILED, fused=False), LeafOption("texture", TILED, fused=False))

VENDOR = Leaf(
    "vendor",
    "the vendor's BLAS as it comes",
    ("cpu", "cuda"),
    ALL,
    types_alone=INTEGERS,  # by the library's own loops
    rank_updates=("float32", "float64", "complex64", "complex128"),
    whole_halves=1024,
    call="one BLAS call",
    forms=("alone", "nested", "one pass", "outer", "in place", "copied"),
    multiply=numpy_product,
)
VENDOR3M = Leaf(
    "vendor3m",
    "cuBLAS's own complex product by three real ones",
    ("cuda",),
    COMPLEX,
    call="one BLAS call",
    forms=("alone", "peer"),
    unprobed=("alone",),
    saves_products=True,
    relative_error=sqrt(5),  # as of the level 3m, on numbers of one sign
)
LT = Leaf(
    "lt",
    "so many-th candidate of cuBLASLt's own list for the product",
    ("cuda",),
    ALL,
    call="one BLAS call",
    scratch=lambda m, k, n, count: LT_SCRATCH,
    numbers=32,
    forms=("peer",),
)
TILE = Leaf(
    "tile",
    "this package's own tiled kernel",
    ("cuda",),
    (*TILED, *WARPGROUPS),
    types_inside=TILED,
    halves=TILED,
    loose_halves=WARPGROUPS,
    mirrors=True,
    # Those that it multiplies faster than the vendor. (On an H200 float64 has 0.95 of cuBLAS's speed, and 0.78 with its
    # sums inside; TF32, which needs sums that are turned, less than cuBLASLt's best.)
    considered=("float32", "float16", "bfloat16"),
    alignment=16,  # bytes that it reads at a time; of other rows it reads single numbers
    options=(tuple(LeafOption(s.name.lower(), s.types) for s in PRESETS), PATHS),
    forms=("inside", "alone", "one pass", "outer"),
    unprobed=("alone", "one pass", "outer"),
    time_formula="tiles",
)

# No candidate: which halves it computes is a rule (fmm.runtime.decide).
SMALL = Leaf(
    "small",
    "small halves in one launch, whatever their type and layout",
    ("cuda",),
    SMALL_TYPES,
    halves=SMALL_TYPES,
    mirrors=True,
    orders=(),
    forms=(),
)

F16X3 = Leaf(
    "f16x3",
    "float32 by three float16 products of the tensor cores, added up in float32",
    ("cuda",),
    ("float32",),
    call="two launches",
    starts=2,
    scratch=f16x3_scratch,
    forms=("alone", "one pass", "outer", "in place"),
    emulates=True,
    norm_bound="2^-18 (2^-16 where there are none of Hopper's instructions and the vendor multiplies)",
    checks_entries=True,
    keeps=kept_room,
    sums_prepare=True,
    rate=F16X3_RATE,
)

DIGITS = Leaf(
    "digits",
    "integers exactly, by BLAS's products of planes of digits",
    ("cpu",),
    RINGS,
    types_alone=("bool",),
    call="products of digits",
    starts=8,
    scratch=exact_scratch,
    forms=("alone", "nested"),
    unprobed=("alone", "nested"),
    multiply_inside=exact_product,
    rate=DIGITS_RATE,
)

# Of which prepared operands keep planes: with levels below there would be more, and others for A than for B.
KEEPING = "oz14"
# Errors of the leaves of residues against DGEMM's and SGEMM's, in the Frobenius norm, on normal data on an H200: 0.5 to
# 0.7 with 14 moduli; every one more or less is a factor of 15. (Uniform data: 0.03.) Of float32 0.17 to 0.26 with 7
# and 0.013 to 0.023 with 8; with more no less than rounding C takes.
USUAL_MODULI = {"float64": (14,), "float32": (8,)}
RESIDUE_ERRORS = {13: 11.0, 7: 0.3, 8: 0.02, 9: 0.02}
# Norms have at least 2^49.7, 2^53.5, ... units, of which either operand's number loses half a one (2^26.2, 2^30.1,
# 2^34.0 with 7, 8 and 9 moduli); what is known of a float64 number ends at 2^-53, of a float32 number at 2^-24.
RESIDUE_BOUNDS = {
    **{7: "2^-26 sqrt(k) + 2^-24", 8: "2^-30 sqrt(k) + 2^-24", 9: "2^-34 sqrt(k) + 2^-24"},
    **{13: "2^-48 sqrt(k)", 14: "2^-52 sqrt(k)", 15: "2^-52 sqrt(k)", 16: "2^-52 sqrt(k)"},
}


def _residue_leaf(name: str, dtype: str, moduli: int, levels: int) -> Leaf:
    below = f", with {PRODUCTS**levels} in the place of {8**levels} by Strassen's algorithm" if levels else ""
    return Leaf(
        name,
        f"{dtype} by products of 8-bit integers modulo {moduli} numbers{below}",
        ("cuda",),
        (dtype,),
        call="four launches",
        starts=4,
        scratch=partial(residue_scratch, DTYPES[dtype].itemsize, moduli, levels),
        orders=(),
        # Fewer than the usual are less accurate than the vendor, more are slower. With two levels less is multiplied,
        # but splitting and joining take longer by more than that (an H200, up to 16384): for who names them.
        forms=("alone",) if moduli in USUAL_MODULI[dtype] and levels < 2 else (),
        halves=() if levels or dtype != "float64" else (dtype,),
        unprobed=("alone",) if dtype == "float32" else (),  # for who asks for less than the vendor's error
        relative_error=RESIDUE_ERRORS.get(moduli, 1.0),
        emulates=True,
        norm_bound=RESIDUE_BOUNDS[moduli],
        keeps=partial(kept_residues, moduli) if name == KEEPING else None,
        rate=name,
    )


RESIDUES = tuple(
    _residue_leaf(name, dtype, *counts)
    for dtype, leaves in (("float64", DOUBLE_LEAVES), ("float32", SINGLE_LEAVES))
    for name, counts in leaves.items()
)


def _whole_leaf(name: str, levels: int) -> Leaf:
    below = f", with {PRODUCTS**levels} in the place of {8**levels} by Strassen's algorithm" if levels else ""
    return Leaf(
        name,
        "integers exactly, by products of 8-bit integers modulo as many numbers as their type and the inner dimension "
        f"need{below}",
        ("cuda",),
        (),
        types_alone=SUMMED if levels else INTEGERS,
        call="one to four launches",
        starts=4,
        scratch_of=partial(whole_scratch, levels),
        orders=(),
        forms=("alone",),
        unprobed=("alone",),
        rate=f"{name}-{{}}",
    )


WHOLE = tuple(_whole_leaf(name, levels) for name, levels in WHOLE_LEAVES.items())

for _row in (VENDOR, LT, TILE, SMALL, F16X3, *WHOLE, *RESIDUES, VENDOR3M, DIGITS):
    register_leaf(_row)

"""What runs: for each operation of a plan, on a chip, which of our kernels with which tile, or the vendor and why.

Decided here, when a plan is recorded, and nowhere else: launching only launches, and `explain` prints what was
selected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

from fmm.dtypes import DTYPES
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.launch_list import BASES, Launch, VendorCall
from fmm.kernels.cuda.mirrored import MirroredOp
from fmm.kernels.cuda.products.bytes.residue_launches import kept_launches as kept_residues
from fmm.kernels.cuda.products.bytes.residue_launches import residue_launches
from fmm.kernels.cuda.products.bytes.residue_op import ResidueOp, residue_op
from fmm.kernels.cuda.products.float16.f16_split import split_launch
from fmm.kernels.cuda.products.float16.f16_sums import PlaneSums, plane_sum_launches, plane_sums
from fmm.kernels.cuda.products.float16.f16x3 import f16x3_launch, f16x3_op, plane_launches
from fmm.kernels.cuda.products.float16.f16x3_vendor import vendor_steps
from fmm.kernels.cuda.products.tiles.small import small_launch
from fmm.kernels.cuda.products.tiles.tile_sizes import SUMMING, TMA_SUMMING, TileSizes, engine_strategy
from fmm.kernels.cuda.products.tiles.tiled import WIDE, TileGroup, TileOp, strategy_of, tile_launches
from fmm.kernels.cuda.products.tiles.tiled_gemm import tile_op, with_added
from fmm.kernels.cuda.products.tiles.tma import TmaOp, rows_are_aligned, tma_launch, tma_op
from fmm.kernels.cuda.products.tiles.wgmma import wgmma_launch, wgmma_op
from fmm.kernels.cuda.rank import RankOp
from fmm.kernels.cuda.sums.mirror import MirrorOp, mirror_launch
from fmm.kernels.cuda.sums.rescale import Scaling, scaling_launch
from fmm.kernels.cuda.sums.sum_launch import SumOp, copy_op, sum_launch
from fmm.kernels.cuda.views import View, lies_along
from fmm.kernels.plans.levels.residues import residue_endings
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.sums import APART

Alignment = tuple[int, int, int, int]  # powers of two that divide the addresses of A, B, C and the workspace
ALIGNED: Alignment = (256, 256, 256, 256)  # to which libraries align what they allocate


def alignment_of(a: int, b: int, c: int, workspace: int) -> Alignment:
    """The powers of two that divide these addresses; beyond ALIGNED nobody asks."""
    most = ALIGNED[0]
    if not (a | b | c | workspace) % most:
        return ALIGNED
    x, y, z, w = (min(address & -address, most) or most for address in (a, b, c, workspace))
    return x, y, z, w


class TileModel(Protocol):
    """Which tile is the fastest: fmm.perfmodel.tile_choice has such a model."""

    def fastest(self, op: TileOp, chip: Chip) -> TileSizes:
        """For a product whose leaf leaves the strategy open."""
        ...

    def fastest_by_engine(self, op: TileOp, chip: Chip) -> TileSizes | None:
        """The strategy by which the copy engine's kernel is faster than the tiled one with its own; None if it is
        not."""
        ...


@dataclass(frozen=True)
class Target:
    """What a plan is recorded for: a chip, how the operands' addresses are aligned, and whether a flag is raised
    where C is given an inf or NaN."""

    chip: Chip
    tiles: TileModel
    alignment: Alignment = ALIGNED
    flagged: bool = False

    @cached_property
    def divides(self) -> Mapping[str, int]:
        """The power of two that divides each base's address."""
        found = dict(zip(BASES, self.alignment, strict=True))
        return found | {APART: found["C"]}


def select_launches(
    op: SumOp | PlaneSums | MirrorOp | Scaling | GemmOp | MirroredOp | RankOp | TileOp | TileGroup, target: Target
) -> tuple[Launch | VendorCall, ...]:
    """One launch or call, or several one after the other where a kernel cannot do all at once."""
    if isinstance(op, SumOp):
        return (sum_launch(op, target.divides, target.flagged),)
    if isinstance(op, PlaneSums):
        return plane_sum_launches(op, target.divides)
    if isinstance(op, MirrorOp):
        return (mirror_launch(op, target.flagged),)
    if isinstance(op, Scaling):
        return (scaling_launch(op, target.flagged),)
    if isinstance(op, RankOp):
        return (VendorCall(op, f"cuBLAS, {'herk' if DTYPES[op.dtype].is_complex else 'syrk'}: one half"),)
    if isinstance(op, MirroredOp):
        return _select_mirrored(op, target)
    if isinstance(op, GemmOp):
        return _select_product(op, target)
    return _by_tiles(op, target)


def _select_product(op: GemmOp, target: Target) -> tuple[Launch | VendorCall, ...]:
    """By the leaf, or by that in which a level ends that is done whole: the vendor's call, tiles, or tiles of the
    tensor cores where they can be."""
    name = op.use.leaf.selected_as
    if name not in SELECTORS:
        raise PlanError(f"no product on a CUDA device is registered for the leaf {op.leaf}")
    if op.added is None:
        return SELECTORS[name](op, op.dtype, target)
    return _adding_in_place(op, op.added, target) or (
        *_begun(op, op.added, target),
        *SELECTORS[name](replace(op, added=None), op.dtype, target),
    )


def _adding_in_place(op: GemmOp, added: View, target: Target) -> tuple[Launch, ...]:
    """Where the kernel of the op's leaf reads what is added where it lies, and no kernel that cannot is faster."""
    if not lies_along(added, op.dest_view):
        return ()
    if op.use.leaf.name == "f16x3":
        return _by_own_planes(op, target)
    if op.use.leaf.name != "tile":
        return ()
    if op.dtype not in SUMMING:
        found = _by_warpgroups(op, op.dtype, target)
        return (found,) if isinstance(found, Launch) else ()
    plain = _with_open_tile(tile_op(replace(op, added=None), op.dtype, _summing_tile(op)), target)
    if _by_engine(plain, target) is not None:
        return ()
    return tile_launches(with_added(plain, added), target.chip, target.divides, target.flagged)


def _begun(op: GemmOp, added: View, target: Target) -> tuple[Launch, ...]:
    """What is added, copied to where the result will stand."""
    copy = copy_op("begin C", added, op.dest_view)
    return (sum_launch(copy, target.divides, False),) if copy is not None else ()


def _select_mirrored(op: MirroredOp, target: Target) -> tuple[Launch | VendorCall, ...]:
    """In one launch where our kernel can write the mirror too, else one after the other."""
    alone = _select_product(op.whole, target) if op.product.use.leaf.mirrors else ()
    launches = [step for step in alone if isinstance(step, Launch)]
    if len(launches) == len(alone) and [step.does for step in launches].count("product") == 1:
        return alone
    return (*_select_product(op.product, target), mirror_launch(op.mirror, target.flagged))


def _by_vendor(op: GemmOp, dtype: str, target: Target) -> tuple[VendorCall]:
    return (VendorCall(op, _batch_label("cuBLAS", op)),)


def _by_three_products(op: GemmOp, dtype: str, target: Target) -> tuple[VendorCall, ...]:
    """A call for each product of a batch, where cuBLAS has none for all of them: of complex128."""
    name = f"cuBLAS, {dtype} by three real products"
    if dtype in BATCHED_3M or op.count == 1:
        return (VendorCall(op, _batch_label(name, op)),)
    return tuple(VendorCall(one, name) for one in op.one_by_one)


def _by_candidate(op: GemmOp, dtype: str, target: Target) -> tuple[VendorCall]:
    return (VendorCall(op, _batch_label(f"cuBLASLt, candidate {op.use.number}", op)),)


def _by_small_tiles(op: GemmOp, dtype: str, target: Target) -> tuple[Launch]:
    return (small_launch(op, dtype),)


def _by_own_kernel(op: GemmOp, dtype: str, target: Target) -> tuple[Launch | VendorCall, ...]:
    """By tiles, or, for types whose sums are not inside, by the tensor cores; else by the vendor, who says why."""
    if dtype in SUMMING:
        return _by_tiles(tile_op(op, dtype, _summing_tile(op)), target)
    found = _by_warpgroups(op, dtype, target)
    if isinstance(found, Launch):
        return (found,)
    return (VendorCall(op.by_vendor, _batch_label(f"cuBLAS, not {op.leaf}, because {found}", op)),)


def _by_three_planes(op: GemmOp, dtype: str, target: Target) -> tuple[Launch | VendorCall, ...]:
    """Splitting, then the product of the planes, which is the vendor's where there are no warpgroups."""
    if own := _by_own_planes(op, target):
        return own
    op = replace(op, checked=op.checked and target.flagged)
    found: tuple[Launch | VendorCall, ...] | str = "alpha or beta is complex"
    if not target.chip.rounds_pairs:
        found = "only from compute capability 8.0 on are there the instructions by which numbers are split"
    elif not target.chip.has_warpgroups and op.half == "lower":
        found = "only compute capability 9.0 has its instructions, without which all of C is written"
    elif not target.chip.has_warpgroups:
        found = vendor_steps(op, target.chip.multiprocessors, target.divides, target.flagged)
    return _vendor_because(op, found) if isinstance(found, str) else found


def _by_own_planes(op: GemmOp, target: Target) -> tuple[Launch, ...]:
    """Splitting, then our kernel for the product of the planes; none where it cannot run."""
    op = replace(op, checked=op.checked and target.flagged)
    made = f16x3_op(op, target.chip.multiprocessors) if target.chip.has_warpgroups else None
    if made is None:
        return ()
    return *plane_launches(made, target.chip.multiprocessors, target.divides), f16x3_launch(made, target.flagged)


def _vendor_because(op: GemmOp, why: str) -> tuple[VendorCall, ...]:
    """The vendor's usual call in the place of a leaf that cannot do this; of a lower half beside which nothing is to be
    touched, its function for that, once for each of a batch."""
    name = f"cuBLAS, not {op.leaf}, because {why}"
    if op.half == "lower" and not op.gram:
        raise PlanError(f"{op.leaf} cannot leave the upper half of this product as it is, because {why}")
    if op.half == "lower":
        return tuple(VendorCall(one.by_rank_update, name) for one in op.one_by_one)
    return (VendorCall(op.by_vendor, _batch_label(name, op)),)


Noted = TypeVar("Noted")


def with_plane_sums(ops: Sequence[Noted], target: Target) -> list[Noted | PlaneSums]:
    """The same operations; where a split is followed by a batch of products of planes, it writes these itself.

    (Both splits of a level stand right before the one batch that multiplies what they write, and nobody else reads it.)
    """
    found: list[Any] = list(ops)
    apart = not target.chip.has_warpgroups
    if not target.chip.rounds_pairs:
        return found
    for i, op in enumerate(ops):
        if isinstance(op, GemmOp) and op.use.leaf.name == "f16x3":
            for j in range(max(i - 2, 0), i):
                split = ops[j]
                made = plane_sums(split, op, target.divides, apart) if isinstance(split, SumOp) else None
                if made is not None:
                    found[j], found[i] = made, replace(found[i], by_sums=found[i].by_sums + made.side)
    return found


def _by_residues(op: GemmOp, dtype: str, target: Target) -> tuple[Launch | VendorCall, ...]:
    """Exponents, planes of residues, their products, C; by the vendor where there are no such tensor cores."""
    made, chip = _residues(op, dtype, target), target.chip
    if made is not None:
        return residue_launches(made, target.divides, target.flagged)
    why = "alpha or beta is complex" if chip.has_warpgroups else "only compute capability 9.0 has its instructions"
    if DTYPES[dtype].exact:
        raise PlanError(f"{op.leaf} cannot multiply {dtype}, because {why}")
    return _vendor_because(op, why)


def _residues(op: GemmOp, dtype: str, target: Target) -> ResidueOp | None:
    """None where it is the vendor's."""
    if not target.chip.has_warpgroups:
        return None
    found = residue_endings()[op.leaf]
    moduli = found.level.moduli_for(dtype, op.k)
    return residue_op(op, dtype, moduli, found.depth, target.chip.multiprocessors, target.divides)


BATCHED_3M = ("complex64",)  # of which cuBLAS does a batch by three real products each

# By the leaf's name: what one of its products is on a CUDA device. A new leaf adds its own.
Selector = Callable[[GemmOp, str, Target], tuple[Launch | VendorCall, ...]]
SELECTORS: dict[str, Selector] = {
    "vendor": _by_vendor,
    "vendor3m": _by_three_products,
    "lt": _by_candidate,
    "tile": _by_own_kernel,
    "small": _by_small_tiles,
    "f16x3": _by_three_planes,
    "bytes": _by_residues,
}


# Launches, and bytes of workspace that they need.
Keeping = tuple[tuple[Launch, ...], int]


def kept_launches(op: GemmOp, target: Target) -> Keeping:
    """What makes that which the op's leaf keeps of the operand that the op names; none where it can keep nothing."""
    keeper = KEEPERS.get(op.use.leaf.selected_as)
    return keeper(op, target) if keeper else ((), 0)


def _kept_planes(op: GemmOp, target: Target) -> Keeping:
    made = f16x3_op(op, target.chip.multiprocessors) if target.chip.has_warpgroups else None
    kept = [x for x in (made.left, made.right) if x.is_kept] if made else []
    return ((split_launch(kept, target.divides),) if kept else ()), 0


def _kept_residues(op: GemmOp, target: Target) -> Keeping:
    made = _residues(op, op.dtype, target)
    return kept_residues(made, target.divides) if made else ((), 0)


# By the leaf's name, for those whose row says what they keep of an operand.
KEEPERS: dict[str, Callable[[GemmOp, Target], Keeping]] = {"f16x3": _kept_planes, "bytes": _kept_residues}


def _batch_label(name: str, op: GemmOp) -> str:
    return f"{name}, a batch of {op.count}" if op.count > 1 else name


def _by_warpgroups(op: GemmOp, dtype: str, target: Target) -> Launch | str:
    """The launch, or why there is none."""
    if not target.chip.has_warpgroups:
        return "only compute capability 9.0 has its instructions"
    if any(target.divides[x.base] % WIDE for x in op.pieces):
        return f"an operand does not begin at a multiple of {WIDE} bytes"
    found = wgmma_op(op, dtype, target.chip.multiprocessors)
    if found is None:
        wants = f"lines of whole {WIDE} bytes, alpha and beta real"
        inner = ", both along the inner dimension" if dtype == "tf32" else ""
        return f"its kernel cannot do this product: it wants {wants}{inner}"
    return wgmma_launch(found)


def _by_tiles(op: TileOp | TileGroup, target: Target) -> tuple[Launch, ...]:
    """By the copy engine's kernel where it can do it and is faster; else by the tiled one."""
    op = _with_open_tile(op, target) if isinstance(op, TileOp) else op
    bulk = _by_engine(op, target)
    if bulk is not None:
        return (tma_launch(bulk, target.divides, target.flagged),)
    return tile_launches(op, target.chip, target.divides, target.flagged)


def _summing_tile(op: GemmOp) -> TileSizes:
    return strategy_of(op.use) or SUMMING[op.dtype]


def _with_open_tile(op: TileOp, target: Target) -> TileOp:
    return op.with_strategy(target.tiles.fastest(op, target.chip)) if op.open else op


def _by_engine(op: TileOp | TileGroup, target: Target) -> TmaOp | None:
    chip = target.chip
    bases = {x.base for o in op.ops for x in (*o.left, *o.right)}
    aligned = rows_are_aligned(op) and all(target.divides[base] % WIDE == 0 for base in bases)
    if op.kernel.element != "float32" or not (chip.has_copy_engine and aligned):
        return None
    s = engine_strategy(op.kernel.strategy.name)
    if s is None and isinstance(op, TileGroup):
        s = TMA_SUMMING if op.order == "turns" else None
    elif s is None and isinstance(op, TileOp) and op.open:
        s = target.tiles.fastest_by_engine(op, chip)
    made = tma_op(op, s, chip.multiprocessors) if s else None
    return made if made and made.kernel.shared <= chip.shared_per_block else None

"""Products by residues: the levels that end in the leaf `bytes`, each done whole with what is below it."""

from __future__ import annotations

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.residues import ResidueOp, residue_launches, residue_op, residue_preparation_launches
from fmm.kernels.cuda.select import SelectedSteps, vendor_fallback
from fmm.kernels.cuda.target import Target
from fmm.kernels.plans.levels.residues import residue_endings
from fmm.kernels.plans.plan_error import PlanError


def select_residues(op: GemmOp, target: Target) -> SelectedSteps:
    """Exponents, planes of residues, their products and C; the vendor where there are no such tensor cores."""
    product, chip = _residue_product(op, target), target.chip
    if product is not None:
        return residue_launches(product, target.divides, target.flagged)
    reason = "alpha or beta is complex" if chip.has_warpgroups else "only compute capability 9.0 has its instructions"
    if DTYPES[op.dtype].exact:
        raise PlanError(f"{op.leaf} cannot multiply {op.dtype}, because {reason}")
    return vendor_fallback(op, reason)


def kept_residues(op: GemmOp, target: Target) -> tuple[tuple[Launch, ...], int]:
    """The launches that make the planes which are kept behind an operand, and the bytes of workspace that they need."""
    product = _residue_product(op, target)
    return residue_preparation_launches(product, target.divides) if product else ((), 0)


def _residue_product(op: GemmOp, target: Target) -> ResidueOp | None:
    """The product in its kernels' terms; None where they cannot do it."""
    if not target.chip.has_warpgroups:
        return None
    ending = residue_endings()[op.leaf]
    moduli = ending.level.moduli_for(op.dtype, op.k)
    return residue_op(op, op.dtype, moduli, ending.depth, target.chip.multiprocessors, target.divides)

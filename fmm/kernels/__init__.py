"""Algorithms (schemes and step tables), plans that use them, and the kernels that run plans on CPUs and GPUs."""

from functools import partial

from fmm.kernels import leaves  # noqa: F401  (the import registers the leaves, before any plan is made)
from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.algorithms.scheme import Scheme, SchemeError
from fmm.kernels.algorithms.step_table import StepTable, StepTableError, step_table, step_table_names
from fmm.kernels.cpu.residue_product import residue_product
from fmm.kernels.plans import levels  # noqa: F401  (the import registers the kinds of levels)
from fmm.kernels.plans.leaf import LeafFamily, register_leaf_family
from fmm.kernels.plans.levels.balanced import balanced_level
from fmm.kernels.plans.levels.residues import BYTES_LEAF_NAME, residue_leaf_rows
from fmm.kernels.plans.levels.scheme_level import FRINGE_PROVERS, scheme_level
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import plan_workspace_bytes


def _prove_step_table_fringe(table: str) -> str:
    """Return the fringe for which a user's step table is proved: `unequal` or `pad`."""
    from fmm.kernels.cpu.symbolic_proof import prove_fringe

    return prove_fringe(table)


FRINGE_PROVERS.append(_prove_step_table_fringe)
register_leaf_family(LeafFamily("residues", BYTES_LEAF_NAME, partial(residue_leaf_rows, residue_product)))

__all__ = [
    "VENDOR",
    "Plan",
    "PlanError",
    "Scheme",
    "SchemeError",
    "StepTable",
    "StepTableError",
    "balanced_level",
    "plan_workspace_bytes",
    "scheme",
    "scheme_level",
    "scheme_names",
    "step_table",
    "step_table_names",
]

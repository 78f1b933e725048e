"""Algorithms (schemes and step tables), plans made of them, and what runs plans on CPUs and CUDA devices."""

from fmm.kernels import leaves  # noqa: F401  (registers them, before any plan is made)
from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.algorithms.scheme import Scheme, SchemeError
from fmm.kernels.algorithms.step_table import StepError, StepTable, step_table, step_table_names
from fmm.kernels.cpu.symbolic_proof import prove_fringe
from fmm.kernels.plans import levels  # noqa: F401  (registers their kinds, before any plan's text is read)
from fmm.kernels.plans.levels.balanced import Balanced
from fmm.kernels.plans.levels.scheme_level import Level
from fmm.kernels.plans.levels.scheme_options import FRINGE_PROOFS
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import workspace

FRINGE_PROOFS.append(prove_fringe)

__all__ = [
    "VENDOR",
    "Balanced",
    "Level",
    "Plan",
    "PlanError",
    "Scheme",
    "SchemeError",
    "StepError",
    "StepTable",
    "scheme",
    "scheme_names",
    "step_table",
    "step_table_names",
    "workspace",
]

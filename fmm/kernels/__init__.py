"""Schemes, step tables, plans and what runs them."""

from fmm.kernels.needs import workspace
from fmm.kernels.plan import VENDOR, Balanced, Level, Plan, PlanError
from fmm.kernels.scheme import Scheme, SchemeError, scheme, scheme_names
from fmm.kernels.steps import StepError, StepTable, step_table, step_table_names

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

"""Matrix multiplication that beats the vendor's BLAS, and knows beforehand when it will."""

from fmm.decision import Decision
from fmm.kernels.plan import Plan, PlanError
from fmm.memory import release_workspace
from fmm.multiply import explain, matmul, plan

__version__ = "0.1.0"

__all__ = ["Decision", "Plan", "PlanError", "explain", "matmul", "plan", "release_workspace"]

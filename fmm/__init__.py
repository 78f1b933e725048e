"""Matrix products that are faster than the vendor's BLAS where a performance model predicts a gain."""

# The order of the imports of numpy and fmm.kernels matters. NumPy is imported first: with FMM_INSTALL set, the import
# of NumPy runs fmm_install, and fmm_install needs fmm.kernels either fully imported or not imported at all. fmm.kernels
# is imported next. If fmm.kernels were first imported inside another module of fmm, this thread would hold the import
# lock of that module, and another thread that imports fmm.kernels could deadlock.
import numpy  # noqa: F401

from fmm import kernels, linalg  # noqa: F401
from fmm.api import explain, explain_gemm, explain_gram, gemm, gram, matmul, minplus, plan, prepare, shortest_paths
from fmm.arrays.host_memory import release_workspace
from fmm.contractions import einsum, multi_dot, tensordot, transpose  # noqa: F401  (opt_einsum calls transpose)
from fmm.integrations import install, installed, uninstall
from fmm.integrations.install_targets import install_from_env
from fmm.integrations.report import report, report_from_env
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.newton_schulz import orthogonalize
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.prepared_operand import PreparedOperand
from fmm.runtime.show_config import show_config
from fmm.semirings.path_request import NegativeCycleError
from fmm.version import __version__

__all__ = [
    "Decision",
    "NegativeCycleError",
    "Plan",
    "PlanError",
    "PreparedOperand",
    "__version__",
    "einsum",
    "explain",
    "explain_gemm",
    "explain_gram",
    "gemm",
    "gram",
    "install",
    "installed",
    "linalg",
    "matmul",
    "minplus",
    "multi_dot",
    "orthogonalize",
    "plan",
    "prepare",
    "release_workspace",
    "report",
    "shortest_paths",
    "show_config",
    "tensordot",
    "uninstall",
]

report_from_env()
install_from_env()

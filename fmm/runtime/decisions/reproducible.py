"""Plans for `reproducible=True`: the result has the same bits on every device.

A reproducible plan multiplies residues and has no levels. Sums of residues are exact, so blocks, streams, threads,
memory orders and GPUs do not change the result. Only the element type and the caller's error limit determine the number
of moduli. The calibration, the config and the free memory have no influence.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from fmm.dtypes import DTYPES
from fmm.kernels.plans.levels.residues import BYTES_LEAF_NAME, residues_level
from fmm.kernels.plans.plan import Plan, PlanError

# error limit of a reproducible product if the caller passes no limit: the expected error of the vendor's product
DEFAULT_ERROR_LIMIT: Final = 1.0
# For each type: numbers of moduli, each with its error as a multiple of the vendor's error. The table is fixed, since
# another number of moduli changes the bits of results.
ERROR_BY_MODULI: Final = {
    "float64": {14: 1.0, 15: 0.07, 16: 0.04},
    "float32": {8: 0.02},
    "complex128": {15: 1.0, 17: 0.04},
    "complex64": {8: 0.2},
}
VALID_TYPES_TEXT: Final = f"valid types: {', '.join(ERROR_BY_MODULI)}, integers"


@lru_cache(maxsize=64)
def reproducible_plan(dtype: str, max_error_growth: float | None = None) -> Plan:
    """Return the reproducible plan for an element type, with the fewest moduli within the error limit.

    Raise PlanError, with the valid types or error limits in its message, if no plan of the type is reproducible within
    the limit.
    """
    if dtype not in ERROR_BY_MODULI:
        raise PlanError(f"no plan for {dtype} is reproducible; {VALID_TYPES_TEXT}")
    errors = ERROR_BY_MODULI[dtype]
    limit = DEFAULT_ERROR_LIMIT if max_error_growth is None else max_error_growth
    found = next((moduli for moduli, error in errors.items() if error <= limit), None)
    if found is None:
        least = min(errors.values())
        raise PlanError(
            f"no reproducible plan for {dtype} has an error growth of at most {limit:g}; the smallest is {least:g}"
        )
    return Plan.parse(f"{residues_level(found, DTYPES[dtype].is_complex)} > {BYTES_LEAF_NAME}")

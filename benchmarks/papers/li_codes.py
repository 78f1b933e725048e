"""Li, Ranka and Sahni's codes as plans: what Figures 24 to 44 compare, at which sizes, by how many levels.

With tau1 = tau2/2, a code does as many levels as halve n down to tau1.
"""

from __future__ import annotations

from typing import Final

from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.papers.li_counts import TABLES, levels

SIZES: Final = (2048, 4096, 8192, 16384)
CPU, SGEMM, GPU8 = "O(n^3) on CPU", "sgemm", "GPU8"
METHODS: Final = {"Strassen": "strassen", "Winograd": "winograd"}


def li_plan(code: str, depth: int, leaf: str = "vendor") -> Plan:
    """Their code with so many levels: Figure 16 or 23 above, Figure 12 or 13 last."""
    if not depth:
        return Plan.parse(leaf)
    innermost, above = TABLES[METHODS[code]]
    return Plan.parse(" > ".join([*[above] * (depth - 1), innermost, leaf]))


def code_depth(n: int, tau2: str | float) -> int:
    """The levels of a code at size n; none where it has no threshold."""
    return levels(n, tau2) if isinstance(tau2, int) else 0

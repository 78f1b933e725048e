"""Li, Ranka and Sahni's thresholds tau1 and tau2: which plan their recursive codes, Figures 16 and 23, run."""

from __future__ import annotations

from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.papers.li.counts import TABLES


def plan(scheme: str, n: int, tau1: int, tau2: int, leaf: str = "tile.gpu8") -> Plan:
    """What `strassen` or `winograd` of n x n matrices comes to.

    Up to tau1 a product is the leaf's alone; up to tau2 it is one level with the product kernels of section 5, Figure
    12 or 13; above, a level of Figure 16 or 23, and its products are asked the same. (Where n is odd, they are of half
    of n + 1: the tables pad.) `tile.gpu8.texture` is the leaf of their tStrassen and tWinograd.
    """
    if scheme not in TABLES:
        raise ValueError(f"unknown scheme {scheme!r}; valid: {', '.join(TABLES)}")
    if not (n >= 1 and 1 <= tau1 <= tau2):
        raise ValueError(f"n = {n}, tau1 = {tau1}, tau2 = {tau2}: sizes are positive, and tau1 is at most tau2")
    innermost, above = TABLES[scheme]
    levels = []
    while n > tau2:
        levels.append(above)
        n = -(-n // 2)
    if n > tau1:
        levels.append(innermost)
    return Plan.parse(" > ".join([*levels, leaf]))

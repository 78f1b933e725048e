"""Levels whose numbers are blocks that are held apart: on several devices, or as the chunks of an array."""

from __future__ import annotations

from fmm.kernels.plans.plan import Plan, PlanError


def levels_over_blocks(text: str, where: str) -> Plan:
    """The levels that a text names, such as "winograd"; "vendor" for none. `where` they are to be is for messages.

    PlanError for what only numbers can do: kernels with sums inside, real parts, halves.
    """
    found = Plan.parse(text if text == "vendor" or text.endswith("> vendor") else f"{text} > vendor")
    for level in found.levels:
        if not level.splits or level.needs_fusing_leaf or level.itemsize_below(8) != 8:
            raise PlanError(f"{level} is no level {where}; valid: schemes and step tables, such as 'winograd'")
    return found

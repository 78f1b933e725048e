"""fmm/tuner/space.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product

from fmm.kernels.plans.plan import Plan, PlanError

# Choices from which `built` makes a plan: the innermost level, how many levels, how they are run.
CPU_SPACE: Mapping[str, Sequence[str]] = {
    "scheme": ("winograd", "strassen", "dps", "li-fig23", "hasa"),
    "depth": ("1", "2", "3"),
    "composed": ("no", "yes"),
    "traversal": ("", "stacked", "sequential"),
    "fringe": ("", "unequal", "pad", "peel"),
    "balanced": ("", "balanced(2)"),
}
GPU_SPACE: Mapping[str, Sequence[str]] = {
    "scheme": ("strassen", "winograd", "aligned"),
    "outer": ("", "1", "2"),
    "inner": ("1", "2", "3"),
    "traversal": ("batched", "", "overlapped", "fused"),
    "fringe": ("pad16", "pad64", "pad4"),
    "leaf": ("vendor", "lt0", "lt1", "lt2", "lt3", "tile"),
}


def built(choices: Mapping[str, str]) -> Plan:
    """The plan of some choices; PlanError if they do not go together."""
    scheme, options = choices["scheme"], [choices.get(name, "") for name in ("traversal", "fringe")]
    leaf = choices.get("leaf", "vendor")
    if "inner" in choices:
        if choices["inner"] == "3" and (choices["traversal"], scheme) != ("batched", "strassen"):
            raise PlanError("three levels in one pass take long to compile, and gain by batches of Strassen's alone")
        if scheme == "aligned" and (choices["outer"], choices["inner"], choices["traversal"]) != ("", "1", "batched"):
            raise PlanError("one copy of the operands is aligned, and its product has nothing to run beside")
        if choices["traversal"] == "fused" and choices["inner"] != "1":
            raise PlanError("each product of a fused level is a kernel of its own: two levels are 49 to compile")
        if (choices["traversal"] == "fused") != (choices["fringe"] == "pad4"):
            raise PlanError("a fused level reads no more than 4 numbers at a time, others read and write more")
        outer = [_level(_power(scheme, choices["outer"]), ["", options[1]])] if choices["outer"] else []
        return Plan.parse(" > ".join([*outer, _level(_power(scheme, choices["inner"]), options), leaf]))
    depth = int(choices["depth"])
    levels = [_power(scheme, str(depth))] if choices["composed"] == "yes" else [scheme] * depth
    first = [choices["balanced"]] if choices.get("balanced") else []
    return Plan.parse(" > ".join([*first, *(_level(x, options) for x in levels), leaf]))


def _power(scheme: str, exponent: str) -> str:
    return scheme if exponent == "1" else f"{scheme}^{exponent}"


def _level(name: str, options: Sequence[str]) -> str:
    return ".".join([name, *filter(None, options)])


@lru_cache(maxsize=4)
def inverse(space: tuple[tuple[str, tuple[str, ...]], ...]) -> Mapping[Plan, dict[str, str]]:
    """Every plan that choices can make, with the first choices that do."""
    found: dict[Plan, dict[str, str]] = {}
    for values in product(*(values for _, values in space)):
        choices = dict(zip((name for name, _ in space), values, strict=True))
        with suppress(PlanError):
            found.setdefault(built(choices), choices)
    return found

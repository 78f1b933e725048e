"""The search space of plans: a plan is built by `build_plan` from choices, such as the scheme and the leaf.

For choices that contradict each other, `build_plan` raises PlanError with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product

from fmm.dtypes import DTYPES, FLOAT_TYPES
from fmm.kernels.plans.leaf import parse_leaf
from fmm.kernels.plans.level import parse_level
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.candidates import candidate_levels, candidate_plans, device_leaves, tuner_search_levels
from fmm.tuner.devices.device import TunableDevice

MAX_PASS_PRODUCTS = 7**3  # largest number of products of several levels that are computed in one pass
SearchSpace = Mapping[str, Sequence[str]]  # name of a choice, such as "leaf" -> its possible values


def search_space(device: str) -> SearchSpace:
    """Return the search space of a kind of device, which is `cpu` or `cuda`."""
    schemes = tuple(level.text for level in tuner_search_levels(device))
    # Leaves for integers are left out, since products of integers are not tuned.
    floats = [leaf for leaf in device_leaves(device) if any(t in FLOAT_TYPES for t in leaf.types)]
    # All leaves are in the search space: the effort limits the number of plans that are timed.
    leaves = tuple(name for leaf in floats for name in leaf.names_in_tuner_search)
    if device == "cuda":
        return {
            "scheme": schemes,
            "outer": ("", "1", "2"),  # number of levels above the pass of "inner"
            "inner": ("1", "2", "3"),  # number of innermost levels, which are computed in one pass
            "traversal": ("batched", "", "overlapped", "fused"),
            "fringe": ("pad16", "pad64", "pad4"),
            "leaf": leaves,
            "numbers": ("", *_type_changing_levels(device)),
        }
    space = {
        "scheme": schemes,
        "depth": ("1", "2", "3"),
        "composed": ("no", "yes"),  # "yes" computes all levels in one pass
        "traversal": ("", "stacked", "sequential"),
        "fringe": ("", "unequal", "pad", "peel"),
        "balanced": ("", "balanced(2)"),
        "numbers": ("", *_type_changing_levels(device)),
    }
    return {**space, "leaf": leaves} if len(leaves) > 1 else space


def device_search_space(device: TunableDevice) -> SearchSpace:
    """Return the search space of a device."""
    return search_space("cuda" if device.untuned_model().batches else "cpu")


def space_for_dtype(space: SearchSpace, dtype: str) -> SearchSpace:
    """Return the search space without levels and leaf options that are invalid for this element type."""
    fitting = [x for x in space.get("numbers", ()) if not x or dtype in (parse_level(x).types or (dtype,))]
    left = {name: values for name, values in space.items() if name != "numbers"}
    if "leaf" in space:
        left["leaf"] = tuple(name for name in space["leaf"] if _has_valid_options(name, dtype))
    return left | ({"numbers": tuple(fitting)} if len(fitting) > 1 else {})


def _has_valid_options(leaf: str, dtype: str) -> bool:
    """Return True if the options of a leaf, if any, are valid for the type or for the real type of a complex type."""
    use, real = parse_leaf(leaf), DTYPES[dtype].real or dtype
    compared = use.leaf.candidate_types
    return not use.options or (real in use.multiplied_types() and (compared is None or real in compared))


def _type_changing_levels(device: str) -> list[str]:
    """Return the levels that change the element type of the products below them, such as 3m and residues."""
    first = [str(plan.levels[0]) for plan in candidate_plans(device) if plan.levels]
    return [level.text for level in candidate_levels() if level.above and level.text in first]


def build_plan(choices: Mapping[str, str]) -> Plan:
    """Return the plan that has these choices; raise PlanError if the choices contradict each other."""
    scheme, options = choices["scheme"], [choices.get(name, "") for name in ("traversal", "fringe")]
    leaf = choices.get("leaf", "vendor")
    above = [choices["numbers"]] if choices.get("numbers") else []
    if "inner" in choices:
        _check_gpu_choices(choices, _level_options(scheme))
        outer = [_level_text(_level_power_text(scheme, choices["outer"]), ["", options[1]])] if choices["outer"] else []
        return Plan.parse(
            " > ".join([*above, *outer, _level_text(_level_power_text(scheme, choices["inner"]), options), leaf])
        )
    depth = int(choices["depth"])
    levels = [_level_power_text(scheme, str(depth))] if choices["composed"] == "yes" else [scheme] * depth
    first = [choices["balanced"]] if choices.get("balanced") else []
    return Plan.parse(" > ".join([*above, *first, *(_level_text(x, options) for x in levels), leaf]))


def _check_gpu_choices(choices: Mapping[str, str], forms: Sequence[str]) -> None:
    """Raise PlanError for choices that are useless on a GPU: their kernels compile too long, or they gain nothing."""
    outer, inner, traversal = (choices[name] for name in ("outer", "inner", "traversal"))
    if inner == "3" and (traversal != "batched" or "one pass" not in forms):
        raise PlanError("three levels in one pass take long to compile; only batches of some schemes are faster")
    if "copied" in forms and (outer, inner, traversal) != ("", "1", "batched"):
        raise PlanError("a level that only copies operands has one product: other levels and traversals gain nothing")
    if traversal == "fused" and inner != "1":
        raise PlanError("each product of a fused level has its own kernel: two fused levels would need 49 kernels")
    if traversal != "fused" and parse_leaf(choices.get("leaf", str(VENDOR))).options:
        raise PlanError("for products without sums inside, the block model already selects the fastest tiles")
    if (traversal == "fused") != (choices["fringe"] == "pad4"):
        raise PlanError("a fused level accesses at most 4 numbers at a time and needs pad4; other levels access more")


def _level_options(text: str) -> tuple[str, ...]:
    """Return the options with which candidates use a level, such as `one pass`."""
    return next((level.forms for level in candidate_levels() if level.text == text), ())


def _level_power_text(scheme: str, exponent: str) -> str:
    """Return the text of `exponent` levels of a scheme in one pass, such as strassen^2.

    PlanError is raised for more than MAX_PASS_PRODUCTS products.
    """
    level = next((level for level in candidate_levels() if level.text == scheme), None)
    if level and level.products ** int(exponent) > MAX_PASS_PRODUCTS:
        raise PlanError(
            f"{scheme}^{exponent} has more than {MAX_PASS_PRODUCTS} products: they take long to compose, and to compile"
        )
    return scheme if exponent == "1" else f"{scheme}^{exponent}"


def _level_text(name: str, options: Sequence[str]) -> str:
    return ".".join([name, *filter(None, options)])


@clear_on_registration
@lru_cache(maxsize=4)
def choices_by_plan(space: tuple[tuple[str, tuple[str, ...]], ...]) -> Mapping[Plan, dict[str, str]]:
    """Return a dictionary of all plans in the search space: plan -> the first choices that build this plan."""
    found: dict[Plan, dict[str, str]] = {}
    for values in product(*(values for _, values in space)):
        choices = dict(zip((name for name, _ in space), values, strict=True))
        with suppress(PlanError):
            found.setdefault(build_plan(choices), choices)
    return found


@lru_cache(maxsize=1024)
def _first_choices(plan: Plan, space: tuple[tuple[str, tuple[str, ...]], ...]) -> dict[str, str] | None:
    text = str(plan)
    fitting = [[v for v in values if name not in TEXTUAL_CHOICES or v in text] for name, values in space]
    for values in product(*fitting):
        choices = dict(zip((name for name, _ in space), values, strict=True))
        with suppress(PlanError):
            if build_plan(choices) == plan:
                return choices
    return None


TEXTUAL_CHOICES = ("scheme", "leaf", "numbers")  # choices whose values are parts of the text of the plan


def choices_of_plan(plan: Plan, space: SearchSpace) -> dict[str, str] | None:
    """Return the first choices that build a plan; None if the plan is not in the search space."""
    return _first_choices(plan, tuple((name, tuple(values)) for name, values in space.items()))

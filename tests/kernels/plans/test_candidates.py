"""Candidates: exactly which plans are compared and searched today, and that what is added is among them."""

from __future__ import annotations

import pytest

from fmm.kernels.algorithms.text_files import (
    FORM_ABOVE_CANDIDATES,
    FORM_ABOVE_WITHOUT_OPTIONS,
    FORM_SEARCH_ONLY,
    parse_candidate_forms,
)
from fmm.kernels.algorithms.text_files import PLAN_FORM_NAMES as NAMED
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.candidates import (
    PLAN_PATTERNS,
    candidate_levels,
    candidate_plans,
    probed_plans,
    vendor_alternative_plans,
    workspace_saving_levels,
)
from fmm.perfmodel.candidates import device_candidate_plans as compared
from fmm.tuner.search.space import choices_by_plan, search_space, space_for_dtype

RESIDUES = ["residues(14) > bytes", "residues(14) > strassen > bytes"]  # of float64
ACCURATE = [f"residues({moduli}) > {end}" for moduli in (15, 16, 8) for end in ("bytes", "strassen > bytes")]
CPU = [
    "vendor",
    "winograd > vendor",
    "winograd > winograd > vendor",
    "winograd > winograd > winograd > vendor",
    "strassen > vendor",
    "strassen > strassen > vendor",
    "strassen > strassen > strassen > vendor",
    "li-fig23 > vendor",
    "li-fig23 > li-fig23 > vendor",
    "li-fig23 > li-fig23 > li-fig23 > vendor",
]
GPU = [
    "vendor",
    "strassen.batched.pad16 > vendor",
    "strassen^2.batched.pad16 > vendor",
    "strassen^3.batched.pad16 > vendor",
    "strassen.batched.pad16 > f16x3",
    "strassen^2.batched.pad16 > f16x3",
    "strassen^3.batched.pad16 > f16x3",
    "strassen.overlapped.pad16 > strassen^2.batched.pad16 > vendor",
    "strassen.overlapped.pad16 > strassen^3.batched.pad16 > vendor",
    "strassen^2.overlapped.pad16 > strassen^2.batched.pad16 > vendor",
    "strassen^2.overlapped.pad16 > strassen^3.batched.pad16 > vendor",
    "strassen.overlapped.pad16 > strassen^2.batched.pad16 > f16x3",
    "strassen.overlapped.pad16 > strassen^3.batched.pad16 > f16x3",
    "strassen^2.overlapped.pad16 > strassen^2.batched.pad16 > f16x3",
    "strassen^2.overlapped.pad16 > strassen^3.batched.pad16 > f16x3",
    "winograd.overlapped.pad16 > vendor",
    "winograd.pad16 > vendor",
    "winograd^2.overlapped.pad16 > vendor",
    "winograd^2.pad16 > vendor",
    "winograd.overlapped.pad16 > f16x3",
    "winograd.pad16 > f16x3",
    "winograd^2.overlapped.pad16 > f16x3",
    "winograd^2.pad16 > f16x3",
    "aligned.batched.pad16 > vendor",
    "strassen.fused.pad4 > tile",
    "strassen.pad4 > strassen.fused.pad4 > tile",
    "f16x3",
    *RESIDUES,
]
# Candidates that a tuning's probes do not measure: fmm's own tiled kernel, and the products by residues that only a
# call with a small `max_error_growth` uses.
OWN = [
    "strassen.batched.pad16 > tile",
    "strassen^2.batched.pad16 > tile",
    "strassen^3.batched.pad16 > tile",
    "strassen.overlapped.pad16 > strassen^2.batched.pad16 > tile",
    "strassen.overlapped.pad16 > strassen^3.batched.pad16 > tile",
    "strassen^2.overlapped.pad16 > strassen^2.batched.pad16 > tile",
    "strassen^2.overlapped.pad16 > strassen^3.batched.pad16 > tile",
    "tile",
    *ACCURATE,
]
TWO, TWO_UNPROBED = (  # no probe measures the second list
    [f"residues2m({count}){below} > bytes" for count in counts for below in ("", " > strassen")]
    for counts in ((15,), (17, 8))
)
WITH_RESIDUES = [*RESIDUES, *ACCURATE, *TWO, *TWO_UNPROBED]
REAL = (*GPU, *OWN)
# Strategies that a search names.
SHAPES = ("small", "medium", "large", "tall", "wide", "huge", "square", "half", "third", "broad")
TILES = [f"tile.{name}" for name in SHAPES]
WHOLE = ["residues > bytes", "residues > strassen > bytes"]  # of integers on a GPU
EXACT = [*(plan.replace("vendor", "digits") for plan in CPU[1:]), "digits"]  # of integers, which are not tuned
LEAVES = [plan for plan in REAL if not Plan.parse(plan).levels]
# Of complex numbers, which no probe of a tuning measures either.
COMPLEX = {
    "cpu": [f"{order} > {plan}" for order in ("3m", "3m.sequential") for plan in CPU],
    "cuda": [
        "vendor3m",
        *(f"3m > {plan}" for plan in REAL),
        *(f"3m.batched > {leaf}" for leaf in LEAVES),
        *(f"3m.overlapped > {plan}" for plan in REAL if "overlapped" not in plan),
        *(f"3m({scheme}.pad16) > {leaf}" for scheme in ("strassen", "strassen^2") for leaf in LEAVES),
        *(f"3m.sequential > {plan}" for plan in REAL),
    ],
}


@pytest.mark.parametrize(("device", "expected"), [("cpu", CPU), ("cuda", [*GPU, *TWO])])
def test_what_is_compared(device: str, expected: list[str]) -> None:
    """In this order: equally fast plans are chosen by it, and the tuner's probes take the first ones."""
    assert [str(plan) for plan in probed_plans(device)] == expected
    more = {"cpu": EXACT, "cuda": [*OWN[: -len(ACCURATE)], *WHOLE, *ACCURATE, *TWO_UNPROBED]}[device]
    assert [str(plan) for plan in candidate_plans(device)] == [*expected, *more, *COMPLEX[device]]
    assert compared(device == "cuda") == candidate_plans(device)


def test_what_may_stand_above_a_candidate() -> None:
    found = [str(level) for level in workspace_saving_levels("cuda")]
    assert [x for x in found if x.startswith("li-")] == ["li-fig2.pad16", "li-fig23.pad16"]
    for name in ("strassen", "winograd"):
        options = [".sequential.pad16", ".pad16", ".overlapped.pad16", "^2.pad16", "^2.overlapped.pad16"]
        assert [x for x in found if x.startswith(name)] == [name + x for x in options]
    assert found[-1] == "quarters" and workspace_saving_levels("cpu") == ()


def test_what_else_the_vendor_has() -> None:
    assert [str(plan) for plan in vendor_alternative_plans("cuda")] == ["lt0", "lt1", "lt2", "lt3", "vendor3m"]
    assert vendor_alternative_plans("cpu") == ()


def test_what_is_searched() -> None:
    assert search_space("cpu") == {
        "scheme": ("winograd", "strassen", "dps", "li-fig23", "hasa"),
        "depth": ("1", "2", "3"),
        "composed": ("no", "yes"),
        "traversal": ("", "stacked", "sequential"),
        "fringe": ("", "unequal", "pad", "peel"),
        "balanced": ("", "balanced(2)"),
        "numbers": ("", "3m", "3m.sequential"),
    }
    assert search_space("cuda") == {
        "scheme": ("strassen", "winograd", "aligned"),
        "outer": ("", "1", "2"),
        "inner": ("1", "2", "3"),
        "traversal": ("batched", "", "overlapped", "fused"),
        "fringe": ("pad16", "pad64", "pad4"),
        "leaf": ("vendor", "lt0", "lt1", "lt2", "lt3", "tile", *TILES, "f16x3", *WITH_RESIDUES, "vendor3m"),
        "numbers": (
            "",
            "3m",
            "3m.batched",
            "3m.overlapped",
            "3m(strassen.pad16)",
            "3m(strassen^2.pad16)",
            "3m.sequential",
        ),
    }
    # Only complex numbers are searched with levels for them.
    for device in ("cpu", "cuda"):
        space = search_space(device)
        assert space_for_dtype(space, "complex64") == space
        assert space_for_dtype(space, "float32") == {name: x for name, x in space.items() if name != "numbers"}


def test_strategies_are_searched_where_sums_are_inside() -> None:
    """Huang, Yu and van de Geijn's and our own, of the types that have them; elsewhere the space is as it was."""
    space = search_space("cuda")
    named = [name for name in space["leaf"] if name.startswith("tile.")]
    plans = choices_by_plan(tuple(space_for_dtype(space, "float32").items()))
    found = [str(plan) for plan in plans if plan.leaf in named]
    assert {"strassen.fused.pad4 > tile.huge", "winograd.pad4 > winograd.fused.pad4 > tile.square"} <= set(found)
    assert all(".fused.pad4 > tile." in plan for plan in found) and len(found) < len(plans) / 2
    for dtype in ("float64", "complex128", "bfloat16", "tf32"):
        assert not set(named) & set(space_for_dtype(space, dtype)["leaf"]), dtype


def test_every_form_that_a_file_may_name_is_one() -> None:
    assert {*(form.name for form in PLAN_PATTERNS), FORM_ABOVE_CANDIDATES, FORM_SEARCH_ONLY} == set(NAMED)
    assert all(set(level.forms) <= {*NAMED, FORM_ABOVE_WITHOUT_OPTIONS} for level in candidate_levels())


LINES = [
    # (the text of a file, in which forms it is considered)
    ("name  x\n", ("nested", "one pass")),  # nothing said: the usual ones
    ("name  x\nconsider  nothing\n", ()),
    ("consider nothing   # it never pays\nname  x\n", ()),
    ("name  x\nconsider  outer, in place  # and not alone\n", ("outer", "in place")),
]


@pytest.mark.parametrize(("text", "forms"), LINES)
def test_the_line_consider(text: str, forms: tuple[str, ...]) -> None:
    assert parse_candidate_forms(text) == forms


def test_a_form_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown form 'sideways' in the line consider; valid: nothing, or some of"):
        parse_candidate_forms("consider  nested, sideways\n")

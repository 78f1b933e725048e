"""Plans: the text form, its defaults, its round trip, and what it says about mistakes."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fmm
from fmm.kernels.algorithms.catalogue import scheme_names
from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.plans.explain import format_bytes
from fmm.kernels.plans.leaf import leaf_option_text, leaves_by_text, parse_leaf_option, plan_leaves
from fmm.kernels.plans.levels.balanced import balanced_level
from fmm.kernels.plans.levels.gram import gram_level
from fmm.kernels.plans.levels.scheme_level import FRINGES, PAD_OPTIONS, SchemeLevel, level_with_options, scheme_level
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.candidates import candidate_plans, gram_candidates, vendor_alternative_plans

EXPRESSIONS = [*scheme_names(), "strassen^2", "winograd*hk223", "hk322*strassen", "classical*winograd^2"]

ANY = st.sampled_from(FRINGES + PAD_OPTIONS)
LEVELS = (
    st.builds(scheme_level, st.sampled_from(EXPRESSIONS), st.sampled_from(["stacked", "sequential"]), ANY)
    | st.builds(
        scheme_level, st.sampled_from(EXPRESSIONS), st.just("batched"), ANY.filter(lambda f: f.startswith("pad"))
    )
    | st.builds(scheme_level, st.sampled_from(step_table_names()), st.just("sequential"), ANY)
    | st.builds(balanced_level, st.floats(1.5, 1e9))
)
TASKS = [(), ("streams",), ("atomic",), ("variants",), ("streams", "variants"), ("atomic", "variants")]
FUSED = st.builds(scheme_level, st.sampled_from(EXPRESSIONS), st.just("fused"), ANY, st.sampled_from(TASKS))
PLANS = st.builds(Plan, st.lists(LEVELS, max_size=4).map(tuple)) | st.builds(
    lambda levels, last, leaf: Plan((*levels, last), leaf),
    st.lists(LEVELS, max_size=2),
    FUSED,
    st.sampled_from(["tile", "tile.huge", "tile.half.inner"]),
)


@given(PLANS)
def test_round_trip(plan: Plan) -> None:
    text = str(plan)
    assert Plan.parse(text) == plan
    assert hash(Plan.parse(text)) == hash(plan)
    assert str(Plan.parse(text)) == text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_candidate_has_a_text_that_reads_back(device: str) -> None:
    """Candidates of products and of Gram products, the vendor's alternatives, and what a search adds to them."""
    plans = [*candidate_plans(device), *gram_candidates(device), *vendor_alternative_plans(device)]
    for plan in plans:
        assert Plan.parse(str(plan)) == plan
        below = [
            plan.inner_plan,
            plan.gram_plan,
            plan.plan_with_less_recursion,
            Plan(plan.levels[:1], plan.leaf) if plan.levels else plan,
        ]
        for part in below:
            assert Plan.parse(str(part)) == part and str(Plan.parse(str(part))) == str(part)


@pytest.mark.quick_cases(60)
@pytest.mark.parametrize("leaf", sorted({str(use) for row in plan_leaves() for use in row.all_text_variants}))
def test_every_leaf_below_gram_reads_back(leaf: str) -> None:
    """A leaf alone, below the level gram, and as the leaf of the blocks on the diagonal, if it can be that."""
    for plan in (Plan(leaf=leaf), Plan((gram_level(2),), leaf)):
        assert Plan.parse(str(plan)) == plan
    if leaf.count(">") > 1:
        with pytest.raises(PlanError, match="cannot have levels"):
            gram_level(2, leaf)
    else:
        plan = Plan((gram_level(2, leaf),))
        assert Plan.parse(str(plan)) == plan and plan.levels[0].named_leaves == (leaf,)


@given(PLANS)
def test_a_plan_can_be_sent_to_other_processes(plan: Plan) -> None:
    assert pickle.loads(pickle.dumps(plan)) == plan and copy.deepcopy(plan) == plan


@given(PLANS)
def test_the_text_has_one_part_a_level(plan: Plan) -> None:
    assert len(str(plan).split(" > ")) == len(plan.levels) + 1
    assert str(plan).endswith(plan.leaf)


CANONICAL = [
    # (text, its short form)
    ("vendor", "vendor"),
    ("  vendor ", "vendor"),
    ("winograd>vendor", "winograd > vendor"),
    ("strassen.stacked.unequal > vendor", "strassen > vendor"),
    ("strassen.peel.sequential > vendor", "strassen.sequential.peel > vendor"),
    ("strassen*strassen > vendor", "strassen^2 > vendor"),
    ("strassen^1 > vendor", "strassen > vendor"),
    ("winograd * winograd^2.pad > vendor", "winograd^3.pad > vendor"),
    ("balanced > vendor", "balanced(2) > vendor"),
    ("balanced() > vendor", "balanced(2) > vendor"),
    ("balanced(2.0) > hasa > vendor", "balanced(2) > hasa > vendor"),
    ("balanced(1.5) > vendor", "balanced(1.5) > vendor"),
    ("hasa.sequential.unequal > vendor", "hasa > vendor"),
    ("hasa.pad > vendor", "hasa.pad > vendor"),
    ("li-fig2.pad > vendor", "li-fig2 > vendor"),
    ("winograd^2 > li-fig3.peel > vendor", "winograd^2 > li-fig3.peel > vendor"),
    ("strassen-huang > vendor", "strassen-huang > vendor"),
    ("strassen.pad16 > vendor", "strassen.pad16 > vendor"),
    ("strassen.unequal.overlapped > lt3", "strassen.overlapped > lt3"),
    ("strassen.batched > vendor", "strassen.batched > vendor"),
    ("strassen.pad.batched > vendor", "strassen.batched > vendor"),
    ("strassen.batched.pad32 > vendor", "strassen.batched.pad32 > vendor"),
    ("strassen.fused > tile", "strassen.fused > tile"),
    ("strassen.streams.unequal.fused > tile", "strassen.fused.streams > tile"),
    ("strassen^2.variants.pad.fused.atomic > tile.huge", "strassen^2.fused.atomic.variants.pad > tile.huge"),
]


@pytest.mark.parametrize(("text", "short"), CANONICAL)
def test_text_forms(text: str, short: str) -> None:
    assert str(Plan.parse(text)) == short
    assert Plan.parse(text) == Plan.parse(short)


DEFAULTS = [
    ("strassen", "stacked", "unequal"),
    ("hk223*winograd", "stacked", "unequal"),
    ("strassen.overlapped", "overlapped", "unequal"),
    ("strassen.batched", "batched", "pad"),  # a batch needs equal blocks
    ("hasa", "sequential", "unequal"),
    ("adaptive-winograd", "sequential", "unequal"),
    ("li-fig3", "sequential", "unequal"),  # proved to bear unequal blocks
    ("li-fig2", "sequential", "pad"),  # proved not to
    ("li-fig12", "sequential", "pad"),
    ("li-fig16", "sequential", "pad"),
]


@pytest.mark.parametrize(("algorithm", "traversal", "fringe"), DEFAULTS)
def test_defaults(algorithm: str, traversal: str, fringe: str) -> None:
    (found,) = Plan.parse(f"{algorithm} > vendor").levels
    assert isinstance(found, SchemeLevel)
    assert (found.algorithm, found.traversal, found.fringe) == (algorithm.split(".")[0], traversal, fringe)
    assert found == level_with_options(*algorithm.split("."))


UNIT = [("strassen", 1), ("strassen.pad", 1), ("strassen.peel", 1), ("strassen.pad16", 16), ("hasa.pad128", 128)]


@pytest.mark.parametrize(("text", "unit"), UNIT)
def test_units(text: str, unit: int) -> None:
    assert level_with_options(*text.split(".")).padded_side_multiple == unit


def test_a_level_knows_its_grid_and_products() -> None:
    assert (level_with_options("hk223").block_grid, level_with_options("hk223").products) == ((2, 2, 3), 11)
    assert (level_with_options("strassen^2").block_grid, level_with_options("strassen^2").products) == ((4, 4, 4), 49)
    assert (level_with_options("li-fig3").block_grid, level_with_options("li-fig3").products) == ((2, 2, 2), 7)


DEPTHS = [("vendor", 0), ("balanced > vendor", 0), ("strassen > vendor", 1), ("strassen^2 > li-fig3 > vendor", 3)]


@pytest.mark.parametrize(("text", "depth"), DEPTHS)
def test_depth(text: str, depth: int) -> None:
    assert Plan.parse(text).depth == depth


def test_the_rest_is_the_plan_without_its_first_level() -> None:
    plan = Plan.parse("strassen^2 > hasa > vendor")
    assert str(plan.inner_plan) == "hasa > vendor"
    assert plan.inner_plan.inner_plan == VENDOR == Plan() == Plan.parse("vendor")


BAD = [
    # (text, what the message must say)
    ("nosuch > vendor", "unknown algorithm 'nosuch'; valid: .*strassen.*winograd.*hasa.*li-fig3.*balanced"),
    ("strassen*nosuch > vendor", "unknown algorithm 'nosuch'; valid: "),
    ("li-fig99 > vendor", "unknown algorithm 'li-fig99'.*li-fig3"),
    ("hasa*strassen > vendor", "step table"),  # hasa is known, but step tables do not compose
    ("hasa^2 > vendor", "step table"),
    ("strassen.foo > vendor", "unknown option 'foo' of strassen; valid: stacked, .*sequential, unequal, pad, peel"),
    ("strassen. > vendor", "unknown option '' of strassen; valid: "),
    ("strassen.pad3 > vendor", "unknown option 'pad3' of strassen; valid: .*pad4, pad8, pad16"),
    ("strassen.batched.peel > vendor", "strassen: a batch needs equal blocks: pad, not peel"),
    ("strassen.batched.unequal > vendor", "a batch needs equal blocks: pad, not unequal"),
    ("hasa.batched > vendor", "the step table hasa is sequential, not batched"),
    ("hasa.stacked > vendor", "the step table hasa is sequential, not stacked"),
    ("strassen.overlapped > winograd.overlapped > vendor", "winograd.overlapped below strassen.overlapped: only one"),
    ("strassen.fused > vendor", "strassen.fused: only the last level can be fused, into the leaf tile"),
    ("strassen.fused > winograd > tile", "only the last level can be fused"),
    ("hasa.fused > tile", "the step table hasa is sequential, not fused"),
    ("strassen.streams > tile", "strassen: only a fused level can have streams"),
    ("strassen.batched.atomic.variants > tile", "strassen: only a fused level can have atomic and variants"),
    ("strassen.fused.streams.atomic > tile", "atomic additions need no order of products"),
    ("strassen.overlapped > strassen.fused.streams > tile", "only one level of a plan can run products concurrently"),
    ("strassen > lt32", "ends in 'lt32'; a plan ends in its leaf: vendor, lt0 to lt31, .*each with .inner"),
    ("strassen > vendor.middle", "ends in 'vendor.middle'"),
    ("strassen > gpu", "ends in 'gpu'; a plan ends in its leaf: vendor"),
    ("strassen", "ends in 'strassen'; a plan ends in its leaf: vendor"),
    ("vendor > strassen", "ends in 'strassen'"),
    ("", "ends in ''.*vendor"),
    (" > vendor", "unknown"),
    ("strassen > > vendor", "unknown"),
    ("vendor > vendor", "unknown algorithm 'vendor'"),
    ("balanced(x) > vendor", r"balanced\(x\): write balanced\(gamma\)"),
    ("balanced(2,3) > vendor", r"balanced\(2,3\): write balanced\(gamma\)"),
    ("balanced(1e309) > vendor", "gamma must be finite and at least 1.5"),
    ("residues(0) > bytes", r"residues\(0\): valid numbers of moduli are float64: 13, 14, 15, 16; float32: 7, 8, 9"),
    ("residues(-1) > bytes", r"residues\(-1\): valid numbers of moduli"),
    ("residues(x) > bytes", r"residues\(x\): valid numbers of moduli"),
    ("sforza(3,0) > vendor", r"sforza\(3,0\): write sforza\(recursion\) or sforza\(recursion,cutoff\)"),
    ("sforza(x) > vendor", r"sforza\(x\): write sforza\(recursion\)"),
    ("sforza(1,2,3) > vendor", r"sforza\(1,2,3\): write sforza\(recursion\)"),
    ("winograd > strassen > sforza > strassen > vendor", r"sforza\(1\) cuts only Gram products"),
    ("balanced(1) > vendor", r"balanced\(1\): gamma must be finite and at least 1.5"),
    ("balanced(-2) > vendor", "gamma must be finite and at least 1.5"),
    ("balanced(nan) > vendor", "gamma must be finite and at least 1.5"),
    ("balanced(2 > vendor", r"balanced\(2"),
    ("strassen^0 > vendor", "power '0' is not a whole number from 1 to"),
    ("strassen^99 > vendor", "power '99' is not a whole number from 1 to"),
    ("strassen^x > vendor", "x"),
    ("strassen^ > vendor", "strassen"),
    ("strassen^2strassen > vendor", "2strassen"),
    ("strassen* > vendor", "unknown"),
    # Two answers to one question: neither is taken silently.
    ("strassen.pad.peel > vendor", "pad.*peel"),
    ("strassen.stacked.sequential > vendor", "stacked.*sequential"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_mistakes_are_named_with_what_is_valid(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message) as error:
        Plan.parse(text)
    assert text in str(error.value), "the whole text, so that it can be found in a config file"


MEANT = [
    # (text, the plan that was meant)
    ("winograd", "winograd > vendor"),
    ("winograd >", "winograd > vendor"),
    ("strassen^2.batched.pad16", "strassen^2.batched.pad16 > vendor"),
    ("strasen > vendor", "strassen > vendor"),
    ("strassen*winogard > vendor", "strassen*winograd > vendor"),
    ("WINOGRAD > Vendor", "winograd > vendor"),
    ("'winograd > vendor'", "winograd > vendor"),
    ("winograd -> vendor", "winograd > vendor"),
    ("winograd > > vendor", "winograd > vendor"),
    ("winograd > vendr", "winograd > vendor"),
    ("balansed(2) > hasa > vendor", "balanced(2) > hasa > vendor"),
    ("strassen.fused.pad4 > tiles", "strassen.fused.pad4 > tile"),
    ("strassen > f16x", "strassen > f16x3"),
    ("3M > vendor", "3m > vendor"),
]


@pytest.mark.parametrize(("text", "meant"), MEANT)
def test_an_error_of_a_text_ends_in_what_was_meant(text: str, meant: str) -> None:
    case = " (plans are in lower case)" if text != text.lower() else ""
    with pytest.raises(PlanError, match=rf".+; did you mean {re.escape(repr(meant))}{re.escape(case)}\?$"):
        Plan.parse(text)
    assert str(Plan.parse(meant)) == meant


@pytest.mark.parametrize("text", ["nonsense > vendor", "", "vendor > strassen", "balanced(1) > vendor", ">", "einsum"])
def test_where_nothing_is_near_nothing_is_guessed(text: str) -> None:
    with pytest.raises(PlanError) as error:
        Plan.parse(text)
    assert "did you mean" not in str(error.value)


@pytest.mark.parametrize("text", ["strasen > " * 300 + "vendor", "strassen > " * 500 + "vendor", "x" * 5000])
def test_a_plan_is_no_book(text: str) -> None:
    """What is too long for a plan is neither guessed at nor repeated."""
    with pytest.raises(PlanError, match=f"at most 1000 letters, not of {len(text)}") as error:
        Plan.parse(text)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("text", [None, 3, b"vendor", VENDOR])
def test_a_plan_is_read_from_text_only(text: object) -> None:
    with pytest.raises(PlanError, match=re.escape(repr(text))):
        Plan.parse(text)  # type: ignore[arg-type]


BUILT = [
    (lambda: Plan((), "cublas"), "unknown leaf 'cublas'; valid: vendor"),
    (lambda: scheme_level("strassen", "woven"), "unknown traversal 'woven'; valid: stacked, .*sequential"),  # type: ignore[arg-type]
    (lambda: scheme_level("strassen", "stacked", "crop"), "unknown fringe 'crop'; valid: unequal, pad, peel"),
    (lambda: scheme_level("hasa"), "the step table hasa is sequential, not stacked"),
    (lambda: scheme_level("nosuch"), "nosuch.*strassen"),
    (
        lambda: scheme_level("strassen", "fused", tasks=("threads",)),
        "unknown option 'threads'; valid: streams, atomic, ",
    ),
    (lambda: balanced_level(1.2), "at least 1.5"),
]


@pytest.mark.parametrize(("build", "message"), BUILT, ids=[message for _, message in BUILT])
def test_plans_built_by_hand_are_checked_too(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]


def test_a_composition_spelt_out_is_the_same_level() -> None:
    """Plans are keys: the two spellings must not be two plans."""
    built = Plan((scheme_level("strassen*strassen"),))
    assert Plan.parse(str(built)) == built


SIDES = [
    # (m, k, n, which side is halved): Table 1 of D'Alberto and Nicolau, gamma = 2, tested in the order m, n, k
    (8, 4, 4, "m"),
    (8, 4, 5, None),
    (7, 4, 4, None),
    (4, 4, 8, "n"),
    (4, 8, 4, "k"),
    (100, 1, 50, "m"),
    (50, 1, 100, "n"),
    (8, 2, 8, None),  # two long sides of three: nothing to halve
    (1, 1, 1, None),
    (1, 1, 2, "n"),
    (2, 1, 1, "m"),
    (1, 2, 1, "k"),
    (0, 0, 0, None),
    (0, 5, 3, None),
    (4, 0, 0, "m"),
]


@pytest.mark.parametrize(("m", "k", "n", "side"), SIDES)
def test_table_1_of_dalberto_and_nicolau(m: int, k: int, n: int, side: str | None) -> None:
    assert balanced_level().side_to_halve(m, k, n) == side


@given(st.floats(1.5, 10), *[st.integers(0, 3000)] * 3)
def test_halving_ends_almost_square(gamma: float, m: int, k: int, n: int) -> None:
    balanced = balanced_level(gamma)
    sides = {"m": m, "k": k, "n": n}
    for _ in range(40):
        side = balanced.side_to_halve(sides["m"], sides["k"], sides["n"])
        if side is None:
            break
        others = [length for name, length in sides.items() if name != side]
        assert sides[side] >= gamma * max(others)
        sides[side] = -(-sides[side] // 2)
    else:
        pytest.fail("does not end")
    low, high = sorted(sides.values())[1:]
    assert high < gamma * low or high <= 1


@pytest.mark.parametrize("dtype", ["float99", "", object()])
def test_an_unknown_dtype_names_the_valid_ones(dtype: object) -> None:
    with pytest.raises(TypeError, match=r"unknown dtype .*; valid: float64, float32, tf32, .*, bool"):
        fmm.plan(500, 500, 500, dtype=dtype)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        ((1 << 30) - 1, "1024.0 MiB"),
        (5 << 29, "2.5 GiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_that_fits(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


def test_each_leaf_is_found_by_its_text_in_an_option() -> None:
    """The text of a leaf with levels inside is whole: only `residues(14)` is short for `residues(14) > bytes`."""
    uses = leaves_by_text().values()
    assert all(parse_leaf_option(leaf_option_text(use)) == use for use in uses)
    with_levels = [use for use in uses if str(use).count(">") > 1]
    assert with_levels and all(leaf_option_text(use) == str(use) for use in with_levels)

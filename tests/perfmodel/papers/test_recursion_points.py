"""The alpha/pi model of D'Alberto and Nicolau: Equations 2 and 3, other schemes, Balanced, Table 3."""

from dataclasses import replace
from fractions import Fraction
from math import inf

import pytest

import fmm
from fmm.kernels.algorithms.catalogue import scheme
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.default_calibration import cpu_calibration
from fmm.perfmodel.papers import dalberto
from fmm.perfmodel.papers.dalberto import TABLE_3_SYSTEMS
from fmm.perfmodel.papers.recursion_points import (
    STRASSEN_WORK,
    WINOGRAD_WORK,
    BlockWork,
    added_elements,
    alpha_over_pi,
    block_work,
    calibrated_thresholds,
    choose_hasa_plan,
    cut_balanced,
    first_level_speedup,
    is_level_profitable,
    level_speedups,
    levels_above_recursion_point,
    max_epsilon,
    recursion_levels,
    recursion_point,
    saved_flops,
    scheme_work,
)
from fmm.problem import Problem
from tests.oracles.dalberto import equation_2

Shape = tuple[int, int, int]


def work_of(name: str) -> BlockWork:
    found = scheme(name)
    return block_work(name, found.size, found.u, found.v, found.w)


# ---- Equations 2 and 3


@pytest.mark.parametrize("ratio", [0.5, 7.3, 30.0, 50.0])
def test_equation_2_as_printed(ratio: float) -> None:
    sizes = (2, 3, 101, 500, 777, 1500, 4001)
    for m in sizes:
        for n in sizes:
            for p in sizes:
                assert is_level_profitable((m, n, p), ratio) is not equation_2(m, n, p, ratio), (m, n, p)


@pytest.mark.parametrize(
    ("shape", "ratio", "epsilon", "yes"),
    [
        ((1100, 1100, 1100), 50.0, 0.0, False),  # section 3.3: n_1 > 1100 for alpha/pi = 50
        ((1102, 1102, 1102), 50.0, 0.0, True),
        ((1102, 1102, 1102), 50.0, 1.0, False),  # section 4.1.1's epsilon moves it to 1122
        ((1124, 1124, 1124), 50.0, 1.0, True),
        ((100_000, 400, 100_000), 50.0, 0.0, False),  # a thin product: the passes over C do not pay
        ((100_000, 2000, 100_000), 50.0, 0.0, True),
        ((1, 5000, 5000), 0.0, 0.0, False),  # nothing to split
    ],
)
def test_recurse(shape: Shape, ratio: float, epsilon: float, yes: bool) -> None:
    assert is_level_profitable(shape, ratio, epsilon=epsilon) is yes


@pytest.mark.parametrize("shape", [(1102, 1102, 1102), (777, 1500, 101), (1, 5000, 5000)])
def test_the_largest_correction_with_which_a_level_still_pays(shape: Shape) -> None:
    most = max_epsilon(shape, 30.0)
    assert is_level_profitable(shape, 30.0, epsilon=most - 0.01) is (most > -inf)
    assert not is_level_profitable(shape, 30.0, epsilon=max(most, -30.0) + 0.01)


@pytest.mark.parametrize("ratio", [17.7, 30.0, 39.3, 160.0])
def test_equation_3_is_equation_2_on_even_cubes(ratio: float) -> None:
    point = recursion_point(ratio)
    assert point == pytest.approx(22 * ratio)
    for n in range(2 * int(point / 2) - 10, 2 * int(point / 2) + 12, 2):
        assert is_level_profitable((n, n, n), ratio) is (n > point)


def test_the_ratio_may_depend_on_the_shape() -> None:
    """A vendor that is slow on small products moves the point down there only."""
    asked: list[Shape] = []

    def ratio(m: int, k: int, n: int) -> float:
        asked.append((m, k, n))
        return 10.0 if max(m, k, n) < 1000 else 100.0

    assert is_level_profitable((600, 600, 600), ratio)
    assert not is_level_profitable((1200, 1200, 1200), ratio)
    assert asked == [(600, 600, 600), (1200, 1200, 1200)]


@pytest.mark.parametrize("shape", [(0, 5, 5), (5, -2, 5)])
def test_sizes_must_be_positive(shape: Shape) -> None:
    for call in (
        lambda: is_level_profitable(shape, 1.0),
        lambda: levels_above_recursion_point(shape, 5),
        lambda: cut_balanced(shape),
    ):
        with pytest.raises(ValueError, match="must be positive"):
            call()


def test_the_ratio_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="must not be negative: -1"):
        is_level_profitable((100, 100, 100), -1.0)


# ---- any scheme


@pytest.mark.parametrize(
    ("name", "additions", "passes"),
    [("strassen", 18, (5, 5, 8)), ("winograd", 24, None), ("classical", None, None)],
)
def test_block_work_of_schemes(name: str, additions: int | None, passes: Shape | None) -> None:
    """Each operand on its own: Strassen's 18 additions of Table 2, without its 4 copies."""
    found = work_of(name)
    assert sum(found.additions) == (scheme(name).separate_addition_count if additions is None else additions)
    assert passes is None or found.pass_counts == passes


@pytest.mark.parametrize("shared", ["strassen", "winograd", "hk233", "strassen^2"])
def test_shared_sums_are_fewer(shared: str) -> None:
    found = scheme(shared)
    assert sum(scheme_work(found).additions) == found.addition_count <= found.separate_addition_count


def test_winograd_is_its_scheme() -> None:
    assert scheme_work(scheme("winograd")).pass_counts == WINOGRAD_WORK.pass_counts


def test_strassen_is_its_table() -> None:
    assert sum(STRASSEN_WORK.pass_counts) == 22
    assert work_of("strassen").additions == STRASSEN_WORK.additions


@pytest.mark.parametrize(
    ("work", "factor"),
    [
        (STRASSEN_WORK, 22),  # Equation 3
        (WINOGRAD_WORK, 15),  # its number of block additions: on a cube all blocks are of one size
        (work_of("strassen"), 18),  # without the copies
        (work_of("laderman"), None),
        (work_of("strassen^2"), None),
    ],
)
def test_recursion_point_of_any_scheme(work: BlockWork, factor: int | None) -> None:
    """The general Equation 3 against the general Equation 2, at the point itself."""
    point = recursion_point(40.0, work)
    assert factor is None or point == pytest.approx(40.0 * factor)
    step = work.split[0]
    below, above = step * int(point / step), step * (int(point / step) + 1)
    assert not is_level_profitable((below, below, below), 40.0, work)
    assert is_level_profitable((above, above, above), 40.0, work)


def test_rectangular_splits_weigh_their_own_blocks() -> None:
    """<2,2,3;11> with one addition of each kind, by hand: 2 (12-11) n^3/12 = r n^2 (1/4 + 1/6 + 1/6)."""
    work = BlockWork("one-of-each", (2, 2, 3), 11, additions=(1, 1, 1))
    assert recursion_point(6.0, work) == pytest.approx(6.0 * (Fraction(7, 12) * 6))
    assert is_level_profitable((24, 24, 24), 6.0, work) and not is_level_profitable((12, 12, 12), 6.0, work)


def test_each_kind_of_block_has_its_own_size() -> None:
    """<2,3,5;29>: A, B and C blocks of n^2/6, n^2/15, n^2/10 in 1, 2, 3 additions; 2 n^3/30 flops saved."""
    work = BlockWork("unequal", (2, 3, 5), 29, additions=(1, 2, 3))
    point = 4.0 * (Fraction(1, 6) + Fraction(2, 15) + Fraction(3, 10)) * 15
    assert recursion_point(4.0, work) == recursion_point(3.0, work, epsilon=1.0) == pytest.approx(float(point))
    assert is_level_profitable((60, 60, 60), 4.0, work) and not is_level_profitable((30, 30, 30), 4.0, work)


def test_odd_sizes_as_in_equation_2() -> None:
    """A and B in their largest blocks, C exactly: 3 m p, not 12 of the largest blocks."""
    assert added_elements((101, 75, 51)) == 5 * 38 * (51 + 26) + 3 * 101 * 51
    assert saved_flops((101, 75, 51)) == 2 * 51 * 38 * 26


def test_a_classical_split_never_pays() -> None:
    assert recursion_point(0.1, work_of("classical")) == inf
    assert not is_level_profitable((10**6, 10**6, 10**6), 1e-9, work_of("classical"))


def test_block_work_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        BlockWork("empty", (2, 2, 2), 0, additions=(1, 1, 1))
    with pytest.raises(ValueError, match="negative number"):
        BlockWork("owed", (2, 2, 2), 7, additions=(1, -1, 1))
    strassen = scheme("strassen")
    with pytest.raises(ValueError, match=r"has \(6, 6, 4\) blocks, the coefficients \(4, 4, 4\)"):
        block_work("misfit", (2, 3, 2), strassen.u, strassen.v, strassen.w)


# ---- depth and speedup


@pytest.mark.parametrize(
    ("n", "depth"),
    [(900, 0), (1799, 1), (1802, 2), (3598, 2), (3602, 3)],  # Figure 2's caption: n_1 = 900, then doubling
)
def test_depth_doubles_with_the_size(n: int, depth: int) -> None:
    assert len(recursion_levels((n, n, n), 900 / 22)) == depth


def test_levels_halve_the_largest_block() -> None:
    found = recursion_levels((5000, 4001, 3333), 10.0)
    shapes = [level.shape for level in found]
    assert shapes[:3] == [(5000, 4001, 3333), (2500, 2001, 1667), (1250, 1001, 834)]
    assert [level.products for level in found] == [7**i for i in range(len(found))]


def test_depth_ends_even_when_additions_are_free() -> None:
    assert len(recursion_levels((1024, 1024, 1024), 0.0)) == 10
    assert len(recursion_levels((1024, 6, 1024), 0.0)) == 3  # 6, 3, 2, and then there is nothing to split


@pytest.mark.parametrize(
    ("shape", "depth"),
    [((1499, 9000, 9000), 0), ((1500, 1500, 1500), 1), ((3000, 3001, 9000), 2), ((2998, 3001, 9000), 1)],
)
def test_stop_when_one_size_is_below_the_point(shape: Shape, depth: int) -> None:
    """Section 4.1.1: 'stop the recursion when at least one matrix size is smaller than 1500'."""
    assert len(levels_above_recursion_point(shape, 1500)) == depth


@pytest.mark.parametrize("n", [2000, 5000, 8192])
def test_first_level_saves_what_section_4_says(n: int) -> None:
    ratio = 30.0
    assert level_speedups((n, n, n), ratio, 1)[0] == pytest.approx(first_level_speedup(n, recursion_point(ratio)))


def test_each_level_saves_less() -> None:
    """'each recursion contribution is always less than the first one'; flops alone give 1 - (7/8)^3."""
    found = level_speedups((8192, 8192, 8192), 30.0, 3)
    assert found[0] > found[1] > found[2] > 0
    assert sum(found) < 1 - (7 / 8) ** 3
    assert sum(level_speedups((8192, 8192, 8192), 0.0, 3)) == pytest.approx(1 - (7 / 8) ** 3)


def test_a_level_too_many_costs() -> None:
    deep = level_speedups((2000, 2000, 2000), 50.0, 2)
    assert deep[0] > 0 > deep[1]


# ---- Table 1


def test_almost_square_is_left_alone() -> None:
    found = cut_balanced((1000, 600, 999))
    assert (found.leaves, found.cuts, found.depth) == ((((1000, 600, 999), 1),), 0, 0)


def test_balanced_by_hand() -> None:
    """A tall A: 5000 -> 2500 + 2500 -> 1250 x 4, and 1250 < 2 x 1000."""
    found = cut_balanced((5000, 1000, 1000))
    assert (found.leaves, found.cuts, found.depth) == ((((1250, 1000, 1000), 4),), 3, 2)


def test_balanced_cuts_odd_sizes_unequally() -> None:
    assert cut_balanced((7, 3, 3)).leaves == (((4, 3, 3), 1), ((3, 3, 3), 1))


@pytest.mark.parametrize("shape", [(10_000, 37, 5), (3, 100_001, 2), (64, 64, 9999), (12000, 100, 12000), (1, 1, 1)])
def test_balanced_keeps_the_work(shape: Shape) -> None:
    found = cut_balanced(shape)
    assert sum(m * k * n * times for (m, k, n), times in found.leaves) == shape[0] * shape[1] * shape[2]
    assert found.cuts == sum(times for _, times in found.leaves) - 1
    for (m, k, n), _ in found.leaves:
        for size, others in ((m, (k, n)), (k, (m, n)), (n, (m, k))):
            assert size == 1 or size < 2 * max(others)


def test_gamma_must_be_above_one() -> None:
    with pytest.raises(ValueError, match="gamma must be above 1"):
        cut_balanced((10, 10, 10), gamma=1)


# ---- Table 3


def test_the_systems_that_do_not_follow() -> None:
    """From the printed rates, rounded to whole MFLOPS, five of 17 recursion points cannot come."""
    names = [s.name for s in dalberto.inconsistent_systems()]
    assert names == ["RX1600", "Optiplex GX280", "RP5470", "HP ZV 6005", "Fosa"]


def test_rates_look_truncated() -> None:
    missed = [s.name for s in TABLE_3_SYSTEMS if not s.is_printed_n1_in_range(Fraction(0), Fraction(1))]
    assert missed == ["RX1600", "Optiplex GX280", "HP ZV 6005"]


@pytest.mark.parametrize(
    ("system", "computed"),
    [("ES40", 665), ("Sun-Fire-V210", 1140), ("ASUS", 1218), ("Unknown server", 1737)],
)
def test_points_that_match_to_the_digit(system: str, computed: int) -> None:
    found = next(s for s in TABLE_3_SYSTEMS if s.name == system)
    assert round(recursion_point(float(found.alpha_over_pi))) == found.theoretical == computed


def test_range_is_that_of_the_rounded_rates() -> None:
    """ProLiant DL140: 2395 and 53, the ends taken by hand."""
    found = next(s for s in TABLE_3_SYSTEMS if s.name == "ProLiant DL140")
    low, high = found.recursion_point_range(Fraction(1, 2), Fraction(1, 2))
    assert (float(low), float(high)) == pytest.approx((22 * 2394.5 / 53.5, 22 * 2395.5 / 52.5))


def test_explanations_in_the_notes_hold() -> None:
    rates = {s.name: s.product_rate for s in TABLE_3_SYSTEMS}
    assert round(22 * rates["HP ZV 6005"] / 70) == 1106  # an addition rate of 70
    assert 22 * 4805 / 125 < 900 < 22 * 4815 / 115  # Optiplex's rates rounded to tens
    assert 22 * rates["RX1600"] / 487 == pytest.approx(136.6, abs=0.05)


def test_table_3() -> None:
    table = dalberto.dalberto_table3()
    assert (table.name, len(table.rows)) == ("dalberto-table3", 17)
    assert table.column_cells("follows").count(False) == 5
    assert table.column_cells("epsilon")[-2:] == (None, None)  # two systems were never measured


# ---- Equation 2 as a way of choosing

CPU = cpu_calibration(2)


def chosen(shape: tuple[int, int, int], growth: float = 15.0, workspace: int = 1 << 50, epsilon: float = 0.0) -> str:
    thresholds = replace(calibrated_thresholds(CPU, "float64"), epsilon=epsilon)
    return str(choose_hasa_plan(Problem(*shape, "float64"), thresholds, Limits(workspace, growth), on_cpu=True))


def test_hasa_choice_takes_the_levels_that_equation_2_asks_for() -> None:
    shape = (34000, 30000, 38001)

    def ratio(m: int, k: int, n: int) -> float:
        return alpha_over_pi(CPU, Problem(m, k, n, "float64"))

    depth = len(recursion_levels(shape, ratio))
    assert depth >= 2 and chosen(shape) == " > ".join(["hasa"] * depth + ["vendor"])
    assert chosen((100, 100, 100)) == chosen((0, 5, 5)) == "vendor"
    assert len(recursion_levels(shape, ratio, epsilon=500.0)) == chosen(shape, epsilon=500.0).count("hasa") < depth


def test_hasa_choice_keeps_the_limits() -> None:
    shape = (36000, 36000, 36000)
    assert chosen(shape).count("hasa") > 1
    assert chosen(shape, growth=2.5) == "hasa > vendor"
    assert chosen(shape, growth=1.5) == chosen(shape, workspace=0) == "vendor"


def test_the_mode_hasa_decides_by_equation_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "hasa")
    found = fmm.plan(16000, 16000, 16000, workspace=1 << 40)  # however much of its memory others use
    assert found.source == "Equation 2" and "hasa" in str(found.plan) and found.error_growth <= 15
    assert f"asks for {found.plan.depth} level" in found.reason
    small = fmm.plan(64, 64, 64)
    assert str(small.plan) == "vendor" and "no levels" in small.reason
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    assert fmm.plan(16000, 16000, 16000).source != "Equation 2"

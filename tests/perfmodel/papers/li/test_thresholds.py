"""tau1 and tau2 of Li, Ranka and Sahni: the plans that their codes are, and what those launch."""

from __future__ import annotations

import pytest

from fmm.perfmodel.cost import cost
from fmm.perfmodel.papers.li_counts import levels_by_threshold, threshold_plan
from tests.oracles.li import CALLS_AROUND_PRODUCTS, CALLS_OF_ONE_LEVEL


@pytest.mark.parametrize(
    ("scheme", "n", "tau1", "tau2", "text"),
    [
        ("strassen", 2048, 2048, 4096, "tile.gpu8"),  # section 8.1.1: "the same as for GPU8 because n = tau2/2 = tau1"
        ("strassen", 4096, 2048, 4096, "li-fig12 > tile.gpu8"),  # 8.1.3: one level, tau1 < n <= tau2
        ("strassen", 8192, 2048, 4096, "li-fig16 > li-fig12 > tile.gpu8"),  # two, tau2 < n <= 2 tau2
        ("strassen", 16384, 2048, 4096, "li-fig16 > li-fig16 > li-fig12 > tile.gpu8"),  # "3 levels of recursion"
        ("winograd", 16384, 1024, 2048, "li-fig23 > li-fig23 > li-fig23 > li-fig13 > tile.gpu8"),  # "4 levels"
        ("winograd", 4097, 2048, 4096, "li-fig23 > li-fig13 > tile.gpu8"),
        ("strassen", 8192, 4096, 4096, "li-fig16 > tile.gpu8"),  # never one level: a half is at most tau1
        ("strassen", 4097, 1, 1 << 20, "li-fig12 > tile.gpu8"),
        ("strassen", 1, 1, 1, "tile.gpu8"),
    ],
)
def test_the_plan_of_the_papers_codes(scheme: str, n: int, tau1: int, tau2: int, text: str) -> None:
    assert str(threshold_plan(scheme, n, tau1, tau2)) == text


@pytest.mark.parametrize("n", [2048, 4096, 8192, 16384])
@pytest.mark.parametrize("tau2", [2048, 4096, 8192])
def test_as_many_levels_as_the_counts_have(n: int, tau2: int) -> None:
    assert len(threshold_plan("winograd", n, tau2 // 2, tau2).levels) == levels_by_threshold(n, tau2)


def test_the_leaf_of_the_texture_codes() -> None:
    assert str(threshold_plan("winograd", 2048, 1024, 2048, "tile.gpu8.texture")) == "li-fig13 > tile.gpu8.texture"


@pytest.mark.parametrize("scheme", CALLS_OF_ONE_LEVEL)
def test_launches_are_the_calls_that_the_figures_print(scheme: str) -> None:
    """Level by level: those of a level, and seven times what is below it."""
    expected = 1
    for n in (64, 128, 256, 512):
        found = threshold_plan(scheme, n, 64, 128)
        assert cost(found, n, n, n, 4).launches == expected
        expected = CALLS_OF_ONE_LEVEL[scheme] if n == 64 else CALLS_AROUND_PRODUCTS[scheme] + 7 * expected


@pytest.mark.parametrize(
    ("scheme", "n", "tau1", "tau2", "message"),
    [
        ("laderman", 8, 1, 2, "valid: strassen, winograd"),
        ("strassen", 0, 1, 2, "positive"),
        ("strassen", 8, 4, 2, "at most tau2"),
        ("strassen", 8, 0, 2, "tau1 = 0"),
    ],
)
def test_thresholds_that_cannot_be(scheme: str, n: int, tau1: int, tau2: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        threshold_plan(scheme, n, tau1, tau2)

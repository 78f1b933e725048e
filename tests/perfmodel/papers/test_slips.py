"""Slips of the papers that are recorded beside their numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fmm.perfmodel.papers import li_results, sforza


def test_printed_errors_of_winograd_below_strassen_s_are_those_that_look_exchanged() -> None:
    found = {(row[0], row[1], row[2]) for row in li_results.li_exchanged().rows if row[-1]}
    assert found == {("32", "maximum", 1), ("32", "maximum", 2), ("44", "maximum", 2), ("44", "average", 2)}
    for row in li_results.li_exchanged().rows:
        strassen, winograd, ratio, expected = row[3:7]
        assert isinstance(strassen, float) and isinstance(winograd, float) and isinstance(expected, float)
        assert ratio == pytest.approx(winograd / strassen) and expected > 1


def test_figure_32_grows_evenly_once_levels_1_and_2_are_exchanged() -> None:
    """From level to level by factors that fall, or nearly, as those of the averages in Figure 34 do not jump either."""
    for method, other in (("strassen", "winograd"), ("winograd", "strassen")):
        printed = li_results.MAXIMUM_ERRORS[method]
        mended = (printed[0], li_results.MAXIMUM_ERRORS[other][1], li_results.MAXIMUM_ERRORS[other][2], *printed[3:])

        def unevenness(grown: tuple[float, ...]) -> float:
            steps = [b / a for a, b in pairwise(grown)]
            return max(steps[:3]) / min(steps[:3])

        assert unevenness(mended) < unevenness(printed)


@pytest.mark.parametrize(("m", "n"), [(300, 300), (512, 512), (700, 700), (400, 5000)])
def test_sforza_s_recursion_ends_on_small_blocks(m: int, n: int) -> None:
    """Halved until it stops, any matrix comes to blocks of about the cutoff; as printed it would never stop there."""
    cutoff = 256
    assert sforza.does_recursion_stop(m, n, 2 * cutoff) and not sforza.does_recursion_stop(64 * m, 64 * n, cutoff)
    assert sforza.does_recursion_stop_as_printed(64 * m, 64 * n, cutoff) and not sforza.does_recursion_stop_as_printed(
        m // 8, n // 8, cutoff
    )
    while not sforza.does_recursion_stop(m, n, cutoff):
        m, n = m // 2, n // 2
    assert min(m, n) <= 2 * cutoff

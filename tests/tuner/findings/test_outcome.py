"""What `fmm-tune show` tells of a model: of those that ship for an H200, what each type's lines promise is true."""

from __future__ import annotations

import re

import pytest

from fmm.config import files
from fmm.config.locate import SHIPPED
from fmm.config.schema import checked_calibration
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.untuned.built_in import cpu
from fmm.tuner.findings.described import described
from fmm.tuner.findings.outcome import CLOSE, ROW, chosen_square, gains_from, odd_gains, outcome, told_plans

(TYPES,) = files.read_config(SHIPPED).values()


def shipped(dtype: str) -> Calibration:
    return checked_calibration(TYPES[dtype]["calibration"], "calibration", dtype, "", "")


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32", "float64"])
def test_from_the_told_side_on_no_square_with_aligned_rows_is_left_to_the_vendor(dtype: str) -> None:
    """In 16-bit types and TF32 a side of 5793 is not: its rows are copied for the vendor, where 8192 gains nothing."""
    known = shipped(dtype)
    first = gains_from(known, dtype)
    assert first is not None and first % 16 == 0
    for side in (round(first * (1.2 + i / 8) / 256) * 256 for i in range(24)):  # below, tiles decide
        assert chosen_square(known, dtype, side).plan != VENDOR, side
    just_below = range(first - ROW, round(first / CLOSE) - ROW, -ROW)  # further below, some sides have lucky tiles
    assert any(chosen_square(known, dtype, side).plan == VENDOR for side in just_below)


def test_no_gain_of_nothing_is_promised() -> None:
    for dtype in TYPES:
        told = "\n".join(text for label, text in outcome(shipped(dtype), dtype))
        gains = [float(x) for x in re.findall(r"(\d\.\d\d) at \d+", told)]
        assert gains and min(gains) > 1.0, dtype


def test_odd_sides_are_told_of_where_the_vendor_is_slow_on_them() -> None:
    told = list(outcome(shipped("bfloat16"), "bfloat16"))
    odd, cost = (text for _, text in told if "odd sides" in text)
    assert re.match(r"on odd sides, where cuBLAS is slow, from about \d+ on: \d\.\d\d at 2049, ", odd)
    assert cost == "on odd sides 1.0 at 2049 to 8193, 3.3 at 16385;"
    assert any(text.startswith("odd, 2049 to 8193: aligned.") for _, text in told)
    assert odd_gains(shipped("float32"), "float32") == {}  # by float16 products, as aligned ones


def test_the_plans_are_named_with_what_their_leaves_are() -> None:
    """Who knows NumPy alone reads how float32 is multiplied; who knows the papers, why tau1 is far beyond n1."""
    told = "\n".join(described(TYPES["float32"], "float32"))
    assert "plans      2048 to 8192: f16x3\n" in told
    assert "(f16x3 is float32 by three float16 products of the tensor cores" in told
    assert "(up to there f16x3 is faster than cuBLAS: levels must pay above that)" in told
    assert "up to there" not in "\n".join(described(TYPES["bfloat16"], "bfloat16"))


def test_how_plans_are_read_is_said_once_and_only_if_one_is_named() -> None:
    assert any("seven in" in line for line in told_plans(["8192 to 16384: winograd > vendor"]))
    assert not list(told_plans(["none on square matrices"]))


def test_a_cpu_has_no_odd_sides() -> None:
    told = "\n".join(text for _, text in outcome(cpu(2), "float64"))
    assert "faster than NumPy's product" in told and "odd" not in told

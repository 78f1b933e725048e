"""A measured model scaled to a relative's datasheet: numbers by hand, and choices by the other card's model."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from statistics import mean
from types import MappingProxyType

import pytest

from fmm.config import files
from fmm.config.identity import Identity
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.choose import GPU_ERROR_GROWTH_LIMIT, Limits, choose
from fmm.perfmodel.crossovers import NEVER_WINS_SIDE, MeasuredCrossovers
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.relative_device import scale_calibration_to_gpu
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import complete_calibration

# Numbers of a float32 tuning that are easy to scale by hand.
MEASURED_RATE = ProductRate(
    50e12, 1e6, 50.0, rows=30.0, cols=20.0, memory=10e12, batch=0.98, tile=64.0, sms=132.0, tiled=0.97, waves=26.4
)
BOUNDS = MeasuredCrossovers("vendor", 3000.0, 9000.0, NEVER_WINS_SIDE)
MEASURED = Calibration(
    "H100",
    "calibrated",
    MappingProxyType({"float32": MEASURED_RATE}),
    stream=3e12,
    small=10e6,
    launch=4e-6,
    batches=True,
    margin=0.05,
    measured_crossovers=(BOUNDS,),
)


def test_only_the_memory_of_a_gh200_differs_from_an_h100s() -> None:
    """4000 GB/s over 3350: sums, small sums and reads are 1.194 times as fast; products are as fast."""
    found, faster = scale_calibration_to_gpu(MEASURED, "H100", "GH200", "float32"), 4000 / 3350
    assert found is not None
    assert (found.name, found.margin, found.launch) == ("GH200", 0.05, 4e-6)
    assert (found.stream, found.small) == pytest.approx((3e12 * faster, 10e6 * faster))
    reads = {"rows": 30 / faster, "cols": 20 / faster, "memory": 10e12 * faster}
    assert vars(found.rates["float32"]) == pytest.approx(vars(replace(MEASURED_RATE, **reads)))
    (bounds,) = found.measured_crossovers
    assert bounds.crossover_sides == pytest.approx(
        (3000 / faster, 9000 / faster, NEVER_WINS_SIDE)
    )  # Equation 3: n1 = 22 alpha/pi
    assert "H100" in found.source and "GH200" in found.source


def test_an_h20_has_fewer_and_slower_multiprocessors() -> None:
    """78 of 132 multiprocessors, 44 of 66.9 TFLOPS, 4000 of 3350 GB/s."""
    found = scale_calibration_to_gpu(MEASURED, "H100", "H20", "float32")
    assert found is not None
    rate, slower, fewer, faster = found.rates["float32"], 44 / 66.9, 78 / 132, 4000 / 3350
    assert rate.flops == pytest.approx(50e12 * slower)
    assert (rate.fill, rate.sms, rate.waves) == pytest.approx((1e6 * fewer, 78, 26.4 * fewer))
    assert (rate.rows, rate.cols) == pytest.approx((30 * slower / faster, 20 * slower / faster))
    assert (rate.pipe, rate.batch, rate.tile, rate.tiled) == (50.0, 0.98, 64.0, 0.97)
    assert found.measured_crossovers[0].tau1 == pytest.approx(3000 * slower / faster)


def test_margins_are_at_least_the_datasheets() -> None:
    found = scale_calibration_to_gpu(replace(MEASURED, margin=0.001, tiled_margin=0.01), "H100", "GH200", "float32")
    sheet = datasheet_calibration("GH200")
    assert found is not None and (found.margin, found.tiled_margin) == (sheet.margin, sheet.tiled_margin)


def test_a_type_without_a_rate_has_no_scaled_model() -> None:
    assert scale_calibration_to_gpu(MEASURED, "H100", "GH200", "tf32") is None


def shipped_model(key: str, name: str, dtype: str) -> Calibration:
    tuned = files.Configs((files.SHIPPED_CONFIG,), False).find_tuning(Identity(key, key), dtype)
    assert tuned is not None
    found = complete_calibration(tuned, None, datasheet_calibration(name))
    assert found is not None
    return found


KEYS = {"H100": "cuda-9.0-132sm-nvidia-h100-80gb-hbm3", "H200": "cuda-9.0-132sm-nvidia-h200"}


@pytest.mark.parametrize(("name", "below", "above"), [("H200", 2400, 2700), ("H100", 2900, 3200)])
def test_squares_of_float64_are_by_residues_from_the_side_in_the_docs(name: str, below: int, above: int) -> None:
    """docs/numerics.md: from about 2,500 and 3,000."""
    model, limits = shipped_model(KEYS[name], name, "float64"), Limits(1 << 40, GPU_ERROR_GROWTH_LIMIT)
    plans = [str(choose(Problem(n, n, n, "float64"), model, limits).best.plan) for n in (below, above)]
    assert plans == ["vendor", "residues(14) > bytes"]


# The least average share of the best plan's speed that choices by the other card's scaled model have, with emulation
# and without.
SCALED_SHARE = {"float32": 0.991, "float64": 0.991, "bfloat16": 0.996, "tf32": 0.999, "float16": 0.98}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", SCALED_SHARE)
@pytest.mark.parametrize(("known", "relative"), [("H100", "H200"), ("H200", "H100")])
def test_one_cards_model_chooses_better_for_the_other_card_than_the_datasheet(
    known: str, relative: str, dtype: str
) -> None:
    """The shipped models of both cards are measured; each stands in for the measured speeds of its own card."""
    own = shipped_model(KEYS[relative], relative, dtype)
    scaled = scale_calibration_to_gpu(shipped_model(KEYS[known], known, dtype), known, relative, dtype)
    assert scaled is not None
    drawn = random.Random(1)
    shapes = [tuple(int(2 ** drawn.uniform(9, 14.3)) for _ in range(3)) for _ in range(60)]
    shares: dict[str, list[float]] = {"scaled": [], "datasheet": []}
    squares = [(2**i,) * 3 for i in range(10, 15)]
    for (m, k, n), emulation in product([*shapes, *squares], (True, False)):
        problem, limits = Problem(m, k, n, dtype), Limits(1 << 40, GPU_ERROR_GROWTH_LIMIT, emulation)
        best = choose(problem, own, limits)
        times = {candidate.plan: candidate.time for candidate in best.candidates}
        for name, model in (("scaled", scaled), ("datasheet", datasheet_calibration(relative))):
            chosen = choose(problem, model, limits).best.plan
            if chosen in times:
                shares[name].append(min(best.best.time / times[chosen], 1.0))
    assert min(map(len, shares.values())) > 110
    assert mean(shares["scaled"]) >= SCALED_SHARE[dtype]
    assert mean(shares["scaled"]) >= mean(shares["datasheet"])

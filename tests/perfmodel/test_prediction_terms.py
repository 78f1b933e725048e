"""The printed terms of a prediction: its time follows from their numbers alone, by the formula of docs/model.md."""

from __future__ import annotations

import pickle
from math import ceil, sqrt

import pytest

import fmm
from fmm.config.identity import Identity
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration, with_concurrent_products
from fmm.perfmodel.predict import LeafTerm, quick_prediction
from fmm.perfmodel.prediction_terms import PredictionTerms, prediction_terms
from fmm.problem import Problem
from fmm.runtime.decisions.decide import SHOWN_CANDIDATES, decide_by_model
from fmm.runtime.matmul import decide_without_arrays
from tests.support import devices

A100, H200 = datasheet_calibration("A100"), datasheet_calibration("H200")
TWO_AT_A_TIME = with_concurrent_products(cpu_calibration(2), 2)


def vendor_slowdown(term: LeafTerm, terms: PredictionTerms) -> float:
    """Return s of the vendor's kernels, by docs/model.md, from the printed parameters."""
    (m, k, n), together = term.size, max(term.batch, terms.lanes)
    rate = {"rows": 0.0, "cols": 0.0, "tile": 1.0, "batch": 1.0, "unaligned": 1.0, "odd": 1.0, "copied": 1.0}
    rate |= terms.rate
    p = terms.alignment
    u = 1 + p["unaligned"] * (rate["unaligned"] - 1) + p["odd"] * (rate["odd"] - 1)
    cuts = max(k / 4096, 1.0) if u > 1 else 1.0
    brackets = u * (1 + rate["fill"] / (together * m * n * cuts)) + sqrt(u) * rate["pipe"] / k
    brackets += rate["rows"] / m + rate["cols"] / n
    tile = rate["tile"]
    whole = ceil(m / tile) * ceil(n / tile) * tile**2 / (m * n)
    return brackets * whole * (rate["batch"] if together > 1 else 1.0) * (1 + p["copied"] * (rate["copied"] - 1))


def seconds_by_hand(terms: PredictionTerms) -> float:
    """Return T = P + S + L + E - H from the printed numbers."""
    p = 0.0
    for x in terms.products:
        s = vendor_slowdown(x, terms)
        p += x.number * max(x.flops / terms.rate["flops"] * s, x.moved / x.memory) + x.number / x.batch * x.start
    s = (terms.moved + terms.small * terms.passes) / terms.stream
    h = terms.overlap * min(p, s * terms.overlapped)
    launches = max(terms.launch * terms.launches, terms.host * terms.calls - (p + s - h))
    c = terms.lanes
    e = terms.idle + min(terms.spin, (p + s + terms.idle) * (c - 1) / (c + 1)) if c > 1 else 0.0
    return p + s + launches + e - h


@pytest.mark.parametrize(
    ("calibration", "dtype", "size", "text"),
    [
        (A100, "float64", (8192, 8192, 8192), "strassen.batched.pad16 > vendor"),
        (A100, "float64", (8192, 8192, 8192), "vendor"),
        (A100, "float32", (4096, 2000, 6000), "strassen^2.batched.pad16 > vendor"),
        (H200, "float64", (6001, 7001, 5001), "vendor"),
        (H200, "float64", (16384, 16384, 16384), "strassen.overlapped.pad16 > strassen^2.batched.pad16 > vendor"),
        (H200, "bfloat16", (8191, 8191, 8191), "strassen.pad16 > vendor"),
        (TWO_AT_A_TIME, "float64", (4096, 4096, 4096), "winograd > winograd > vendor"),
    ],
    ids=lambda x: x.name if isinstance(x, Calibration) else str(x),
)
def test_the_time_follows_from_the_printed_numbers(
    calibration: Calibration, dtype: str, size: tuple[int, int, int], text: str
) -> None:
    plan, problem = Plan.parse(text), Problem(*size, dtype)
    prediction = quick_prediction(plan, problem, calibration)
    terms = prediction_terms(prediction, calibration)
    assert terms.prediction == prediction
    assert sum(x.product_seconds for x in terms.products) == pytest.approx(prediction.products)
    if terms.rate.get("sms") is None:  # counted rounds of tiles have a function of their own
        for x in terms.products:
            assert x.slowdown == pytest.approx(vendor_slowdown(x, terms))
    assert seconds_by_hand(terms) == pytest.approx(prediction.predicted_seconds)


def test_the_worked_example_is_printed() -> None:
    """The numbers of docs/model.md, with their units, are in the text."""
    problem = Problem(8192, 8192, 8192, "float64")
    terms = prediction_terms(quick_prediction(Plan.parse("strassen.batched.pad16 > vendor"), problem, A100), A100)
    text = str(terms)
    for number in (
        *("flops 1.56e+13 flop/s", "fill 221184 entries of C", "pipe 32 steps", "stream 1.52925e+12 bytes/s"),
        *("small 6.117e+06 bytes * 3 passes", "launch 4e-06 s * 4", "s 1.0097", "P 0.0622693 s", "S 0.00290831 s"),
        *("L 1.6e-05 s", "0.0651936 s", "c 7, b 7"),
    ):
        assert number in text, number
    assert terms.moved == 33 * 4096**2 * 8


def test_a_decision_has_the_terms_of_its_plan_and_of_the_vendor() -> None:
    problem = Problem(8192, 8192, 8192, "float64")
    identity = Identity("nvidia-a100-sxm4-80gb-8.0-108sm", "A100")
    decision = decide_by_model(problem, Limits(1 << 40), A100, False, identity)
    assert decision.plan != VENDOR
    assert [terms.prediction.plan for terms in decision.terms] == [decision.plan, VENDOR]
    chosen, vendor = (seconds_by_hand(terms) for terms in decision.terms)
    time = next(c.time for c in decision.candidates if c.plan == decision.plan)
    assert chosen / vendor == pytest.approx(time)
    assert pickle.loads(pickle.dumps(decision)).terms == decision.terms


def test_a_passed_plan_has_the_terms_of_the_model() -> None:
    plan = Plan.parse("strassen.batched.pad16 > vendor")
    chosen = decide_without_arrays(Problem(8192, 8192, 8192, "float64"), Limits(1 << 40), devices.H200)
    passed = decide_without_arrays(Problem(8192, 8192, 8192, "float64"), Limits(1 << 40), devices.H200, plan)
    assert [terms.prediction.plan for terms in passed.terms] == [plan, VENDOR]
    assert passed.terms[1] == chosen.terms[1], "the vendor's product by the same model"
    by_hand = [seconds_by_hand(terms) for terms in passed.terms]
    assert by_hand == pytest.approx([terms.prediction.predicted_seconds for terms in passed.terms])
    assert f"predicted: {plan} {by_hand[0]:.4g} s, vendor {by_hand[1]:.4g} s (each term: " in str(passed)
    assert [x.prediction.plan for x in fmm.plan(2000, 2000, 2000, plan="winograd > vendor").terms] == [
        Plan.parse("winograd > vendor"),
        VENDOR,
    ]


def test_the_text_of_a_decision_lists_few_candidates() -> None:
    problem = Problem(8192, 8192, 8192, "float64")
    identity = Identity("nvidia-a100-sxm4-80gb-8.0-108sm", "A100")
    decision = decide_by_model(problem, Limits(1 << 40), A100, False, identity)
    lines = str(decision).splitlines()
    assert len(decision.candidates) > 10 and len(lines) <= 25
    listed = [line for line in lines if " > " in line and line.strip()[0] in "01" and line.startswith("   ")]
    assert len(listed) <= SHOWN_CANDIDATES + 2 and any("slower ones" in line for line in lines)

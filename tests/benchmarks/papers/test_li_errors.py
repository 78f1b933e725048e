"""Errors of Li, Ranka and Sahni's codes: the printed numbers, and their growth at small sizes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers import li_errors
from benchmarks.papers.li_codes import CPU, SCHEME_OF_CODE, SGEMM, li_plan
from benchmarks.papers.matrices import kaporin_matrices
from tests.support.laboratory import BENCH, measure_small


def test_errors_of_kaporins_matrix_grow_with_levels_and_more_by_winograds_variant() -> None:
    pair = kaporin_matrices(np, 256, "float32")
    errors = {
        (code, depth): li_errors.errors_from_identity(np, BENCH.multiply(li_plan(code, depth), *pair))["maximum"]
        for code in SCHEME_OF_CODE
        for depth in (0, 1, 2)
    }
    for code in SCHEME_OF_CODE:
        assert 2 * errors[code, 0] < errors[code, 1] < errors[code, 2] / 1.1
        assert errors[code, 2] < li_errors.kaporin_bound(code, 2, 256, "float32")
    assert errors["Winograd", 2] > 1.5 * errors["Strassen", 2]


def test_the_text_follows_from_the_printed_errors() -> None:
    """Section 8.1.2: at n = 16384 and tau2 = 2048, 200 times and 424 times; 1615 and 5151."""
    for columns, strassen, winograd in ((li_errors.FIGURE_30, 212.8, 1615.4), (li_errors.FIGURE_31, 424.2, 5151.5)):
        base = columns[SGEMM, "-"][-1]
        assert columns["Strassen", 2048][-1] / base == pytest.approx(strassen, abs=0.1)
        assert columns["Winograd", 2048][-1] / base == pytest.approx(winograd, abs=0.1)


def test_random_matrices_against_the_classical_product() -> None:
    results = measure_small("li-fig44", 64)
    errors, exact = results.numbers("error"), results.numbers("exact")
    assert errors["maximum", "dStrassen"] > errors["average", "dStrassen"] > 0
    assert exact["average", "dWinograd"] > exact["average", "dStrassen"] > exact["average", "dgemm"] > 0
    assert errors["maximum", CPU] == 0

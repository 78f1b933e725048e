"""Fits of the recorded tunings: with fewer parameters, all of which the measurements determine, no worse on the shapes
that were held out than the fits of all parameters, which the recorded configs hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from fmm.config.files import shipped_model
from fmm.config.identity import Identity
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration, with_concurrent_products
from fmm.tuner.commands.report import type_reports
from fmm.tuner.devices.device import TimedRun
from fmm.tuner.findings.conclude import FITTED_STAGES, starting_calibration
from fmm.tuner.fit.model import fit_calibration, prediction_errors, scale_calibration
from fmm.tuner.fit.parameters import FIT_PARAMETERS_BY_NAME
from fmm.tuner.report.type_report import TypeReport
from tests.support import ROOT

FOLDERS = ("nvidia-h200", "nvidia-h200/again", "cpu-intel-r-xeon-r-processor-2t")
ALL_PARAMETERS = 20  # that the recorded configs have an interval of
CLOSE, CLOSE_AT_95 = 1.1, 1.15  # times the recorded error; of the few that are off most, more is chance
# A fit for a CPU gives plans with several levels more weight; the recorded held-out shapes have none of these plans.
CLOSE_ON_CPU = 1.3
STRASSEN = Plan.parse("strassen.batched.pad16 > vendor")


def cases(folder: str) -> list[TypeReport]:
    return list(type_reports(Path(ROOT) / "results" / folder / "config.json"))


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_fewer_parameters_predict_as_well(folder: str) -> None:
    found = cases(folder)
    assert len(found) >= 2
    for case in found:
        untuned = (
            with_concurrent_products(cpu_calibration(2), 2)
            if case.device.startswith("cpu")
            else datasheet_calibration("H200")
        )
        fit = fit_calibration(
            starting_calibration(untuned, case.dtype), case.dtype, case.observations_of_stages(*FITTED_STAGES)
        )
        assert len(fit.intervals) <= 0.75 * ALL_PARAMETERS and {"rate.flops", "stream"} <= set(fit.intervals)
        assert all(name in FIT_PARAMETERS_BY_NAME for name in fit.intervals)
        held = [o for o in case.observations_of_stages("held out") if not o.run.plan.uses_tile_model]
        errors, recorded = prediction_errors(fit.calibration, held), case.section["error"]
        close = CLOSE_ON_CPU if case.device.startswith("cpu") else CLOSE
        for what in ("time", "speedup"):
            assert errors[what].count == recorded[what]["count"] > 100
            assert errors[what].median <= close * recorded[what]["median"], (case.title, what)
            assert errors[what].p95 <= CLOSE_AT_95 * recorded[what]["p95"], (case.title, what)


NEITHER = 0.05  # twice what fits of all parameters to a hundred samples are off by at the median, on these shapes


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["nvidia-h200/again", pytest.param("nvidia-h200", marks=pytest.mark.slow)])
def test_what_ships_scaled_by_a_few_samples_predicts_another_card(folder: str) -> None:
    """What a first look does: by the vendor's products and the sums of one plan alone, also of cards that the shipped
    models were not fitted to, and from the datasheet alone."""
    card = Identity("cuda-9.0-132sm-nvidia-h200", "NVIDIA H200", {})
    for case in cases(folder):
        seen = [
            o
            for o in case.observations_of_stages("scale", "rates", "probe")
            if o.run in (TimedRun(), TimedRun(STRASSEN, "sums"))
        ]
        held = [o for o in case.observations_of_stages("held out") if not o.run.plan.uses_tile_model]
        known = shipped_model(card, case.dtype)
        assert known is not None
        for before, allowed in ((known, NEITHER), (datasheet_calibration("H200"), 1.5 * NEITHER)):
            fit = scale_calibration(starting_calibration(before, case.dtype), case.dtype, seen)
            error = prediction_errors(fit.calibration, held)["speedup"]
            assert error.count > 100 and error.median < allowed, (case.title, before.source, error)

"""Predict the time, cost, workspace and error of a plan without running the plan."""

from fmm.hardware.datasheets import Datasheet, datasheet_names, datasheet_of
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Choice, Limits, choose
from fmm.perfmodel.cost import Cost, cost
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration
from fmm.perfmodel.predict import Prediction, predict
from fmm.perfmodel.stability import error_bound, expected_error_growth
from fmm.problem import Problem

__all__ = [
    "Calibration",
    "Choice",
    "Cost",
    "Datasheet",
    "Limits",
    "Prediction",
    "Problem",
    "choose",
    "cost",
    "cpu_calibration",
    "datasheet_calibration",
    "datasheet_names",
    "datasheet_of",
    "error_bound",
    "expected_error_growth",
    "predict",
]

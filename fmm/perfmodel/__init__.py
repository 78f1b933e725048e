"""The performance model: what can be known about a plan without running it. Numbers in, numbers out."""

from fmm.hardware.datasheets import Device, device, device_names
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Choice, Limits, choose
from fmm.perfmodel.cost import Cost, cost
from fmm.perfmodel.papers.li.counts import A, T, V
from fmm.perfmodel.predict import Prediction, predict
from fmm.perfmodel.stability import error_bound, expected_growth
from fmm.perfmodel.untuned.built_in import cpu
from fmm.perfmodel.untuned.datasheet import datasheet
from fmm.problem import Problem

__all__ = [
    "A",
    "Calibration",
    "Choice",
    "Cost",
    "Device",
    "Limits",
    "Prediction",
    "Problem",
    "T",
    "V",
    "choose",
    "cost",
    "cpu",
    "datasheet",
    "device",
    "device_names",
    "error_bound",
    "expected_growth",
    "predict",
]

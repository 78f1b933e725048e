"""The registry: every figure that can be measured, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fmm.tuner.laboratory.errors import budget, contract, scaling, variants
from fmm.tuner.laboratory.errors import dalberto as dalberto_errors
from fmm.tuner.laboratory.errors import li_double as li_double_errors
from fmm.tuner.laboratory.errors import li_single as li_single_errors
from fmm.tuner.laboratory.experiment import Experiment
from fmm.tuner.laboratory.figure import Figure
from fmm.tuner.laboratory.speed import dalberto as dalberto_speed
from fmm.tuner.laboratory.speed import huang, li_double, li_single, li_thresholds, sforza

OF_ERRORS = (li_single_errors, li_double_errors, dalberto_errors, contract, variants, scaling, budget)
OF_SPEED = (li_single, li_thresholds, li_double, huang, dalberto_speed, sforza)
FIGURES: Mapping[str, Figure] = MappingProxyType(
    {figure.name: figure for module in (*OF_ERRORS, *OF_SPEED) for figure in module.FIGURES}
)
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({x.experiment.name: x.experiment for x in FIGURES.values()})

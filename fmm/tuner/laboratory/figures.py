"""The registry: every figure that can be measured, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fmm.tuner.laboratory import (
    budget,
    dalberto_errors,
    dalberto_speed,
    growth,
    huang_speed,
    li_errors,
    li_speed,
    scaling,
    sforza_speed,
)
from fmm.tuner.laboratory.experiment import Experiment
from fmm.tuner.laboratory.figure import Figure

MODULES = (li_errors, dalberto_errors, growth, scaling, budget, li_speed, huang_speed, dalberto_speed, sforza_speed)
FIGURES: Mapping[str, Figure] = MappingProxyType({figure.name: figure for x in MODULES for figure in x.FIGURES})
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({x.experiment.name: x.experiment for x in FIGURES.values()})

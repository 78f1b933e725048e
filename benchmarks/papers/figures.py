"""The registry of all figures that can be measured, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.papers import (
    dalberto,
    error_budget,
    error_growth,
    error_variants,
    huang,
    li_errors,
    li_speed,
    sforza,
)
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.figure import Figure

MODULES = (li_errors, error_growth, error_variants, error_budget, li_speed, huang, dalberto, sforza)
FIGURES: Mapping[str, Figure] = MappingProxyType({x.name: x for module in MODULES for x in module.FIGURES})
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({x.experiment.name: x.experiment for x in FIGURES.values()})

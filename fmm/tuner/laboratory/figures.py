"""The registry: every figure that can be measured, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.papers.errors import budget, contract, scaling, variants
from benchmarks.papers.errors import dalberto as dalberto_errors
from benchmarks.papers.errors import li_double as li_double_errors
from benchmarks.papers.errors import li_single as li_single_errors
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.figure import Figure
from benchmarks.papers.speed import dalberto as dalberto_speed
from benchmarks.papers.speed import huang, li_double, li_single, li_thresholds, sforza

OF_ERRORS = (li_single_errors, li_double_errors, dalberto_errors, contract, variants, scaling, budget)
OF_SPEED = (li_single, li_thresholds, li_double, huang, dalberto_speed, sforza)
FIGURES: Mapping[str, Figure] = MappingProxyType(
    {figure.name: figure for module in (*OF_ERRORS, *OF_SPEED) for figure in module.FIGURES}
)
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({x.experiment.name: x.experiment for x in FIGURES.values()})

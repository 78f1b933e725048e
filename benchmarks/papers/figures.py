"""The registry: every figure that can be measured, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.papers import dalberto as dalberto_errors
from benchmarks.papers import dalberto as dalberto_speed
from benchmarks.papers import error_budget, error_growth, error_variants, huang, li_speed, sforza
from benchmarks.papers import li_errors as li_double_errors
from benchmarks.papers import li_errors as li_single_errors
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.figure import Figure

OF_ERRORS = (
    li_single_errors,
    li_double_errors,
    dalberto_errors,
    error_growth,
    error_variants,
    error_variants,
    error_budget,
)
OF_SPEED = (li_speed, li_speed, li_speed, huang, dalberto_speed, sforza)
FIGURES: Mapping[str, Figure] = MappingProxyType(
    {figure.name: figure for module in (*OF_ERRORS, *OF_SPEED) for figure in module.FIGURES}
)
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({x.experiment.name: x.experiment for x in FIGURES.values()})

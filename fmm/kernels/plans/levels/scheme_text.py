"""The text of a scheme's level, as a plan has it: how it is read, and which such levels are considered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from fmm.kernels.algorithms.catalogue import considered_schemes, scheme, scheme_names
from fmm.kernels.algorithms.step_table import considered_step_tables, step_table, step_table_names
from fmm.kernels.plans.level import CandidateLevel, LevelKind, register_level
from fmm.kernels.plans.levels.scheme_level import Level
from fmm.kernels.plans.levels.scheme_options import (
    FRINGES,
    TRAVERSALS,
    UNITS,
    factor_names,
    usual_fringe,
    usual_traversal,
)
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.fused_order import TASKS


def level(algorithm: str, *options: str) -> Level:
    """A level with the defaults of its algorithm where `options` say nothing."""
    traversals = [option for option in options if option in TRAVERSALS]
    fringes = [option for option in options if option in FRINGES + UNITS]
    tasks = tuple(option for option in options if option in TASKS)
    for found in (traversals, fringes):
        if len(found) > 1:
            raise PlanError(f"{algorithm} cannot be both {' and '.join(found)}")
    for unknown in (option for option in options if option not in (*traversals, *fringes, *tasks)):
        valid = ", ".join(TRAVERSALS + FRINGES + UNITS + TASKS)
        raise PlanError(f"unknown option {unknown!r} of {algorithm}; valid: {valid}")
    traversal = traversals[0] if traversals else usual_traversal(algorithm)
    fringe = fringes[0] if fringes else usual_fringe(algorithm, traversal)
    return Level(algorithm, traversal, fringe, tasks)


def _words() -> tuple[str, ...]:
    return (*scheme_names(), *step_table_names())


def _parse(text: str) -> Level | None:
    name, *options = text.split(".")
    return level(name, *options) if set(factor_names(name)) & set(_words()) else None


def _considered() -> Iterator[CandidateLevel]:
    """Schemes, the fewest additions first; then the papers' tables, which need the least workspace."""
    found: list[tuple[int, CandidateLevel]] = []
    for name, forms in considered_schemes():
        try:
            if forms:
                found.append((scheme(name).additions, CandidateLevel(name, forms, scheme(name).rank)))
        except ValueError:  # it is wrong, and whoever names it is told so
            continue
    yield from (candidate for _, candidate in sorted(found))
    for name, forms in considered_step_tables():
        with suppress(ValueError):
            if forms:
                yield CandidateLevel(name, forms, step_table(name).products, lean=True)


register_level(LevelKind("scheme", _parse, _words, _considered))

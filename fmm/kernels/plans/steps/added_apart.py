"""C = alpha A B + beta D, where D is not what C holds: a level's steps, reading D in the place of C's old numbers.

Only the first one who reads a block of C means old numbers. Whoever reads it when it has been written means what was
written, as ever.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductBatch, ProductWithSums
from fmm.kernels.plans.steps.sums import APART, Mirror, Place, Sum

Step = Sum | Product | ProductWithSums | ProductBatch | Mirror


@lru_cache(maxsize=1024)
def with_added_apart(level: LevelSteps) -> LevelSteps:
    """The same steps, reading D. PlanError for a step that would have to read some of D and some of C at once."""
    written: list[Place] = []
    steps: list[Step] = []
    for step in level.steps:
        parts = step.products if isinstance(step, ProductBatch) and _reads_old(step, written) else (step,)
        for part in parts:
            steps.append(_reading_added(part, written))
            written += [place for place in _written(part) if place.name == "C"]
    return replace(level, steps=tuple(steps))


def _reading_added(step: Step, written: list[Place]) -> Step:
    if not _reads_old(step, written):
        return step
    if isinstance(step, Product):
        return replace(step, apart=True)
    if not isinstance(step, Sum):
        raise PlanError("this level's steps cannot add what lies elsewhere")
    return replace(step, reads=tuple(replace(p, name=APART) if _is_old(p, written) else p for p in step.reads))


def _reads_old(step: Step, written: list[Place]) -> bool:
    return any(_is_old(place, written) for place in _read(step))


def _read(step: Step) -> tuple[Place, ...]:
    """The places whose numbers a step wants."""
    if isinstance(step, Sum):
        return step.reads
    if isinstance(step, Product):
        return (step.dest,) if step.accumulate else ()
    if isinstance(step, ProductWithSums):
        return (*_read(step.product), *step.update.reads[1:])
    if isinstance(step, ProductBatch):
        return tuple(place for product in step.products for place in _read(product))
    return (step.source, *((step.dest,) if step.beta else ()))


def _written(step: Step) -> tuple[Place, ...]:
    if isinstance(step, Sum):
        return step.writes
    if isinstance(step, ProductWithSums):
        return step.update.writes
    if isinstance(step, ProductBatch):
        return tuple(product.dest for product in step.products)
    return (step.dest,)


def _is_old(place: Place, written: list[Place]) -> bool:
    """Is it of C, and has none of it been written?"""
    if place.name != "C" or not place.rows or not place.cols:
        return False
    met = [w for w in written if place.shared(w) and (not place.part or not w.part or place.part == w.part)]
    if met and not any(place.within(w) and w.part in (None, place.part) for w in met):
        raise PlanError("a step reads some of what C held, and some of what was written there")
    return not met

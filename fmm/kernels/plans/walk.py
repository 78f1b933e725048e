"""The executor: runs any plan on any backend by walking its recipes."""

from __future__ import annotations

from typing import Any, Protocol

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.level_steps import Batch, Place, Product, Recipe, Sum, Updating
from fmm.kernels.plans.lower import lower
from fmm.kernels.plans.plan import Plan

Array = Any  # numpy.ndarray, cupy.ndarray or an array of symbols: two axes, slicing, .T, .shape, .strides


class Workspace(Protocol):
    """Where temporaries come from: taken and given back like a stack."""

    used: int

    def take(self, rows: int, cols: int, fortran: bool = False) -> Array: ...
    def release(self, mark: int) -> None: ...


class Backend(Protocol):
    """The things that a recipe asks for."""

    def sum(self, step: Sum, reads: list[Array], writes: list[Array]) -> None: ...
    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None: ...
    def multiply_batch(self, leaf: str, lefts: list[Array], rights: list[Array], dests: list[Array]) -> None: ...


def execute(
    plan: Plan,
    a: Array,
    b: Array,
    c: Array,
    backend: Backend,
    arena: Workspace,
    alpha: Coefficient = 1,
    beta: Coefficient = 0,
) -> None:
    """C = alpha A B + beta C. C must overlap neither A nor B; with beta = 0 it is never read."""
    (m, k), n = a.shape, b.shape[1]
    recipe = lower(plan, m, k, n, alpha, beta)
    if recipe is None:
        backend.multiply(plan.leaf, a, b, c)
    else:
        _run(recipe, {"A": a, "B": b, "C": c}, backend, arena)


def _run(recipe: Recipe, arrays: dict[str, Array], backend: Backend, arena: Workspace) -> None:
    mark = arena.used
    for name, rows, cols in recipe.temporaries:
        arrays[name] = arena.take(rows, cols, fortran=_fortran(arrays[recipe.layouts[name]]))
    for step in recipe.steps:
        if isinstance(step, Sum):
            _sum(step, arrays, backend)
        elif isinstance(step, Updating):
            _apart(step, arrays, backend, arena)
        elif isinstance(step, Batch) and not step.products[0].plan.levels:
            factors = [[_view(arrays, place) for place in places] for places in step.places]
            backend.multiply_batch(step.products[0].plan.leaf, *factors)
        else:
            for product in step.products if isinstance(step, Batch) else (step,):
                _product(product, arrays, backend, arena)
    arena.release(mark)


def _sum(step: Sum, arrays: dict[str, Array], backend: Backend) -> None:
    backend.sum(step, [_view(arrays, p) for p in step.reads], [_view(arrays, p) for p in step.writes])


def _apart(step: Updating, arrays: dict[str, Array], backend: Backend, arena: Workspace) -> None:
    """The product first, into scratch if it has no place of its own; then the sum."""
    mark, dest = arena.used, step.product.dest
    if dest.name not in arrays:
        arrays = arrays | {dest.name: arena.take(dest.rows, dest.cols)}
    for part in step.apart:
        if isinstance(part, Sum):
            _sum(part, arrays, backend)
        else:
            _product(part, arrays, backend, arena)
    arena.release(mark)


def _product(step: Product, arrays: dict[str, Array], backend: Backend, arena: Workspace) -> None:
    left, right, dest = (_view(arrays, p) for p in (step.left, step.right, step.dest))
    execute(step.plan, left, right, dest, backend, arena, 1, int(step.accumulate))


def _view(arrays: dict[str, Array], place: Place) -> Array:
    return arrays[place.name][place.row : place.row + place.rows, place.col : place.col + place.cols]


def _fortran(x: Array) -> bool:
    """Are the columns nearer to each other in memory than the rows?"""
    return bool(abs(x.strides[0]) < abs(x.strides[1]))

"""The one walk over a plan: level by level through the steps of its lowering, down to the leaf.

What it walks on is a machine: NumPy's arrays and BLAS (fmm.kernels.cpu.execute), symbols
(fmm.kernels.cpu.symbolic_proof), or a recorder that notes the operations for a GPU (fmm.kernels.cuda.record).
Temporaries are taken and given back like a stack, so that the products of a level reuse each other's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.added_apart import with_added_apart
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductBatch, ProductWithSums
from fmm.kernels.plans.steps.sums import APART, Mirror, Place, Sum, Turned
from fmm.problem import Fill, Operation

Matrix = Any  # whatever the machine calculates with: it has two axes, .shape and .strides
# The matrices that a level's steps name: A, B, C and the level's temporaries; and APART, if beta's matrix is not C.
Operands = dict[str, Matrix]
Triple = tuple[Matrix, Matrix, Matrix]  # left operand, right operand, and where their product goes
Step = Sum | Product | ProductWithSums | ProductBatch | Mirror


class Machine(Protocol):
    """What a walk asks of whatever runs a plan, or records it."""

    @property
    def leaf_updates(self) -> bool:
        """Can a leaf itself multiply by alpha and add beta C?"""
        ...

    @property
    def used(self) -> int:
        """How many bytes of the workspace are taken at the moment."""
        ...

    def take(self, rows: int, cols: int, fortran: bool, dtype: str) -> Matrix:
        """Take a temporary of the workspace; its columns are contiguous if `fortran`, else its rows are."""

    def release(self, mark: int) -> None:
        """Give back every temporary that was taken since `used` was `mark`."""

    def part(self, x: Matrix, place: Place) -> Matrix:
        """The rectangle of the matrix that `place` names, or the real or imaginary parts in it."""

    def order_of_sums(self, steps: LevelSteps) -> Mapping[str, bool]:
        """Whether sums of the blocks of A, and of B, should lie column by column.

        Sums of a matrix that is not in the answer lie as the matrix itself does.
        """
        ...

    def sum(self, step: Sum, reads: Sequence[Matrix], writes: Sequence[Matrix]) -> None:
        """Do the additions of a step: `reads` and `writes` are the matrices at its places."""

    def multiply(
        self, leaf: str, products: Sequence[Triple], dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        """Multiply by a leaf. Several products are a batch: all are of one size."""

    def multiply_apart(
        self, leaf: str, product: Triple, added: Matrix, dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        """dest = alpha left right + beta added. Only machines with `leaf_updates` are asked for it."""

    def multiply_half(self, leaf: str, products: Sequence[Triple], dtype: str, asked: Asked) -> None:
        """Compute the lower halves of products that are their own adjoints. Several are a batch, as in `multiply`."""

    def mirror(self, step: Mirror, source: Matrix, dest: Matrix) -> None:
        """Finish a matrix that is its own adjoint from the lower half of `source`."""

    def multiply_and_update(self, step: ProductWithSums, operands: Operands) -> bool:
        """Multiply and do the sums of a step table's kernel at once; False if the machine cannot, and did nothing."""
        ...

    def multiply_with_sums(self, plan: Plan, operands: Operands, alpha: Coefficient, beta: Coefficient) -> bool:
        """Do a whole fused level; False if the machine cannot, and did nothing."""
        ...

    def side_by_side(self, products: Sequence[Product], dtype: str, run: Callable[[Product], None]) -> None:
        """Call `run` with each of these independent products, with as many at a time as the machine likes."""


class PlainMachine:
    """The answers of a machine without kernels: it has no wish for an order, fuses nothing, and multiplies in turns."""

    def order_of_sums(self, steps: LevelSteps) -> Mapping[str, bool]:
        return {}

    def multiply_and_update(self, step: ProductWithSums, operands: Operands) -> bool:
        return False

    def multiply_with_sums(self, plan: Plan, operands: Operands, alpha: Coefficient, beta: Coefficient) -> bool:
        return False

    def side_by_side(self, products: Sequence[Product], dtype: str, run: Callable[[Product], None]) -> None:
        for product in products:
            run(product)

    def multiply_apart(
        self, leaf: str, product: Triple, added: Matrix, dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        raise NotImplementedError(f"{type(self).__name__} has leaves that do not update")


def walk_plan(
    plan: Plan,
    operands: Operands,
    machine: Machine,
    dtype: str,
    alpha: Coefficient = 1,
    beta: Coefficient = 0,
    op: Operation = "product",
    fill: Fill = "full",
) -> None:
    """Compute C = alpha A B + beta C. C must overlap neither A nor B; with beta = 0 it is never read.

    With an operand APART, C = alpha A B + beta APART, and C is never read.

    `dtype`: the type of this product; levels may change the type of those below them.
    """
    a, b, c = operands["A"], operands["B"], operands["C"]
    own_adjoint = op != "product"
    if own_adjoint and not plan.levels and fill != "full":
        machine.multiply_half(plan.leaf, [(a, b, c)], dtype, Asked(alpha, beta, op, fill))
    elif not own_adjoint and not plan.levels and (machine.leaf_updates or (alpha, beta) == (1, 0)):
        if APART in operands:
            machine.multiply_apart(plan.leaf, (a, b, c), operands[APART], dtype, alpha, beta)
        else:
            machine.multiply(plan.leaf, [(a, b, c)], dtype, alpha, beta)
    elif own_adjoint or not (plan.fused and machine.multiply_with_sums(plan, operands, alpha, beta)):
        steps = lower_level(plan, *a.shape, b.shape[1], alpha, beta, op, fill)
        assert steps is not None
        _run_level(steps, operands, machine, plan.type_inside(dtype, [p.plan for p in steps.products]))


def _run_level(level: LevelSteps, operands: Operands, machine: Machine, dtype: str) -> None:
    """Run a level's steps with temporaries of its own. `dtype`: the type of its temporaries and products."""
    mark = machine.used
    _take_temporaries(level, operands, machine, dtype)
    for at_once, steps in _grouped_steps(with_added_apart(level) if APART in operands else level):
        if at_once:
            products = [step for step in steps if isinstance(step, Product)]
            machine.side_by_side(products, dtype, lambda product: _run_product(product, operands, machine, dtype))
        else:
            for step in steps:
                _run_step(step, operands, machine, dtype)
    machine.release(mark)


def _take_temporaries(level: LevelSteps, operands: Operands, machine: Machine, dtype: str) -> None:
    """Enter the level's temporaries among the operands.

    Of an operand whose rows are contiguous there is no turned copy: the operand itself stands in its place.
    """
    by_columns = machine.order_of_sums(level)
    turned = {step.copy.name: step for step in level.steps if isinstance(step, Turned)}
    for name, rows, cols in level.temporaries:
        if name in turned and not lies_by_columns(operands[turned[name].source.name]):
            operands[name] = machine.part(operands[turned[name].source.name], turned[name].source)
            continue
        like = level.layouts[name]
        fortran = name not in turned and (by_columns[like] if like in by_columns else lies_by_columns(operands[like]))
        operands[name] = machine.take(rows, cols, fortran, dtype)


def _grouped_steps(level: LevelSteps) -> Iterator[tuple[bool, Iterator[Step]]]:
    """Neighbouring steps in groups, each with whether it is of products that may run at the same time."""
    return groupby(level.steps, lambda step: level.lanes > 1 and isinstance(step, Product))


def _run_step(step: Step, operands: Operands, machine: Machine, dtype: str) -> None:
    if isinstance(step, Turned) and not lies_by_columns(operands[step.source.name]):
        return  # the operand itself stands in the copy's place
    if isinstance(step, Sum):
        machine.sum(step, *([machine.part(operands[p.name], p) for p in ps] for ps in (step.reads, step.writes)))
    elif isinstance(step, ProductWithSums):
        if not machine.multiply_and_update(step, operands):
            _run_product_then_sums(step, operands, machine, dtype)
    elif isinstance(step, Product):
        _run_product(step, operands, machine, dtype)
    elif isinstance(step, Mirror):
        machine.mirror(step, *(machine.part(operands[p.name], p) for p in (step.source, step.dest)))
    else:
        _run_batch(step, operands, machine, dtype)


def _run_batch(step: ProductBatch, operands: Operands, machine: Machine, dtype: str) -> None:
    """Hand the batch to the machine as one if a leaf does all of it, else product by product."""
    plan, asked = step.products[0].plan, step.products[0].asked
    own_adjoint, update = asked.op != "product", (asked.alpha, asked.beta)
    if plan.levels or not (own_adjoint or machine.leaf_updates or update == (1, 0)):
        for product in step.products:
            _run_product(product, operands, machine, dtype)
        return
    triples = [_matrices_of(product, operands, machine) for product in step.products]
    if own_adjoint:
        machine.multiply_half(plan.leaf, triples, dtype, asked)
    else:
        machine.multiply(plan.leaf, triples, dtype, *update)


def _run_product_then_sums(step: ProductWithSums, operands: Operands, machine: Machine, dtype: str) -> None:
    """Do the product first, into scratch if it has no place of its own, and then the sums."""
    mark, dest = machine.used, step.product.dest
    if dest.name not in operands:
        operands = operands | {dest.name: machine.take(dest.rows, dest.cols, False, dtype)}
    for part in step.apart:
        _run_step(part, operands, machine, dtype)
    machine.release(mark)


def _run_product(product: Product, operands: Operands, machine: Machine, dtype: str) -> None:
    below = dict(zip("ABC", _matrices_of(product, operands, machine), strict=True))
    if product.apart:
        below[APART] = machine.part(operands[APART], product.dest)
    walk_plan(product.plan, below, machine, dtype, *product.asked)


def _matrices_of(product: Product, operands: Operands, machine: Machine) -> Triple:
    left, right, dest = (machine.part(operands[p.name], p) for p in (product.left, product.right, product.dest))
    return left, right, dest


def lies_by_columns(x: Matrix) -> bool:
    """Are neighbours in a column nearer to each other in memory than neighbours in a row?"""
    return bool(abs(x.strides[0]) < abs(x.strides[1]))

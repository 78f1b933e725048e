"""The one walk over a plan: level by level through the steps of its lowering, down to the leaf.

What it walks on is a machine: NumPy's arrays and BLAS (fmm.kernels.cpu.execute), symbols
(fmm.kernels.cpu.symbolic_proof), or a recorder that notes the operations for a GPU (fmm.kernels.cuda.recorder).
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

Matrix = Any  # the machine's: two axes, with .shape and .strides
Operands = dict[str, Matrix]  # by name: A, B, C and this level's temporaries; APART, if C does not hold what is added
Triple = tuple[Matrix, Matrix, Matrix]  # left, right, dest
Step = Sum | Product | ProductWithSums | ProductBatch | Mirror


class Machine(Protocol):
    """What a walk asks of whatever runs, or records, a plan."""

    @property
    def leaf_updates(self) -> bool:
        """Does a leaf multiply by alpha and add beta C by itself?"""
        ...

    @property
    def used(self) -> int:
        """How much of the workspace is taken."""
        ...

    def take(self, rows: int, cols: int, fortran: bool, dtype: str) -> Matrix:
        """A temporary for numbers of this type, its rows contiguous, or its columns."""

    def release(self, mark: int) -> None:
        """Give back everything taken since `used` was `mark`."""

    def part(self, x: Matrix, place: Place) -> Matrix:
        """The rectangle of a matrix, or the real or imaginary parts that it names."""

    def order_of_sums(self, steps: LevelSteps) -> Mapping[str, bool]:
        """Should sums of A, of B lie column by column? For those that the machine has no wish for: as A, as B lie."""
        ...

    def sum(self, step: Sum, reads: Sequence[Matrix], writes: Sequence[Matrix]) -> None: ...

    def multiply(
        self, leaf: str, products: Sequence[Triple], dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        """Products of this type by a leaf, of one size; several are a batch."""

    def multiply_apart(
        self, leaf: str, product: Triple, added: Matrix, dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        """One product, added to beta times another matrix than the result; asked of machines whose leaves update."""

    def multiply_half(self, leaf: str, products: Sequence[Triple], dtype: str, asked: Asked) -> None:
        """The lower halves of products of this type and size that are their own adjoints; several are a batch."""

    def mirror(self, step: Mirror, source: Matrix, dest: Matrix) -> None: ...

    def multiply_and_update(self, step: ProductWithSums, operands: Operands) -> bool:
        """A product with the sums of a step table's kernel around it; False where they must be done one by one."""
        ...

    def multiply_with_sums(self, plan: Plan, operands: Operands, alpha: Coefficient, beta: Coefficient) -> bool:
        """A whole fused level; False where its products and sums must be done one by one."""
        ...

    def side_by_side(self, products: Sequence[Product], dtype: str, run: Callable[[Product], None]) -> None:
        """Run independent products of this type, as many at a time as the machine likes."""


class PlainMachine:
    """What a machine answers that has no kernels: sums as they come, nothing fused, and products in turns."""

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
    """C = alpha A B + beta C. C must overlap neither A nor B; with beta = 0 it is never read.

    With an operand APART, C = alpha A B + beta times that, and what C held is not read.

    `dtype`: of the product; levels may change the type of what is below them.
    """
    a, b, c = operands["A"], operands["B"], operands["C"]
    half = op != "product"
    if half and not plan.levels and fill != "full":
        machine.multiply_half(plan.leaf, [(a, b, c)], dtype, Asked(alpha, beta, op, fill))
    elif not half and not plan.levels and (machine.leaf_updates or (alpha, beta) == (1, 0)):
        if APART in operands:
            machine.multiply_apart(plan.leaf, (a, b, c), operands[APART], dtype, alpha, beta)
        else:
            machine.multiply(plan.leaf, [(a, b, c)], dtype, alpha, beta)
    elif half or not (plan.fused and machine.multiply_with_sums(plan, operands, alpha, beta)):
        steps = lower_level(plan, *a.shape, b.shape[1], alpha, beta, op, fill)
        assert steps is not None
        _run(steps, operands, machine, plan.type_inside(dtype, [p.plan for p in steps.products]))


def _run(level: LevelSteps, operands: Operands, machine: Machine, dtype: str) -> None:
    """`dtype`: of the level's temporaries and products."""
    mark, wished = machine.used, machine.order_of_sums(level)
    turned = {step.copy.name: step for step in level.steps if isinstance(step, Turned)}
    for name, rows, cols in level.temporaries:
        if name in turned and not lies_by_columns(operands[turned[name].source.name]):
            operands[name] = machine.part(operands[turned[name].source.name], turned[name].source)
            continue
        like = level.layouts[name]
        fortran = name not in turned and (wished[like] if like in wished else lies_by_columns(operands[like]))
        operands[name] = machine.take(rows, cols, fortran, dtype)
    for at_once, steps in _runs(with_added_apart(level) if APART in operands else level):
        if at_once:
            products = [step for step in steps if isinstance(step, Product)]
            machine.side_by_side(products, dtype, lambda product: _product(product, operands, machine, dtype))
        else:
            for step in steps:
                _step(step, operands, machine, dtype)
    machine.release(mark)


def _runs(level: LevelSteps) -> Iterator[tuple[bool, Iterator[Step]]]:
    """Steps one after the other, and products that may run at the same time."""
    return groupby(level.steps, lambda step: level.lanes > 1 and isinstance(step, Product))


def _step(step: Step, operands: Operands, machine: Machine, dtype: str) -> None:
    if isinstance(step, Turned) and not lies_by_columns(operands[step.source.name]):
        return
    if isinstance(step, Sum):
        machine.sum(step, *([machine.part(operands[p.name], p) for p in ps] for ps in (step.reads, step.writes)))
    elif isinstance(step, ProductWithSums):
        if not machine.multiply_and_update(step, operands):
            _one_by_one(step, operands, machine, dtype)
    elif isinstance(step, Product):
        _product(step, operands, machine, dtype)
    elif isinstance(step, Mirror):
        machine.mirror(step, *(machine.part(operands[p.name], p) for p in (step.source, step.dest)))
    else:
        _batch(step, operands, machine, dtype)


def _batch(step: ProductBatch, operands: Operands, machine: Machine, dtype: str) -> None:
    """At once, if leaves do all of them."""
    plan, asked = step.products[0].plan, step.products[0].asked
    half, update = asked.op != "product", (asked.alpha, asked.beta)
    if plan.levels or not (half or machine.leaf_updates or update == (1, 0)):
        for product in step.products:
            _product(product, operands, machine, dtype)
        return
    triples = [_triple(product, operands, machine) for product in step.products]
    if half:
        machine.multiply_half(plan.leaf, triples, dtype, asked)
    else:
        machine.multiply(plan.leaf, triples, dtype, *update)


def _one_by_one(step: ProductWithSums, operands: Operands, machine: Machine, dtype: str) -> None:
    """The product first, into scratch if it has no place of its own; then the sum."""
    mark, dest = machine.used, step.product.dest
    if dest.name not in operands:
        operands = operands | {dest.name: machine.take(dest.rows, dest.cols, False, dtype)}
    for part in step.apart:
        _step(part, operands, machine, dtype)
    machine.release(mark)


def _product(product: Product, operands: Operands, machine: Machine, dtype: str) -> None:
    below = dict(zip("ABC", _triple(product, operands, machine), strict=True))
    if product.apart:
        below[APART] = machine.part(operands[APART], product.dest)
    walk_plan(product.plan, below, machine, dtype, *product.asked)


def _triple(product: Product, operands: Operands, machine: Machine) -> Triple:
    left, right, dest = (machine.part(operands[p.name], p) for p in (product.left, product.right, product.dest))
    return left, right, dest


def lies_by_columns(x: Matrix) -> bool:
    """Are the columns nearer to each other in memory than the rows?"""
    return bool(abs(x.strides[0]) < abs(x.strides[1]))

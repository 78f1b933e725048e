"""The walk: a machine runs the steps of a plan's levels, from the outermost level down to the leaf.

A Machine executes the steps. Machines work on NumPy arrays (fmm.kernels.cpu.execute), work on symbols
(fmm.kernels.cpu.symbolic_proof), or record GPU operations (fmm.kernels.cuda.record). Temporaries are allocated as a
stack, so that the products of a level reuse the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelStep, LevelSteps, Product, ProductBatch, ProductWithSums, steps_with_addend
from fmm.kernels.plans.sums import ADDEND, Mirror, Place, RowMajorCopy, Sum
from fmm.problem import Fill, Operation

Matrix = Any  # the machine's own type of matrix, with two axes and the attributes .shape and .strides
# The matrices that a level's steps name: A, B, C, the level's temporaries, and ADDEND if beta multiplies another matrix
# than C.
Operands = dict[str, Matrix]
ProductMatrices = tuple[Matrix, Matrix, Matrix]  # left operand, right operand, result


class Machine(Protocol):
    """The interface of objects that execute or record the steps of a plan."""

    @property
    def leaves_apply_alpha_beta(self) -> bool:
        """Return True if leaves can multiply by alpha and add beta C."""
        ...

    @property
    def used_bytes(self) -> int:
        """Return the bytes of the workspace in use."""
        ...

    def allocate(self, rows: int, cols: int, fortran: bool, dtype: str) -> Matrix:
        """Allocate a temporary in the workspace: column-major if `fortran`, else row-major."""

    def free_temporaries_since(self, mark: int) -> None:
        """Free all temporaries that were allocated after `used_bytes` was `mark`."""

    def submatrix(self, x: Matrix, place: Place) -> Matrix:
        """Return the rectangle `place` of the matrix, or the real or imaginary parts of the rectangle."""

    def column_major_by_operand(self, steps: LevelSteps) -> Mapping[str, bool]:
        """Return the layouts that the machine needs for sums of A's blocks and of B's blocks: True for column-major.

        If the result has no key "A" or "B", the sums of blocks have the layout of the matrix A or B.
        """
        ...

    def compute_sums(self, step: Sum, reads: Sequence[Matrix], writes: Sequence[Matrix]) -> None:
        """Execute the additions of a step. `reads` and `writes` are the matrices at the step's places."""

    def multiply(
        self, leaf: str, products: Sequence[ProductMatrices], dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        """Compute one product with a leaf, or a batch of products of equal sizes."""

    def multiply_with_addend(
        self, leaf: str, product: ProductMatrices, addend: Matrix, dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        """Compute dest = alpha * left * right + beta * addend.

        Only a machine with `leaves_apply_alpha_beta` needs this method.
        """

    def multiply_triangle(self, leaf: str, products: Sequence[ProductMatrices], dtype: str, params: GemmParams) -> None:
        """Compute the lower triangle of one Gram product, or of a batch of Gram products of equal sizes."""

    def mirror_triangle(self, step: Mirror, source: Matrix, dest: Matrix) -> None:
        """Complete a Gram product from the lower triangle of `source`."""

    def multiply_and_update(self, step: ProductWithSums, operands: Operands) -> bool:
        """Compute a product and the sums of a step table's kernel in one launch, and return True.

        Without a kernel for the step, do nothing and return False.
        """
        ...

    def run_fused_level(self, plan: Plan, operands: Operands, alpha: Coefficient, beta: Coefficient) -> bool:
        """Execute a whole fused level and return True; without a kernel for the level, do nothing and return False."""
        ...

    def run_concurrently(self, products: Sequence[Product], dtype: str, run: Callable[[Product], None]) -> None:
        """Call `run` with each of the independent `products`; a machine can run several products at a time."""


class DefaultMachine:
    """Default methods of a machine: it prefers no layout, fuses no sums, and runs products in order."""

    def column_major_by_operand(self, steps: LevelSteps) -> Mapping[str, bool]:
        return {}

    def multiply_and_update(self, step: ProductWithSums, operands: Operands) -> bool:
        return False

    def run_fused_level(self, plan: Plan, operands: Operands, alpha: Coefficient, beta: Coefficient) -> bool:
        return False

    def run_concurrently(self, products: Sequence[Product], dtype: str, run: Callable[[Product], None]) -> None:
        for product in products:
            run(product)

    def multiply_with_addend(
        self, leaf: str, product: ProductMatrices, addend: Matrix, dtype: str, alpha: Coefficient, beta: Coefficient
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
    """Compute C = alpha A B + beta C, or C = alpha A B + beta ADDEND if `operands` contain ADDEND.

    C must overlap neither A nor B. With beta = 0, or with ADDEND, the old numbers of C are never read. `dtype` is the
    type of this product; levels can change the type of the products below them.
    """
    a, b, c = operands["A"], operands["B"], operands["C"]
    is_gram = op != "product"
    if is_gram and not plan.levels and fill != "full":
        machine.multiply_triangle(plan.leaf, [(a, b, c)], dtype, GemmParams(alpha, beta, op, fill))
    elif not is_gram and not plan.levels and (machine.leaves_apply_alpha_beta or (alpha, beta) == (1, 0)):
        if ADDEND in operands:
            machine.multiply_with_addend(plan.leaf, (a, b, c), operands[ADDEND], dtype, alpha, beta)
        else:
            machine.multiply(plan.leaf, [(a, b, c)], dtype, alpha, beta)
    elif is_gram or not (plan.is_fused and machine.run_fused_level(plan, operands, alpha, beta)):
        steps = lower_level(plan, *a.shape, b.shape[1], alpha, beta, op, fill)
        assert steps is not None
        _run_level(steps, operands, machine, plan.dtype_in_first_level(dtype, [p.plan for p in steps.products]))


def _run_level(level: LevelSteps, operands: Operands, machine: Machine, dtype: str) -> None:
    """Execute a level's steps with new temporaries. `dtype` is the type of the temporaries and products."""
    mark = machine.used_bytes
    _allocate_temporaries(level, operands, machine, dtype)
    steps = steps_with_addend(level).steps if ADDEND in operands else level.steps
    # If the level has several streams, consecutive products run concurrently.
    for concurrent, group in groupby(steps, lambda step: level.streams > 1 and isinstance(step, Product)):
        if concurrent:
            products = [step for step in group if isinstance(step, Product)]
            machine.run_concurrently(products, dtype, lambda product: _run_product(product, operands, machine, dtype))
        else:
            for step in group:
                _run_step(step, operands, machine, dtype)
    machine.free_temporaries_since(mark)


def _allocate_temporaries(level: LevelSteps, operands: Operands, machine: Machine, dtype: str) -> None:
    """Add the level's temporaries to the operands. A row-major operand itself serves as its row-major copy."""
    column_major = machine.column_major_by_operand(level)
    copies = {step.copy_place.name: step for step in level.steps if isinstance(step, RowMajorCopy)}
    for name, rows, cols in level.temporaries:
        if name in copies and not is_column_major(operands[copies[name].source_place.name]):
            operands[name] = machine.submatrix(operands[copies[name].source_place.name], copies[name].source_place)
            continue
        like = level.layout_operand_by_temporary[name]
        fortran = name not in copies and (
            column_major[like] if like in column_major else is_column_major(operands[like])
        )
        operands[name] = machine.allocate(rows, cols, fortran, dtype)


def _run_step(step: LevelStep, operands: Operands, machine: Machine, dtype: str) -> None:
    if isinstance(step, RowMajorCopy) and not is_column_major(operands[step.source_place.name]):
        return  # a row-major operand serves as its own row-major copy
    if isinstance(step, Sum):
        machine.compute_sums(
            step, *([machine.submatrix(operands[p.name], p) for p in ps] for ps in (step.reads, step.writes))
        )
    elif isinstance(step, ProductWithSums):
        if not machine.multiply_and_update(step, operands):
            _run_product_then_sums(step, operands, machine, dtype)
    elif isinstance(step, Product):
        _run_product(step, operands, machine, dtype)
    elif isinstance(step, Mirror):
        machine.mirror_triangle(step, *(machine.submatrix(operands[p.name], p) for p in (step.source, step.dest)))
    else:
        _run_batch(step, operands, machine, dtype)


def _run_batch(step: ProductBatch, operands: Operands, machine: Machine, dtype: str) -> None:
    """Run the batch as one call if a leaf can compute the whole batch; otherwise run the products one by one."""
    plan, params = step.products[0].plan, step.products[0].params
    is_gram, update = params.op != "product", (params.alpha, params.beta)
    if plan.levels or not (is_gram or machine.leaves_apply_alpha_beta or update == (1, 0)):
        for product in step.products:
            _run_product(product, operands, machine, dtype)
        return
    triples = [_product_matrices(product, operands, machine) for product in step.products]
    if is_gram:
        machine.multiply_triangle(plan.leaf, triples, dtype, params)
    else:
        machine.multiply(plan.leaf, triples, dtype, *update)


def _run_product_then_sums(step: ProductWithSums, operands: Operands, machine: Machine, dtype: str) -> None:
    """Compute the product, and then the sums; a product without a place in the operands goes to scratch memory."""
    mark, dest = machine.used_bytes, step.product.dest
    if dest.name not in operands:
        operands = operands | {dest.name: machine.allocate(dest.rows, dest.cols, False, dtype)}
    for part in step.as_separate_steps:
        _run_step(part, operands, machine, dtype)
    machine.free_temporaries_since(mark)


def _run_product(product: Product, operands: Operands, machine: Machine, dtype: str) -> None:
    below = dict(zip("ABC", _product_matrices(product, operands, machine), strict=True))
    if product.has_addend:
        below[ADDEND] = machine.submatrix(operands[ADDEND], product.dest)
    walk_plan(product.plan, below, machine, dtype, *product.params)


def _product_matrices(product: Product, operands: Operands, machine: Machine) -> ProductMatrices:
    left, right, dest = (machine.submatrix(operands[p.name], p) for p in (product.left, product.right, product.dest))
    return left, right, dest


def is_column_major(x: Matrix) -> bool:
    """Return True if adjacent elements of a column are closer in memory than adjacent elements of a row."""
    return bool(abs(x.strides[0]) < abs(x.strides[1]))

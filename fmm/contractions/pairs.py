"""The contraction of two arrays as one matrix product, or one stack of products.

Each dimension has a label. A label of both arrays and the result counts a stack's members (batch). A label of both
arrays that the result lacks is summed. The other labels of A count rows of the product, those of B count columns:

    C[batch, rows, columns] = sum over summed of A[batch, rows, summed] B[batch, summed, columns]

The rows of A become one dimension. This needs no copy if their strides nest: each stride is the next one times the next
dimension. So every group of labels takes the order in which an array stores it. The result has its dimensions in the
order in which the product writes them, and the caller permutes them, which copies nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from fmm import api
from fmm.contractions.array_module import (
    array_module,
    element_strides,
    is_complex_array,
    is_jax_array,
    multiply_matrices,
    permute_dimensions,
)

Labels = tuple[str, ...]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Smallest side of the matrices for which a stack of products is preferred to a copy that makes one matrix of the stack.
SMALLEST_STACKED_SIDE = 128


class LabeledArray(NamedTuple):
    """An array and the label of each of its dimensions."""

    array: Any
    labels: Labels

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each label."""
        return dict(zip(self.labels, self.array.shape, strict=True))

    @property
    def strides(self) -> dict[str, int]:
        """The stride of each label, in elements."""
        return dict(zip(self.labels, element_strides(self.array), strict=True))


class LabelGroups(NamedTuple):
    """The labels of a product by their purpose."""

    batch: Labels
    rows: Labels
    columns: Labels
    summed: Labels


def library_einsum(operands: Sequence[LabeledArray], result: Labels) -> LabeledArray:
    """Return the contraction by the library's own einsum, as one loop nest without matrix products."""
    letters = {label: LETTERS[i] for i, label in enumerate(dict.fromkeys(x for op in operands for x in op.labels))}
    inputs = ",".join("".join(letters[x] for x in op.labels) for op in operands)
    text = f"{inputs}->{''.join(letters[x] for x in result)}"
    return LabeledArray(array_module(operands[0].array).einsum(text, *(op.array for op in operands)), result)


def reduce_operand(operand: LabeledArray, needed: Collection[str], sizes: dict[str, int]) -> LabeledArray:
    """Return an operand without labels that nobody needs: diagonals are taken, and lone labels summed.

    A dimension of size 1 whose label is larger in another operand broadcasts, so that label is dropped here.
    """
    broadcast = [label for label, n in operand.sizes.items() if n == 1 < sizes[label]]
    labels = tuple(label for label in operand.labels if label not in broadcast)
    index = tuple(0 if label in broadcast else slice(None) for label in operand.labels)
    found = LabeledArray(operand.array[index] if broadcast else operand.array, labels)
    left = tuple(label for label in dict.fromkeys(labels) if label in needed)
    return found if left == labels else library_einsum([found], left)


def contract_pair(a: LabeledArray, b: LabeledArray, kept: Collection[str]) -> LabeledArray:
    """Return the contraction of two arrays; the result has the labels in `kept`, in any order.

    Parameters
    ----------
    a, b : LabeledArray
        Arrays of one library.
    kept : collection of str
        The labels that the result or a later contraction needs; all others are summed.
    """
    sizes = {label: max(n, a.sizes.get(label, 1)) for label, n in b.sizes.items()}
    sizes = {**a.sizes, **sizes}
    a = reduce_operand(a, {*b.labels, *kept}, sizes)
    b = reduce_operand(b, {*a.labels, *kept}, sizes)
    a = reduce_operand(a, {*b.labels, *kept}, sizes)
    groups = group_labels(a, b, kept)
    if not groups.summed or not (groups.rows or groups.columns):
        return library_einsum([a, b], groups.batch + groups.rows + groups.columns)
    if is_gram(a, b, groups):
        return contract_gram(a, groups)
    return contract_by_product(a, b, groups)


def group_labels(a: LabeledArray, b: LabeledArray, kept: Collection[str]) -> LabelGroups:
    """Return the labels by purpose, each group in the order in which an array stores it."""
    shared = [label for label in a.labels if label in b.labels]
    return LabelGroups(
        batch=stored_order(a, [label for label in shared if label in kept]),
        rows=stored_order(a, [label for label in a.labels if label not in b.labels]),
        columns=stored_order(b, [label for label in b.labels if label not in a.labels]),
        summed=summed_order(a, b, [label for label in shared if label not in kept]),
    )


def stored_order(operand: LabeledArray, labels: Sequence[str]) -> Labels:
    """Return labels by descending strides of an operand."""
    strides = operand.strides
    return tuple(sorted(labels, key=lambda label: -strides[label]))


def summed_order(a: LabeledArray, b: LabeledArray, labels: Sequence[str]) -> Labels:
    """Return the order of the summed labels with which fewer elements are copied."""
    orders = stored_order(a, labels), stored_order(b, labels)

    def copied_elements(order: Labels) -> int:
        return sum(0 if strides_nest(x, order) else prod(x.array.shape) for x in (a, b))

    return min(orders, key=copied_elements)


def strides_nest(operand: LabeledArray, labels: Sequence[str]) -> bool:
    """Return True if these dimensions, in this order, can become one dimension without a copy."""
    sizes, strides = operand.sizes, operand.strides
    wide = [label for label in labels if sizes[label] != 1]
    return all(strides[outer] == strides[inner] * sizes[inner] for outer, inner in pairwise(wide))


def contract_by_product(a: LabeledArray, b: LabeledArray, groups: LabelGroups) -> LabeledArray:
    """Return the contraction by one call of fmm.matmul."""
    outer_rows, rows = split_stack(a, groups.rows, groups.summed)
    outer_columns, columns = split_stack(b, groups.columns, groups.summed) if not outer_rows else ((), groups.columns)
    stack = groups.batch + outer_rows + outer_columns
    left = merged_matrix(a, stack, rows, groups.summed)
    right = merged_matrix(b, stack, groups.summed, columns)
    product = multiply_matrices(left, right)
    sizes = {**a.sizes, **b.sizes}
    labels = stack + rows + columns
    return LabeledArray(product.reshape(tuple(sizes[label] for label in labels)), labels)


def split_stack(operand: LabeledArray, free: Labels, summed: Labels) -> tuple[Labels, Labels]:
    """Return the outer labels that count a stack's members, and the labels of a matrix side.

    If the free labels of an operand do not nest, they cannot become one side of a matrix without a copy of the operand.
    The outermost labels then count members of a stack, if the matrices that remain are large.
    """
    sizes = operand.sizes
    start = next(i for i in range(len(free) + 1) if strides_nest(operand, free[i:]))
    inner = free[start:]
    is_large = min(prod(sizes[x] for x in inner), prod(sizes[x] for x in summed)) >= SMALLEST_STACKED_SIDE
    return (free[:start], inner) if is_large and not is_jax_array(operand.array) else ((), free)


def merged_matrix(operand: LabeledArray, stack: Labels, rows: Labels, columns: Labels) -> Any:
    """Return an operand as a matrix of these rows and columns, or as a stack of such matrices.

    A label of the stack that the operand lacks becomes a dimension of size 1, which broadcasts.
    """
    sizes = operand.sizes
    own_stack = tuple(label for label in stack if label in sizes)
    order = [operand.labels.index(label) for label in own_stack + rows + columns]
    shape = [sizes.get(label, 1) for label in stack]
    shape += [prod(sizes[x] for x in rows), prod(sizes[x] for x in columns)]
    return permute_dimensions(operand.array, order).reshape(tuple(shape))


def is_gram(a: LabeledArray, b: LabeledArray, groups: LabelGroups) -> bool:
    """Return True if the product is a real matrix times its own transpose, so that one triangle of it is enough."""
    if a.array is not b.array or groups.batch or not (groups.rows and groups.columns) or is_jax_array(a.array):
        return False
    same_place = all(a.labels.index(x) == b.labels.index(x) for x in groups.summed)
    return same_place and not is_complex_array(a.array)


def contract_gram(a: LabeledArray, groups: LabelGroups) -> LabeledArray:
    """Return the product of a matrix and its transpose by fmm.gram."""
    product = api.gram(merged_matrix(a, (), groups.summed, groups.rows))
    sides = tuple(a.sizes[label] for label in groups.rows)
    return LabeledArray(product.reshape(sides + sides), groups.rows + groups.columns)

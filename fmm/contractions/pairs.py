"""The contraction of two arrays as one matrix product, or one stack of products.

Each dimension has a label. A label that A, B and the result have becomes a batch dimension: it numbers the matrices of
a stack. A label that A and B have and the result lacks is summed. The other labels of A become rows of the product, and
the other labels of B become columns:

    C[batch, rows, columns] = sum over summed of A[batch, rows, summed] B[batch, summed, columns]

All row labels of A become one dimension. No copy of A is needed if the strides of these labels nest: each stride equals
the next stride times the next label's size. To avoid copies, the labels that become one dimension (batch, row, summed
or column) have the order in which the array stores its dimensions. The result's dimensions are stored in the order in
which the product writes them, normally rows before columns. The transposed product, with columns before rows, is
computed only if this saves a copy in the next pair. The caller of the contraction permutes the dimensions of the result
to the requested order, as a view without a copy.

`plan_pair` decides the order of labels and the copies from labels, shapes and strides alone; its plans are cached.
`contract_pair` runs a plan on arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, Literal, NamedTuple

from fmm import api
from fmm.arrays.detect import is_on_device
from fmm.contractions.array_module import (
    array_module,
    element_strides,
    is_jax_array,
    is_real_array,
    multiply_matrices,
    permute_dimensions,
)

Labels = tuple[str, ...]
LABEL_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# If an operand cannot be viewed as one matrix without a copy, the pair can be computed as a stack of products. If a
# side of the stack's matrices would be smaller than SMALLEST_STACKED_SIDE, the operand is copied, because products of
# small matrices are slow.
SMALLEST_STACKED_SIDE = 128
# On a GPU, a nearly outer product takes the time to write its result. The library's own einsum computes nearly outer
# products, since einsum chooses layouts that are written faster (cuBLAS, H100: 1.5 GB in 0.53 instead of 0.59 ms). A
# pair is nearly an outer product if each sum has at most MAX_OUTER_SUM terms, and the result has at least
# MIN_OUTER_RATIO times as many elements as the operands.
MAX_OUTER_SUM, MIN_OUTER_RATIO = 16, 16


class LabeledLayout(NamedTuple):
    """The label, size and stride (in elements) of each dimension of an array."""

    labels: Labels
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension, by the dimension's label."""
        return dict(zip(self.labels, self.shape, strict=True))

    def stored_order(self, labels: Collection[str]) -> Labels:
        """Return these labels in the order in which the array stores them, the largest stride first."""
        stride_of = dict(zip(self.labels, self.strides, strict=True))
        return tuple(sorted((x for x in self.labels if x in labels), key=lambda label: -stride_of[label]))

    def are_dimensions_mergeable(self, labels: Sequence[str]) -> bool:
        """Return True if the dimensions with these labels, in this order, can become one dimension without a copy."""
        dimensions = {x: (n, stride) for x, n, stride in zip(*self, strict=True) if n != 1}
        nested = pairwise(dimensions[x] for x in labels if x in dimensions)
        return all(outer[1] == inner[1] * inner[0] for outer, inner in nested)


class LabeledArray(NamedTuple):
    """An array, with a label for each dimension."""

    array: Any
    labels: Labels

    @property
    def layout(self) -> LabeledLayout:
        """The array's labels, shape and strides."""
        return LabeledLayout(self.labels, tuple(self.array.shape), element_strides(self.array))


class MatrixView(NamedTuple):
    """How an array becomes a matrix or a stack: its dimensions are permuted to `order`, then reshaped to `shape`."""

    order: tuple[int, ...]
    shape: tuple[int, ...]

    def matrix_from_array(self, array: Any) -> Any:
        """Return the array as a matrix or stack: as a view if the strides allow a view, else as a copy."""
        return permute_dimensions(array, self.order).reshape(self.shape)


class ConsumingPair(NamedTuple):
    """The pair that later reads this pair's result: the labels of its other operand and of its own result."""

    other: frozenset[str]
    kept: frozenset[str]

    def must_copy_operand(self, operand: LabeledLayout) -> bool:
        """Return True if this pair must copy the operand: its row or summed labels cannot become one dimension."""
        rows = operand.stored_order(set(operand.labels) - self.other)
        summed = operand.stored_order(self.other - self.kept)
        return not (operand.are_dimensions_mergeable(rows) and operand.are_dimensions_mergeable(summed))


class PairPlan(NamedTuple):
    """How two arrays are contracted: the operation, the arrays as matrices, and the result's labels and shape."""

    kind: Literal["product", "gram", "einsum"]
    labels: Labels
    shape: tuple[int, ...] = ()
    a: MatrixView = MatrixView((), ())
    b: MatrixView = MatrixView((), ())
    is_transposed: bool = False  # True if b's matrix is the left operand, and a's matrix the right operand


# ---- single arrays


def library_einsum(operands: Sequence[LabeledArray], result: Labels) -> LabeledArray:
    """Return the contraction of all operands by one call of the library's own einsum."""
    text = einsum_text(tuple(operand.labels for operand in operands), result)
    return LabeledArray(array_module(operands[0].array).einsum(text, *(x.array for x in operands)), result)


@lru_cache(maxsize=4096)
def einsum_text(inputs: tuple[Labels, ...], result: Labels) -> str:
    """Return the subscripts of an einsum call as text; each label becomes a letter."""
    letters = {label: LABEL_LETTERS[i] for i, label in enumerate(dict.fromkeys(x for labels in inputs for x in labels))}
    *texts, output = ("".join(letters[x] for x in labels) for labels in (*inputs, result))
    return f"{','.join(texts)}->{output}"


def reduce_operand(operand: LabeledArray, needed: Collection[str], sizes: dict[str, int]) -> LabeledArray:
    """Return the operand without repeated labels, and without labels that are not in `needed`.

    If the operand has a label twice, as in `ii`, only the diagonal of the two dimensions is used. The operand is summed
    over each label that is not in `needed`.

    A label that has size 1 in this operand and a larger size in the other operand is dropped: the dimension broadcasts.
    """
    shape = operand.array.shape
    broadcast = [label for label, n in zip(operand.labels, shape, strict=True) if n == 1 < sizes[label]]
    if broadcast:
        index = tuple(0 if label in broadcast else slice(None) for label in operand.labels)
        left = tuple(label for label in operand.labels if label not in broadcast)
        operand = LabeledArray(operand.array[index], left)
    left = tuple(label for label in dict.fromkeys(operand.labels) if label in needed)
    return operand if left == operand.labels else library_einsum([operand], left)


# ---- pairs


def contract_pair(
    a: LabeledArray, b: LabeledArray, kept: frozenset[str], next_pair: ConsumingPair | None = None
) -> LabeledArray:
    """Return the contraction of two arrays; the result has the arrays' labels that are in `kept`, in any order.

    Parameters
    ----------
    a, b : LabeledArray
        Arrays of one library.
    kept : frozenset of str
        The labels that the result or a later contraction needs. All other labels are summed.
    next_pair : ConsumingPair, optional
        The pair that contracts the result later. If possible, the result is stored in an order that `next_pair` can use
        without a copy.
    """
    layout_a, layout_b = a.layout, b.layout
    if must_reduce_operand(layout_a, layout_b, kept):
        sizes = layout_a.sizes
        sizes |= {label: max(n, sizes.get(label, 1)) for label, n in layout_b.sizes.items()}
        a = reduce_operand(a, {*b.labels, *kept}, sizes)
        b = reduce_operand(b, {*a.labels, *kept}, sizes)
        a = reduce_operand(a, {*b.labels, *kept}, sizes)
        layout_a, layout_b = a.layout, b.layout
    if is_on_device(a.array) and is_bound_by_result_writes(layout_a, layout_b, kept):
        return library_einsum([a, b], tuple(label for label in dict.fromkeys(a.labels + b.labels) if label in kept))
    is_jax = is_jax_array(a.array)
    can_use_gram = a.array is b.array and not is_jax and is_real_array(a.array)
    plan = plan_pair(layout_a, layout_b, kept, can_use_gram, not is_jax, next_pair)
    if plan.kind == "einsum":
        return library_einsum([a, b], plan.labels)
    left = plan.a.matrix_from_array(a.array)
    if plan.kind == "gram":
        result = api.gram(left)
    else:
        right = plan.b.matrix_from_array(b.array)
        result = multiply_matrices(right, left) if plan.is_transposed else multiply_matrices(left, right)
    return LabeledArray(result.reshape(plan.shape), plan.labels)


@lru_cache(maxsize=4096)
def must_reduce_operand(a: LabeledLayout, b: LabeledLayout, kept: frozenset[str]) -> bool:
    """Return True if an operand must be reduced (see `reduce_operand`) before the two arrays can be multiplied."""
    sizes_a, sizes_b = a.sizes, b.sizes
    is_repeated = len(sizes_a) < len(a.labels) or len(sizes_b) < len(b.labels)
    lone_is_summed = not kept.issuperset(sizes_a.keys() ^ sizes_b.keys())
    return is_repeated or lone_is_summed or any(sizes_a[x] != sizes_b[x] for x in sizes_a.keys() & sizes_b.keys())


@lru_cache(maxsize=4096)
def is_bound_by_result_writes(a: LabeledLayout, b: LabeledLayout, kept: frozenset[str]) -> bool:
    """Return True if the pair is nearly an outer product: its sums are short, its result is far larger than a and b."""
    sizes = {**a.sizes, **b.sizes}
    terms = prod(n for label, n in sizes.items() if label not in kept)
    elements = prod(n for label, n in sizes.items() if label in kept)
    return terms <= MAX_OUTER_SUM and elements >= MIN_OUTER_RATIO * (prod(a.shape) + prod(b.shape))


@lru_cache(maxsize=4096)
def plan_pair(
    a: LabeledLayout,
    b: LabeledLayout,
    kept: frozenset[str],
    can_use_gram: bool,
    can_stack: bool,
    next_pair: ConsumingPair | None = None,
) -> PairPlan:
    """Return the plan for the contraction of two arrays.

    Parameters
    ----------
    a, b : LabeledLayout
        The layouts of the operands; `must_reduce_operand` is False for these layouts.
    kept : frozenset of str
        The labels of the result.
    can_use_gram : bool
        True if both operands are the same real array: the product of a matrix and its transpose is symmetric.
    can_stack : bool
        True if the product may become a stack of products where the strides of row labels do not nest.
    next_pair : ConsumingPair, optional
        The pair that contracts the result later.
    """
    shared = [label for label in a.labels if label in b.labels]
    batch = a.stored_order([label for label in shared if label in kept])
    rows = a.stored_order([label for label in a.labels if label not in shared])
    columns = b.stored_order([label for label in b.labels if label not in shared])
    summed = summed_order(a, b, [label for label in shared if label not in kept])
    sizes = {**a.sizes, **b.sizes}
    if not summed or not (rows or columns):
        return PairPlan("einsum", batch + rows + columns)
    if can_use_gram and rows and columns and not batch and all(a.labels.index(x) == b.labels.index(x) for x in summed):
        sides = tuple(sizes[label] for label in rows)
        return PairPlan("gram", rows + columns, sides + sides, matrix_view(a, (), summed, rows))
    outer_rows, rows = split_stack(a, rows, summed) if can_stack else ((), rows)
    outer_columns, columns = split_stack(b, columns, summed) if can_stack and not outer_rows else ((), columns)
    stack = batch + outer_rows + outer_columns
    natural, transposed = (contiguous_layout(x, sizes) for x in (stack + rows + columns, stack + columns + rows))
    if next_pair and next_pair.must_copy_operand(natural) and not next_pair.must_copy_operand(transposed):
        left, right = matrix_view(a, stack, summed, rows), matrix_view(b, stack, columns, summed)
        return PairPlan("product", transposed.labels, transposed.shape, left, right, is_transposed=True)
    left, right = matrix_view(a, stack, rows, summed), matrix_view(b, stack, summed, columns)
    return PairPlan("product", natural.labels, natural.shape, left, right)


def contiguous_layout(labels: Labels, sizes: dict[str, int]) -> LabeledLayout:
    """Return the layout of a new array with these labels."""
    shape = tuple(sizes[label] for label in labels)
    return LabeledLayout(labels, shape, tuple(prod(shape[i + 1 :]) for i in range(len(shape))))


def summed_order(a: LabeledLayout, b: LabeledLayout, labels: Collection[str]) -> Labels:
    """Return the order of the summed labels for which the fewest elements of a and b must be copied."""

    def copied_elements(order: Labels) -> int:
        return sum(0 if x.are_dimensions_mergeable(order) else prod(x.shape) for x in (a, b))

    return min((a.stored_order(labels), b.stored_order(labels)), key=copied_elements)


def split_stack(operand: LabeledLayout, free: Labels, summed: Labels) -> tuple[Labels, Labels]:
    """Divide the free labels into labels that number the matrices of a stack, and labels of one side of a matrix.

    Free labels are the labels of this operand that the second operand lacks. If all free labels form one side of a
    single matrix and cannot become one dimension, the operand must be copied. A stack needs no copy: the outermost free
    labels number its matrices, and the other free labels form a side of each matrix. Stacks of small matrices are slow:
    the stack is chosen only if both sides of its matrices are large. If the operand must be copied in any case, because
    its summed labels cannot become one dimension, it becomes one matrix: one product is faster than a stack.
    """
    if not operand.are_dimensions_mergeable(summed):
        return (), free
    sizes = operand.sizes
    start = next(i for i in range(len(free) + 1) if operand.are_dimensions_mergeable(free[i:]))
    inner = free[start:]
    is_large = min(prod(sizes[x] for x in inner), prod(sizes[x] for x in summed)) >= SMALLEST_STACKED_SIDE
    return (free[:start], inner) if is_large else ((), free)


def matrix_view(operand: LabeledLayout, stack: Labels, rows: Labels, columns: Labels) -> MatrixView:
    """Return an operand as a matrix with these row and column labels, or as a stack of matrices with these labels.

    For each label of the stack that the operand lacks, the view has a dimension of size 1, which broadcasts.
    """
    sizes = operand.sizes
    own_stack = tuple(label for label in stack if label in sizes)
    order = tuple(operand.labels.index(label) for label in own_stack + rows + columns)
    sides = prod(sizes[x] for x in rows), prod(sizes[x] for x in columns)
    return MatrixView(order, (*(sizes.get(label, 1) for label in stack), *sides))

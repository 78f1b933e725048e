"""fmm.einsum, fmm.tensordot and fmm.multi_dot.

opt_einsum parses the subscripts and finds the order in which pairs of operands are contracted. fmm computes each pair
as a matrix product (`pairs.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from fmm.arrays.detect import array_kind, is_on_device
from fmm.contractions.array_module import (
    array_module,
    as_array,
    has_plain_layout,
    permute_dimensions,
    with_common_type,
    write_to,
)
from fmm.contractions.pairs import ConsumingPair, LabeledArray, Labels, contract_pair, library_einsum, reduce_operand
from fmm.runtime.decisions.early_declines import SMALL_MULTIPLY_ADDS

# If the largest pair of a contraction on a CPU has fewer multiply-adds than this number, the library's own einsum
# computes each pair: no plan can be faster, and the library's einsum has less overhead. SMALL_HOST_MULTIPLY_ADDS is
# low, since NumPy's einsum computes stacks of matrices without BLAS, and is therefore slow for them.
SMALL_HOST_MULTIPLY_ADDS = 1 << 15
# Smallest number of elements for which copying a CuPy array on the GPU takes more time than the host needs for a call
# of cupy.einsum.
LARGE_COPY = 1 << 22


def einsum(*operands: Any, out: Any = None, optimize: Any = "auto", **library_options: Any) -> Any:
    """Return Einstein's sum of several arrays, as numpy.einsum does, by matrix products of fmm.

    Parameters
    ----------
    *operands
        The subscripts as text and the arrays, or arrays and lists of subscripts in turns, as numpy.einsum takes them.
        The arrays are of one library: NumPy, CuPy, torch or JAX.
    out : array, optional
        Array for the result.
    optimize : str, bool, tuple, list or None, optional
        The order of the pairs of operands, as for opt_einsum.contract_path: "auto", "optimal", "greedy", "dp", a path,
        or a method and the largest number of elements of a result between two pairs, as ("greedy", 10**6). With False
        or None, the library's own einsum multiplies all operands in one loop nest.
    **library_options
        Other options of the library's einsum (`dtype`, `order`, `casting`). Calls with these options are passed to the
        library's einsum.

    Returns
    -------
    array
        The result, of the operands' library; `out` if it was passed. The result may be a view with permuted dimensions.

    Raises
    ------
    ImportError
        opt_einsum is not installed.
    ValueError
        The subscripts do not match the arrays; `out` has another shape; a path does not contract all operands.
    TypeError
        The result's type cannot be cast to the type of `out` without loss.

    Notes
    -----
    Arrays of several types are first converted to their common type. Each pair of arrays is one call of fmm.matmul
    (fmm.gram for an array and itself), with the errors and memory of that function. An array is copied only if its
    strides do not allow a view of the array as a matrix. For pairs without a summed label, the library multiplies the
    elements.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> a, b, c = np.eye(2), np.ones((2, 3)), np.arange(6.0).reshape(2, 3)
    >>> fmm.einsum("ij,jk,lk->il", a, b, c)
    array([[ 3., 12.],
           [ 3., 12.]])
    """
    inputs = [x for x in operands if not isinstance(x, str | bytes)]
    if not inputs:
        raise ValueError("fmm.einsum needs subscripts and an array at least")
    is_librarys = library_options or optimize is None or optimize is False
    if is_librarys or not all(has_plain_layout(x) for x in inputs if hasattr(x, "shape")):
        options = {**library_options} if out is None else {**library_options, "out": out}
        return array_module(inputs[0]).einsum(*operands, **options)
    subscripts, arrays = parse_operands(operands)
    arrays = with_common_type(arrays)
    plan = plan_contraction(subscripts, tuple(tuple(x.shape) for x in arrays), *order_and_size_limit(optimize))
    work = plan.largest_multiply_adds
    is_small = work < SMALL_HOST_MULTIPLY_ADDS or (work < SMALL_MULTIPLY_ADDS and is_on_device(arrays[0]))
    terms = [LabeledArray(x, labels) for x, labels in zip(arrays, plan.inputs, strict=True)]
    # A small contraction of CuPy arrays is one call of cupy.einsum, unless fmm's products take the host less time.
    is_cupy = array_kind(arrays[0]) == "cupy"
    if is_small and is_cupy and not is_faster_than_cupy_einsum(terms, plan) and subscripts.isascii():
        path = ["einsum_path", *plan.path]
        return write_to(out, array_module(arrays[0]).einsum(subscripts, *arrays, optimize=path))
    return write_to(out, result_in_output_order(contract_terms(terms, plan, is_small and not is_cupy), plan.output))


class ContractionPlan(NamedTuple):
    """The order in which a contraction multiplies pairs of operands."""

    inputs: tuple[Labels, ...]
    output: Labels
    # For each step, the positions of its operands in the list of arrays. After a step, its two operands are removed
    # from the list of arrays, and the result is appended.
    path: tuple[tuple[int, ...], ...]
    needed_labels: tuple[frozenset[str], ...]  # for each step, the labels that later steps or the output need
    results: tuple[Labels, ...]  # for each step, the labels of the result if the library's einsum computes the step
    consuming_pairs: tuple[ConsumingPair | None, ...]  # for each step, the later pair that contracts the step's result
    # True if each step is one product of two matrices or stacks, and no operand must first be reduced to fewer labels
    has_only_products: bool
    largest_multiply_adds: int  # number of multiply-adds of the largest step


def parse_operands(operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the subscripts, as text without ellipsis, and the arrays; ValueError if the subscripts are malformed."""
    text, *others = operands
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    parser = _opt_einsum().parser
    if not isinstance(text, str):
        try:
            text, others = parser.convert_interleaved_input(operands)
        except KeyError as error:
            raise ValueError(f"fmm.einsum: the result has the label {error}, which no operand has") from None
    text, arrays = text.replace(" ", ""), [as_array(x) for x in others]
    if "." not in text and "->" in text:
        return text, arrays
    inputs, output, _ = parser.parse_einsum_input((text, *arrays))
    left, _, right = text.partition("->")
    ellipsis_has_dimensions = [
        x.ndim > len(term) - 3 for term, x in zip(left.split(","), arrays, strict=True) if "." in term
    ]
    if right and "." not in right and any(ellipsis_has_dimensions):
        raise ValueError(f"fmm.einsum: the result of {text!r} lacks the dimensions of the ellipsis")
    return f"{inputs}->{output}", arrays


def order_and_size_limit(optimize: Any) -> tuple[Any, int | None]:
    """Return the option `optimize` in a form that can be hashed: a method or path, and the largest intermediate size.

    Beside opt_einsum's forms, NumPy's are valid: ("greedy", 1000), and a path after the text "einsum_path".
    """
    if isinstance(optimize, str | bool):
        return optimize, None
    first, *others = optimize or [None]
    if isinstance(first, str) and first != "einsum_path":
        return first, int(others[0]) if others else None
    return tuple(tuple(step) for step in optimize if not isinstance(step, str)), None


@lru_cache(maxsize=4096)
def plan_contraction(
    subscripts: str, shapes: tuple[tuple[int, ...], ...], optimize: Any, size_limit: int | None = None
) -> ContractionPlan:
    """Return the plan of a contraction by its subscripts; ValueError if the subscripts do not match the shapes."""
    terms, output = checked_labels(subscripts, shapes)
    if isinstance(optimize, tuple):
        optimize = list(optimize)
        check_path(optimize, len(terms))
    options = {"shapes": True, "optimize": optimize, "memory_limit": size_limit}
    path, _ = _opt_einsum().contract_path(subscripts, *shapes, **options)
    sizes: dict[str, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        for label, n in zip(labels, shape, strict=True):
            sizes[label] = max(n, sizes.get(label, 1))
    left, kept, results, work = list(terms), list[frozenset[str]](), list[Labels](), [0]
    has_only_products = True
    for step in path:
        chosen = [left.pop(i) for i in sorted(step, reverse=True)]
        kept.append(frozenset(output).union(*left))
        has_only_products &= is_single_product(chosen, kept[-1])
        labels = tuple(dict.fromkeys(label for term in chosen for label in term if label in kept[-1]))
        results.append(labels if left else output)
        left.append(labels)
        work.append(prod(sizes[label] for label in set().union(*chosen)))
    following = consuming_pairs(terms, path, kept, results)
    steps = tuple(path), tuple(kept), tuple(results), following
    return ContractionPlan(tuple(terms), output, *steps, has_only_products, max(work))


def checked_labels(subscripts: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Labels], Labels]:
    """Return the labels of the operands and of the result; ValueError if they are malformed or do not match."""
    inputs, arrow, output = subscripts.partition("->")
    terms = [tuple(term) for term in inputs.split(",")]
    named = set(inputs) - {","}
    strange = [label for label in sorted({*named, *output}) if label.isascii() and not label.isalpha()]
    if not arrow or strange:
        raise ValueError(f"fmm.einsum: the subscripts {subscripts!r} must be letters, commas and one '->'")
    if len(terms) != len(shapes) or any(len(x) != len(shape) for x, shape in zip(terms, shapes, strict=True)):
        given = ", ".join(map(str, shapes))
        raise ValueError(f"fmm.einsum: the subscripts {subscripts!r} do not match arrays of shapes {given}")
    if len(set(output)) < len(output) or not named.issuperset(output):
        raise ValueError(f"fmm.einsum: each label of the result of {subscripts!r} must be one of an operand's, once")
    for term, shape in zip(terms, shapes, strict=True):
        if len(set(zip(term, shape, strict=True))) > len(set(term)):
            raise ValueError(f"fmm.einsum: in {subscripts!r}, a label stands for two sizes of one operand: {shape}")
    return terms, tuple(output)


def check_path(path: Sequence[tuple[int, ...]], count: int) -> None:
    """Raise ValueError if a path does not contract this number of operands to one."""
    left = count
    for step in path:
        if not step or len(set(step)) < len(step) or not all(0 <= i < left for i in step):
            raise ValueError(f"fmm.einsum: the path {path} is invalid: {step} does not name some of {left} operands")
        left += 1 - len(step)
    if left != 1:
        raise ValueError(f"fmm.einsum: the path {path} is invalid: {left} operands remain, not one")


def is_faster_than_cupy_einsum(terms: Sequence[LabeledArray], plan: ContractionPlan) -> bool:
    """Return True if fmm's products of a small contraction take less time than one call of cupy.einsum.

    Return False for a single product that must copy a large operand: cupy.einsum copies this operand too.
    """
    if not plan.has_only_products or len(terms) > 2:
        return plan.has_only_products
    (kept,) = plan.needed_labels
    return not any(
        prod(x.array.shape) >= LARGE_COPY and ConsumingPair(frozenset(other.labels), kept).must_copy_operand(x.layout)
        for x, other in (terms, terms[::-1])
    )


def is_single_product(terms: Sequence[Labels], kept: frozenset[str]) -> bool:
    """Return True if the contraction is one product: there are two operands, and both have all summed labels."""
    if len(terms) != 2 or any(len(set(labels)) < len(labels) for labels in terms):
        return False
    a, b = map(set, terms)
    return kept >= a ^ b and bool(a & b - kept) and a != b


def consuming_pairs(
    inputs: Sequence[Labels],
    path: Sequence[tuple[int, ...]],
    needed_labels: Sequence[frozenset[str]],
    results: Sequence[Labels],
) -> tuple[ConsumingPair | None, ...]:
    """Return, for each step, the later pair that has the step's result as an operand; None for the last step."""
    found: list[ConsumingPair | None] = [None] * len(path)
    # labels of an operand, and the step that computes the operand (None for an input)
    left: list[tuple[Labels, int | None]] = [(labels, None) for labels in inputs]
    for i, (step, kept) in enumerate(zip(path, needed_labels, strict=True)):
        chosen = [left.pop(position) for position in sorted(step, reverse=True)]
        if len(chosen) == 2:
            for (_, source), (other, _) in (chosen, chosen[::-1]):
                if source is not None:
                    found[source] = ConsumingPair(frozenset(other), kept)
        left.append((results[i], i))
    return tuple(found)


def contract_terms(terms: list[LabeledArray], plan: ContractionPlan, by_library: bool) -> LabeledArray:
    """Return the contraction of all terms, pair by pair; with `by_library`, the arrays' library computes each pair."""
    steps = zip(plan.path, plan.needed_labels, plan.results, plan.consuming_pairs, strict=True)
    for step, kept, labels, next_pair in steps:
        chosen = [terms.pop(i) for i in sorted(step, reverse=True)][::-1]
        if by_library or len(chosen) > 2:
            terms.append(library_einsum(chosen, labels))
        elif len(chosen) == 2:
            terms.append(contract_pair(chosen[0], chosen[1], kept, next_pair))
        else:
            terms.append(reduce_operand(chosen[0], kept, dict.fromkeys(chosen[0].labels, 1)))
    (result,) = terms
    return result


def result_in_output_order(result: LabeledArray, output: Labels) -> Any:
    """Return the result's array with its dimensions in the order of the output subscripts."""
    if not output:
        return result.array[()] if isinstance(result.array, np.ndarray) else result.array
    return permute_dimensions(result.array, [result.labels.index(label) for label in output])


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Return the tensor product of two arrays, summed over `axes`, as numpy.tensordot does.

    Parameters
    ----------
    a, b : array
        Arrays of NumPy, CuPy, torch or JAX.
    axes : int or pair of sequences, optional
        An int N: the last N axes of `a` and the first N axes of `b` are summed. A pair: the summed axes of `a` and the
        summed axes of `b`.

    Returns
    -------
    array
        The remaining dimensions of `a`, then those of `b`.

    Raises
    ------
    ValueError
        `a` and `b` have different numbers of summed axes, or summed axes of different sizes.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.tensordot(np.ones((2, 3, 4)), np.ones((4, 3, 5)), axes=([1, 2], [1, 0])).shape
    (2, 5)
    """
    a, b = as_array(a), as_array(b)
    if not (has_plain_layout(a) and has_plain_layout(b)):
        return array_module(a).tensordot(a, b, axes)
    a, b = with_common_type([a, b])
    summed_a, summed_b = _summed_axes(a, b, axes)
    labels_a = [f"a{i}" for i in range(a.ndim)]
    labels_b = [f"b{i}" for i in range(b.ndim)]
    for i, j in zip(summed_a, summed_b, strict=True):
        labels_b[j] = labels_a[i]
    free_a = tuple(label for i, label in enumerate(labels_a) if i not in summed_a)
    output = free_a + tuple(label for j, label in enumerate(labels_b) if j not in summed_b)
    found = contract_pair(LabeledArray(a, tuple(labels_a)), LabeledArray(b, tuple(labels_b)), frozenset(output))
    result = permute_dimensions(found.array, [found.labels.index(label) for label in output])
    return np.asarray(result) if isinstance(a, np.ndarray) else result  # numpy.einsum returns a scalar, not a 0-d array


def _summed_axes(a: Any, b: Any, axes: Any) -> tuple[list[int], list[int]]:
    """Return the summed axes of both arrays as indices of 0 or more; raise ValueError if the axes do not match."""
    try:
        count = index(axes)
    except TypeError:
        both = [[x] if np.ndim(x) == 0 else x for x in axes]
        if len(both) != 2:
            raise ValueError(f"axes={axes!r} must be a number of axes, or the axes of both arrays") from None
        axes_a, axes_b = ([index(i) for i in x] for x in both)
    else:
        axes_a, axes_b = [*range(a.ndim - count, a.ndim)], [*range(count)]
    out_of_range = any(not -x.ndim <= i < x.ndim for x, chosen in ((a, axes_a), (b, axes_b)) for i in chosen)
    if out_of_range or len(axes_a) != len(axes_b):
        raise ValueError(f"axes={axes!r} do not match arrays of shapes {tuple(a.shape)} and {tuple(b.shape)}")
    summed_a, summed_b = [i % a.ndim for i in axes_a], [j % b.ndim for j in axes_b]
    if len(set(summed_a)) < len(summed_a) or len(set(summed_b)) < len(summed_b):
        raise ValueError(f"axes={axes!r} name an axis twice")
    if any(a.shape[i] != b.shape[j] for i, j in zip(summed_a, summed_b, strict=True)):
        raise ValueError(f"shape-mismatch for sum: axes={axes!r} of {tuple(a.shape)} and {tuple(b.shape)}")
    return summed_a, summed_b


def multi_dot(arrays: Sequence[Any], *, out: Any = None) -> Any:
    """Return the product of a chain of matrices in the order with the fewest multiply-adds, as numpy.linalg.multi_dot.

    Parameters
    ----------
    arrays : sequence of array
        Two matrices or more; the first and the last array may be vectors.
    out : array, optional
        Array for the result.

    Returns
    -------
    array
        The product.

    Raises
    ------
    ImportError
        opt_einsum is not installed.
    ValueError
        Fewer than two arrays were passed, or their shapes do not match.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.multi_dot([np.ones((2, 3)), np.ones((3, 4)), np.ones(4)])
    array([12., 12.])
    """
    chain = [as_array(x) for x in arrays]
    if len(chain) < 2:
        raise ValueError(f"fmm.multi_dot needs two arrays or more, not {len(chain)}")
    if not all(map(has_plain_layout, chain)):
        return array_module(chain[0]).linalg.multi_dot(chain, **({} if out is None else {"out": out}))
    inner = range(1, len(chain) - 1)
    shapes = ", ".join(str(tuple(x.shape)) for x in chain)
    if not {chain[0].ndim, chain[-1].ndim} <= {1, 2} or any(chain[i].ndim != 2 for i in inner):
        raise ValueError(f"fmm.multi_dot multiplies matrices, the first and last may be vectors; shapes: {shapes}")
    if any(left.shape[-1] != right.shape[0] for left, right in pairwise(chain)):
        raise ValueError(f"fmm.multi_dot: neighbours have different inner sides; shapes: {shapes}")
    first, last = chain[0].ndim == 1, chain[-1].ndim == 1
    symbols = [_opt_einsum().get_symbol(i) for i in range(len(chain) + 1)]
    pairs = [left + right for left, right in pairwise(symbols)]
    pairs[0] = pairs[0][1:] if first else pairs[0]
    pairs[-1] = pairs[-1][:-1] if last else pairs[-1]
    output = "" if first and last else symbols[-1] if first else symbols[0] if last else symbols[0] + symbols[-1]
    return einsum(f"{','.join(pairs)}->{output}", *chain, out=out, optimize="dp")


def transpose(x: Any, axes: Sequence[int]) -> Any:
    """Return a view of an array with permuted dimensions; opt_einsum calls this function for `backend="fmm"`."""
    return permute_dimensions(x, axes)


def _opt_einsum() -> Any:
    try:
        import opt_einsum
    except ImportError as error:
        raise ImportError("fmm.einsum and fmm.multi_dot need opt_einsum: pip install opt_einsum") from error
    return opt_einsum

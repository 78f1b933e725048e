"""What the Python array API standard asks of matmul, as a table: of fmm.matmul on NumPy's arrays, by several plans.

Its specification of `matmul(x1, x2, /)` names shapes, results and errors, and its type promotion rules the types. A
checkout of its own tests is run by test_outside_suites.py.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fmm

PLANS = (None, "winograd > vendor", "li-fig3 > strassen > vendor", "laderman.peel > vendor")
Shape = tuple[int, ...]

# What the standard says, x1's shape, x2's shape, the result's.
SHAPES: list[tuple[str, Shape, Shape, Shape]] = [
    ("two vectors: a zero-dimensional array, their inner product", (5,), (5,), ()),
    ("two matrices: the conventional product", (4, 5), (5, 3), (4, 3)),
    ("one inner product a row and column", (1, 5), (5, 1), (1, 1)),
    ("a vector first: 1 is prepended, and removed again", (5,), (5, 3), (3,)),
    ("the same with a stack of matrices", (5,), (2, 6, 5, 3), (2, 6, 3)),
    ("a vector second: 1 is appended, and removed again", (4, 5), (5,), (4,)),
    ("the same with a stack of matrices", (2, 6, 4, 5), (5,), (2, 6, 4)),
    ("a matrix and a stack", (4, 5), (6, 5, 3), (6, 4, 3)),
    ("a stack and a matrix", (6, 4, 5), (5, 3), (6, 4, 3)),
    ("two stacks", (6, 4, 5), (6, 5, 3), (6, 4, 3)),
    ("two stacks that are broadcast: axes of length 1", (2, 1, 4, 5), (1, 6, 5, 3), (2, 6, 4, 3)),
    ("two stacks that are broadcast: axes that one does not have", (6, 4, 5), (2, 1, 5, 3), (2, 6, 4, 3)),
    ("a stack of none", (0, 4, 5), (5, 3), (0, 4, 3)),
    ("sums of none are zeros", (4, 0), (0, 3), (4, 3)),
    ("no rows", (0, 5), (5, 3), (0, 3)),
    ("no columns", (4, 5), (5, 0), (4, 0)),
]

# What the standard says must raise an exception, x1's shape, x2's shape.
ERRORS: list[tuple[str, Shape, Shape]] = [
    ("x1 is zero-dimensional", (), (5,)),
    ("x2 is zero-dimensional", (5, 5), ()),
    ("both are", (), ()),
    ("vectors of unequal lengths", (5,), (4,)),
    ("a vector and a matrix of other rows", (5,), (4, 3)),
    ("a vector and a stack of other rows", (5,), (2, 4, 5)),
    ("a matrix of other columns and a vector", (4, 5), (4,)),
    ("a stack of other columns and a vector", (2, 5, 4), (5,)),
    ("matrices that do not match", (4, 5), (4, 5)),
    ("stacks of matrices that do not match", (2, 4, 5), (2, 4, 5)),
    ("stacks that cannot be broadcast", (2, 4, 5), (3, 5, 4)),
    ("an inner length of 1, which is not broadcast", (4, 1), (5, 3)),
]

# x1's type, x2's type, the result's: the rows of the standard's promotion tables that are not a type with itself.
PROMOTED = [
    ("int8", "int16", "int16"),
    ("int8", "int64", "int64"),
    ("int32", "int64", "int64"),
    ("uint8", "uint64", "uint64"),
    ("uint16", "uint32", "uint32"),
    ("int8", "uint8", "int16"),
    ("int32", "uint8", "int32"),
    ("int16", "uint16", "int32"),
    ("int64", "uint32", "int64"),
    ("float32", "float64", "float64"),
    ("float32", "complex64", "complex64"),
    ("float64", "complex64", "complex128"),
    ("float32", "complex128", "complex128"),
    ("complex64", "complex128", "complex128"),
]
INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
NUMERIC = [*INTEGERS, "float32", "float64", "complex64", "complex128"]
TYPES = [*((t, t, t) for t in NUMERIC), *PROMOTED, *((b, a, c) for a, b, c in PROMOTED)]


def drawn(shape: Shape, dtype: str = "float64", seed: int = 0) -> Any:
    """Small whole numbers, whose products are exact in every type."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.integers(0, 4, shape) + (1j * rng.integers(-3, 4, shape) if dtype.startswith("complex") else 0)
    return np.asarray(x).astype(dtype)


def by_definition(x1: Any, x2: Any, shape: Shape) -> Any:
    """Entry by entry, in Python's numbers: no matrix product of anyone, and nothing conjugated."""
    a: Any
    b: Any
    a, b = x1.astype(complex), x2.astype(complex)
    a = a[None, :] if a.ndim == 1 else a
    b = b[:, None] if b.ndim == 1 else b
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = np.broadcast_to(a, stack + a.shape[-2:]), np.broadcast_to(b, stack + b.shape[-2:])
    found = np.zeros((*stack, a.shape[-2], b.shape[-1]), complex)
    for *at, i, j in product(*map(range, found.shape)):
        row, column = a[(*at, i)], b[(*at, slice(None), j)]
        found[(*at, i, j)] = sum((complex(x) * complex(y) for x, y in zip(row, column, strict=True)), 0j)
    return found.reshape(shape)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("left", "right", "shape"), [row[1:] for row in SHAPES], ids=[row[0] for row in SHAPES])
def test_shapes_and_values(left: Shape, right: Shape, shape: Shape, plan: str | None) -> None:
    for dtype in ("float32", "complex128"):
        x1, x2 = drawn(left, dtype), drawn(right, dtype, 1)
        before = x1.copy(), x2.copy()
        found = fmm.matmul(x1, x2, plan=plan)
        assert found.shape == shape and found.dtype == dtype
        np.testing.assert_array_equal(found, by_definition(x1, x2, shape))
        np.testing.assert_array_equal(found, x1 @ x2)  # "the same semantics as the operator @"
        np.testing.assert_array_equal(x1, before[0])
        np.testing.assert_array_equal(x2, before[1])


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("left", "right"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS])
def test_errors(left: Shape, right: Shape, plan: str | None) -> None:
    for dtype in ("float64", "int32"):
        with pytest.raises(ValueError, match=r"matmul|could not be broadcast"):
            fmm.matmul(drawn(left, dtype), drawn(right, dtype), plan=plan)


@pytest.mark.quick_cases()
@pytest.mark.parametrize(("left", "right", "result"), TYPES)
def test_types(left: str, right: str, result: str) -> None:
    """Of integers there are other plans than these."""
    x1, x2 = drawn((6, 5), left), drawn((5, 4), right, 1)
    for plan in PLANS if result[0] in "fc" else (None, "vendor"):
        found = fmm.matmul(x1, x2, plan=plan)
        assert found.dtype == result
        np.testing.assert_array_equal(found, by_definition(x1, x2, (6, 4)))


@pytest.mark.parametrize("plan", PLANS)
def test_each_matrix_of_a_stack_is_multiplied_alone(plan: str | None) -> None:
    x1, x2 = drawn((3, 7, 6)), drawn((3, 6, 9), seed=1)
    stack = fmm.matmul(x1, x2, plan=plan)
    for i in range(3):
        np.testing.assert_array_equal(stack[i], fmm.matmul(x1[i], x2[i], plan=plan))


def test_arguments_have_no_names() -> None:
    x = drawn((4, 4))
    for names in ({"x1": x, "x2": x}, {"a": x, "b": x}):
        with pytest.raises(TypeError):
            fmm.matmul(**names)

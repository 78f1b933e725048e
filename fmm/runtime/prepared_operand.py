"""Operands prepared for many products: `fmm.prepare(b)` copies b and stores a leaf's prepared form behind the copy.

No program can write to the memory of the copy, so the prepared form always belongs to the copy's values. If b changes,
prepare b again. If the plan's leaf stores a prepared form (`Leaf.prepared_layout`), the product skips the pass that
computes this form. A plan with a leaf that stores no prepared form reads the copy of b as an ordinary matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fmm.arrays.detect import array_kind, check_dense, describe_value, is_on_device
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NUMPY
from fmm.arrays.select_library import library_of
from fmm.config.environment import is_emulation_allowed
from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.plans.leaf import Leaf, plan_leaves
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem
from fmm.runtime.decisions.limits import PlanConstraints, PreparedOperandLayout
from fmm.runtime.devices import cuda_device
from fmm.runtime.operands import matrix_layout

Side = Literal["left", "right"]
MIN_PREPARED_SIDE = 64  # smallest side of a matrix for which a leaf stores a prepared form


@dataclass(frozen=True, eq=False)
class PreparedOperand:
    """A read-only copy of a matrix, prepared for products. Pass the prepared operand to fmm.matmul as `a` or `b`."""

    side: Side
    shape: tuple[int, ...]
    dtype: str
    nbytes: int  # size in bytes of the copy and the prepared form
    prepared_leaf: str  # name of the leaf that stored a prepared form; empty without a form
    _array: Any = field(repr=False)
    _prepared_side: PreparedOperandLayout | None = field(repr=False)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the copy of the matrix; unpickling prepares this copy again."""
        return prepare_operand, (self._array, self.side)

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError("a prepared operand is for fmm.matmul and fmm.explain: other functions need the array itself")


def prepare_operand(x: Any, side: Side) -> PreparedOperand:
    """Return a read-only copy of x.

    On a device, the first leaf that has a prepared form for x stores this form behind the copy.
    """
    if not isinstance(side, str) or side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}")
    if getattr(x, "requires_grad", False):
        raise ValueError("a prepared operand gets no gradients: prepare x.detach()")
    check_dense("fmm.prepare", x)
    library = library_of(x, x)
    wrap_foreign_arrays = library.wrap_foreign_arrays(x, x, None)
    x = wrap_foreign_arrays[0] if wrap_foreign_arrays else x
    prepared = _prepare_on_device(library, x, side) if is_on_device(x) else None
    if prepared is not None:
        return prepared
    copy = _read_only_copy(library, x)
    if not copy.ndim:
        raise ValueError(f"fmm.prepare takes a matrix, not {describe_value(x)}")
    dtype = str(copy.dtype).removeprefix("torch.")
    return PreparedOperand(side, tuple(copy.shape), dtype, _array_bytes(copy), "", copy, None)


# ---- in a product


def unwrap_operands(a: Any, b: Any, constraints: PlanConstraints) -> tuple[Any, Any, PlanConstraints]:
    """Return the arrays of both operands, and constraints that name the operand with a prepared form."""
    if not isinstance(a, PreparedOperand) and not isinstance(b, PreparedOperand):
        return a, b, constraints
    arrays, prepared_side = [], None
    for x, side, other in ((a, "left", b), (b, "right", a)):
        if isinstance(x, PreparedOperand):
            # If the other operand requires a gradient, torch saves x without its prepared form.
            if x.side == side and not getattr(other, "requires_grad", False):
                prepared_side = x._prepared_side or prepared_side
            x = x._array
        arrays.append(x)
    if prepared_side is not None:
        constraints = constraints._replace(prepared_side=prepared_side)
    return arrays[0], arrays[1], constraints


def shape_error_note(a: Any, b: Any) -> str:
    """Return a note for an error about shapes if a left operand was prepared as right operand, or the reverse.

    Return an empty text if no operand was prepared for the other side, or if the shapes match.
    """
    note = wrong_side_note(a, b)
    if not note:  # returns before shapes are compared, since a tracer would record the comparison
        return ""
    left, right = (tuple(getattr(x, "shape", ())) for x in (a, b))
    fits = not left or not right or bool(left[-1] == right[-2:][0])
    return "" if fits else note


def wrong_side_note(a: Any, b: Any) -> str:
    """Return a text for a left operand that was prepared as right operand, or the reverse; else an empty text.

    The text names the wrongly prepared operand and the correct call of fmm.matmul. An operand on the wrong side gives a
    correct product if the shapes match, but its prepared form is not used.
    """
    for x, side, name in ((a, "left", "a"), (b, "right", "b")):
        if isinstance(x, PreparedOperand) and x.side != side:
            call = "fmm.matmul(x, p)" if x.side == "right" else "fmm.matmul(p, x)"
            return f"{name} was prepared for the other side, {call}; for this one: fmm.prepare(..., side={side!r})"
    return ""


# ---- the copy


def _read_only_copy(library: Library, x: Any) -> Any:
    """Return a read-only copy with the memory order of the array."""
    if array_kind(x) == "torch":
        return x.detach().clone()
    if library is not NUMPY:
        return x.copy(order="K")
    # A copy of a masked array or of an np.matrix has the class of the original. A copy of a memory-mapped array is a
    # plain numpy.ndarray.
    is_array = isinstance(x, np.ndarray) and not isinstance(x, np.memmap)
    copy = x.copy(order="K") if is_array else np.array(x)
    copy.flags.writeable = False
    return copy


def _array_bytes(x: Any) -> int:
    """Return the array's size in bytes; for a sparse tensor the size of its values and indices."""
    if not getattr(x, "is_sparse", False):
        return int(x.nbytes)
    return int(x._values().nbytes + x._indices().nbytes)


# ---- the preparation on a device


def _prepare_on_device(library: Any, x: Any, side: Side) -> PreparedOperand | None:
    """Return the prepared operand, with the prepared form of the first leaf that stores one for x.

    Return None if no leaf stores a prepared form for x.
    """
    setting, operand = library.product_setting(x, x, None), library.describe_operand(x)
    is_default = not setting.refusal and setting.math == "ieee" and setting.may_emulate and is_emulation_allowed()
    if x.ndim != 2 or min(x.shape) < MIN_PREPARED_SIDE or not is_default:
        return None
    order = (matrix_layout(operand) or Layout("C", 1)).order
    base: Literal["A", "B"] = "A" if side == "left" else "B"
    for leaf in plan_leaves():
        launches = _preparation_launches(leaf, setting.device, operand.shape, operand.dtype, order, base)
        if launches is None or leaf.prepared_layout is None:
            continue
        lines, length = operand.shape if order == "C" else operand.shape[::-1]
        copied, extra = leaf.prepared_layout(DTYPES[operand.dtype].itemsize, lines, length)
        copy = library.copy_with_scratch_tail(x, order, copied + extra)

        from fmm.runtime import run_device

        run_device.run_operand_preparation(library, launches, library.data_pointer(copy), setting.device)
        rows, cols = operand.shape
        prepared_side = PreparedOperandLayout(base, rows, cols, launches.problem.layouts["AB".index(base)])
        nbytes = copied + extra
        return PreparedOperand(side, tuple(x.shape), operand.dtype, nbytes, leaf.name, copy, prepared_side)
    return None


def _preparation_launches(
    leaf: Leaf,
    device: int,
    shape: tuple[int, ...],
    dtype: str,
    order: Literal["C", "F"],
    base: Literal["A", "B"],
) -> LaunchList | None:
    """Return the launches that compute a leaf's prepared form; None if the leaf stores no form for this matrix."""
    chip = cuda_device(device).chip
    if leaf.prepared_layout is None or dtype not in leaf.types or chip is None:
        return None
    rows, cols = shape
    own = Layout(order, cols if order == "C" else rows)
    if base == "B":  # the preparation of B does not depend on A, so A has one row
        layouts = Layout("C", rows), own, Layout("C", cols)
        problem = Problem(1, rows, cols, dtype, layouts, prepared_side="B")
    else:
        layouts = own, Layout("C", 1), Layout("C", 1)
        problem = Problem(rows, cols, 1, dtype, layouts, prepared_side="A")
    from fmm.kernels.cuda.record import record_preparation

    return record_preparation(Plan(leaf=leaf.name), problem, chip_target(chip))

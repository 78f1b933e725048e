"""Operands made ready for many products: `fmm.prepare(b)` copies b and keeps, behind the copy, what a leaf makes of it.

The object has memory of its own that nobody else writes, so it cannot be out of date: who changes b afterwards changes
b, and prepares it anew. A product by a plan whose leaf keeps something of its operands (`LeafPreparation.keeps`) skips
the pass that makes it; any other one reads the copy as it would read b.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fmm.arrays.detect import check_dense, describe_value, kind_of, library_of, on_device
from fmm.arrays.library import DeviceLibrary, Library
from fmm.arrays.numpy_library import NUMPY
from fmm.config.environment import is_emulation_allowed
from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.plans.leaf import Leaf, plan_leaves
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem
from fmm.runtime.decisions.limits import PlanConstraints, PreparedSide
from fmm.runtime.devices import cuda_device
from fmm.runtime.operands import matrix_layout

Side = Literal["left", "right"]
LEAST_SIDE = 64  # of a matrix of which it is worth while to keep anything


@dataclass(frozen=True, eq=False)
class PreparedOperand:
    """A matrix made ready for products: give it to fmm.matmul as a or b. It is a copy, which nobody can change."""

    side: Side
    shape: tuple[int, ...]
    dtype: str
    nbytes: int  # that it takes, all in all
    keeps: str  # the leaf for which something is kept; empty: nothing is
    _array: Any = field(repr=False)
    _kept: PreparedSide | None = field(repr=False)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied, and prepared anew where the copy is made: what is kept stands behind the array, in its memory."""
        return prepare_operand, (self._array, self.side)

    def __array__(self, *given: Any, **named: Any) -> Any:
        raise TypeError("a prepared operand is for fmm.matmul and fmm.explain: other functions want the array itself")


def prepare_operand(x: Any, side: Side) -> PreparedOperand:
    """The copy, with what is kept behind it where there is a device that has use for it."""
    if not isinstance(side, str) or side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}")
    if getattr(x, "requires_grad", False):
        raise ValueError("a prepared operand gets no gradients: prepare x.detach()")
    check_dense("fmm.prepare", x)
    library = library_of(x, x)
    own = library.adopt_arrays(x, x, None)
    x = own[0] if own else x
    found = _on_device(library, x, side) if on_device(x) else None
    if found is not None:
        return found
    copy = _copied(library, x)
    if not copy.ndim:
        raise ValueError(f"fmm.prepare wants a matrix, not {describe_value(x)}")
    return PreparedOperand(side, tuple(copy.shape), _type_name(copy), _bytes_of(copy), "", copy, None)


def unwrap_operands(a: Any, b: Any, constraints: PlanConstraints) -> tuple[Any, Any, PlanConstraints]:
    """The arrays of prepared operands, and what is kept of one of them."""
    if not isinstance(a, PreparedOperand) and not isinstance(b, PreparedOperand):
        return a, b, constraints
    arrays, kept = [], None
    for x, side, other in ((a, "left", b), (b, "right", a)):
        if isinstance(x, PreparedOperand):
            # Gradients are products with other operands, for which nothing is kept.
            if x.side == side and not getattr(other, "requires_grad", False):
                kept = x._kept or kept
            x = x._array
        arrays.append(x)
    return arrays[0], arrays[1], constraints if kept is None else constraints._replace(kept=kept)


def other_side_note(a: Any, b: Any) -> str:
    """What may be meant where a prepared operand stands on the other side, and does not fit there."""
    note = wrong_side_note(a, b)
    return "" if note and _inner_sides_fit(a, b) else note


def wrong_side_note(a: Any, b: Any) -> str:
    """Which operand was prepared for the other side, and what to write instead; empty if neither was. (Where it fits,
    the product is right, and nothing that it keeps is made use of.)"""
    for x, side, name in ((a, "left", "a"), (b, "right", "b")):
        if isinstance(x, PreparedOperand) and x.side != side:
            call = "fmm.matmul(x, p)" if x.side == "right" else "fmm.matmul(p, x)"
            return f"{name} was prepared for the other side, {call}; for this one: fmm.prepare(..., side={side!r})"
    return ""


def _inner_sides_fit(a: Any, b: Any) -> bool:
    left, right = (tuple(getattr(x, "shape", ())) for x in (a, b))
    return not left or not right or bool(left[-1] == right[-2:][0])


def _copied(library: Library, x: Any) -> Any:
    """In the order in which it lies."""
    if kind_of(x) == "torch":
        return x.detach().clone()
    if library is not NUMPY:
        return x.copy(order="K")
    # What NumPy makes of other arrays it is to make of their copies: masks, matrices. (Of mapped files, plain arrays.)
    own = isinstance(x, np.ndarray) and not isinstance(x, np.memmap)
    copy = x.copy(order="K") if own else np.array(x)
    copy.flags.writeable = False
    return copy


def _bytes_of(x: Any) -> int:
    """Of a sparse tensor those of its numbers and of where they stand."""
    if not getattr(x, "is_sparse", False):
        return int(x.nbytes)
    return int(x._values().nbytes + x._indices().nbytes)


def _type_name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


# ---- on a device


def _on_device(library: Any, x: Any, side: Side) -> PreparedOperand | None:
    """With what the first leaf keeps that can keep something; None where there is none."""
    setting, described = library.setting(x, x, None), library.operand(x)
    usual = not setting.refusal and setting.math == "ieee" and setting.emulation and is_emulation_allowed()
    if x.ndim != 2 or min(x.shape) < LEAST_SIDE or not usual:
        return None
    order = (matrix_layout(described) or Layout("C", 1)).order
    for leaf in plan_leaves():
        launches = _launches(leaf, setting.device, described.shape, described.dtype, order, side)
        if launches is not None and leaf.prepared_layout is not None:
            lines, length = described.shape if order == "C" else described.shape[::-1]
            room, more = leaf.prepared_layout(DTYPES[described.dtype].itemsize, lines, length)
            copy = library.copy_with_scratch_tail(x, order, room + more)
            _run(library, launches, library.pointer(copy), setting.device)
            layout = launches.problem.layouts["AB".index(_base(side))]
            rows, cols = described.shape
            kept = PreparedSide(_base(side), rows, cols, layout)
            return PreparedOperand(side, tuple(x.shape), described.dtype, room + more, leaf.name, copy, kept)
    return None


def _base(side: Side) -> Literal["A", "B"]:
    return "A" if side == "left" else "B"


def _launches(
    leaf: Leaf, device: int, shape: tuple[int, ...], dtype: str, order: Literal["C", "F"], side: Side
) -> LaunchList | None:
    """What makes that which the leaf keeps; None if it keeps nothing of such a matrix on such a device."""
    chip = cuda_device(device).chip
    if leaf.prepared_layout is None or dtype not in leaf.types or chip is None:
        return None
    rows, cols = shape
    own = Layout(order, cols if order == "C" else rows)
    if side == "right":  # times any rows
        problem = Problem(1, rows, cols, dtype, (Layout("C", rows), own, Layout("C", cols)), prepared_side="B")
    else:
        problem = Problem(rows, cols, 1, dtype, (own, Layout("C", 1), Layout("C", 1)), prepared_side="A")
    from fmm.kernels.cuda.record import record_preparation

    return record_preparation(Plan(leaf=leaf.name), problem, chip_target(chip))


def _run(library: DeviceLibrary, launches: LaunchList, pointer: int, device: int) -> None:
    """And wait for it: other streams may read it at once."""
    from fmm.runtime import run_device

    run_device.run_preparation(library, launches, pointer, device)

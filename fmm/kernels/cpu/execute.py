"""Run a plan on arrays. A backend adds and multiplies arrays; a workspace holds the temporaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.cpu.host_arrays import Arena
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import parse_leaf
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.sums import ADDEND, Mirror, Place, Sum
from fmm.kernels.plans.walk import DefaultMachine, ProductMatrices, walk_plan
from fmm.problem import Fill, Operation

Array = Any  # numpy.ndarray or an array of symbols
_PART_ATTRIBUTES = {"re": "real", "im": "imag", "transpose": "T"}  # part of a place -> attribute of the array


class Workspace(Protocol):
    """Memory for temporaries, allocated like a stack."""

    used_bytes: int

    def allocate(self, rows: int, cols: int, fortran: bool = False, dtype: str = "") -> Array: ...
    def free_temporaries_since(self, mark: int) -> None: ...


class Backend(Protocol):
    """The operations on arrays that `ArrayMachine` needs."""

    def compute_sums(self, step: Sum, reads: list[Array], writes: list[Array]) -> None: ...
    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None: ...
    def multiply_batch(self, leaf: str, lefts: list[Array], rights: list[Array], dests: list[Array]) -> None: ...
    def multiply_triangle(self, leaf: str, left: Array, right: Array, dest: Array, params: GemmParams) -> None: ...
    def mirror_triangle(self, step: Mirror, source: Array, dest: Array) -> None: ...


def execute_plan(
    plan: Plan,
    a: Array,
    b: Array,
    c: Array,
    backend: Backend,
    workspace: Workspace,
    alpha: Coefficient = 1,
    beta: Coefficient = 0,
    op: Operation = "product",
    fill: Fill = "full",
    addend: Array | None = None,
) -> None:
    """Compute C = alpha A B + beta C with a plan, on arrays; C must overlap neither A nor B.

    With beta = 0, C is never read. If `addend` is an array, beta multiplies this addend instead of C.
    """
    machine, operands = ArrayMachine(backend, workspace), {"A": a, "B": b, "C": c}
    if addend is not None:
        operands[ADDEND] = addend
    walk_plan(plan, operands, machine, c.dtype.name, alpha, beta, op, fill)


@dataclass(frozen=True)
class ArrayMachine(DefaultMachine):
    """The machine that executes the steps of a plan on arrays.

    The leaves of this machine only overwrite C, so every addition to C is a separate step. Products run one after the
    other, unless the backend runs products concurrently.
    """

    backend: Backend
    workspace: Workspace
    leaves_apply_alpha_beta: bool = False

    @property
    def used_bytes(self) -> int:
        return self.workspace.used_bytes

    def allocate(self, rows: int, cols: int, fortran: bool, dtype: str) -> Array:
        return self.workspace.allocate(rows, cols, fortran, dtype)

    def free_temporaries_since(self, mark: int) -> None:
        self.workspace.free_temporaries_since(mark)

    def submatrix(self, x: Array, place: Place) -> Array:
        stored = place.untransposed_place
        block = x[stored.row : stored.row + stored.rows, stored.col : stored.col + stored.cols]
        return getattr(block, _PART_ATTRIBUTES[place.part]) if place.part else block

    def compute_sums(self, step: Sum, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        self.backend.compute_sums(step, list(reads), list(writes))

    def multiply(
        self, leaf: str, products: Sequence[ProductMatrices], dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        if parse_leaf(leaf).leaf.host_product_with_scratch is not None and isinstance(self.backend, NumpyBackend):
            for triple in products:
                self._multiply_with_scratch(self.backend, leaf, triple)
        elif len(products) == 1:
            self.backend.multiply(leaf, *products[0])
        else:
            lefts, rights, dests = (list(x) for x in zip(*products, strict=True))
            self.backend.multiply_batch(leaf, lefts, rights, dests)

    def _multiply_with_scratch(self, backend: NumpyBackend, leaf: str, triple: ProductMatrices) -> None:
        """Multiply with a leaf that uses scratch memory."""
        left, right, dest = triple
        (m, k), n, mark = left.shape, right.shape[1], self.used_bytes
        needed = parse_leaf(leaf).leaf.workspace_bytes(dest.itemsize, m, k, n, 1)
        assert isinstance(self.workspace, Arena)
        backend.multiply_with_scratch(leaf, left, right, dest, self.workspace.allocate_bytes(needed))
        self.free_temporaries_since(mark)

    def multiply_triangle(self, leaf: str, products: Sequence[ProductMatrices], dtype: str, params: GemmParams) -> None:
        for left, right, dest in products:
            self.backend.multiply_triangle(leaf, left, right, dest, params)

    def mirror_triangle(self, step: Mirror, source: Array, dest: Array) -> None:
        self.backend.mirror_triangle(step, source, dest)

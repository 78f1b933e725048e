"""The public face: matmul, explain and plan. Arguments are checked here, and calls sent to where they are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fmm import dispatch
from fmm.arrays.detect import type_name
from fmm.kernels.plans.plan import Plan
from fmm.problem import Operation
from fmm.request import (
    asked_like,
    check_constraints,
    check_flag,
    check_gemm,
    check_gram,
    check_progress,
    check_side,
    matmul_options,
    some_of,
    with_operands_by_position,
)
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.early_declines import with_short_half, with_short_update, with_short_way
from fmm.runtime.gram import Triangle
from fmm.runtime.prepared_operand import PreparedOperand, Side, prepare_operand
from fmm.semirings.path_request import Method, PathRequest

WISHED = "plan", "max_error_growth", "workspace"
OF_GRAM = "rows", "fill", "alpha", "beta"
OF_GEMM = "alpha", "beta", "transpose_a", "transpose_b"


@with_short_way
def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    plan: Plan | Decision | str | None = None,
    max_error_growth: float | None = None,
    workspace: int | None = None,
    componentwise: bool = False,
    device: str | int | None = None,
    progress: bool | None = False,
    **more: Any,
) -> Any:
    """The matrix product of two arrays, as numpy.matmul computes it, but faster where a fast algorithm pays.

    a, b, out, casting, order and dtype are numpy.matmul's own, with its results, shapes and exceptions; with its other
    options (subok, axes, signature, ...) the library answers. CuPy arrays and torch tensors (through CuPy also others
    on CUDA devices) are multiplied where they are, on the current stream, as by cupy.matmul and torch.matmul.

    plan
        Run this plan (a text such as "winograd > vendor", a Plan, or what fmm.plan returned) instead of choosing one,
        whatever memory it takes and however it errs: the next two limit choices alone.
    max_error_growth
        Choose only plans that are expected to err at most so many times as much as the vendor (15; on a GPU 16).
        Below 1: only plans that err less than it, if one of them is faster (float32 on Hopper, down to 0.02).
    workspace
        Choose only plans that need at most this many bytes of temporaries (half of the free memory unless given).
    componentwise
        Every entry is to be right beside its own size, as the vendor's are, not only beside the largest ones.
    device
        A CUDA device (0, "cuda:0") that is to multiply NumPy's arrays: they are streamed through it, however large.
    progress
        True: show on stderr how far the product is, once it has taken ten seconds or is predicted to. Of NumPy's arrays
        alone: streamed through a device, or multiplied by a plan of several products (the library's own says nothing).
    """
    constraints = check_constraints(plan, max_error_growth, workspace, componentwise)
    options = matmul_options(casting, order, dtype, more)
    shown = progress is not False and check_progress(progress)
    if device is None and not shown:
        return dispatch.any_product(a, b, out, options, constraints)
    return dispatch.product_on(device, a, b, out, options, constraints, shown)


@with_operands_by_position
def prepare(x: Any, /, *, side: Side = "right") -> PreparedOperand:
    """A matrix made ready for many products: fmm.matmul(a, p), or fmm.matmul(p, b) for side="left".

    It holds a copy of x, which nobody can change, and on a device that has use for it what plans make of the matrix
    before they multiply (on Hopper: float32's two float16 planes, float64's residues), so that products need not make
    it again.
    `p.nbytes` is what all that takes. Prepare a matrix anew when it has changed; weights, for example, seldom do.
    Arrays of NumPy and CuPy, and torch's tensors, which get no gradients then (those of the other operand do).
    """
    return prepare_operand(x, side)


@with_short_half
def gram(
    a: Any,
    b: Any = None,
    /,
    out: Any = None,
    *,
    rows: bool = False,
    fill: Half = "full",
    alpha: float = 1,
    beta: float = 0,
    plan: Plan | Decision | str | None = None,
    max_error_growth: float | None = None,
    workspace: int | None = None,
) -> Any:
    """A matrix times its own adjoint, alpha a^H a + beta out: one half is computed, and the other one is its mirror.

    The result is its own adjoint bit for bit (of real numbers symmetric; of complex ones Hermitian, with a real
    diagonal). Stacks of matrices are multiplied one by one. NumPy's and CuPy's arrays and torch's tensors; of tensors
    that require gradients, these are products by fmm too.

    b
        Another matrix: then alpha a b + beta out, of which the caller knows that a b is its own adjoint (two
        polynomials of one symmetric matrix, say). What lies above the diagonal of a b is never computed.
    rows
        Products of a's rows, a a^H, instead of its columns.
    fill
        "full", or "lower" or "upper": then the other half of `out` is left as it is (of a new array, zero).
    alpha, beta
        Real numbers. With beta, `out` must be given; only its lower half (its upper one for "upper") is read.
    plan, max_error_growth, workspace
        As fmm.matmul has them; plans begin with the level gram or sforza, or are a leaf alone.
    """
    wished = plan, max_error_growth, workspace
    return dispatch.half_product(check_gram(a, b, out, (rows, fill, alpha, beta), wished))


@asked_like(gram)
def explain_gram(asked: Mapping[str, Any]) -> Decision:
    """What fmm.gram would do with this call, and why. Nothing is multiplied."""
    a, b, out = some_of(asked, "a", "b", "out")
    return dispatch.half_product_explained(check_gram(a, b, out, some_of(asked, *OF_GRAM), some_of(asked, *WISHED)))


@with_short_update
def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    /,
    *,
    alpha: complex = 1,
    beta: complex = 0,
    transpose_a: bool | int | str = False,
    transpose_b: bool | int | str = False,
    out: Any = None,
    plan: Plan | Decision | str | None = None,
    max_error_growth: float | None = None,
    workspace: int | None = None,
) -> Any:
    """alpha op(a) op(b) + beta c, BLAS's gemm: alpha and beta are factors of the plan's last sums, and cost no pass.

    Matrices, or stacks of them, of NumPy, CuPy or torch; tensors that require gradients get them. Where no plan pays,
    the library's own functions do it (torch.addmm, cuBLAS's gemm, numpy.matmul).

    c
        What is added, times beta: of the product's shape, or broadcast to it. It is left as it is unless it is also
        `out`, where it is updated in place. With beta = 0 it is not read.
    alpha, beta
        Numbers; complex ones for complex arrays only, and for integers whole ones. With alpha = 0, a and b are not
        read.
    transpose_a, transpose_b
        False, True, or "C" for the conjugate transpose; 0, 1 and 2 as in SciPy's gemm. Nothing is copied for the first
        two, and for the third not if the plan is one for complex numbers (3m).
    out
        Where the result goes; it may be c, and may overlap a and b. A new array unless given.
    plan, max_error_growth, workspace
        As fmm.matmul has them. In place, where inf or NaN could make the product begin anew, c's old numbers are kept
        in the workspace too.
    """
    wished = plan, max_error_growth, workspace
    return dispatch.updated_product(check_gemm(a, b, c, out, (alpha, beta, transpose_a, transpose_b), wished))


@asked_like(gemm)
def explain_gemm(asked: Mapping[str, Any]) -> Decision:
    """What fmm.gemm would do with this call, and why. Nothing is computed."""
    a, b, c, out = some_of(asked, "a", "b", "c", "out")
    known = check_gemm(a, b, c, out, some_of(asked, *OF_GEMM), some_of(asked, *WISHED))
    return dispatch.updated_product_explained(known)


@with_operands_by_position
def minplus(a: Any, b: Any, /, out: Any = None, *, maximum: bool = False, argmin: bool = False) -> Any:
    """The min-plus product: c[i, j] is the smallest of all sums a[i, k] + b[k, j].

    Of two matrices of NumPy's, CuPy's or torch's, in float32, float64, int32 or int16; other real numbers (int64, too)
    become float64. Whole numbers are saturated: the largest one of their type means "none" and stays that, whatever is
    added to it; a sum beyond the type's range is the nearest number in it. A sum that is NaN is never the smallest.
    What is masked in a masked array is none.

    out
        Where the result goes, of its shape and type; it may overlap a and b.
    maximum
        The greatest of all sums instead (max-plus); then "none" is -inf, or the smallest whole number.
    argmin
        Return the pair of the result and, in int32, of the k that each number comes from: of several the first, as the
        sums are before they are saturated, and -1 where no sum is better than "none".
    """
    return dispatch.minplus_product(a, b, out, check_flag("maximum", maximum), check_flag("argmin", argmin))


def shortest_paths(
    d: Any,
    directed: bool = True,
    return_predecessors: bool = False,
    unweighted: bool = False,
    overwrite: bool = False,
    *,
    out: Any = None,
    method: Method = "auto",
) -> Any:
    """The lengths of the shortest paths between all nodes of a graph, as SciPy's floyd_warshall returns them.

    d is a matrix of edges' lengths, n x n, of NumPy, CuPy or torch, or a sparse one of SciPy's, whose stored zeros are
    edges. In others zero, NaN, inf and -inf are no edge (and so are floats up to 1e-8, as in SciPy). float32, float64,
    int32 and int16 stay what they are; all else is computed in float64. Of int32 and int16 the largest number means "no
    edge" and "no path" too, and lengths beyond it are that.

    directed, return_predecessors, unweighted, overwrite
        As SciPy has them. Predecessors are int32: the node before j on the way from i, -9999 where there is none.
    out
        Where the lengths go; it may be d.
    method
        "r-kleene" (by min-plus products; "auto" is that) or, on the host, "floyd-warshall", one node after the other.

    NegativeCycleError, if there is a cycle of negative length.
    """
    request = PathRequest(
        check_flag("directed", directed),
        check_flag("return_predecessors", return_predecessors),
        check_flag("unweighted", unweighted),
        check_flag("overwrite", overwrite),
        method,
    )
    return dispatch.all_shortest_paths(d, out, request)


@asked_like(matmul)
def explain(asked: Mapping[str, Any]) -> Decision:
    """What fmm.matmul would do with this call, and why. Nothing is computed (overflow is only seen when it is)."""
    constraints = check_constraints(*some_of(asked, *WISHED, "componentwise"))
    options = matmul_options(*some_of(asked, "casting", "order", "dtype", "more"))
    check_progress(asked["progress"])
    device, a, b, out = some_of(asked, "device", "a", "b", "out")
    return dispatch.product_explained(device, a, b, out, options, constraints)


def plan(
    m: int,
    k: int,
    n: int,
    *,
    op: Operation = "product",
    dtype: Any = np.float64,
    device: str | int = "cpu",
    plan: Plan | Decision | str | None = None,
    max_error_growth: float | None = None,
    workspace: int | None = None,
) -> Decision:
    """The decision for an m x k by k x n product, without arrays; `device` is "cpu", or the number of a CUDA device.

    plan, max_error_growth and workspace mean what they mean to fmm.matmul; a plan that is given is explained.

    `op`: "product"; "gram" for what fmm.gram does with one matrix, "symmetric" with two (m and n are then equal).
    """
    sides = check_side("m", m), check_side("k", k), check_side("n", n)
    constraints = check_constraints(plan, max_error_growth, workspace)
    return dispatch.planned_product(sides, type_name(dtype), op, device, constraints)

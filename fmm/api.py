"""The public functions.

Each public function checks its arguments (fmm/request.py) and passes the arguments to fmm/dispatch.py.

matmul, gemm and gram pass products that no plan makes faster to the vendor before they check every option. A small
product takes at most ten microseconds, so a check of every option would lengthen its call noticeably.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from fmm import dispatch, request
from fmm.arrays.detect import type_name
from fmm.arrays.numpy_library import BLAS_DTYPES, NUMPY
from fmm.arrays.select_library import PLAIN_TYPES
from fmm.kernels.cpu.host_arrays import matmul as numpy_matmul
from fmm.kernels.plans.plan import Plan
from fmm.problem import Operation
from fmm.request import REQUIRED_ARGUMENT, check_flag, check_side, set_public_signature
from fmm.runtime import matmul as array_matmul
from fmm.runtime.decisions import early_declines
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.early_declines import call_key, is_small_on_host, was_declined
from fmm.runtime.decisions.limits import NO_CONSTRAINTS
from fmm.runtime.gemm import run_cached_gemm, run_small_gemm, run_small_scaled_gemm
from fmm.runtime.gram import TRIANGLES, Triangle, run_declined_gram, run_small_gram
from fmm.runtime.prepared_operand import PreparedOperand, Side, prepare_operand

if TYPE_CHECKING:
    from fmm.semirings.path_request import PathMethod

ndarray = np.ndarray
# Default values of options. matmul, gemm and gram compare options with these defaults by identity: Python has one
# object for each literal.
DEFAULT_CASTING, DEFAULT_ORDER, DEFAULT_FILL = "same_kind", "K", TRIANGLES[0]
DEFAULT_ALPHA: Any = 1
DEFAULT_BETA: Any = 0


@set_public_signature
def matmul(
    a: Any = REQUIRED_ARGUMENT,
    b: Any = REQUIRED_ARGUMENT,
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
    reproducible: bool = False,
    device: str | int | None = None,
    progress: bool | None = False,
    **more: Any,
) -> Any:
    """Return the matrix product of two arrays, as numpy.matmul does; a plan computes it where a plan is faster.

    Parameters
    ----------
    a, b : array
        Matrices, vectors or stacks, by the rules of numpy.matmul. NumPy arrays are multiplied on the host. CuPy
        arrays, torch tensors and other arrays in CUDA memory are multiplied where they are, on the current stream.
    out : array, optional
        Array for the result. `out` may overlap `a` and `b`.
    casting, order, dtype
        numpy.matmul's options. Calls with other options of numpy.matmul (subok, axes, signature, ...) are passed to
        NumPy.
    plan : str, Plan or Decision, optional
        The plan to run, for example "winograd > vendor". If a plan is passed, fmm chooses none, and ignores
        `max_error_growth` and `workspace`.
    max_error_growth : float, optional
        Limit on the plan's expected error, as a multiple of the vendor's error (default 15, on a GPU 16). With a limit
        below 1, the fastest plan within the limit is used even if the vendor is faster; the vendor computes the product
        if no plan is within the limit. (Hopper GPUs have plans with errors down to 0.02 times the vendor's for float32,
        and 0.04 times for float64.)
    workspace : int, optional
        Limit on the plan's workspace, in bytes (default: half of the free memory).
    componentwise : bool, optional
        If True, the error of each entry has a bound relative to (|A| |B|)ij, and not only relative to norms of A and B.
    reproducible : bool, optional
        If True, the result has the same bits on every CPU and GPU, for every memory order, stream and thread count.
        A plan of exact integer products runs (float32, float64, complex64, complex128), even if the vendor is faster.
        `max_error_growth` (default 1) selects the number of moduli. Operands and result must be finite.
    device : str or int, optional
        A CUDA device (0, "cuda:0") that multiplies NumPy arrays. Submatrices are copied to the device one after the
        other, so the arrays may be larger than the device's memory.
    progress : bool, optional
        If True, products of NumPy arrays that take more than ten seconds show their progress on stderr.

    Returns
    -------
    array
        The product, as an array of the operands' library; `out` if it was passed.

    Raises
    ------
    PlanError
        The plan passed as `plan` cannot run on these arrays, or no reproducible plan can. (PlanError is a ValueError.)
    ValueError, TypeError
        The call is invalid for numpy.matmul, cupy.matmul or torch.matmul, or an option of fmm is invalid.

    Notes
    -----
    Integer products are exact modulo 2**bits. If operands have inf or NaN, or if sums could overflow, the result has
    the values of the classical product.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> a = np.arange(6.0).reshape(2, 3)
    >>> fmm.matmul(a, a.T)
    array([[ 5., 14.],
           [14., 50.]])

    With reproducible=True, the product of some rows of a and columns of b has the same bits as this block of a @ b:

    >>> rng = np.random.default_rng(1)
    >>> a, b = rng.standard_normal((90, 60)), rng.standard_normal((60, 80))
    >>> c = fmm.matmul(a, b, reproducible=True)
    >>> bool((fmm.matmul(a[:7], b[:, 3:], reproducible=True) == c[:7, 3:]).all())
    True
    """
    kind = type(a)
    if (
        kind is type(b)
        and plan is None
        and max_error_growth is None
        and workspace is None
        and device is None
        and componentwise is reproducible is progress is False
        and not more
        and (out is None or type(out) is kind)
    ):
        defaults = dtype is None and casting is DEFAULT_CASTING and order is DEFAULT_ORDER
        if kind is not ndarray:
            library = PLAIN_TYPES.get(kind) if defaults else None
            if library is not None and (out is None or library.is_differentiable):
                return dispatch.multiply_without_options(library, a, b, out)
        elif not defaults:
            return dispatch.multiply_with_options(a, b, out, casting, order, dtype)
        elif a.size < early_declines.MIN_PLAN_ENTRIES or is_small_on_host(a, b) or was_declined(NUMPY, a, b):
            return numpy_matmul(a, b) if out is None else numpy_matmul(a, b, out)
        else:
            return array_matmul.run_matmul(NUMPY, a, b, out, NO_CONSTRAINTS)
    constraints = plan, max_error_growth, workspace, componentwise, reproducible
    return dispatch.dispatch_matmul(
        request.check_matmul("matmul", a, b, out, (casting, order, dtype, more), constraints, device, progress)
    )


@overload
def explain(function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any: ...
@overload
def explain(*operands: Any, **options: Any) -> Decision: ...
@set_public_signature
def explain(
    a: Any = REQUIRED_ARGUMENT,
    b: Any = REQUIRED_ARGUMENT,
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
    reproducible: bool = False,
    device: str | int | None = None,
    progress: bool | None = False,
    **more: Any,
) -> Decision:
    """Return the decision for the fmm.matmul call with the same arguments; nothing is multiplied.

    Parameters
    ----------
    a, b, out, casting, order, dtype, plan, max_error_growth, workspace, componentwise, reproducible, device, progress
        The options of fmm.matmul with these names. If `a` is solve_triangular, cholesky, inv, qr or lstsq of
        fmm.linalg, the operands and options of that function follow.

    Returns
    -------
    Decision
        The plan, the reason, the kernels, the workspace, the expected error and the candidates. `print` shows the
        decision as text; fmm.matmul accepts the decision as `plan`. For a function of fmm.linalg the result is a
        SolverDecision with the function's products, their predicted times and errors.

    Notes
    -----
    The decision does not depend on inf, NaN or possible overflow in the operands: only fmm.matmul itself checks for
    them, when it runs the plan.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> decision = fmm.explain(np.ones((8, 8)), np.ones((8, 8)))
    >>> print(decision.plan)
    vendor
    >>> fmm.explain(fmm.linalg.cholesky, np.eye(8)).by_products
    False
    """
    if callable(a):
        if (explain_call := getattr(a, "explain_call", None)) is None:
            solvers = "solve_triangular, cholesky, inv, qr or lstsq of fmm.linalg"
            raise TypeError(f"explain() takes arrays, or the function {solvers} and its operands, not {a!r}")
        flags = {"componentwise": componentwise, "reproducible": reproducible, "progress": progress or False}
        limits = {"plan": plan, "max_error_growth": max_error_growth, "workspace": workspace, "device": device}
        passed = {name: value for name, value in (flags | limits).items() if value is not None and value is not False}
        options = {**request.matmul_options(casting, order, dtype, more), **passed}
        operands = () if b is REQUIRED_ARGUMENT else (b,) if out is None else (b, out)
        solver_decision: Decision = explain_call(*operands, **options)
        return solver_decision
    constraints = plan, max_error_growth, workspace, componentwise, reproducible
    return dispatch.dispatch_explain_matmul(
        request.check_matmul("explain", a, b, out, (casting, order, dtype, more), constraints, device, progress)
    )


@set_public_signature
def gram(
    a: Any = REQUIRED_ARGUMENT,
    b: Any = None,
    /,
    out: Any = None,
    *,
    rows: bool = False,
    fill: Triangle = "full",
    alpha: float = 1,
    beta: float = 0,
    plan: Plan | Decision | str | None = None,
    max_error_growth: float | None = None,
    workspace: int | None = None,
    **unknown: Any,
) -> Any:
    """Return alpha a^H a + beta out; a plan computes one triangle and mirrors it into the other triangle.

    Parameters
    ----------
    a : array
        A matrix, or a stack of matrices, of NumPy, CuPy or torch. Gradients are recorded for torch tensors that require
        gradients.
    b : array, optional
        A second matrix; the result is then alpha a b + beta out. The caller guarantees that the product `a b` is its
        own adjoint, for example because `a` and `b` are polynomials of one symmetric matrix. The upper triangle of the
        product `a b` is not computed.
    out : array, optional
        Array for the result. A nonzero beta requires `out`; the lower triangle of `out` is read (with fill="upper", the
        upper triangle).
    rows : bool, optional
        If True, return alpha a a^H + beta out.
    fill : {"full", "lower", "upper"}, optional
        The triangle to write. The triangle that `fill` does not name is unchanged in `out`, and zero in a new array.
    alpha, beta : float, optional
        Real factors.
    plan, max_error_growth, workspace
        The options of fmm.matmul with these names. The first level of a plan for fmm.gram must be gram or sforza; a
        plan without levels is valid too.

    Returns
    -------
    array
        The result; `out` if it was passed. Real results are symmetric bit for bit, complex results Hermitian with a
        real diagonal. For torch's sparse tensors, the result is a dense tensor.

    Raises
    ------
    PlanError
        The plan passed as `plan` cannot run on these arrays.
    ValueError
        The shapes do not match, or beta was passed without `out`.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.gram(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[10., 14.],
           [14., 20.]])
    """
    key, kind = None, type(a)
    if plan is None and max_error_growth is None and workspace is None and not unknown:
        library = NUMPY if kind is ndarray else PLAIN_TYPES.get(kind)
        c = None
        if b is None and alpha is DEFAULT_ALPHA and beta is DEFAULT_BETA and (rows is True or rows is False):
            if kind is ndarray:
                c = run_small_gram(a, rows, out) if fill is DEFAULT_FILL else None
            elif library is None or (out is not None and type(out) is not kind):
                pass
            elif fill is DEFAULT_FILL or (isinstance(fill, str) and fill in TRIANGLES):
                c = dispatch.recurring_gram_function(library)(library, a, out, rows, fill)  # type: ignore[arg-type]
        if c is None and (key := call_key(library, (a, b, None, out), alpha, beta, "gram", rows, fill)) is not None:
            c = run_declined_gram(key, a, b, out)
        if c is not None:
            return c
    request.check_operands("gram", ("a",), (a,), unknown)
    constraints = plan, max_error_growth, workspace
    checked = request.check_gram(a, b, out, (rows, fill, alpha, beta), constraints)
    return request.result_for_caller(checked, dispatch.dispatch_gram(checked, key), a, b, out)


@set_public_signature
def explain_gram(
    a: Any = REQUIRED_ARGUMENT,
    b: Any = None,
    /,
    out: Any = None,
    *,
    rows: bool = False,
    fill: Triangle = "full",
    alpha: float = 1,
    beta: float = 0,
    plan: Plan | Decision | str | None = None,
    max_error_growth: float | None = None,
    workspace: int | None = None,
    **unknown: Any,
) -> Decision:
    """Return the decision for the fmm.gram call with the same arguments; nothing is multiplied.

    Parameters
    ----------
    a, b, out, rows, fill, alpha, beta, plan, max_error_growth, workspace
        The arguments of fmm.gram with these names.

    Returns
    -------
    Decision
        As fmm.explain returns it.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.explain_gram(np.ones((8, 8))).problem.op
    'gram'
    """
    request.check_operands("explain_gram", ("a",), (a,), unknown)
    constraints = plan, max_error_growth, workspace
    return dispatch.dispatch_explain_gram(request.check_gram(a, b, out, (rows, fill, alpha, beta), constraints))


@set_public_signature
def gemm(
    a: Any = REQUIRED_ARGUMENT,
    b: Any = REQUIRED_ARGUMENT,
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
    **unknown: Any,
) -> Any:
    """Return alpha op(a) op(b) + beta c, as BLAS's gemm does.

    Parameters
    ----------
    a, b : array
        Matrices, or stacks of matrices, of NumPy, CuPy or torch. Gradients are recorded for torch tensors that require
        gradients.
    c : array, optional
        The addend. Its shape is the product's shape, or can be broadcast to the product's shape. `c` is overwritten
        only if `c` is also `out`. If beta is 0, `c` is not read.
    alpha, beta : number, optional
        The factors of the product and of `c`. For complex arrays, alpha and beta may be complex; for integer arrays,
        both must be integers. If alpha is 0, `a` and `b` are not read.
    transpose_a, transpose_b : bool, int or str, optional
        "N", False or 0: the operand is not transposed. "T", True or 1: the operand is transposed without a copy. "C" or
        2: the operand is conjugated and transposed, in a copy unless the plan begins with a level for complex numbers
        (3m).
    out : array, optional
        Array for the result. `out` may be `c`, and may overlap `a` and `b`.
    plan, max_error_growth, workspace
        The options of fmm.matmul with these names.

    Returns
    -------
    array
        The result; `out` if it was passed.

    Raises
    ------
    PlanError
        The plan passed as `plan` cannot run on these arrays.
    ValueError, TypeError
        The shapes do not match, beta was passed without `c`, or alpha or beta does not fit the element type.

    Notes
    -----
    A plan with alpha and beta needs no extra pass over C: alpha and beta are coefficients of the plan's last sums.
    Where no plan is faster, the library's functions compute the result (torch.addmm, cuBLAS's gemm, numpy.matmul). If
    `out` is `c`, the workspace may also hold a copy of `c`, because a result with inf or NaN is computed a second time
    from `c`.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> a, c = np.eye(2), np.ones((2, 2))
    >>> fmm.gemm(a, a, c, alpha=2, beta=-1)
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    key, kind = None, type(a)
    if plan is None and max_error_growth is None and workspace is None and not unknown:
        library = NUMPY if kind is ndarray else PLAIN_TYPES.get(kind)
        is_plain = alpha is DEFAULT_ALPHA and transpose_a is False and transpose_b is False
        if kind is not ndarray:
            if library is None:
                c_new = None
            elif is_plain and out is None:
                c_new = run_small_gemm(library, a, b, c, beta)
            else:
                c_new = run_small_scaled_gemm(library, a, b, c, alpha, beta, transpose_a, transpose_b, out)
            if c_new is not None:
                return c_new
        elif (
            is_plain
            and type(b) is ndarray
            and c is None
            and beta is DEFAULT_BETA
            and a.ndim == 2 == b.ndim
            and a.shape[1] == len(b)
            and (dtype := a.dtype) is b.dtype
            and dtype in BLAS_DTYPES
            and (out is None or (type(out) is ndarray and out.dtype is dtype and out.shape == (len(a), b.shape[1])))
            and (a.size < early_declines.MIN_PLAN_ENTRIES or is_small_on_host(a, b))
        ):
            return numpy_matmul(a, b, out)
        key = call_key(library, (a, b, c, out), alpha, beta, "gemm", transpose_a, transpose_b)
        if key is not None and (c_new := run_cached_gemm(key, a, b, c, out)) is not None:
            return c_new
    request.check_operands("gemm", ("a", "b"), (a, b), unknown)
    scalars_and_ops, constraints = (alpha, beta, transpose_a, transpose_b), (plan, max_error_growth, workspace)
    checked = request.check_gemm(a, b, c, out, scalars_and_ops, constraints)
    return request.result_for_caller(checked, dispatch.dispatch_gemm(checked, key), a, b, out)


@set_public_signature
def explain_gemm(
    a: Any = REQUIRED_ARGUMENT,
    b: Any = REQUIRED_ARGUMENT,
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
    **unknown: Any,
) -> Decision:
    """Return the decision for the fmm.gemm call with the same arguments; nothing is computed.

    Parameters
    ----------
    a, b, c, alpha, beta, transpose_a, transpose_b, out, plan, max_error_growth, workspace
        The arguments of fmm.gemm with these names. The values in `c` are not read, only its memory layout.

    Returns
    -------
    Decision
        As fmm.explain returns it.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> print(fmm.explain_gemm(np.ones((8, 8)), np.ones((8, 8)), alpha=2).plan)
    vendor
    """
    request.check_operands("explain_gemm", ("a", "b"), (a, b), unknown)
    scalars_and_ops, constraints = (alpha, beta, transpose_a, transpose_b), (plan, max_error_growth, workspace)
    return dispatch.dispatch_explain_gemm(request.check_gemm(a, b, c, out, scalars_and_ops, constraints))


@set_public_signature
def prepare(x: Any = REQUIRED_ARGUMENT, /, *, side: Side = "right", **unknown: Any) -> PreparedOperand:
    """Return a copy of a matrix, prepared for many products: fmm.matmul(a, p), or fmm.matmul(p, b) for side="left".

    Parameters
    ----------
    x : array
        A NumPy or CuPy array or a torch tensor: a matrix, a stack or a vector. A product with a prepared tensor has a
        gradient for the other operand, and none for the prepared tensor.
    side : {"left", "right"}, optional
        "left" if the matrix is the first operand of the products, "right" if the matrix is the second operand.

    Returns
    -------
    PreparedOperand
        A read-only copy; `nbytes` is its size. On a Hopper GPU the prepared operand also holds a converted matrix: two
        float16 planes of a float32 matrix, or the residues of a float64 or complex128 matrix. Products with the
        prepared operand skip this conversion.

    Raises
    ------
    ValueError
        x has no dimensions, or requires gradients.

    Notes
    -----
    The prepared operand is a copy: after a change of x, prepare x again.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> weights = fmm.prepare(np.full((3, 2), 2.0))
    >>> fmm.matmul(np.ones((1, 3)), weights)
    array([[6., 6.]])
    """
    request.check_operands("prepare", ("x",), (x,), unknown)
    return prepare_operand(x, side)


@set_public_signature
def minplus(
    a: Any = REQUIRED_ARGUMENT,
    b: Any = REQUIRED_ARGUMENT,
    /,
    out: Any = None,
    *,
    maximum: bool = False,
    argmin: bool = False,
    **unknown: Any,
) -> Any:
    """Return the min-plus product, with entries c[i, j] = min over k of a[i, k] + b[k, j].

    Parameters
    ----------
    a, b : array
        Matrices of NumPy, CuPy or torch, of float32, float64, int32 or int16. Arrays of other real types are converted
        to float64. Masked entries of a masked array are missing edges.
    out : array, optional
        Array for the result, with the result's shape and type. `out` may overlap `a` and `b`.
    maximum : bool, optional
        If True, return the maximum of the sums (max-plus).
    argmin : bool, optional
        If True, also return for each entry the index k of the minimum, as int32. Of several equal minima, the smallest
        k is returned. The index is -1 where the result is "no edge".

    Returns
    -------
    array, or a pair of arrays with argmin=True

    Notes
    -----
    Integer sums saturate. The largest integer of the type means "no edge", and a sum with "no edge" is "no edge" too.
    With maximum=True, the smallest integer means "no edge". In floating point, inf means "no edge", and -inf with
    maximum=True. A NaN sum is never the minimum.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.minplus(np.array([[0.0, 3.0]]), np.array([[5.0], [1.0]]))
    array([[4.]])
    """
    request.check_operands("minplus", ("a", "b"), (a, b), unknown)
    from fmm.semirings.minplus import minplus_product

    flags = check_flag("maximum", maximum), check_flag("argmin", argmin)
    return minplus_product(a, b, request.unwrap_out(out), *flags)


def shortest_paths(
    d: Any,
    directed: bool = True,
    return_predecessors: bool = False,
    unweighted: bool = False,
    overwrite: bool = False,
    *,
    out: Any = None,
    method: PathMethod = "auto",
) -> Any:
    """Return the lengths of the shortest paths between all nodes of a graph, as scipy's floyd_warshall does.

    Parameters
    ----------
    d : array
        Edge lengths, an n x n matrix of NumPy, CuPy or torch, or a sparse SciPy matrix. In a dense matrix 0, NaN, inf
        and -inf (and floats up to 1e-8, as in SciPy) mean "no edge". In a sparse matrix stored zeros are edges.
    directed, return_predecessors, unweighted, overwrite : bool, optional
        The options of SciPy's floyd_warshall with these names. The predecessors are an int32 matrix: entry [i, j] is
        the node before j on the path from i to j, or -9999 if there is no path from i to j.
    out : array, optional
        Array for the lengths. `out` may be `d`.
    method : {"auto", "r-kleene", "floyd-warshall"}, optional
        "r-kleene" uses min-plus products and is the default. "floyd-warshall" is the classical algorithm, one node
        after the other; it runs on the host only.

    Returns
    -------
    array, or a pair of arrays with return_predecessors=True

    Raises
    ------
    NegativeCycleError
        The graph has a cycle of negative length.

    Notes
    -----
    Lengths of float32, float64, int32 and int16 edges have the type of the edges; other types are converted to float64.
    The largest int32 or int16 means "no edge" and "no path". A longer path gets the largest integer as its length.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.shortest_paths(np.array([[0.0, 1.0, 5.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]))
    array([[ 0.,  1.,  3.],
           [inf,  0.,  2.],
           [inf, inf,  0.]])
    """
    from fmm.semirings.path_request import PathRequest
    from fmm.semirings.shortest_paths import all_shortest_paths

    flags = (
        check_flag("directed", directed),
        check_flag("return_predecessors", return_predecessors),
        check_flag("unweighted", unweighted),
        check_flag("overwrite", overwrite),
    )
    return all_shortest_paths(d, request.unwrap_out(out), PathRequest(*flags, method))


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
    """Return the decision for a product of an m x k matrix and a k x n matrix; no arrays are needed.

    Parameters
    ----------
    m, k, n : int
        The sizes of the two matrices.
    op : {"product", "gram", "symmetric"}, optional
        "gram" for fmm.gram of one matrix, "symmetric" for fmm.gram of two matrices. For both, m and n must be equal.
    dtype : type or str, optional
        The element type; "tf32" for float32 in TF32.
    device : str or int, optional
        "cpu", or the index of a CUDA device.
    plan, max_error_growth, workspace
        The options of fmm.matmul with these names. If `plan` was passed, the decision describes this plan.

    Returns
    -------
    Decision
        As fmm.explain returns it.

    Examples
    --------
    >>> import fmm
    >>> print(fmm.plan(64, 64, 64).plan)
    vendor
    """
    sides = check_side("m", m), check_side("k", k), check_side("n", n)
    constraints = request.check_constraints(plan, max_error_growth, workspace)
    return dispatch.plan_without_arrays(sides, type_name(dtype), op, device, constraints)

"""The public face: matmul, explain and plan. Arguments are checked here, and calls sent to where they are answered."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from numbers import Complex, Integral, Real
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from fmm.arrays.kinds import array_in_words, on_device, type_name
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NAMES, NUMPY
from fmm.arrays.pick import PLAIN_TYPES, cupy_library, library_of
from fmm.config.environment import componentwise_wanted, emulation_allowed
from fmm.dtypes import DTYPES
from fmm.kernels.cpu.numpy_products import matmul as numpy_matmul
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.choose import Limits
from fmm.problem import Operation, Problem
from fmm.runtime import call, devices
from fmm.runtime.decide import Decision
from fmm.runtime.gemm import OPS, Update, gemm_explained, gemm_product
from fmm.runtime.gram import HALVES, GramRequest, Half, gram_explained, gram_product, known_gram
from fmm.runtime.left_to_vendor import SMALL_BYTES, just_left_to_vendor, left_to_vendor, small_enough_for_numpy
from fmm.runtime.limits import NO_WISHES, Wishes, memory_share
from fmm.runtime.prepared_operand import PreparedOperand, Side, prepare_operand, unwrapped
from fmm.runtime.semirings.path_request import Method, PathRequest

NO_OPTIONS: Mapping[str, Any] = {}
ndarray = np.ndarray  # asked for at each call
P = ParamSpec("P")
Explained = Callable[[Mapping[str, Any]], Decision]


def _asked_like(product: Callable[P, Any]) -> Callable[[Explained], Callable[P, Decision]]:
    """A decorator: the function takes what `product` takes, and is handed all of it by name, what was not given too.
    So what can be asked stands in one place."""
    signature = inspect.signature(product)

    def decorated(explained: Explained) -> Callable[P, Decision]:
        @wraps(explained)
        def explain_call(*given: P.args, **named: P.kwargs) -> Decision:
            asked = signature.bind(*given, **named)
            asked.apply_defaults()
            return explained(asked.arguments)

        explain_call.__annotations__ = {**product.__annotations__, "return": "Decision"}
        vars(explain_call)["__signature__"] = signature.replace(return_annotation="Decision")
        return explain_call

    return decorated


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
    progress: bool = False,
    **more: Any,
) -> Any:
    """The matrix product of two arrays, as numpy.matmul computes it, but faster where a fast algorithm pays.

    a, b, out, casting, order and dtype are numpy.matmul's own, with its results, shapes and exceptions; with its other
    options (subok, axes, signature, ...) the library answers. CuPy arrays and torch tensors (through CuPy also others
    on CUDA devices) are multiplied where they are, on the current stream, as by cupy.matmul and torch.matmul.

    plan
        Run this plan (a text such as "winograd > vendor", a Plan, or what fmm.plan returned) instead of choosing one.
    max_error_growth
        Choose only plans that are expected to err at most so many times as much as the vendor (10; on a GPU 16).
        Below 1: only plans that err less than it, if one of them is faster (float32 on Hopper, down to 0.02).
    workspace
        Choose only plans that need at most this many bytes of temporaries (half of the free memory unless given).
    componentwise
        Every entry is to be right beside its own size, as the vendor's are, not only beside the largest ones.
    device
        A CUDA device (0, "cuda:0") that is to multiply NumPy's arrays: they are streamed through it, however large.
    progress
        With device: show a bar on stderr if that will take ten seconds or more.
    """
    if device is not None:
        wishes = _wishes(plan, max_error_growth, workspace, componentwise)
        return _product_on(device, a, b, out, _options(casting, order, dtype, more), wishes, bool(progress))
    if plan is None and max_error_growth is None and workspace is None and not componentwise and not more:
        # The shortest ways: products of small matrices take ten microseconds or less.
        kind, usual = type(a), dtype is None and order == "K" and casting == "same_kind"
        if kind is ndarray and type(b) is ndarray and (out is None or type(out) is ndarray):
            if small_enough_for_numpy(a, b) or (dtype is None and just_left_to_vendor(NUMPY, a, b)):
                if usual:
                    return numpy_matmul(a, b) if out is None else numpy_matmul(a, b, out=out)
                return numpy_matmul(a, b, out=out, casting=casting, order=order, dtype=dtype)
            library = NUMPY if usual else NUMPY.with_options(_options(casting, order, dtype, more))
            return call.product(library, a, b, out, NO_WISHES)
        if usual and type(b) is kind and (known := PLAIN_TYPES.get(kind)) is not None:
            if out is None:
                return _plain_product(known, a, b)
            if type(out) is kind and _left_to_torch(known, a, b):
                return known.vendor(a, b, out)
    options = _options(casting, order, dtype, more)
    return _product(a, b, out, options, _wishes(plan, max_error_growth, workspace, componentwise))


def _left_to_torch(library: Library, a: Any, b: Any) -> bool:
    """Are they tensors whose product is torch's own for certain? (CuPy does not ask on which device the result is, so
    that somebody has to look at its arrays.)"""
    own = library.differentiable and not library.watched() and not library.lacks(a)
    return own and left_to_vendor(library, a, b)


def _plain_product(library: Library, a: Any, b: Any) -> Any:
    """The product of two of CuPy's arrays or of torch's tensors, of which nothing else is asked."""
    if library.watched():
        return _recorded_product(a, b, None, NO_WISHES)
    try:
        small = a.nbytes * b.nbytes < SMALL_BYTES
    except RuntimeError:  # sparse tensors have no such numbers
        small = False
    if small or left_to_vendor(library, a, b):
        try:
            return library.quick_vendor(a, b)
        except RuntimeError:
            if not library.lacks(a):
                raise
    if library.differentiable:
        return _torch_gradients().product(a, b, None, NO_WISHES)
    return call.product(library, a, b, None, NO_WISHES)


def _product(a: Any, b: Any, out: Any, options: Mapping[str, Any], wishes: Wishes) -> Any:
    """The product of any arrays with any options."""
    out = _single(out)
    a, b, wishes = unwrapped(a, b, wishes)
    library = library_of(a, b, out).with_options(options)
    if library.watched():
        return _recorded_product(a, b, out, wishes)
    if wishes is NO_WISHES and library.processor == "cpu" and small_enough_for_numpy(a, b):
        return library.vendor(a, b, out)
    if library.differentiable:
        return _torch_gradients().product(a, b, out, wishes)
    return call.product_of_any(library, a, b, out, wishes)


def _product_on(
    device: str | int, a: Any, b: Any, out: Any, options: Mapping[str, Any], wishes: Wishes, progress: bool
) -> Any:
    """The product on a device: arrays on the host are streamed through it, those that are there stay there."""
    machine = _machine_for(device, a, b, _single(out))
    if machine is None:
        return _product(a, b, out, options, wishes)
    return _out_of_core().host_product(NUMPY.with_options(options), a, b, _single(out), machine, wishes, progress)


def _machine_for(device: str | int, a: Any, b: Any, out: Any) -> Any:
    """The device through which arrays of the host are to be streamed; None if they are where they are to be."""
    on_cpu = device == "cpu"
    number = 0 if on_cpu else devices.cuda_index(device)
    library = library_of(a, b, out)
    if library is NUMPY:
        if not on_cpu:
            _device(device, number)  # where there is none, this says so
        return None if on_cpu else _out_of_core().CudaMachine(number)
    if on_device(a) is on_cpu or (not on_cpu and library.device_number(a) != number):
        raise ValueError(f"a is {array_in_words(a)}: to device={device!r} fmm.matmul moves NumPy's arrays alone")
    return None


def prepare(x: Any, /, *, side: Side = "right") -> PreparedOperand:
    """A matrix made ready for many products: fmm.matmul(a, p), or fmm.matmul(p, b) for side="left".

    It holds a copy of x, which nobody can change, and on a device that has use for it what plans make of the matrix
    before they multiply (on Hopper: float32's two float16 planes, float64's residues), so that products need not make
    it again.
    `p.nbytes` is what all that takes. Prepare a matrix anew when it has changed; weights, for example, seldom do.
    Arrays of NumPy and CuPy, and torch's tensors, which get no gradients then (those of the other operand do).
    """
    return prepare_operand(x, side)


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
    usual = b is None and plan is None and max_error_growth is None and workspace is None
    if usual and _asks_half_alone(fill, alpha, beta):
        known = PLAIN_TYPES.get(type(a))
        if known is not None and (out is None or type(out) is type(a)):
            found = _known_gram(known, a, out, bool(rows), fill)
            if found is not None:
                return found
    asked = _checked_gram(a, b, out, (rows, fill, alpha, beta), (plan, max_error_growth, workspace))
    return _torch_gradients().gram(*asked[1:]) if asked.library.differentiable else gram_product(*asked)


def _asks_half_alone(fill: Any, alpha: Any, beta: Any) -> bool:
    """Are these what they are unless given? Told without a question that an array would answer otherwise."""
    return type(fill) is str and fill in HALVES and type(alpha) is int is type(beta) and alpha == 1 and beta == 0


def _known_gram(library: Library, a: Any, out: Any, rows: bool, fill: Half) -> Any:
    """Of CuPy's arrays or torch's tensors, where little is asked; None where the usual way must see it."""
    if library.differentiable:
        return _torch_gradients().known_gram(a, out, rows, fill)
    return known_gram(library, a, out, rows, fill)


@_asked_like(gram)
def explain_gram(asked: Mapping[str, Any]) -> Decision:
    """What fmm.gram would do with this call, and why. Nothing is multiplied."""
    a, b, out = _some(asked, "a", "b", "out")
    known = _checked_gram(a, b, out, _some(asked, *OF_GRAM), _some(asked, *WISHED))
    if known.library.differentiable:
        found: Decision = _torch_gradients().gram_explained(*known[1:])
        return found
    return gram_explained(*known)


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
        Numbers; complex ones for complex arrays only. With alpha = 0, a and b are not read.
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
    asked = _checked_gemm(a, b, c, out, (alpha, beta, transpose_a, transpose_b), wished)
    return _torch_gemm().gemm(*asked[1:]) if asked.library.differentiable else gemm_product(*asked)


@_asked_like(gemm)
def explain_gemm(asked: Mapping[str, Any]) -> Decision:
    """What fmm.gemm would do with this call, and why. Nothing is computed."""
    a, b, c, out = _some(asked, "a", "b", "c", "out")
    known = _checked_gemm(a, b, c, out, _some(asked, *OF_GEMM), _some(asked, *WISHED))
    if known.library.differentiable:
        found: Decision = _torch_gemm().explained(*known[1:])
        return found
    return gemm_explained(*known)


WISHED = "plan", "max_error_growth", "workspace"
OF_GRAM = "rows", "fill", "alpha", "beta"
OF_GEMM = "alpha", "beta", "transpose_a", "transpose_b"


def _some(asked: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(asked[name] for name in names)


def minplus(a: Any, b: Any, /, out: Any = None, *, maximum: bool = False, argmin: bool = False) -> Any:
    """The min-plus product: c[i, j] is the smallest of all sums a[i, k] + b[k, j].

    Of two matrices of NumPy's, CuPy's or torch's, in float32, float64, int32 or int16. Whole numbers are saturated: the
    largest one of their type means "none" and stays that, whatever is added to it; a sum beyond the type's range
    is the nearest number in it. A sum that is NaN is never the smallest.

    out
        Where the result goes, of its shape and type; it may overlap a and b.
    maximum
        The greatest of all sums instead (max-plus); then "none" is -inf, or the smallest whole number.
    argmin
        Return the pair of the result and, in int32, of the k that each number comes from: the first of several, and -1
        where no sum is better than "none".
    """
    return _semiring().minplus_product(a, b, _single(out), bool(maximum), bool(argmin))


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
    request = PathRequest(bool(directed), bool(return_predecessors), bool(unweighted), bool(overwrite), method)
    return _semiring().all_shortest_paths(d, _single(out), request)


@_asked_like(matmul)
def explain(asked: Mapping[str, Any]) -> Decision:
    """What fmm.matmul would do with this call, and why. Nothing is computed (overflow is only seen when it is)."""
    wishes, out = _wishes(*_some(asked, *WISHED, "componentwise")), _single(asked["out"])
    a, b, device = _some(asked, "a", "b", "device")
    machine = None if device is None else _machine_for(device, a, b, out)
    options = _options(*_some(asked, "casting", "order", "dtype", "more"))
    found: Decision
    if machine is not None:
        found = _out_of_core().explained(NUMPY.with_options(options), a, b, out, machine, wishes)
        return found
    a, b, wishes = unwrapped(a, b, wishes)
    library = library_of(a, b, out).with_options(options)
    if library.differentiable:
        found = _torch_gradients().explained(a, b, out, wishes)
    else:
        found = call.explained(library, a, b, out, wishes)
    return found


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
    sides = _side("m", m), _side("k", k), _side("n", n)
    wishes, kind, on_cpu = _wishes(plan, max_error_growth, workspace), type_name(dtype), device == "cpu"
    number = blas_threads() if on_cpu else devices.cuda_index(device)
    if kind not in (_NUMPYS if on_cpu else DTYPES):
        who, whose = ("NumPy", "NumPy's") if on_cpu else ("the vendor", "its")
        if wishes.plan not in (None, VENDOR):
            raise PlanError(f"the plan {wishes.plan} cannot run here: {kind} products are {whose} own")
        return Decision(VENDOR, None, f"{who} answers: {kind} products are {whose} own")
    found = _device(device, number)
    room = wishes.workspace
    if room is None:
        room = memory_share(NUMPY if on_cpu else cupy_library(), number)
    growth = found.error_growth if wishes.error_growth is None else wishes.error_growth
    entries = componentwise_wanted() and op == "product" and not DTYPES[kind].exact
    limits = Limits(room, growth, emulation_allowed(), entries)
    return call.planned(Problem(*sides, kind, op=op, componentwise=entries), limits, found, wishes.plan)


_NUMPYS = tuple(NAMES.values())
LONGEST = sys.maxsize  # that a side of an array can be; and more bytes than any machine has


def _device(device: str | int, number: int) -> devices.Device:
    """The device of that number, by whatever name it was asked for."""
    try:
        return devices.device_of("cpu" if device == "cpu" else "cuda", number)
    except ModuleNotFoundError as error:
        needed = f"device={device!r} needs CuPy: pip install 'fmm-tune[cuda13]' (or cuda12)"
        raise ModuleNotFoundError(needed) from error
    except ImportError as error:
        raise ImportError(f"device={device!r} needs CuPy, which does not load: {error}") from error


@lru_cache(maxsize=1)
def _torch_gradients() -> Any:
    """The module in which torch's products begin, which loads torch."""
    from fmm.runtime.tensors import gradients

    return gradients


def _out_of_core() -> Any:
    """The module of products that are streamed through a GPU, which few programs need."""
    from fmm.runtime.out_of_core import product

    return product


def _semiring() -> Any:
    """The module of min-plus products and shortest paths, which few programs need."""
    from fmm.runtime.semirings import semiring

    return semiring


def _torch_gemm() -> Any:
    """The same for gemm."""
    from fmm.runtime.tensors import gemm as torch_gemm

    return torch_gemm


def _recorded_product(a: Any, b: Any, out: Any, wishes: Wishes) -> Any:
    """Of tensors, while somebody records torch's calls."""
    from fmm.runtime.tensors import graph_operator

    return graph_operator.recorded_product(a, b, out, wishes)


# ---- arguments


def _options(casting: Any, order: Any, dtype: Any, more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of numpy.matmul's options that were given, by name."""
    if dtype is None and order == "K" and casting == "same_kind" and not more:
        return NO_OPTIONS
    given = {"casting": (casting, "same_kind"), "order": (order, "K"), "dtype": (dtype, None)}
    return {name: value for name, (value, usual) in given.items() if value is not usual} | dict(more)


def _wishes(
    plan: Plan | Decision | str | None, max_error_growth: Any, workspace: Any, componentwise: bool = False
) -> Wishes:
    """What the caller asks of a plan, checked."""
    if plan is None and max_error_growth is None and workspace is None and not componentwise:
        return NO_WISHES
    growth = None if max_error_growth is None else _error_growth(max_error_growth)
    if workspace is not None:
        if isinstance(workspace, bool) or not isinstance(workspace, Integral) or workspace < 0:
            raise ValueError(f"workspace must be a whole number of bytes, 0 or more, not {_in_words(workspace)}")
        workspace = min(int(workspace), LONGEST)
    given = _given(plan)
    if given is not None and any(given.conjugates):
        raise PlanError(f"{given} multiplies conjugates: of fmm.gemm, transpose_a and transpose_b ask for them")
    return Wishes(given, growth, workspace, componentwise=bool(componentwise))


def _error_growth(growth: Any) -> float:
    """The limit as a float; none (infinity) where it is beyond the floats."""
    real = isinstance(growth, Real) and not isinstance(growth, bool)
    try:
        number = float(growth) if real else math.nan
    except OverflowError:
        number = math.inf if growth > 0 else -math.inf
    if not number >= 1:
        raise ValueError(f"max_error_growth must be a number, 1 or more, not {_in_words(growth)}")
    return number


def _side(name: str, side: Any) -> int:
    """A side of a matrix, checked."""
    if not isinstance(side, int | np.integer) or side < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more, not {_in_words(side)}")
    if side > LONGEST:
        raise ValueError(f"{name} must be at most {LONGEST}, as an array's sides are, not {_in_words(side)}")
    return int(side)


def _in_words(value: Any) -> str:
    """A wrong argument, for a message; Python writes no whole numbers of some thousand digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a{' negative' * (value < 0)} number of {value.bit_length()} bits"
    return repr(value)


class _AskedGram(NamedTuple):
    """A call of fmm.gram, checked."""

    library: Library
    a: Any
    b: Any
    out: Any
    request: GramRequest
    wishes: Wishes


def _checked_gram(a: Any, b: Any, out: Any, request: tuple[Any, ...], wished: tuple[Any, ...]) -> _AskedGram:
    wishes, asked = _wishes(*wished), _gram_request(b, *request)
    return _AskedGram(*_gram_arrays(a, b, out), asked, wishes)


def _gram_request(b: Any, rows: Any, fill: Any, alpha: Any, beta: Any) -> GramRequest:
    """What else fmm.gram was asked, checked."""
    if not isinstance(fill, str) or fill not in HALVES:
        raise ValueError(f"fill must be one of {', '.join(HALVES)}, not {fill!r}")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if isinstance(value, bool) or not isinstance(value, Real) or not _is_float(value):
            raise ValueError(f"{name} must be a real number, not {_in_words(value)}")
    if rows and b is not None:
        raise ValueError("rows says which product of one matrix is meant: there is another one, b")
    return GramRequest(bool(rows), fill, float(alpha), float(beta))


def _gram_arrays(a: Any, b: Any, out: Any) -> tuple[Library, Any, Any, Any]:
    """The library whose arrays these are, and the arrays; what NumPy makes arrays of, as such."""
    out = _single(out)
    library: Library = library_of(a, a if b is None else b, out)
    _check_place(library, out)
    if library is NUMPY:
        a, b = np.asanyarray(a), None if b is None else np.asanyarray(b)
    elif (own := library.adopted(a, a if b is None else b, out)) is not None:
        a, b, out = own[0], None if b is None else own[1], own[2]
    return library, a, b, out


class _AskedGemm(NamedTuple):
    """A call of fmm.gemm, checked."""

    library: Library
    a: Any
    b: Any
    c: Any
    out: Any
    update: Update
    wishes: Wishes


def _checked_gemm(a: Any, b: Any, c: Any, out: Any, update: tuple[Any, ...], wished: tuple[Any, ...]) -> _AskedGemm:
    given = _given(wished[0])
    if given is not None:  # a plan that was explained may conjugate, which the call itself decides
        given = given.conjugating(*given.conjugates) or given
    told, wishes = _gemm_update(*update), _wishes(given, *wished[1:])
    library, arrays = _gemm_arrays(a, b, c, out)
    _check_scalars(library, arrays[:3], told)
    return _AskedGemm(library, *arrays, told, wishes)


def _gemm_update(alpha: Any, beta: Any, transpose_a: Any, transpose_b: Any) -> Update:
    """What fmm.gemm was asked besides its arrays, checked."""
    ops = []
    for name, value in (("transpose_a", transpose_a), ("transpose_b", transpose_b)):
        op = OPS.get(value) if isinstance(value, str | int | np.integer | np.bool_) else None
        if op is None:
            raise ValueError(f"{name} must be False, True or 'C', or 0, 1 or 2, not {value!r}")
        ops.append(op)
    return Update(_scalar("alpha", alpha), _scalar("beta", beta), *ops)


def _scalar(name: str, value: Any) -> complex:
    """A number as Python has it: it never changes the type of what it multiplies."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Complex) or not _is_float(value):
        raise ValueError(f"{name} must be a number, not {_in_words(value)}")
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else complex(value)


def _is_float(value: Complex) -> bool:
    """Is the number within the floats?"""
    try:
        complex(value)
    except OverflowError:
        return False
    return True


def _check_scalars(library: Library, arrays: tuple[Any, ...], update: Update) -> None:
    """Real matrices have no complex multiples."""
    if any(isinstance(x, complex) for x in update[:2]):
        given = [np.asanyarray(x) if library is NUMPY else x for x in arrays if x is not None]
        if not any(library.is_complex(x) for x in given):
            raise TypeError("alpha and beta must be real numbers for real matrices")


def _gemm_arrays(a: Any, b: Any, c: Any, out: Any) -> tuple[Library, tuple[Any, Any, Any, Any]]:
    """The library whose arrays these are, and the arrays."""
    out = _single(out)
    library = library_of(a, b, out if c is None else c)
    _check_place(library, out)
    if c is not None and out is not None:
        library_of(a, b, out)
    own = library.adopted(a, b, c)
    if own is not None:
        a, b, c = own
        out = None if out is None else library.adopted(a, b, out)[2]  # type: ignore[index]
    return library, (a, b, c, out)


def _check_place(library: Library, out: Any) -> None:
    if library is NUMPY and not (out is None or isinstance(out, ndarray)):
        raise TypeError(f"out must be an array, not a {type(out).__name__}")


def _single(out: Any) -> Any:
    """NumPy takes `out` in a tuple of one too."""
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out


def _given(plan: Plan | Decision | str | None) -> Plan | None:
    if plan is None or isinstance(plan, Plan):
        return plan
    return plan.plan if isinstance(plan, Decision) else Plan.parse(plan)

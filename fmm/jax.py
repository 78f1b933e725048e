"""Products of JAX arrays by fmm: fmm.jax.matmul, fmm.jax.gram, and jnp.matmul inside `with fmm.jax.installed():`.

A product by fmm.jax is a primitive of JAX with two lowerings: XLA's own dot, or a callback that runs fmm.matmul on
XLA's buffers. fmm chooses between the two when JAX lowers the product, so a product that fmm declines has no callback.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from math import prod
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fmm import api
from fmm.config.environment import is_disabled
from fmm.integrations.report import expected_speedup
from fmm.kernels.plans.plan import VENDOR
from fmm.problem import Operation

__all__ = ["gram", "installed", "matmul"]

# Smallest number of multiply-adds for which a product on the host may run as a callback: a callback takes 0.1 ms.
MIN_HOST_MULTIPLY_ADDS = 1 << 26
# The comparison of XLA's dot with NumPy's BLAS on the host: matrix side, and number of timings of each.
TRIAL_SIDE, TRIAL_ROUNDS = 384, 7
MIN_HOST_SPEEDUP = 1.15  # smallest predicted speedup over XLA's dot for which fmm multiplies on the host
HOST_TYPES = "float32", "float64", "complex64", "complex128"
CUDA_TYPES = (*HOST_TYPES, "float16")
PLATFORMS = "cpu", "cuda"


# ---- the public functions


def matmul(a: Any, b: Any, *, precision: Any = "highest") -> jax.Array:
    """Return the matrix product of two JAX arrays, as jnp.matmul does; fmm computes it where fmm is faster than XLA.

    Parameters
    ----------
    a, b : array_like
        Matrices, vectors or stacks of matrices, as for jax.numpy.matmul.
    precision : str or jax.lax.Precision, optional
        With "highest", float32 products are computed in float32. On a GPU with any other precision XLA computes the
        product, and may round the operands to TF32.

    Returns
    -------
    jax.Array
        The product, in the type that jax.numpy.matmul returns.

    Notes
    -----
    The function works under jit, grad, jvp, vmap, scan and shard_map; fmm computes cotangents too. fmm chooses when JAX
    lowers the traced product, with known sizes and types. On the host, fmm computes the product where NumPy's BLAS with
    fmm's plans is faster than XLA's dot. The speed of NumPy's BLAS relative to XLA's dot is measured once in a process.

    Examples
    --------
    >>> import jax.numpy as jnp, fmm.jax
    >>> fmm.jax.matmul(jnp.ones((2, 3)), jnp.ones((3, 2)))
    Array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        return jnp.matmul(a, b)  # raises JAX's exception
    dtype = jnp.result_type(a, b)
    left, right = a.astype(dtype), b.astype(dtype)
    left = left[None] if a.ndim == 1 else left
    right = right[:, None] if b.ndim == 1 else right
    c = _product_of_stacks(left, right, _checked_precision(precision))
    if a.ndim == 1:
        c = c[..., 0, :]
    return c[..., 0] if b.ndim == 1 else c


def _checked_precision(precision: Any) -> lax.Precision:
    try:
        return lax.Precision(precision)
    except ValueError:
        valid = ", ".join(repr(x.name.lower()) for x in lax.Precision)
        raise ValueError(f"precision is {precision!r}; valid: {valid}") from None


def gram(a: Any) -> jax.Array:
    """Return A^H A of a JAX matrix; a plan computes only one triangle, with half of the multiplications.

    Parameters
    ----------
    a : array_like
        A matrix.

    Returns
    -------
    jax.Array
        The Hermitian matrix A^H A.

    Examples
    --------
    >>> import jax.numpy as jnp, fmm.jax
    >>> fmm.jax.gram(jnp.ones((3, 2)))
    Array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    a = jnp.asarray(a)
    if a.ndim != 2:
        raise ValueError(f"fmm.jax.gram takes a matrix, and the array has {a.ndim} axes")
    return _gram_with_derivative(a)


@contextmanager
def installed() -> Iterator[None]:
    """Let fmm compute jnp.matmul, `@`, dot, tensordot and einsum inside the `with` block where fmm is faster than XLA.

    Notes
    -----
    At the beginning and at the end of the block, JAX's compiled functions are discarded and compiled again. On a GPU
    fmm computes float32 products only with `precision="highest"` (or jax.default_matmul_precision), since XLA's default
    is TF32.

    Examples
    --------
    >>> import jax.numpy as jnp, fmm.jax
    >>> with fmm.jax.installed():
    ...     print(jnp.ones((2, 3)) @ jnp.ones((3, 2)))
    [[3. 3.]
     [3. 3.]]
    """
    with _install_lock:
        _replace_lowerings(+1)
    try:
        yield
    finally:
        with _install_lock:
            _replace_lowerings(-1)


# ---- the primitives


def _product_of_stacks(a: jax.Array, b: jax.Array, precision: lax.Precision) -> jax.Array:
    """Return the product of two stacks of matrices; leading axes are broadcast as in jnp.matmul."""
    options = {"transpose_a": False, "transpose_b": False, "precision": precision}
    if b.ndim == 2:  # all rows of the stack form one product
        rows = a.reshape(prod(a.shape[:-1]), a.shape[-1])
        c: jax.Array = PRODUCT_PRIMITIVE.bind(rows, b, **options)
        return c.reshape(*a.shape[:-1], b.shape[-1])
    stack = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*stack, *x.shape[-2:])) for x in (a, b))
    result: jax.Array = PRODUCT_PRIMITIVE.bind(a, b, **options)
    return result


def _xla_product(a: Any, b: Any, *, transpose_a: bool, transpose_b: bool, precision: lax.Precision) -> jax.Array:
    """Return op(A) op(B) of two stacks of equal length, computed with XLA's own dot."""
    stack = tuple(range(a.ndim - 2))
    inner = (a.ndim - 2 if transpose_a else a.ndim - 1), (b.ndim - 1 if transpose_b else b.ndim - 2)
    return lax.dot_general(a, b, (((inner[0],), (inner[1],)), (stack, stack)), precision=precision)


def _product_sizes(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> tuple[int, int, int]:
    m, k = reversed(a.shape[-2:]) if transpose_a else a.shape[-2:]
    return m, k, b.shape[-2] if transpose_b else b.shape[-1]


def _abstract_product(a: Any, b: Any, *, transpose_a: bool, transpose_b: bool, **_: Any) -> Any:
    m, _k, n = _product_sizes(a, b, transpose_a, transpose_b)
    return a.update(shape=(*a.shape[:-2], m, n), weak_type=False)


def _left_cotangent(cotangent: Any, a: Any, b: Any, *, transpose_a: bool, transpose_b: bool, **options: Any) -> Any:
    """Return the cotangent of A for C = op(A) op(B), as a product of the cotangent of C and B."""
    if isinstance(cotangent, ad.Zero):
        return ad.Zero(a.aval)
    if transpose_a:
        return PRODUCT_PRIMITIVE.bind(b, cotangent, transpose_a=transpose_b, transpose_b=True, **options)
    return PRODUCT_PRIMITIVE.bind(cotangent, b, transpose_a=False, transpose_b=not transpose_b, **options)


def _right_cotangent(cotangent: Any, a: Any, b: Any, *, transpose_a: bool, transpose_b: bool, **options: Any) -> Any:
    """Return the cotangent of B for C = op(A) op(B), as a product of A and the cotangent of C."""
    if isinstance(cotangent, ad.Zero):
        return ad.Zero(b.aval)
    if transpose_b:
        return PRODUCT_PRIMITIVE.bind(cotangent, a, transpose_a=True, transpose_b=transpose_a, **options)
    return PRODUCT_PRIMITIVE.bind(a, cotangent, transpose_a=not transpose_a, transpose_b=False, **options)


def _batched_product(operands: Any, axes: Any, **options: Any) -> tuple[jax.Array, int]:
    """Return the product under jax.vmap: the mapped axis becomes the first axis of both stacks."""
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    a, b = (batching.bdim_at_front(x, axis, size) for x, axis in zip(operands, axes, strict=True))
    if axes[1] is None and operands[1].ndim == 2 and not options["transpose_a"]:
        rows = PRODUCT_PRIMITIVE.bind(a.reshape(prod(a.shape[:2]), a.shape[-1]), operands[1], **options)
        return rows.reshape(*a.shape[:2], rows.shape[-1]), 0
    return PRODUCT_PRIMITIVE.bind(a, b, **options), 0


def _xla_gram(a: Any) -> jax.Array:
    return _xla_product(a.conj(), a, transpose_a=True, transpose_b=False, precision=lax.Precision.HIGHEST)


def _batched_gram(operands: Any, axes: Any) -> tuple[jax.Array, int]:
    a = jnp.moveaxis(operands[0], axes[0], 0)
    options = {"transpose_a": True, "transpose_b": False, "precision": lax.Precision.HIGHEST}
    return PRODUCT_PRIMITIVE.bind(a.conj(), a, **options), 0


@lru_cache(maxsize=256)
def _jitted_primitive(primitive: Primitive, **options: Any) -> Callable[..., Any]:
    return jax.jit(partial(primitive.bind, **options))  # type: ignore[no-any-return]


def _define_primitive(
    name: str, shape: Callable[..., Any], xla: Callable[..., Any], by_fmm: Callable[..., Any], batch: Callable[..., Any]
) -> Primitive:
    """Return a new primitive of JAX; on platforms that fmm does not support, its lowering is XLA's dot."""
    primitive = Primitive(name)
    primitive.def_impl(lambda *operands, **options: _jitted_primitive(primitive, **options)(*operands))
    primitive.def_abstract_eval(shape)
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(xla, multiple_results=False))
    for platform in PLATFORMS:
        mlir.register_lowering(primitive, partial(_lower_primitive, platform, xla, by_fmm), platform=platform)
    return primitive


# ---- the lowerings


def _lower_primitive(
    platform: str, xla: Callable[..., Any], by_fmm: Callable[..., Any], context: Any, *operands: Any, **options: Any
) -> Any:
    """Lower a primitive to fmm's callback if fmm is faster, else to XLA's dot."""
    function = xla
    if _is_on_one_device(context) and is_fmm_faster_than_xla(platform, *context.avals_in, **options):
        function = partial(by_fmm, platform)
    return mlir.lower_fun(function, multiple_results=False)(context, *operands, **options)


def _is_on_one_device(context: Any) -> bool:
    """Return True unless XLA partitions the product over several devices.

    XLA cannot partition a callback.
    """
    return getattr(context.module_context.axis_context, "num_devices", 1) in (1, None)


def is_fmm_faster_than_xla(
    platform: str,
    a: Any,
    b: Any = None,
    *,
    transpose_a: bool = True,
    transpose_b: bool = False,
    precision: lax.Precision = lax.Precision.HIGHEST,
) -> bool:
    """Return True if fmm computes A B, or A^H A if B is None, faster than XLA's dot; False if fmm is disabled."""
    if is_disabled():
        return False
    m, k, n = _product_sizes(a, a if b is None else b, transpose_a, transpose_b)
    dtype = str(a.dtype)
    op: Operation = "gram" if b is None else "product"
    if platform == "cpu":
        if dtype not in HOST_TYPES or prod(a.shape[:-2]) * m * k * n < MIN_HOST_MULTIPLY_ADDS:
            return False
        speedup = expected_speedup(api.plan(m, k, n, op=op, dtype=dtype)) or 1.0
        return numpy_speedup_over_xla(dtype) * speedup >= MIN_HOST_SPEEDUP
    if dtype not in CUDA_TYPES or (dtype == "float32" and precision is not lax.Precision.HIGHEST):
        return False
    return min(m, k, n) > 0 and api.plan(m, k, n, op=op, dtype=dtype, device=0).plan != VENDOR


@lru_cache(maxsize=len(HOST_TYPES))
def numpy_speedup_over_xla(dtype: str) -> float:
    """Return the speed of NumPy's BLAS divided by the speed of XLA's dot on the host, measured once in a process."""
    with jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
        a = np.random.default_rng(0).standard_normal((TRIAL_SIDE, TRIAL_SIDE)).astype(dtype)
        x = jnp.asarray(a)
        dot = jax.jit(partial(_xla_product, transpose_a=False, transpose_b=False, precision=lax.Precision.HIGHEST))

        def product_seconds(product: Callable[[], Any]) -> float:
            start = time.perf_counter()
            product()
            return time.perf_counter() - start

        dot(x, x).block_until_ready()
        rounds = [
            (product_seconds(lambda: dot(x, x).block_until_ready()), product_seconds(lambda: a @ a))
            for _ in range(TRIAL_ROUNDS)
        ]
    return median(xla / blas for xla, blas in rounds)


def _product_by_fmm(platform: str, a: Any, b: Any, *, transpose_a: bool, transpose_b: bool, **_: Any) -> Any:
    """Return op(A) op(B), computed by a callback that writes into XLA's output buffer."""
    m, _k, n = _product_sizes(a, b, transpose_a, transpose_b)

    def multiply(a: Any, b: Any, c: Any) -> None:
        left, right = (x.swapaxes(-1, -2) if swap else x for x, swap in ((a, transpose_a), (b, transpose_b)))
        api.matmul(left, right, out=c)

    return _callback_product(platform, multiply, (*a.shape[:-2], m, n), a, b)


def _gram_by_fmm(platform: str, a: Any) -> Any:
    return _callback_product(platform, lambda a, c: api.gram(a, out=c), (a.shape[1], a.shape[1]), a)


def _callback_product(platform: str, multiply: Callable[..., object], shape: tuple[int, ...], *operands: Any) -> Any:
    """Return the result of `multiply(*operands, out)`; the arguments are NumPy or CuPy views of XLA's buffers."""

    def run_callback(context: Any, out: Any, *buffers: Any) -> None:
        if platform == "cpu":
            multiply(*(np.asarray(buffer) for buffer in (*buffers, out)))
            return
        import cupy

        from fmm.arrays.cupy_library import stream_at_address

        arrays = [cupy.asarray(buffer) for buffer in (*buffers, out)]
        with arrays[-1].device, stream_at_address(context.stream):
            multiply(*arrays)

    return buffer_callback(run_callback, jax.ShapeDtypeStruct(shape, operands[0].dtype))(*operands)


PRODUCT_PRIMITIVE = _define_primitive("fmm_product", _abstract_product, _xla_product, _product_by_fmm, _batched_product)
ad.defbilinear(PRODUCT_PRIMITIVE, _left_cotangent, _right_cotangent)
GRAM_PRIMITIVE = _define_primitive(
    "fmm_gram",
    lambda a: a.update(shape=(a.shape[1], a.shape[1]), weak_type=False),
    _xla_gram,
    _gram_by_fmm,
    _batched_gram,
)


def _gram_derivative(primals: tuple[Any], tangents: tuple[Any]) -> tuple[jax.Array, jax.Array]:
    """Return A^H A and its derivative for the tangent dA, A^H dA + (A^H dA)^H."""
    (a,), (da,) = primals, tangents
    change = PRODUCT_PRIMITIVE.bind(a.conj(), da, transpose_a=True, transpose_b=False, precision=lax.Precision.HIGHEST)
    return _gram_with_derivative(a), change + change.conj().T


_gram_with_derivative = jax.custom_jvp(GRAM_PRIMITIVE.bind)
_gram_with_derivative.defjvp(_gram_derivative)


# ---- installing: another lowering of lax.dot_general, which computes all products of jax.numpy

_install_lock = threading.Lock()
_installed_blocks = 0  # number of running `with installed()` blocks
_xla_lowerings: dict[str, Any] = {}  # XLA's own lowering for each platform, saved while fmm's lowerings are registered


def _replace_lowerings(replace: int) -> None:
    """Register fmm's lowerings when the first `with` block begins; restore XLA's lowerings when the last block ends."""
    global _installed_blocks
    from jax._src.interpreters.mlir import _lowerings, _platform_specific_lowerings

    before, _installed_blocks = _installed_blocks, _installed_blocks + replace
    if bool(before) == bool(_installed_blocks):
        return
    for platform in PLATFORMS:
        table = _platform_specific_lowerings[platform]
        if _installed_blocks:
            _xla_lowerings[platform] = table.get(lax.dot_general_p)
            default = _xla_lowerings[platform] or _lowerings[lax.dot_general_p]
            mlir.register_lowering(lax.dot_general_p, partial(_lower_dot, platform, default.rule), platform=platform)
        elif (own := _xla_lowerings.pop(platform)) is None:
            table.pop(lax.dot_general_p, None)
        else:
            table[lax.dot_general_p] = own
    jax.clear_caches()


def _lower_dot(platform: str, own: Callable[..., Any], context: Any, a: Any, b: Any, **options: Any) -> Any:
    """Lower lax.dot_general to fmm's callback if fmm is faster, else to XLA's own dot."""
    left, right = context.avals_in
    if left.dtype == right.dtype == context.avals_out[0].dtype and _is_on_one_device(context):
        dot = _Contraction(left.shape, right.shape, options["dimension_numbers"])
        precision = lax.Precision.HIGHEST if _requires_full_float32(options["precision"]) else lax.Precision.DEFAULT
        stacks = (jax.ShapeDtypeStruct(shape, left.dtype) for shape in (dot.left_shape, dot.right_shape))
        if is_fmm_faster_than_xla(platform, *stacks, **dot.transposes, precision=precision):
            return mlir.lower_fun(partial(dot.product_by_fmm, platform), multiple_results=False)(context, a, b)
    return own(context, a, b, **options)


def _requires_full_float32(precision: Any) -> bool:
    """Return True if lax.dot_general's precision or algorithm requires float32 instead of TF32."""
    pair = precision if isinstance(precision, tuple) else (precision, precision)
    return all(x in (lax.Precision.HIGHEST, lax.DotAlgorithmPreset.F32_F32_F32) for x in pair)


class _Contraction:
    """A lax.dot_general as a product of two stacks of matrices.

    An operand is copied if its axes must be permuted to make a stack of matrices.
    """

    def __init__(self, left: tuple[int, ...], right: tuple[int, ...], dimension_numbers: Any) -> None:
        (left_inner, right_inner), (left_stack, right_stack) = dimension_numbers
        left_free = [axis for axis in range(len(left)) if axis not in (*left_inner, *left_stack)]
        right_free = [axis for axis in range(len(right)) if axis not in (*right_inner, *right_stack)]
        self.left_axes, transpose_a = _stack_row_column_axes(left_stack, left_free, left_inner)
        self.right_axes, swapped = _stack_row_column_axes(right_stack, right_inner, right_free)
        self.transposes = {"transpose_a": transpose_a, "transpose_b": swapped}
        count = prod(left[axis] for axis in left_stack)
        m, k = prod(left[axis] for axis in left_free), prod(left[axis] for axis in left_inner)
        n = prod(right[axis] for axis in right_free)
        self.left_shape = (count, k, m) if transpose_a else (count, m, k)
        self.right_shape = (count, n, k) if swapped else (count, k, n)
        sizes = [left[axis] for axis in (*left_stack, *left_free)] + [right[axis] for axis in right_free]
        self.shape = tuple(sizes)

    def product_by_fmm(self, platform: str, a: Any, b: Any) -> Any:
        left = lax.transpose(a, self.left_axes).reshape(self.left_shape)
        right = lax.transpose(b, self.right_axes).reshape(self.right_shape)
        return _product_by_fmm(platform, left, right, **self.transposes).reshape(self.shape)


def _stack_row_column_axes(stack: Any, rows: Any, columns: Any) -> tuple[tuple[int, ...], bool]:
    """Return an order of the axes that makes a stack of matrices, and True if these matrices are transposed.

    If the axes are stored in the order stack, columns, rows, the transposed matrices need no copy.
    """
    swapped = (*stack, *columns, *rows)
    return (swapped, True) if list(swapped) == sorted(swapped) else ((*stack, *rows, *columns), False)

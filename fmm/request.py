"""Checked arguments of the public functions.

fmm.matmul, fmm.gemm and fmm.gram each have a request class in this module. An error message names the argument, its
value and the valid values.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Collection, Mapping
from numbers import Complex, Integral, Real
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np

from fmm.arrays.detect import check_dense, describe_value, is_complex, type_name
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NUMPY
from fmm.arrays.select_library import library_of
from fmm.dtypes import INTEGERS
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.early_declines import RecurringCall
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints
from fmm.runtime.gemm import TRANSPOSE_MODES, BlasGemmParams
from fmm.runtime.gram import TRIANGLES, GramParams

SignatureP = ParamSpec("SignatureP")
ReturnT = TypeVar("ReturnT")
NO_OPTIONS: Mapping[str, Any] = {}


class MatmulRequest(NamedTuple):
    """A checked call of fmm.matmul."""

    a: Any
    b: Any
    out: Any
    options: Mapping[str, Any]  # numpy.matmul's options that differ from their defaults
    constraints: PlanConstraints
    device: str | int | None = None
    progress: bool = False


class GemmRequest(NamedTuple):
    """A checked call of fmm.gemm."""

    library: Library
    a: Any
    b: Any
    c: Any
    out: Any
    params: BlasGemmParams
    constraints: PlanConstraints
    recurring: RecurringCall | None = None


class GramRequest(NamedTuple):
    """A checked call of fmm.gram."""

    library: Library
    a: Any
    b: Any
    out: Any
    params: GramParams
    constraints: PlanConstraints
    recurring: RecurringCall | None = None


def check_matmul(
    function: str,
    a: Any,
    b: Any,
    out: Any,
    options: tuple[Any, Any, Any, Mapping[str, Any]],
    constraints: tuple[Any, ...],
    device: str | int | None,
    progress: Any,
) -> MatmulRequest:
    """Return the checked call of fmm.matmul or fmm.explain.

    `options`: casting, order, dtype and numpy.matmul's other options by name. `constraints`: plan, max_error_growth,
    workspace, componentwise, reproducible.
    """
    if a is REQUIRED_ARGUMENT or b is REQUIRED_ARGUMENT:
        raise missing_operands_error(function, ("a", "b"), (a, b), options[-1])
    checked, changed = check_constraints(*constraints), matmul_options(*options)
    shown = progress is not False and check_progress(progress)
    return MatmulRequest(a, b, unwrap_out(out), changed, checked, device, shown)


def check_gemm(
    a: Any, b: Any, c: Any, out: Any, scalars_and_ops: tuple[Any, ...], constraints: tuple[Any, ...]
) -> GemmRequest:
    """Return the checked call of fmm.gemm.

    `scalars_and_ops`: alpha, beta, transpose_a, transpose_b. `constraints`: plan, max_error_growth, workspace.
    """
    plan = parse_plan(constraints[0])
    if plan is not None:  # transpose_a and transpose_b alone decide whether an operand is conjugated
        plan = plan.with_conjugation(*plan.conjugated_operands) or plan
    params, checked = _gemm_params(*scalars_and_ops), check_constraints(plan, *constraints[1:])
    check_dense("fmm.gemm", a, b, c)
    out = unwrap_out(out)
    library = library_of(a, b, out) if c is None else library_of(a, b, c, "c")
    check_out(library, out)
    if c is not None and out is not None:
        library_of(a, b, out)
    a, b, c = library.wrap_foreign_arrays(a, b, c) or (a, b, c)
    a, b, out = library.wrap_foreign_arrays(a, b, out) or (a, b, out)
    if complex in (type(params.alpha), type(params.beta)):
        arrays = [np.asanyarray(x) if library is NUMPY else x for x in (a, b, c) if x is not None]
        if not any(is_complex(x) for x in arrays):
            raise TypeError("alpha and beta must be real numbers for real matrices")
    alpha, beta = convert_factors(library, (a, b, c if params.beta else None), params.alpha, params.beta)
    return GemmRequest(library, a, b, c, out, params._replace(alpha=alpha, beta=beta), checked)


def result_for_caller(checked: GemmRequest | GramRequest, c: Any, a: Any, b: Any, out: Any) -> Any:
    """Return the result C of a checked call as an array of the caller's library; the caller's `out` if it was passed.

    `a`, `b`, `out`: the arrays that the caller passed. Arrays of libraries without an adapter, for example Numba's,
    were wrapped as CuPy arrays.
    """
    if out is not None:
        return unwrap_out(out)
    if checked.library.processor == "cpu" or checked.library.is_differentiable or (checked.a is a and checked.b is b):
        return c
    from fmm.arrays.cupy_library import to_callers_library  # only CuPy wraps arrays

    return to_callers_library(c, a, a if b is None else b)


def _gemm_params(alpha: Any, beta: Any, transpose_a: Any, transpose_b: Any) -> BlasGemmParams:
    ops = []
    for name, value in (("transpose_a", transpose_a), ("transpose_b", transpose_b)):
        op = TRANSPOSE_MODES.get(value) if isinstance(value, str | int | np.integer | np.bool_) else None
        if op is None:
            raise ValueError(f"{name} must be 'N', 'T' or 'C', False or True, or 0, 1 or 2, not {value!r}")
        ops.append(op)
    return BlasGemmParams(check_scalar("alpha", alpha), check_scalar("beta", beta), *ops)


def check_gram(
    a: Any, b: Any, out: Any, rows_fill_factors: tuple[Any, ...], constraints: tuple[Any, ...]
) -> GramRequest:
    """Return the checked call of fmm.gram.

    `rows_fill_factors`: rows, fill, alpha, beta. `constraints`: plan, max_error_growth, workspace.
    """
    checked, params = check_constraints(*constraints), _gram_params(b, *rows_fill_factors)
    check_dense("fmm.gram", a, b)
    out = out if out is None else unwrap_out(out)
    library: Library = library_of(a, a if b is None else b, out)
    check_out(library, out)
    if library is NUMPY:
        a, b = np.asanyarray(a), None if b is None else np.asanyarray(b)
    elif (wrap_foreign_arrays := library.wrap_foreign_arrays(a, a if b is None else b, out)) is not None:
        a, b, out = wrap_foreign_arrays[0], None if b is None else wrap_foreign_arrays[1], wrap_foreign_arrays[2]
    if out is None or type_name(out.dtype) in INTEGERS:
        alpha, beta = convert_factors(library, (a, b), params.alpha, params.beta)
        params = params._replace(alpha=alpha, beta=beta)
    return GramRequest(library, a, b, out, params, checked)


def _gram_params(b: Any, rows: Any, fill: Any, alpha: Any, beta: Any) -> GramParams:
    if not isinstance(fill, str) or fill not in TRIANGLES:
        raise ValueError(f"fill must be one of {', '.join(TRIANGLES)}, not {fill!r}")
    factors = check_real("alpha", alpha), check_real("beta", beta)
    rows = check_flag("rows", rows)
    if rows and b is not None:
        raise ValueError("rows=True selects a a^H of one matrix; it cannot be combined with b")
    return GramParams(rows, fill, *factors)


# ---- constraints and numpy.matmul's options


def check_constraints(
    plan: Plan | Decision | str | None,
    max_error_growth: Any,
    workspace: Any,
    componentwise: bool = False,
    reproducible: bool = False,
) -> PlanConstraints:
    """Return the caller's constraints on the plan; without constraints the object NO_CONSTRAINTS."""
    if plan is max_error_growth is workspace is None and componentwise is reproducible is False:
        return NO_CONSTRAINTS
    componentwise, reproducible = check_flag("componentwise", componentwise), check_flag("reproducible", reproducible)
    if plan is max_error_growth is workspace is None and not (componentwise or reproducible):
        return NO_CONSTRAINTS
    if reproducible and plan is not None:
        raise ValueError("reproducible=True selects the plan: pass plan or reproducible, not both")
    growth = None if max_error_growth is None else check_error_growth(max_error_growth)
    nbytes = None if workspace is None else check_workspace(workspace)
    parsed = parse_plan(plan)
    if parsed is not None and any(parsed.conjugated_operands):
        raise PlanError(f"{parsed} multiplies conjugates: use transpose_a='C' or transpose_b='C' of fmm.gemm instead")
    return PlanConstraints(parsed, growth, nbytes, componentwise=componentwise, reproducible=reproducible)


def parse_plan(plan: Plan | Decision | str | None) -> Plan | None:
    """Return a caller's plan (a text, a Decision or a Plan) as a Plan; return None for None."""
    if plan is None or isinstance(plan, Plan):
        return plan
    return plan.plan if isinstance(plan, Decision) else Plan.parse(plan)


def matmul_options(casting: Any, order: Any, dtype: Any, more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a dictionary of numpy.matmul's options that differ from their defaults."""
    if dtype is None and order == "K" and casting == "same_kind" and not more:
        return NO_OPTIONS
    options = {"casting": (casting, "same_kind"), "order": (order, "K"), "dtype": (dtype, None)}
    return {name: value for name, (value, default) in options.items() if value is not default} | dict(more)


def unwrap_out(out: Any) -> Any:
    """Return `out`; if `out` is a tuple of one element, which NumPy accepts, return the element."""
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out


def check_out(library: Library, out: Any) -> None:
    """Raise TypeError if the library is NumPy and `out` is not a NumPy array."""
    if library is NUMPY and not (out is None or isinstance(out, np.ndarray)):
        raise TypeError(f"out must be an array, not a {type(out).__name__}")


# ---- numbers

MAX_ARRAY_SIDE = sys.maxsize  # longest side of an array, and largest workspace limit in bytes


def check_side(name: str, side: Any) -> int:
    """Return a matrix side as an int; ValueError unless the value is an integer of 0 or more."""
    if isinstance(side, bool) or not isinstance(side, int | np.integer) or side < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more, not {describe_value(side)}")
    if side > MAX_ARRAY_SIDE:
        raise ValueError(
            f"{name} must be at most {MAX_ARRAY_SIDE}, as an array's sides are, not {describe_value(side)}"
        )
    return int(side)


def check_workspace(nbytes: Any) -> int:
    """Return the workspace limit in bytes; ValueError unless the value is an integer of 0 or more."""
    if isinstance(nbytes, bool) or not isinstance(nbytes, Integral) or nbytes < 0:
        raise ValueError(f"workspace must be a whole number of bytes, 0 or more, not {describe_value(nbytes)}")
    return min(int(nbytes), MAX_ARRAY_SIDE)


def check_error_growth(growth: Any) -> float:
    """Return the limit `max_error_growth` as a float; inf if the value exceeds the largest float."""
    real = isinstance(growth, Real) and not isinstance(growth, bool)
    try:
        number = float(growth) if real else math.nan
    except OverflowError:
        number = math.inf if growth > 0 else -math.inf
    if not number > 0:
        raise ValueError(f"max_error_growth must be a number above 0, not {describe_value(growth)}")
    return number


def check_real(name: str, value: Any) -> float:
    """Return a real number as an int or a float; an array of NumPy without dimensions is a number too."""
    if isinstance(value, bool) or not isinstance(value, Real) or not _is_in_float_range(value):
        if _is_scalar_array(value, "iuf"):
            return check_real(name, value.item())
        raise ValueError(f"{name} must be a real number, not {describe_value(value)}")
    return int(value) if isinstance(value, Integral) else float(value)


def check_scalar(name: str, value: Any) -> complex:
    """Return a number as Python's int, float or complex.

    A NumPy scalar as alpha or beta could change the element type of an array that is multiplied by the scalar.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Complex) or not _is_in_float_range(value):
        if _is_scalar_array(value, "iufc"):
            return check_scalar(name, value.item())
        raise ValueError(f"{name} must be a number, not {describe_value(value)}")
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else complex(value)


def _is_scalar_array(value: Any, kinds: str) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in kinds


def _is_in_float_range(value: Complex) -> bool:
    try:
        complex(value)
    except OverflowError:
        return False
    return True


def check_flag(name: str, value: Any) -> bool:
    """Return a flag as a bool; ValueError unless the flag is True, False, 1 or 0."""
    if not _is_flag(value):
        raise ValueError(f"{name} must be True or False, not {describe_value(value)}")
    return bool(value)


def check_progress(value: Any) -> bool:
    """Return the option `progress` as a bool; None means False."""
    if value is not None and not _is_flag(value):
        raise TypeError(f"progress must be True, False or None, not {describe_value(value)}")
    return bool(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1)


# ---- alpha and beta of integer products


def convert_factors(library: Library, arrays: tuple[Any, ...], alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Return alpha and beta as factors of a product of these arrays; an array may be None.

    For integer products, alpha and beta must be integers, as an int or a float (2 or 2.0), and are returned as ints.
    torch itself checks alpha and beta of products of tensors.
    """
    if library.is_differentiable or (alpha in (0, 1) and beta in (0, 1)):
        return alpha, beta
    dtype = _integer_type(library, arrays)
    if dtype is None:
        return alpha, beta
    return _integer_factor("alpha", alpha, dtype), _integer_factor("beta", beta, dtype)


def _integer_type(library: Library, arrays: tuple[Any, ...]) -> np.dtype[Any] | None:
    """Return the product's element type if it is an integer type; else None.

    The product of int64 and uint64 has no integer type: NumPy multiplies the two in float64.
    """
    present = [np.asanyarray(x) if library is NUMPY else x for x in arrays if x is not None]
    names = [type_name(x.dtype) for x in present]
    if any(name not in INTEGERS for name in names):
        return None
    common = np.result_type(*names)
    return common if common.name in INTEGERS else None


def _integer_factor(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, complex):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, float):
        raise TypeError(f"{name} must be a whole number, not {value!r}: cannot cast the multiples to {dtype}")
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not least <= value <= most:
        raise ValueError(f"{name} must be a number that {dtype} holds, {least} to {most}, not {value!r}")
    return value


# ---- operands that are missing, or passed by name


class _RequiredArgument:
    """The default of a required operand, so that a call without the operand raises fmm's own error."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED_ARGUMENT: Final[Any] = _RequiredArgument()
# Names of the two operands in torch, in NumPy's documentation and in fmm.
OPERAND_NAMES = ("a", "b", "input", "other", "mat1", "mat2", "self", "tensor", "x1", "x2", "x", "y")


def check_operands(function: str, names: Collection[str], operands: tuple[Any, ...], options: Collection[str]) -> None:
    """Raise TypeError if a required operand is missing or an unknown option is passed."""
    if any(x is REQUIRED_ARGUMENT for x in operands):
        raise missing_operands_error(function, names, operands, options)
    for name in options:
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def missing_operands_error(
    function: str, names: Collection[str], operands: tuple[Any, ...], options: Collection[str]
) -> TypeError:
    """Return the error for a call with missing operands; `options` are the names of the call's keyword arguments."""
    named = ", ".join(f"{name}=" for name in options if name in OPERAND_NAMES)
    if named:
        call = f"fmm.{function}({', '.join(names)})"
        return TypeError(f"fmm.{function} takes its operands by position: write {call}, without {named}")
    missing = [repr(name) for name, x in zip(names, operands, strict=True) if x is REQUIRED_ARGUMENT]
    noun = "arguments" if len(missing) > 1 else "argument"
    return TypeError(f"{function}() missing {len(missing)} required positional {noun}: {' and '.join(missing)}")


def set_public_signature(function: Callable[SignatureP, ReturnT]) -> Callable[SignatureP, ReturnT]:
    """Set the function's public signature, which has no defaults for required operands; return the function."""
    signature = inspect.signature(function)
    shown = [
        parameter.replace(default=parameter.empty) if parameter.default is REQUIRED_ARGUMENT else parameter
        for parameter in signature.parameters.values()
        if parameter.name != "unknown"
    ]
    vars(function)["__signature__"] = signature.replace(parameters=shown)
    return function

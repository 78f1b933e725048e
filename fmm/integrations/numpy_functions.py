"""numpy.matmul, numpy.dot and numpy.inner, also where NumPy's own functions call them: einsum, cov, linalg.multi_dot.

The operator `@` cannot be replaced, nor can methods: they belong to a type that is written in C. Only two plain arrays
are fmm's; lists, subclasses and other libraries' arrays find NumPy's function as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fmm.api import matmul
from fmm.arrays.numpy_library import NAMES, NUMPY_DOT
from fmm.integrations.product_functions import Replaced, array_product, as_matmul_takes, dot_operands, names_of, put
from fmm.integrations.report import reporting
from fmm.kernels.cpu.host_arrays import dot as numpy_dot
from fmm.kernels.cpu.host_arrays import inner as numpy_inner
from fmm.kernels.cpu.host_arrays import matmul as numpy_matmul
from fmm.runtime.decisions.early_declines import is_small_on_host, was_declined
from fmm.runtime.decisions.limits import NO_CONSTRAINTS
from fmm.runtime.matmul import run_matmul

ndarray = np.ndarray
# Functions of NumPy that call the three by names of the modules that they are in; each stands for its module, which has
# another name in other versions.
CALLERS = "einsum", "tensordot", "cov", "polyfit", "linalg.multi_dot"


def install() -> Callable[[], None]:
    return put(_replacements())


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    modules = dict.fromkeys((np, *_modules()))
    for own, answer in ((numpy_matmul, matmul_answer), (numpy_dot, dot_answer), (numpy_inner, inner_answer)):
        replaced = Replaced(own, answer)
        for owner, name in names_of(own, *modules):
            yield owner, name, replaced


def _modules() -> Iterator[Any]:
    """NumPy's modules whose functions call the three by name, as far as this version has them."""
    for caller in CALLERS:
        function: Any = np
        for name in caller.split("."):
            function = getattr(function, name, None)
        own = getattr(function, "_implementation", getattr(function, "__wrapped__", function))
        module = sys.modules.get(str(getattr(own, "__globals__", {}).get("__name__")))
        if module is not None:
            yield module


def matmul_answer(*operands: Any, **options: Any) -> Any:
    plain = 1 < len(operands) < 4 and type(operands[0]) is ndarray and type(operands[1]) is ndarray
    if plain and as_matmul_takes(operands, options):
        return array_product("numpy.matmul", matmul, *operands, **options)
    return numpy_matmul(*operands, **options)


def dot_answer(*operands: Any, **options: Any) -> Any:
    """Two matrices are multiplied as matmul does; with other numbers of axes dot is another product."""
    given = dot_operands(operands, options)
    if given is None:
        return numpy_dot(*operands, **options)
    a, b, out = given
    ours = _may_be_ours(a, b) and _takes(out, a, b)
    if ours or (reporting() and _are_matrices(a, b)):
        return array_product("numpy.dot", _dot_product if ours else numpy_dot, *operands, **options)
    return numpy_dot(*operands, **options)


def inner_answer(*operands: Any, **options: Any) -> Any:
    """Of two matrices: the product of the first and the other one's transpose."""
    if len(operands) == 2 and not options and type(operands[1]) is ndarray:
        a, b = operands[0], operands[1].T
        ours = _may_be_ours(a, b)
        if ours or (reporting() and _are_matrices(a, b)):
            return array_product("numpy.inner", _dot_product if ours else _inner_of_transposed, a, b)
    return numpy_inner(*operands, **options)


def _dot_product(a: Any, b: Any, /, out: Any = None) -> Any:
    """By a plan where one pays, else by numpy.dot, which NumPy's own inner calls too."""
    if was_declined(NUMPY_DOT, a, b):
        return numpy_dot(a, b, out)
    return run_matmul(NUMPY_DOT, a, b, out, NO_CONSTRAINTS)


def _inner_of_transposed(a: Any, b: Any) -> Any:
    return numpy_inner(a, b.T)


def _may_be_ours(a: Any, b: Any) -> bool:
    """Two matrices that match, and are not so small that NumPy's product is the faster one for certain."""
    return not is_small_on_host(a, b) and _are_matrices(a, b) and a.shape[1] == b.shape[0]


def _are_matrices(a: Any, b: Any) -> bool:
    """Two plain ones, of types that plans know."""
    return type(a) is ndarray and type(b) is ndarray and a.ndim == b.ndim == 2 and a.dtype in NAMES and b.dtype in NAMES


def _takes(out: Any, a: Any, b: Any) -> bool:
    """Does numpy.dot write the product there? Unlike matmul it casts nothing, and writes row by row; of what it does
    not take, it says so itself."""
    if out is None:
        return True
    fits = type(out) is ndarray and out.flags.carray and out.shape == (a.shape[0], b.shape[1])
    return bool(fits and out.dtype.isnative and out.dtype.num == np.result_type(a.dtype, b.dtype).num)

"""numpy.matmul and numpy.dot, also where NumPy's own functions call them: linalg.multi_dot and others, tensordot.

The operator `@` cannot be replaced, nor can methods: they belong to a type that is written in C. Only two plain arrays
are fmm's; lists, subclasses and other libraries' arrays find NumPy's function as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fmm.api import matmul
from fmm.arrays.numpy_library import NAMES
from fmm.integrations.functions.replaced import Replaced, names_of, put
from fmm.integrations.report import noted
from fmm.kernels.cpu.numpy_products import dot as numpy_dot
from fmm.kernels.cpu.numpy_products import matmul as numpy_matmul
from fmm.runtime.decisions.left_to_vendor import small_enough_for_numpy

ndarray = np.ndarray


def install() -> Callable[[], None]:
    return put(_replacements())


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    for own, answer in ((numpy_matmul, matmul_answer), (numpy_dot, dot_answer)):
        replaced = Replaced(own, answer)
        for owner, name in names_of(own, np, *_modules()):
            yield owner, name, replaced


def _modules() -> Iterator[Any]:
    """NumPy's modules whose functions call the two by name."""
    for function in (np.linalg.multi_dot, np.tensordot):
        own = getattr(function, "_implementation", getattr(function, "__wrapped__", function))
        module = sys.modules.get(str(getattr(own, "__globals__", {}).get("__name__")))
        if module is not None:
            yield module


def matmul_answer(*operands: Any, **options: Any) -> Any:
    if 1 < len(operands) < 4 and type(operands[0]) is ndarray and type(operands[1]) is ndarray:
        noted("numpy.matmul", *operands[:2])
        return matmul(*operands, **options)
    return numpy_matmul(*operands, **options)


def dot_answer(*operands: Any, **options: Any) -> Any:
    """Two matrices are multiplied as matmul does; with other numbers of axes dot is another product."""
    if len(operands) == 2 and (not options or (options.get("out") is None and len(options) == 1)):
        a, b = operands
        if (
            type(a) is ndarray
            and type(b) is ndarray
            and a.ndim == b.ndim == 2
            and a.dtype in NAMES
            and b.dtype in NAMES
        ):
            noted("numpy.dot", a, b)
            if not small_enough_for_numpy(a, b) and a.shape[1] == b.shape[0]:
                return matmul(a, b)
    return numpy_dot(*operands, **options)

"""Intel's MKL as a second baseline on a CPU, from the package `mkl` (`pip install mkl`), whatever BLAS NumPy uses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, files

from fmm.kernels.cpu.host_arrays import Array
from fmm.kernels.cpu.thread_pool import blas_threads

ROW_MAJOR, NOT_TRANSPOSED = 101, 111  # CBLAS_LAYOUT and CBLAS_TRANSPOSE
# Package -> its shared library. MKL finds Intel's OpenMP only if it is loaded already.
LIBRARIES = {"intel-openmp": "libiomp5.so", "mkl": "libmkl_rt.so"}
FUNCTIONS: dict[str, tuple[str, Callable[[float], object]]] = {
    "float32": ("cblas_sgemm", ctypes.c_float),
    "float64": ("cblas_dgemm", ctypes.c_double),
}


@lru_cache(maxsize=1)
def mkl_library() -> ctypes.CDLL | None:
    """Return MKL with as many threads as NumPy's BLAS, or None if its package is not installed."""
    # By default MKL's threads go on spinning for 0.2 s after a product, and would slow the next library down.
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    library = None
    for package, name in LIBRARIES.items():
        try:
            found = [file.locate() for file in files(package) or () if file.name.startswith(name)]
        except PackageNotFoundError:
            return None
        if not found:
            return None
        library = ctypes.CDLL(str(found[0]), ctypes.RTLD_GLOBAL)
    assert library is not None
    library.MKL_Set_Num_Threads(blas_threads())
    return library


def mkl_version() -> str:
    """Return MKL's name and version as it prints them; empty if it is not installed."""
    if (library := mkl_library()) is None:
        return ""
    text = ctypes.create_string_buffer(200)
    library.mkl_get_version_string(text, len(text))
    return text.value.decode().partition(" for ")[0].strip()


def mkl_product(a: Array, b: Array, c: Array) -> Callable[[], None] | None:
    """Return a call that writes A B to C by MKL, or None if MKL is not installed. All three are contiguous by rows."""
    if (library := mkl_library()) is None:
        return None
    assert all(x.flags.c_contiguous for x in (a, b, c))
    (m, k), n = a.shape, b.shape[1]
    name, number = FUNCTIONS[str(c.dtype)]
    multiply = getattr(library, name)
    pa, pb, pc = (ctypes.c_void_p(x.ctypes.data) for x in (a, b, c))
    shape = ROW_MAJOR, NOT_TRANSPOSED, NOT_TRANSPOSED, m, n, k

    def run() -> None:
        multiply(*shape, number(1), pa, k, pb, n, number(0), pc, n)

    return run

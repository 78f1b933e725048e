"""GEMMul8 (RIKEN: real and complex products by int8 residues) as a peer, built from its public source.

`FMM_GEMMUL8` names a checkout: the folder that holds `GEMMul8/src/gemmul8.cu`. This repository contains none of its
code. The library is built into `build/` of the checkout, with the numbers of moduli in MODULI alone, because all of
them take the compiler minutes.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cupy

# Numbers of moduli, as in GEMMul8's own comparison with the vendor.
MODULI = {"float32": 8, "float64": 14, "complex64": 8, "complex128": 14}
CHECKOUT_VARIABLE = "FMM_GEMMUL8"
COMPILER_OPTIONS = ("-std=c++20", "-O3", "-diag-suppress", "177", "-gencode", "arch=compute_90,code=sm_90")
SHARED_OPTIONS = ("-shared", "-Xcompiler", "-fPIC")
LINKED_LIBRARIES = ("-l:libcublas.so.13", "-l:libcublasLt.so.13")
HEADERS = [
    "self_hipify",
    "template_type",
    "common",
    "template_math",
    "table",
    "find_max",
    "mod",
    "matmult",
    "scaling",
    "scaling_fast_real",
    "scaling_fast_complex",
    "scaling_accu_real",
    "scaling_accu_complex",
    "conv_hi2mid_real",
    "conv_hi2mid_complex",
    "inverse_scaling_real",
    "inverse_scaling_complex",
    "gemmul8_real",
    "gemmul8_complex",
]
# The headers with a case for each number of moduli. (The cases of conv_hi2mid_*.hpp are indices of moduli.)
HEADERS_WITH_CASES = [name for name in HEADERS if name.startswith(("scaling_", "inverse_"))]
STANDARD_HEADERS = [
    "cuda_runtime.h",
    "cublas_v2.h",
    "cublasLt.h",
    "cuComplex.h",
    "cuda_fp8.h",
    "random",
    "algorithm",
    "bit",
    "chrono",
    "cmath",
    "cstddef",
    "cstdint",
    "cstdlib",
    "string",
    "type_traits",
    "utility",
    "vector",
]
EXPORTED_SOURCE = """
#define PRODUCT(NAME, KIND, T)                                                                                  \\
    size_t NAME##_workspace(size_t m, size_t n, size_t k, unsigned moduli) {                                    \\
        return KIND::workSize<gemmul8::Backend::INT8>(m, n, k, moduli, false, false, nullptr, nullptr);         \\
    }                                                                                                           \\
    void NAME(void* handle, size_t m, size_t n, size_t k, const void* a, size_t lda, const void* b, size_t ldb, \\
              void* c, size_t ldc, unsigned moduli, int fast, void* work, void* stream) {                       \\
        T one{}, zero{};                                                                                        \\
        reinterpret_cast<RealOf<T>&>(one) = 1;                                                                  \\
        KIND::gemm<T, gemmul8::Backend::INT8>(                                                                  \\
            Handle_t(CublasTag{}, static_cast<cublasHandle_t>(handle)), CUBLAS_OP_N, CUBLAS_OP_N, m, n, k,      \\
            &one, static_cast<const T*>(a), lda, static_cast<const T*>(b), ldb, &zero, static_cast<T*>(c), ldc, \\
            moduli, fast != 0, work, nullptr, nullptr, false, false, false, false,                              \\
            static_cast<cudaStream_t>(stream));                                                                 \\
    }
template <class T>
using RealOf = std::conditional_t<
    std::is_same_v<T, float> || std::is_same_v<T, cuFloatComplex>, float, double>;
extern "C" {
PRODUCT(gemmul8_float32, real, float)
PRODUCT(gemmul8_float64, real, double)
PRODUCT(gemmul8_complex64, complex, cuFloatComplex)
PRODUCT(gemmul8_complex128, complex, cuDoubleComplex)
}
"""


def source_checkout() -> Path | None:
    """Return the folder of the source, or None."""
    named = os.environ.get(CHECKOUT_VARIABLE, "")
    found = Path(named) / "GEMMul8"
    return found if named and (found / "src" / "gemmul8.cu").exists() else None


def build_library(source: Path) -> Path:
    """Return the path of the library; build it if missing, from a copy with the cases of MODULI alone."""
    folder = source / "build"
    library = folder / "libgemmul8_products.so"
    if library.exists():
        return library
    shutil.copytree(source / "src", folder / "src", dirs_exist_ok=True)
    shutil.copytree(source / "include", folder / "include", dirs_exist_ok=True)
    for name in HEADERS_WITH_CASES:
        path = folder / "src" / f"{name}.hpp"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if _has_needed_moduli(line)), encoding="utf-8")
    text = [f"#include <{name}>" for name in STANDARD_HEADERS]
    text += ['#include "../include/gemmul8.hpp"', *(f'#include "{name}.hpp"' for name in HEADERS), EXPORTED_SOURCE]
    (folder / "src" / "products.cu").write_text("\n".join(text), encoding="utf-8")
    found = [part for root in _cuda_folders() for part in (f"-I{root}/include", f"-L{root}/lib")]
    command = ["nvcc", *COMPILER_OPTIONS, *SHARED_OPTIONS, "products.cu", "-o", str(library), *found, *LINKED_LIBRARIES]
    subprocess.run(command, cwd=folder / "src", check=True)
    return library


def _cuda_folders() -> list[Path]:
    """Return the folders in which Python packages have CUDA's headers and libraries."""
    spec = find_spec("nvidia")
    roots = spec.submodule_search_locations or [] if spec else []
    return [folder for root in roots for folder in Path(root).glob("cu1?") if (folder / "include").exists()]


def _has_needed_moduli(line: str) -> bool:
    """Return False for a case of a switch with a number of moduli that is not in MODULI."""
    case = re.match(r"\s+case (\d+):.*_launch<", line)
    return case is None or int(case[1]) in MODULI.values()


@lru_cache(maxsize=1)
def _loaded_library() -> Any:
    source = source_checkout()
    if source is None:
        raise FileNotFoundError(f"{CHECKOUT_VARIABLE} names no checkout of GEMMul8")
    library = ctypes.CDLL(str(build_library(source)))
    p, size = ctypes.c_void_p, ctypes.c_size_t
    for name in MODULI:
        types = [p, size, size, size, p, size, p, size, p, size, ctypes.c_uint, ctypes.c_int, p, p]
        getattr(library, f"gemmul8_{name}").argtypes = types
        workspace = getattr(library, f"gemmul8_{name}_workspace")
        workspace.restype, workspace.argtypes = ctypes.c_size_t, [size] * 3 + [ctypes.c_uint]
    return library


@dataclass(frozen=True, eq=False)
class Gemmul8Product:
    """Computes C = A B of row-major matrices, as C^T = B^T A^T in column-major order, with its own workspace."""

    a: Any
    b: Any
    c: Any
    fast: bool

    def __post_init__(self) -> None:
        (m, k), (_, n), moduli = self.a.shape, self.b.shape, MODULI[str(self.a.dtype)]
        workspace_bytes = getattr(_loaded_library(), f"gemmul8_{self.a.dtype}_workspace")(n, m, k, moduli)
        object.__setattr__(self, "work", cupy.empty(workspace_bytes, cupy.uint8))
        stream = cupy.cuda.get_current_stream().ptr
        handle = cupy.cuda.device.get_cublas_handle()
        operands = self.b.data.ptr, n, self.a.data.ptr, k, self.c.data.ptr, n
        arguments = handle, n, m, k, *operands, moduli, int(self.fast), self.work.data.ptr, stream  # type: ignore[attr-defined]
        object.__setattr__(self, "arguments", arguments)

    def __call__(self) -> None:
        getattr(_loaded_library(), f"gemmul8_{self.a.dtype}")(*self.arguments)  # type: ignore[attr-defined]

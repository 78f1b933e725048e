"""The split into residues and the join, compiled for the host."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from fmm.kernels.cuda.device_code.entry_source import header_text, inline_headers
from fmm.kernels.cuda.launch_list import Launch, TensorMap
from fmm.kernels.cuda.products.residue_planes import pack_modulus
from fmm.kernels.cuda.products.residues import ResidueOp
from tests.support.host_compiler import SANITIZER, header, shared_library

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
FLAGS = ("-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", *SANITIZER)
LANGUAGE = """
#define __host__
#define __cluster_dims__(...)
struct double2 { double x, y; };
struct Dim { unsigned x, y, z; };
static Dim blockIdx, threadIdx, gridDim;
template <class To, class From> static To bits(From x) { return __builtin_bit_cast(To, x); }
static double __longlong_as_double(long long x) { return bits<double>(x); }
static long long __double_as_longlong(double x) { return bits<long long>(x); }
static float __int_as_float(int x) { return bits<float>(x); }
static int __float_as_int(float x) { return bits<int>(x); }
static long long __double2ll_rn(double x) { return static_cast<long long>(__builtin_rint(x)); }
static double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
static double __dmul_rn(double x, double y) { return x * y; }
static double __dadd_rn(double x, double y) { return x + y; }
static float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static double rint(double x) { return __builtin_rint(x); }
static double sqrt(double x) { return __builtin_sqrt(x); }
static double fabs(double x) { return __builtin_fabs(x); }
static int abs(int x) { return x < 0 ? -x : x; }
template <class T> const T& min(const T& x, const T& y) { return y < x ? y : x; }
template <class T> const T& max(const T& x, const T& y) { return x < y ? y : x; }
static double __shfl_xor_sync(unsigned, double x, int) { return x; }
static void __syncthreads() {}
static unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
    unsigned found = 0;
    for (int i = 0; i < 4; ++i)
        found |= ((which >> 4 * i & 4 ? y : x) >> 8 * (which >> 4 * i & 3) & 255) << 8 * i;
    return found;
}
static unsigned long __cvta_generic_to_shared(const void*) { return 0; }
"""
DRIVER = """
template <class Params, class Entry>
static void every_thread(const void* p, int blocks, unsigned threads, Entry entry) {
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) entry(*static_cast<const Params*>(p));
}
"""


def _language() -> str:
    """Return the definitions in place of CUDA's: the macros of language.h and the functions of this module."""
    wanted = [line for line in header("language.h").splitlines() if line.startswith("#define")]
    return "\n".join(wanted) + LANGUAGE + header("whole_bytes.h")


@cache
def library(source: str, entry: str) -> Any:
    """Compile a kernel's source with host functions for GPU instructions, and a loop over all threads."""
    own = header_text("whole_bytes.cuh").replace("#pragma once\n", "", 1)
    assert source.count(own) == 1
    return shared_library(_language() + source.replace(own, "") + DRIVER + entry, FLAGS)


def play(launch: Launch, kind: str, bases: dict[str, int]) -> None:
    """Run all threads of a launch without barriers, one after the other; `kind` is the type of its parameters."""
    words = np.frombuffer(launch.parameters, np.int64).copy()
    for slot in launch.slots:
        words[slot.word] = bases[slot.base] + slot.offset
    room = np.empty(words.nbytes + 64, np.uint8)
    begin = -room.ctypes.data % 64
    room[begin : begin + words.nbytes] = words.view(np.uint8)
    entry = f"""
    extern "C" int launch(const void* p, int blocks) {{
        every_thread<{kind}>(p, blocks, {launch.kernel.threads}, [](const {kind}& x) {{ {launch.kernel.entry}(x); }});
        return sizeof({kind});
    }}"""
    host = library(launch.kernel.cuda_source, entry)
    assert host.launch(ctypes.c_void_p(room.ctypes.data + begin), launch.grid[0]) == words.nbytes


PARTS = """
extern "C" void exponents(const double* x, long long lines, long long length, double top, int backwards, int checked,
                          int* to) {
    fmm::residues::Operand<double> operand{};
    operand.top = top;
    operand.length = length;
    for (long long i = 0; i < lines; ++i) {
        const double* const line = x + i * length;
        fmm::residues::Squares sum{};
        for (long long k = 0; k < length; ++k) sum.add(line[backwards ? length - 1 - k : k]);
        to[i] = checked ? line_exponent(sum, operand, line, 1) : fmm::residues::exponent_for(sum.root(), top);
    }
}
extern "C" double root(const double* x, long long length) {
    fmm::residues::Squares sum{};
    for (long long k = 0; k < length; ++k) sum.add(x[k]);
    return sum.root();
}
extern "C" void turn(const unsigned* row, unsigned* column) {
    fmm::residues::transpose_square(*reinterpret_cast<const unsigned(*)[4]>(row),
    *reinterpret_cast<unsigned(*)[4]>(column));
}
extern "C" void reduce(const fmm::Modulus* modulus, const int* x, long long count, signed char* to) {
    for (long long i = 0; i < count; ++i) to[i] = static_cast<signed char>((*modulus)(x[i]));
}
extern "C" void raised(const fmm::Modulus* modulus, const unsigned long long* x, long long count, signed char* to) {
    for (long long i = 0; i < count; ++i) to[i] = static_cast<signed char>(modulus->of_biased(x[i]));
}
"""


@cache
def device_functions() -> Any:
    found = library(inline_headers('#include "residue_planes.cuh"\n'), PARTS)
    found.root.restype = ctypes.c_double
    return found


def _pointer(x: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def reduced(x: np.ndarray[Any, Any], p: int) -> np.ndarray[Any, Any]:
    """Return residues modulo p as the device computes them, of int32, or of uint64 to which 2^63 was added."""
    x, to = np.ascontiguousarray(x), np.empty(x.shape, np.int8)
    room = np.empty(64, np.uint8)
    begin = -room.ctypes.data % 16
    room[begin : begin + 32] = np.frombuffer(pack_modulus(p), np.uint8)
    function = device_functions().reduce if x.dtype == np.int32 else device_functions().raised
    function(ctypes.c_void_p(room.ctypes.data + begin), _pointer(x), ctypes.c_longlong(x.size), _pointer(to))
    return to


def turned_square(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a square of 4 x 4 bytes as the device transposes it."""
    x, to = np.ascontiguousarray(x, np.uint8), np.empty((4, 4), np.uint8)
    device_functions().turn(_pointer(x), _pointer(to))
    return to


def exponents(
    lines: np.ndarray[Any, Any], top: float, backwards: bool = False, checked: bool = True
) -> np.ndarray[Any, Any]:
    """Return the exponents that scale rows; `backwards`: squares are summed from the row's end, and without `checked`
    the kernel does not sum them again in doubt."""
    lines, to = np.ascontiguousarray(lines, np.float64), np.empty(len(lines), np.int32)
    sizes = ctypes.c_longlong(lines.shape[0]), ctypes.c_longlong(lines.shape[1])
    device_functions().exponents(_pointer(lines), *sizes, ctypes.c_double(top), backwards, checked, _pointer(to))
    return to


def norm_as_on_device(x: np.ndarray[Any, Any]) -> float:
    x = np.ascontiguousarray(x, np.float64)
    return float(device_functions().root(_pointer(x), ctypes.c_longlong(x.size)))


def multiplied(op: ResidueOp, first: int, chosen: tuple[int, ...], memory: Mapping[str, Bytes]) -> None:
    """Multiply planes by their tensor maps and reduce them, as the tensor cores' kernel does, for `chosen`
    moduli from `first` on. Numbers beyond the ends of lines are read as zero and are not written."""
    for sign in op.plane_signs_by_launch:
        multiplied_of_sign(op, first, chosen, memory, sign)


def multiplied_of_sign(
    op: ResidueOp, first: int, chosen: tuple[int, ...], memory: Mapping[str, Bytes], sign: int | None
) -> None:
    """Multiply the planes of one launch."""
    product = op.plane_product_op(first, len(chosen), sign)
    left, right, to = product.maps
    a, b, c = mapped_view(left, memory), mapped_view(right, memory), mapped_view(to, memory)
    inner = max(a.shape[2], b.shape[2])
    a, b = (
        np.pad(x.astype(np.int32), ((0, 0), (0, max(lines - x.shape[1], 0)), (0, inner - x.shape[2])))
        for x, lines in ((a, to.lines), (b, to.length))
    )
    for layer in range(to.layers):
        p = chosen[layer * len(chosen) // product.count]
        c[layer] = reduced((a[layer] @ b[layer].T).astype(np.int32), p)[: to.lines, : to.length]
        if op.lower_only:  # tiles above the diagonal keep their entries
            c[layer][~np.tri(to.lines, to.length, dtype=bool)] = 99


def mapped_view(found: TensorMap, memory: Mapping[str, Bytes]) -> np.ndarray[Any, Any]:
    """Return a view of the bytes of a tensor map: layers of lines."""
    here = memory[found.piece.base][found.piece.offset :].view(np.int8)
    shape, strides = (found.layers, found.lines, found.length), (found.layer, found.leading, 1)
    assert sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) < here.size
    return np.lib.stride_tricks.as_strided(here, shape, strides)


DISTANT_THREADS = """
using None = fmm::FastSums<7, 0, 0, 0>;
extern "C" void joined_position(unsigned block, unsigned thread, int rows, int cols, int* to) {
    blockIdx.x = block, threadIdx.x = thread;
    fmm::residues::Result<double> c{};
    c.block_rows = rows, c.block_cols = cols, c.layers = 1;
    const fmm::residues::OutputBlock<None, 0, 1, 0> spot(c);
    to[0] = spot.layer, to[1] = spot.row, to[2] = spot.at;
}
extern "C" void split_bytes(const fmm::Modulus* modulus, int side, unsigned block, unsigned thread, int lines,
                            int length, const signed char* line, signed char* planes) {
    fmm::residues::Split<signed char> p{};
    p.moduli[0] = *modulus, p.count = 1;
    auto& x = side ? p.right : p.left;
    x.source = line, x.planes = planes, x.layers = 1, x.blocks = 1 << 30;
    x.lines = x.block_lines = lines, x.length = x.block_length = length;
    blockIdx.x = block, threadIdx.x = thread;
    fmm::residues::split_both<None, 0, false, false>(p);
}
"""


@cache
def _distant_threads() -> Any:
    return library(inline_headers('#include "residue_join.cuh"\n'), DISTANT_THREADS)


def joined_position(block: int, thread: int, rows: int, cols: int) -> list[int]:
    """Return the layer, row and column that a thread of the join computes."""
    to = np.empty(3, np.int32)
    _distant_threads().joined_position(block, thread, rows, cols, _pointer(to))
    return [int(x) for x in to]


def split_line_by_thread(side: int, block: int, thread: int, lines: int, line: Bytes, planes: Bytes) -> None:
    """Let one thread split its four numbers of an operand; all lines of the operand are at the same address."""
    room = np.empty(64, np.uint8)
    begin = -room.ctypes.data % 16
    room[begin : begin + 32] = np.frombuffer(pack_modulus(251), np.uint8)
    modulus = ctypes.c_void_p(room.ctypes.data + begin)
    _distant_threads().split_bytes(modulus, side, block, thread, lines, line.size, _pointer(line), _pointer(planes))

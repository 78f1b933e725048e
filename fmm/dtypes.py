"""The table of element types that fmm multiplies.

To add a type, add a row to the table. To add a property of all types, add a field of DType.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class DType:
    """An element type: its size, its arithmetic, its names in C++ and its codes in CUDA's libraries."""

    name: str
    itemsize: int  # bytes in memory
    # unit roundoff of results, or of operands if a product rounds the operands to fewer bits; 0 for integers
    unit_roundoff: float
    cpp: str  # name of the type in device code
    cuda_type: int  # cudaDataType
    compute_type: int  # cublasComputeType_t
    scalar: str  # NumPy type of alpha and beta
    scalar_type: int  # cudaDataType of alpha and beta
    flops: int = 2  # flops of a multiply-add
    registers: int = 1  # 32-bit registers of an accumulator
    stored_as: str = ""  # the type in memory if `name` is a precision of another type's products (TF32)
    real: str = ""  # type of a complex number's real and imaginary parts; empty for other types
    tensor_map: int | None = None  # CU_TENSOR_MAP_DATA_TYPE_*; None if the copy engine is not used
    mma: str = ""  # name of the type in the tensor cores' instructions
    sums_wider: bool = False  # True if sums are accumulated in a wider type
    exact: bool = False  # True if products are exact: integers modulo 2**bits, and bool with `or` and `and`

    @property
    def stored_type(self) -> str:
        """The name of the type that is stored in memory."""
        return self.stored_as or self.name

    @property
    def is_complex(self) -> bool:
        return bool(self.real)


_FLOAT_ROWS = (
    DType("float64", 8, 2.0**-53, "double", 1, 70, "float64", 1, registers=2),
    DType("float32", 4, 2.0**-24, "float", 0, 68, "float32", 0, tensor_map=7),
    # TF32 is stored as float32; the tensor cores round TF32 operands to 11 bits.
    DType("tf32", 4, 2.0**-11, "fmm::tf32", 0, 77, "float32", 0, stored_as="float32", tensor_map=11, mma="tf32"),
    DType("float16", 2, 2.0**-11, "fmm::half", 2, 68, "float32", 0, tensor_map=6, mma="f16", sums_wider=True),
    DType("bfloat16", 2, 2.0**-8, "fmm::bfloat16", 14, 68, "float32", 0, tensor_map=9, mma="bf16", sums_wider=True),
    DType("complex64", 8, 2.0**-24, "fmm::Complex<float>", 4, 68, "complex64", 4, flops=8, registers=2, real="float32"),
    DType(
        "complex128", 16, 2.0**-53, "fmm::Complex<double>", 5, 70, "complex128", 5, flops=8, registers=4, real="float64"
    ),
)


def _integer_types() -> Iterator[DType]:
    """Yield the integer types.

    All integer types have int8's codes for cuBLAS, because cuBLAS multiplies no other integer type. Sums of int8
    products are int32.
    """
    for name, itemsize, cpp, number in (
        ("int8", 1, "signed char", 3),
        ("int16", 2, "short", 20),
        ("int32", 4, "int", 10),
        ("int64", 8, "long long", 24),
        ("uint8", 1, "unsigned char", 8),
        ("uint16", 2, "unsigned short", 22),
        ("uint32", 4, "unsigned int", 12),
        ("uint64", 8, "unsigned long long", 26),
        ("bool", 1, "bool", 8),
    ):
        yield DType(name, itemsize, 0.0, cpp, number, 72, "int32", 10, exact=True)


DTYPES: Mapping[str, DType] = MappingProxyType({row.name: row for row in (*_FLOAT_ROWS, *_integer_types())})
FLOAT_TYPES: tuple[str, ...] = tuple(row.name for row in _FLOAT_ROWS)  # real and complex floating-point types, and TF32
# floating-point types that arrays can have
STORED_TYPES: tuple[str, ...] = tuple(row.name for row in _FLOAT_ROWS if not row.stored_as)
COMPLEX_TYPES: tuple[str, ...] = tuple(row.name for row in _FLOAT_ROWS if row.is_complex)
# integers modulo 2^bits
RING_TYPES: tuple[str, ...] = tuple(name for name, row in DTYPES.items() if row.exact and name != "bool")
INTEGERS: tuple[str, ...] = (*RING_TYPES, "bool")
# The type of residue planes inside kernels; no array has this type.
BYTE_TYPE = DType("byte", 1, 0.0, "fmm::byte", 3, 72, "int32", 10, tensor_map=0, mma="s8")

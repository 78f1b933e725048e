"""Read two CSV tables about GPUs: the limits of each compute capability, and the datasheet of each device.

To add a GPU, add a row to `capabilities.csv` or `datasheets.csv` of this folder. Every row of `capabilities.csv` and
`datasheets.csv` names its source.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any, TypeVar

RecordT = TypeVar("RecordT")


# annotation of a dataclass field (a string) -> parser of its CSV cell
_CELL_PARSERS: dict[str, Callable[[str], object]] = {
    "str": str,
    "int": int,
    "int | None": lambda text: int(text) if text else None,
    "float": float,
    "float | None": lambda text: float(text) if text else None,
}


def read_records(record: type[RecordT], package: str, file: str) -> list[RecordT]:
    """Return the rows of a CSV table as records of a dataclass; each field is read from the column with its name."""
    text = (resources.files(package) / file).read_text(encoding="utf-8")
    columns: Any = fields(record)  # type: ignore[arg-type]
    rows = csv.DictReader(text.splitlines(), strict=True)
    return [record(**{c.name: _CELL_PARSERS[str(c.type)](row[c.name]) for c in columns}) for row in rows]


@dataclass(frozen=True, slots=True)
class CapabilityLimits:
    """The limits and rates that all devices of one compute capability have."""

    capability: str  # compute capability, such as "9.0"
    max_threads_per_block: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int  # 32-bit registers of a multiprocessor
    registers_per_block: int
    max_registers_per_thread: int
    # the registers of a warp or block (see `register_granularity`) are allocated in multiples of this number
    register_unit: int
    register_granularity: str  # unit to which registers are allocated: "warp", or "block" on compute capability 1.x
    warp_granularity: int  # number of partitions of a multiprocessor; warps are distributed evenly among the partitions
    shared_per_sm: int  # bytes of shared memory of a multiprocessor
    shared_per_block: int  # largest number of bytes of shared memory that a kernel can request for a thread block
    reserved_shared_per_block: int  # bytes of shared memory that the system reserves in each thread block
    shared_unit: int  # shared memory is allocated in multiples of this number of bytes
    shared_bytes_per_clock: int  # bytes of shared memory that a multiprocessor reads per cycle
    fp32_per_clock: int  # float32 multiply-adds (two flops each) of a multiprocessor per cycle
    fp64_per_clock: int
    source: str  # the document and the table in the document that have these numbers


def capability_limits(name: str) -> CapabilityLimits:
    """Return the limits of a compute capability, such as "9.0"."""
    found = _capability_table().get(name)
    if found is None:
        raise ValueError(f"unknown compute capability {name!r}; the table has {', '.join(capability_names())}")
    return found


def nearest_capability(name: str) -> CapabilityLimits:
    """Return the limits of compute capability `name`; if the table lacks it, of the next older capability."""
    older = [c for c in capability_names() if _version_numbers(c) <= _version_numbers(name)]
    return capability_limits(older[-1] if older else capability_names()[0])


def capability_names() -> tuple[str, ...]:
    """Return the names of the compute capabilities in the table, oldest first."""
    return tuple(_capability_table())


def _version_numbers(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))


@cache
def _capability_table() -> dict[str, CapabilityLimits]:
    return {c.capability: c for c in read_records(CapabilityLimits, "fmm.hardware", "capabilities.csv")}


@dataclass(frozen=True, slots=True)
class Datasheet:
    """The numbers that one device's datasheet prints; the properties of this class are in flop/s and bytes/s.

    A number is None if the device lacks the arithmetic unit, or if no document prints the number; the field `source`
    has the reason. Under load, the power limit often keeps the clock below `boost_mhz`.
    """

    name: str
    capability: str  # compute capability, such as "9.0"
    sms: int  # number of multiprocessors
    boost_mhz: float
    fp32_tflops: float  # peak of the CUDA cores in float32, in 1e12 flop/s
    fp64_tflops: float | None  # peak of the CUDA cores in float64, in 1e12 flop/s
    fp64_tensor_tflops: float | None  # peak of the tensor cores in float64, without structured sparsity, in 1e12 flop/s
    tf32_tflops: float | None
    # peak of the tensor cores in float16 with float32 accumulation, in 1e12 flop/s; GeForce cards run float32
    # accumulation at half the rate of float16 accumulation
    fp16_tflops: float | None
    int8_tops: float | None
    bandwidth_gbs: float  # bandwidth of global memory in 1e9 bytes/s
    memory_gb: float  # advertised size of global memory in units of 1e9 bytes
    l2_kib: int | None  # size of the second-level cache (L2) in KiB; 0 if the device has no L2 cache
    # name of a measured device with the calibration that fmm scales to this device; empty: no calibration is scaled
    relative_of: str
    source: str  # the documents with the numbers, and the names of the numbers that were computed from other numbers

    @property
    def capability_limits(self) -> CapabilityLimits:
        """The limits of the device's compute capability, or of the next older capability in the table."""
        return nearest_capability(self.capability)

    @property
    def fp32_peak_flops(self) -> float:
        """Peak flop/s of the CUDA cores in float32, computed as number of cores x clock x 2, as in the papers."""
        return 2e6 * self.sms * self.capability_limits.fp32_per_clock * self.boost_mhz

    @property
    def fp64_peak_flops(self) -> float:
        """Peak flop/s of the CUDA cores in float64, computed as number of cores x clock x 2."""
        return 2e6 * self.sms * self.capability_limits.fp64_per_clock * self.boost_mhz

    @property
    def global_memory_bandwidth(self) -> float:
        """Bandwidth of global memory in bytes/s."""
        return 1e9 * self.bandwidth_gbs

    @property
    def shared_memory_bandwidth(self) -> float:
        """Bandwidth of shared memory of all multiprocessors together, in bytes/s (Huang et al., footnote 13)."""
        return 1e6 * self.sms * self.capability_limits.shared_bytes_per_clock * self.boost_mhz

    def peak_flops(self, element_bytes: int) -> float:
        """Return the peak flop/s of the CUDA cores for elements of 4 bytes (float32) or 8 bytes (float64)."""
        if element_bytes not in (4, 8):
            raise ValueError(f"no core peak for elements of {element_bytes} bytes; the sizes are 4 and 8")
        return self.fp32_peak_flops if element_bytes == 4 else self.fp64_peak_flops


def datasheet_of(name: str) -> Datasheet:
    """Return the datasheet of a device by name, in any case and spacing: "h200", "RTX4090", "gtx-1050"."""
    found = _device_table().get(normalized_name(name)) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"unknown device {name!r}; the devices are {', '.join(datasheet_names())}")
    return found


def datasheet_names() -> tuple[str, ...]:
    """Return the names of the devices in the table of datasheets, oldest first."""
    return tuple(d.name for d in _device_table().values())


def normalized_name(name: str) -> str:
    """Return the letters and digits of a device's name in lower case, to compare names in any case and spacing."""
    return "".join(c for c in name.casefold() if c.isalnum())


@cache
def _device_table() -> dict[str, Datasheet]:
    return {normalized_name(d.name): d for d in read_records(Datasheet, "fmm.hardware", "datasheets.csv")}

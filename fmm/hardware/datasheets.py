"""Facts about GPUs from CSV tables: the limits of each compute capability, and a datasheet for each device.

A new GPU is a new row in `capabilities.csv` or `datasheets.csv` beside this file; every row names its source.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any, TypeVar

Record = TypeVar("Record")


# Parsers of a table's cells, by the annotation of the field (a string, because of the __future__ import).
_CELL_PARSERS: dict[str, Callable[[str], object]] = {
    "str": str,
    "int": int,
    "float": float,
    "float | None": lambda text: float(text) if text else None,
}


def read_records(record: type[Record], package: str, file: str) -> list[Record]:
    """Return the rows of a CSV table as records; each field is read from the column of its name."""
    text = (resources.files(package) / file).read_text(encoding="utf-8")
    columns: Any = fields(record)  # type: ignore[arg-type]
    rows = csv.DictReader(text.splitlines(), strict=True)
    return [record(**{c.name: _CELL_PARSERS[str(c.type)](row[c.name]) for c in columns}) for row in rows]


@dataclass(frozen=True, slots=True)
class Capability:
    """Limits and rates of all devices of one compute capability; sizes in bytes, rates per multiprocessor and clock.

    Registers are allocated in units of `register_unit` to a warp, or on 1.x to a block (`register_granularity`).
    Warps are distributed evenly among `warp_granularity` partitions of a multiprocessor. `shared_per_block` is the
    largest size that a kernel can opt into. The rates count fused multiply-adds, each of two flops.
    """

    capability: str
    max_threads_per_block: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    registers_per_block: int
    max_registers_per_thread: int
    register_unit: int
    register_granularity: str
    warp_granularity: int
    shared_per_sm: int
    shared_per_block: int
    reserved_shared_per_block: int
    shared_unit: int
    shared_bytes_per_clock: int
    fp32_per_clock: int
    fp64_per_clock: int
    source: str


def capability_limits(name: str) -> Capability:
    """Return the limits of a compute capability, such as "9.0"."""
    found = _limits_table().get(name)
    if found is None:
        raise ValueError(f"unknown compute capability {name!r}; the table has {', '.join(capability_names())}")
    return found


def nearest_capability(name: str) -> Capability:
    """Return the limits of the newest compute capability in the table that is not newer than this one."""
    older = [c for c in capability_names() if _version_numbers(c) <= _version_numbers(name)]
    return capability_limits(older[-1] if older else capability_names()[0])


def capability_names() -> tuple[str, ...]:
    """Return the compute capabilities in the table, oldest first."""
    return tuple(_limits_table())


def _version_numbers(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))


@cache
def _limits_table() -> dict[str, Capability]:
    return {c.capability: c for c in read_records(Capability, "fmm.hardware", "capabilities.csv")}


@dataclass(frozen=True, slots=True)
class Datasheet:
    """The datasheet of one device: fields as printed, in TFLOPS and GB/s; properties in flop/s and bytes/s.

    Tensor rates are dense, with 32-bit accumulation for TF32 and FP16; None for a device without the unit. `memory_gb`
    is the advertised size. Left out is the clock under load, often below boost since the power is limited.
    """

    name: str
    capability: str
    sms: int
    boost_mhz: float
    fp32_tflops: float
    fp64_tflops: float
    fp64_tensor_tflops: float | None
    tf32_tflops: float | None
    fp16_tflops: float | None
    bandwidth_gbs: float
    memory_gb: float
    l2_kib: int
    source: str

    @property
    def limits(self) -> Capability:
        """The limits of the device's compute capability."""
        return capability_limits(self.capability)

    @property
    def fp32_peak(self) -> float:
        """Cores x clock x 2 instead of the printed number, as in the papers' models."""
        return 2e6 * self.sms * self.limits.fp32_per_clock * self.boost_mhz

    @property
    def fp64_peak(self) -> float:
        """Cores x clock x 2, without tensor cores."""
        return 2e6 * self.sms * self.limits.fp64_per_clock * self.boost_mhz

    @property
    def global_bandwidth(self) -> float:
        """Bytes/s of global memory."""
        return 1e9 * self.bandwidth_gbs

    @property
    def shared_bandwidth(self) -> float:
        """Bytes/s of all multiprocessors' shared memory at the boost clock (Huang et al., footnote 13)."""
        return 1e6 * self.sms * self.limits.shared_bytes_per_clock * self.boost_mhz

    def peak(self, element_bytes: int) -> float:
        """Flop/s of the ordinary cores for an element of 4 (float32) or 8 (float64) bytes."""
        if element_bytes not in (4, 8):
            raise ValueError(f"no core peak for elements of {element_bytes} bytes; the sizes are 4 and 8")
        return self.fp32_peak if element_bytes == 4 else self.fp64_peak


def datasheet_of(name: str) -> Datasheet:
    """Return the datasheet of a device by name, in any case and spacing: "h200", "RTX4090", "gtx-1050"."""
    found = _device_table().get(plain_name(name))
    if found is None:
        raise ValueError(f"unknown device {name!r}; the devices are {', '.join(datasheet_names())}")
    return found


def datasheet_names() -> tuple[str, ...]:
    """Return the names of the devices in the table, oldest first."""
    return tuple(d.name for d in _device_table().values())


def plain_name(name: str) -> str:
    """Return the letters and digits of a name in lower case, by which names are compared."""
    return "".join(c for c in name.casefold() if c.isalnum())


@cache
def _device_table() -> dict[str, Datasheet]:
    return {plain_name(d.name): d for d in read_records(Datasheet, "fmm.hardware", "datasheets.csv")}

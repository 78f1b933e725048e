"""What NVIDIA's GPUs of one compute capability share: limits and rates of a multiprocessor. A new one is a new row.

The table is `capabilities.csv` beside this file; every row names its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from fmm.hardware.records import read_records


@dataclass(frozen=True, slots=True)
class Capability:
    """What every device of one compute capability shares; sizes in bytes, rates per SM and clock.

    `register_granularity` says who is given registers in units of `register_unit`: a warp, or (1.x) a block.
    `warp_granularity` is the number of SM partitions among which warps are dealt out evenly.
    `shared_per_block` is the largest size a kernel can opt into. The rates count cores: an FMA is two flops.
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
    """The limits of one compute capability, as "9.0"."""
    found = _limits_table().get(name)
    if found is None:
        raise ValueError(f"unknown compute capability {name!r}; the table has {', '.join(known_capabilities())}")
    return found


def nearest_capability(name: str) -> Capability:
    """Those of the newest one in the table that is not newer, for devices that the table does not know."""
    known = [c for c in known_capabilities() if _version_numbers(c) <= _version_numbers(name)]
    return capability_limits(known[-1] if known else known_capabilities()[0])


def known_capabilities() -> tuple[str, ...]:
    """Every compute capability in the table, oldest first."""
    return tuple(_limits_table())


def _version_numbers(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))


@cache
def _limits_table() -> dict[str, Capability]:
    return {c.capability: c for c in read_records(Capability, "fmm.hardware", "capabilities.csv")}

"""Facts about GPUs: datasheet numbers per device. A new device is a new row.

The table is `datasheets.csv` beside this file; every row names its source. What devices of one compute
capability share is in fmm.hardware.capability.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from fmm.hardware.capability import Capability, capability_limits
from fmm.hardware.records import read_records


@dataclass(frozen=True, slots=True)
class Device:
    """One product's datasheet: fields as printed, in TFLOPS and GB/s; properties in flop/s and bytes/s.

    Tensor rates are dense, with 32-bit accumulation for TF32 and FP16; None where there is no such unit.
    `memory_gb` is the advertised size. Left out: the clock under load, often below boost for want of power.
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
        return capability_limits(self.capability)

    @property
    def fp32_peak(self) -> float:
        """Cores x clock x 2, not the printed number: it is what the papers' models start from."""
        return 2e6 * self.sms * self.limits.fp32_per_clock * self.boost_mhz

    @property
    def fp64_peak(self) -> float:
        """Cores x clock x 2, without tensor cores."""
        return 2e6 * self.sms * self.limits.fp64_per_clock * self.boost_mhz

    @property
    def global_bandwidth(self) -> float:
        return 1e9 * self.bandwidth_gbs

    @property
    def shared_bandwidth(self) -> float:
        """All SMs' shared memory banks at the boost clock (Huang et al., footnote 13)."""
        return 1e6 * self.sms * self.limits.shared_bytes_per_clock * self.boost_mhz

    def peak(self, element_bytes: int) -> float:
        """Flop/s of the ordinary cores for an element of 4 (float32) or 8 (float64) bytes."""
        if element_bytes not in (4, 8):
            raise ValueError(f"no core peak for elements of {element_bytes} bytes; the sizes are 4 and 8")
        return self.fp32_peak if element_bytes == 4 else self.fp64_peak


def device(name: str) -> Device:
    """A device by name, in any case and spacing: "h200", "RTX4090", "gtx-1050"."""
    found = _device_table().get(_plain_name(name))
    if found is None:
        raise ValueError(f"unknown device {name!r}; the devices are {', '.join(device_names())}")
    return found


def device_names() -> tuple[str, ...]:
    """Every device in the table, oldest first."""
    return tuple(d.name for d in _device_table().values())


def _plain_name(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


@cache
def _device_table() -> dict[str, Device]:
    return {_plain_name(d.name): d for d in read_records(Device, "fmm.hardware", "datasheets.csv")}

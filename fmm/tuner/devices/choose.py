"""Which devices can be tuned here, by the names that the command takes: 0, 1, ..., cpu, all."""

from __future__ import annotations

from fmm.tuner.devices.cpu import CpuDevice
from fmm.tuner.devices.device import Device


class UnknownDeviceError(ValueError):
    """A device that does not answer; the message lists those that do."""


def gpu_count() -> int:
    """How many CUDA devices answer; none without CuPy or a driver."""
    try:
        return _count()
    except Exception:  # whatever the import or the driver raises, the answer is the same
        return 0


def _count() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


def _why_none() -> str:
    try:
        _count()
    except Exception as error:
        return f" (no GPU answers: {type(error).__name__}: {error})"
    return ""


def chosen_devices(name: str | None) -> list[Device]:
    """The devices of that name; without one, GPU 0 if it answers, else the CPU."""
    count = gpu_count()
    valid = [*map(str, range(count)), "cpu", "all"]
    if name is None:
        name = "0" if count else "cpu"
    if name not in valid:
        why = _why_none() if name.isdecimal() and not count else ""
        raise UnknownDeviceError(f"unknown device {name!r}; valid: {', '.join(valid)}{why}")
    names = valid[:-1] if name == "all" else [name]
    return [_device(n) for n in names]


def _device(name: str) -> Device:
    if name == "cpu":
        return CpuDevice()
    from fmm.tuner.devices.cuda import CudaDevice  # CuPy

    return CudaDevice(int(name))

"""The devices for which decisions are made: this CPU with a number of threads, or a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np

from fmm.arrays.library import Processor
from fmm.config import identity
from fmm.config.environment import tuning_mode
from fmm.config.files import active_configs
from fmm.config.identity import Identity, gpu_device_key, parse_gpu_device_key
from fmm.hardware import datasheets
from fmm.hardware.chip import Chip
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import default_error_growth_limit
from fmm.perfmodel.default_calibration import BUILT_IN_SOURCE_TEXT, cpu_calibration, datasheet_calibration
from fmm.runtime.probe import measured_calibration, probed_calibration


@dataclass(frozen=True)
class Device:
    """A CPU or a GPU for which decisions are made; two devices are equal if their identities are equal."""

    identity: Identity  # the device's key and name in a config
    guess: Calibration | None = field(compare=False)  # the calibration of a device without a tuning
    # Function that measures the rates of a type in this process. A decision calls `probe` if a plan wins by the
    # unmeasured rates in `guess`.
    probe: Callable[[str], Calibration] | None = field(default=None, compare=False)
    # Function that returns the rates of a type if `probe` has measured them, else None.
    measured: Callable[[str], Calibration | None] | None = field(default=None, compare=False)
    threads: int = 0  # number of BLAS threads of the CPU; 0 for a GPU
    # the GPU's properties that kernels depend on; None for a CPU
    chip: Chip | None = field(default=None, compare=False)

    @property
    def error_growth(self) -> float:
        """The default limit of the expected error, as a multiple of the vendor's expected error."""
        return default_error_growth_limit(not self.threads)


def get_device(processor: Processor, number: int) -> Device:
    """Return this CPU with `number` threads, or the CUDA device with the index `number`."""
    return cpu_device(number) if processor == "cpu" else cuda_device(number)


# ---- this CPU


def cpu_device(threads: int) -> Device:
    """Return this CPU with `threads` BLAS threads."""
    guess = built_in_calibration(threads)
    found = identity.cpu_identity(threads)
    if guess.source != BUILT_IN_SOURCE_TEXT:
        return Device(found, guess, threads=threads)
    probe, measured = partial(probed_calibration, threads), partial(measured_calibration, threads)
    return Device(found, guess, probe, measured, threads)


@lru_cache(maxsize=64)
def built_in_calibration(threads: int) -> Calibration:
    """Return the default calibration of a CPU with `threads` threads."""
    return cpu_calibration(threads)


# ---- CUDA devices


MAX_DEVICE_INDEX = (1 << 31) - 1  # CUDA device numbers are C ints


def parse_cuda_index(device: object) -> int:
    """Return the index of a CUDA device, which is written 0, "cuda" or "cuda:0"; ValueError for anything else."""
    if isinstance(device, int | np.integer) and not isinstance(device, bool) and 0 <= device <= MAX_DEVICE_INDEX:
        return int(device)
    if isinstance(device, str):
        name, _, number = device.partition(":")
        if name == "cuda" and (device == "cuda" or (number.isdecimal() and len(number) < len(str(MAX_DEVICE_INDEX)))):
            return int(number or 0)
    valid = "'cpu', 'cuda', 'cuda:0', 'cuda:1', ..., or a number: 0, 1, ..."
    raise ValueError(f"unknown device {device!r}; valid: {valid}{_predict_command_hint(device)}")


def _predict_command_hint(device: object) -> str:
    """Return a text that recommends `fmm-tune predict` if `text` names a GPU with a datasheet; else an empty text."""
    if not isinstance(device, str):
        return ""
    try:
        known = datasheets.datasheet_of(device).name
    except ValueError:
        return ""
    typed = known.casefold().replace(" ", "-")
    return f"; `fmm-tune predict --device {typed} M K N` predicts the plan from the datasheet of the {known}"


@lru_cache(maxsize=64)
def cuda_device(index: int) -> Device:
    """Return the CUDA device with this index; ValueError if there is no such device, ImportError without CuPy."""
    import cupy

    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:  # no driver is installed, or this CuPy does not support the driver
        raise ValueError(f"there is no device cuda:{index}: {error}") from error
    if not 0 <= index < count:
        raise ValueError(f"there is no device cuda:{index}; this machine has {count}")

    from fmm.kernels.cuda.launch.cublas import cublas_version
    from fmm.kernels.cuda.launch.device_facts import cuda_device_chip

    facts = runtime.getDeviceProperties(index)
    name = facts["name"].decode() if isinstance(facts["name"], bytes) else str(facts["name"])
    numbers = {"driver": runtime.driverGetVersion(), "cuda": runtime.runtimeGetVersion(), "cublas": cublas_version()}
    versions = {**{name: str(number) for name, number in numbers.items()}, "cupy": str(cupy.__version__)}
    capability, processors = f"{facts['major']}.{facts['minor']}", int(facts["multiProcessorCount"])
    return gpu_from_description(name, capability, processors, versions, cuda_device_chip(index))


def gpu_from_description(
    name: str, capability: str, sms: int, versions: Mapping[str, str] | None = None, chip: Chip | None = None
) -> Device:
    """Return the CUDA device with this name, compute capability and number of multiprocessors."""
    found = Identity(gpu_device_key(name, capability, sms), name, versions or {})
    return Device(found, find_datasheet_calibration(name, capability, sms), chip=chip)


def find_datasheet_calibration(name: str, capability: str, sms: int) -> Calibration | None:
    """Return the calibration from a GPU's datasheet; None if no datasheet matches the GPU.

    The compute capability and the number of multiprocessors must also match: GPUs with the same name can have fewer
    multiprocessors, and MIG splits a device. The device's name must contain all words of the datasheet's name in the
    same order, as "NVIDIA A100-SXM4-40GB" contains "A100 40GB". If several datasheets match, the one with the most
    words in its name is used.
    """
    words = name.upper().replace("-", " ").split()
    found: list[str] = []
    for listed in datasheets.datasheet_names():
        sheet, rest = datasheets.datasheet_of(listed), iter(words)
        named = all(part in rest for part in listed.upper().split())
        if named and (sheet.capability, sheet.sms) == (capability, sms):
            found.append(listed)
    return datasheet_calibration(max(found, key=lambda listed: len(listed.split()))) if found else None


def calibration_from_datasheet(key: str, name: str) -> Calibration | None:
    """Return the calibration from the datasheet of the GPU with this key and name.

    Return None for a CPU or a GPU without a datasheet.
    """
    parts = parse_gpu_device_key(key)
    return find_datasheet_calibration(name, *parts) if parts else None


def chip_with_tuned_block_model(device: Device) -> Chip | None:
    """Return the GPU's chip, with the block strategies and the constants of the block model from the GPU's tuning, if
    any.

    Return None for a CPU.
    """
    if device.chip is None:
        return None
    tuned = None if tuning_mode() == "off" else active_configs().find_tuning(device.identity, "float32")
    if tuned is None:
        return device.chip
    return replace(device.chip, fitted=tuned.fitted or device.chip.fitted, strategies=tuned.strategies)

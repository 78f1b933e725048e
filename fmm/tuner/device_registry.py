"""Which devices can be tuned here, by the names that the command takes: 0, 1, ..., cpu, all."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from fmm.config import environment, files, identity
from fmm.config.identity import Identity
from fmm.config.schema import Raw, Tuned, read_section
from fmm.dtypes import DTYPES, INTEGERS
from fmm.hardware import datasheets
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration, with_integer_rates
from fmm.runtime import devices
from fmm.runtime.decisions.calibration_in_force import complete_calibration
from fmm.tuner.devices.cpu import CpuDevice
from fmm.tuner.devices.device import Device
from fmm.tuner.findings.described import instead
from fmm.tuner.findings.model_in_use import device_memory, device_name, guess_of


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


HERE = ("cpu", "0")  # 0 stands for whatever GPUs there are


def valid_names() -> tuple[str, ...]:
    """What can be asked for now."""
    return (*HERE, *datasheets.device_names(), *tuned_keys())


def tuned_keys() -> tuple[str, ...]:
    """Of the devices that the configs in force know."""
    return tuple(_sections_by_key())


def names_in_words() -> str:
    """The same as a sentence for people."""
    keys = ", ".join(tuned_keys())
    tuned = f"; by a tuning in the configs in force: {keys}" if keys else ""
    return f"devices: cpu; a GPU here by its number: 0; by a datasheet: {', '.join(datasheets.device_names())}{tuned}"


def is_local_cpu(name: str) -> bool:
    return name.casefold() == "cpu"


def is_local_gpu(name: str) -> bool:
    """Is it a number, or cuda:0 and the like?"""
    return name.isdecimal() or name.partition(":")[0] == "cuda"


def find_datasheet(name: str) -> datasheets.Device | None:
    """The datasheet of a device by its name, or of a GPU here; None of others."""
    if is_local_gpu(name):
        guess = _gpu_here(name).guess
        return datasheets.device(guess.name) if guess else None
    with suppress(ValueError):
        return datasheets.device(name)
    return None


def find_identity(name: str) -> Identity:
    """Of a device as the configs in force know it; of one that they do not, its name alone."""
    if is_local_cpu(name):
        return identity.cpu_identity(blas_threads())
    if is_local_gpu(name):
        return _gpu_here(name).identity
    section = _sections_by_key().get(name)
    return Identity(name, name if section is None else device_name(name, section))


def config_tuning(name: str, dtype: str) -> Tuned | None:
    """What the configs in force say of it."""
    own = "float64" if is_local_cpu(name) and dtype in INTEGERS else dtype  # integers are not tuned themselves
    return None if environment.tuning_mode() == "off" else files.active_configs().tuned(find_identity(name), own)


def memory_in_config(name: str) -> int | None:
    """Bytes of the device, as the configs in force know it; None where none does."""
    known = find_identity(name)
    section = _sections_by_key().get(known.key)
    return None if section is None else device_memory(section, guess_of(known.key, known.name))


def rejected_because(name: str, dtype: str) -> str:
    """Why fmm.matmul sets a tuning aside, and so do we."""
    tuned = config_tuning(name, dtype)
    if not tuned or not tuned.diagnostics:
        return ""
    return f"the tuning here is not used: {tuned.diagnostics[0]}; {instead(tuned.identity, dtype)}"


def rejected_here(sections: Mapping[str, Raw], key: str) -> list[str]:
    """Of a config's sections of this processor: which fmm.matmul would not use as it is installed here, and why."""
    if key != find_identity("cpu").key:
        return []
    reasons: dict[str, list[str]] = {}
    for dtype, raw in sections.items():
        own = raw.get("doubts") or ()
        for doubt in read_section(raw, f"{key}.{dtype}", find_identity("cpu"), dtype).diagnostics:
            if doubt not in own:
                reasons.setdefault(doubt, []).append(dtype)
    then = instead(find_identity("cpu"), "")
    return [f"{', '.join(x)}: the tuning here is not used: {why}; {then}" for why, x in reasons.items()]


def trusted_calibration(name: str, dtype: str) -> Calibration | None:
    """The model by which products are chosen there, by a tuning that is used."""
    tuned, known = config_tuning(name, dtype), find_identity(name)
    real = config_tuning(name, DTYPES[dtype].real) if DTYPES[dtype].real else None
    return complete_calibration(tuned, real, guess_of(known.key, known.name)) if tuned else None


def find_calibration(name: str, dtype: str) -> Calibration:
    """Of a device whose tuning is used, else of a datasheet; ValueError, which names the valid ones, of any other."""
    exact = is_local_cpu(name) and dtype in INTEGERS
    if (known := trusted_calibration(name, dtype)) is not None:
        return with_integer_rates(known) if exact else known
    if is_local_cpu(name):
        return with_integer_rates(cpu_calibration(blas_threads())) if exact else cpu_calibration(blas_threads())
    if is_local_gpu(name) or name in _sections_by_key():
        return _untuned(find_identity(name), dtype)
    try:
        return datasheet_calibration(name)
    except ValueError:
        raise ValueError(f"unknown device {name!r}; valid: {', '.join(valid_names())}") from None


def _untuned(known: Identity, dtype: str) -> Calibration:
    """By the datasheet, as fmm does where no tuning of this type is used."""
    guess = guess_of(known.key, known.name)
    if guess is None:
        raise ValueError(f"nothing is known of {known.name} for {dtype}: no tuning that is used, and no datasheet")
    return guess


def _gpu_here(name: str) -> devices.Device:
    index = devices.parse_cuda_index(int(name) if name.isdecimal() else name)
    try:
        return devices.cuda_device(index)
    except ImportError as error:
        raise ValueError(f"the device {name!r} needs CuPy, which does not load: {error}") from error


def _sections_by_key() -> dict[str, Raw]:
    """One section of each device in the configs in force, which are not read where tunings are switched off."""
    if environment.tuning_mode() == "off":
        return {}
    found: dict[str, Raw] = {}
    for known in files.active_configs().files.values():
        for key, sections in known.items():
            for section in sections.values():
                found.setdefault(key, section)
    return found

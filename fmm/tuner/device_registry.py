"""The devices that the commands accept: those that can be tuned here, and those whose decisions can be predicted.

A GPU here is named by its number (0, or cuda:0), a device of a config by its key (cuda-9.0-132sm-nvidia-h200), any
other GPU by its datasheet. CuPy is loaded only for a GPU here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from fmm.config import environment, files, identity
from fmm.config.identity import Identity
from fmm.config.schema import JsonValue, Tuning, read_section
from fmm.dtypes import DTYPES, INTEGERS
from fmm.hardware import datasheets
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration, with_integer_rates
from fmm.runtime import devices
from fmm.runtime.decisions.calibration_in_force import complete_calibration, untuned_gpu_calibration
from fmm.tuner.devices.cpu import CpuDevice
from fmm.tuner.devices.device import Device
from fmm.tuner.findings.model_in_use import device_memory, device_name, fallback_model

# ---- devices that can be tuned


class UnknownDeviceError(ValueError):
    """The name of a device that does not answer; the message lists those that do."""


def select_devices(name: str | None) -> list[Device]:
    """Return the devices of a name: 0, 1, ..., cpu or all; without one, GPU 0 if it answers, else the CPU."""
    count = gpu_count()
    valid = [*map(str, range(count)), "cpu", "all"]
    if name is None:
        name = "0" if count else "cpu"
    if name not in valid:
        why = _why_no_gpu() if name.isdecimal() and not count else ""
        raise UnknownDeviceError(f"unknown device {name!r}; valid: {', '.join(valid)}{why}")
    return [_tunable_device(n) for n in (valid[:-1] if name == "all" else [name])]


def _tunable_device(name: str) -> Device:
    if name == "cpu":
        return CpuDevice()
    from fmm.tuner.devices.cuda import CudaDevice  # CuPy

    return CudaDevice(int(name))


def gpu_count() -> int:
    """Return the number of CUDA devices that answer; 0 without CuPy or a driver."""
    try:
        return _cuda_device_count()
    except Exception:  # whatever the import or the driver raises, no GPU answers
        return 0


def _cuda_device_count() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


def _why_no_gpu() -> str:
    try:
        _cuda_device_count()
    except Exception as error:
        return f" (no GPU answers: {type(error).__name__}: {error})"
    return ""


# ---- devices whose decisions can be predicted

LOCAL_DEVICE_NAMES = ("cpu", "0")  # names of devices of this machine; 0 for any of its GPUs


def valid_names() -> tuple[str, ...]:
    """Return the valid names of devices."""
    return (*LOCAL_DEVICE_NAMES, *datasheets.datasheet_names(), *tuned_keys())


def valid_names_text() -> str:
    """Return the valid names of devices as a sentence."""
    keys = ", ".join(tuned_keys())
    tuned = f"; by a tuning in the active configs: {keys}" if keys else ""
    return (
        f"devices: cpu; a GPU here by its number: 0; by a datasheet: {', '.join(datasheets.datasheet_names())}{tuned}"
    )


def tuned_keys() -> tuple[str, ...]:
    """Return the keys of the devices in the active configs."""
    return tuple(_sections_by_key())


def is_local_cpu(name: str) -> bool:
    """Return True for the name of this CPU."""
    return name.casefold() == "cpu"


def is_local_gpu(name: str) -> bool:
    """Return True for a number, cuda:0 and the like."""
    return name.isdecimal() or name.partition(":")[0] == "cuda"


def find_datasheet(name: str) -> datasheets.Datasheet | None:
    """Return the datasheet of a device by its name, or of a GPU here; None for others."""
    if is_local_gpu(name):
        guess = _local_gpu(name).guess
        return datasheets.datasheet_of(guess.name) if guess else None
    with suppress(ValueError):
        return datasheets.datasheet_of(name)
    return None


def find_identity(name: str) -> Identity:
    """Return the identity of a tuned device by its key or its datasheet's name; of any other, its name alone."""
    if is_local_cpu(name):
        return identity.cpu_identity(blas_threads())
    if is_local_gpu(name):
        return _local_gpu(name).identity
    sections = _sections_by_key()
    key = name if name in sections else _tuned_key_of(name, sections)
    return Identity(key, device_name(key, sections[key]) if key in sections else key)


def _tuned_key_of(name: str, sections: Mapping[str, JsonValue]) -> str:
    """Return the key of the only tuned card with the datasheet of this name; the name itself without one."""
    with suppress(ValueError):
        wanted = datasheets.datasheet_of(name)
        models = {key: devices.datasheet_model(key, device_name(key, section)) for key, section in sections.items()}
        found = [key for key, model in models.items() if model is not None and model.name == wanted.name]
        return found[0] if len(found) == 1 else name
    return name


def config_tuning(name: str, dtype: str) -> Tuning | None:
    """Return the tuning of a device in the active configs."""
    own = "float64" if is_local_cpu(name) and dtype in INTEGERS else dtype  # integers have no tuning of their own
    return None if environment.tuning_mode() == "off" else files.active_configs().tuned(find_identity(name), own)


def memory_in_config(name: str) -> int | None:
    """Return the bytes of a device in the active configs; None for others."""
    known = find_identity(name)
    section = _sections_by_key().get(known.key)
    return None if section is None else device_memory(section, devices.datasheet_model(known.key, known.name))


def rejection_reason(name: str, dtype: str) -> str:
    """Return why the tuning of a device is rejected; empty if it is used, or if there is none."""
    tuned = config_tuning(name, dtype)
    if not tuned or not tuned.diagnostics:
        return ""
    return f"tuning rejected: {tuned.diagnostics[0]}; used instead: {fallback_model(tuned.identity, dtype)}"


def rejection_lines(sections: Mapping[str, JsonValue], key: str) -> list[str]:
    """Return why sections of this CPU are rejected with the libraries installed here, as lines."""
    if key != find_identity("cpu").key:
        return []
    reasons: dict[str, list[str]] = {}
    for dtype, raw in sections.items():
        own = raw.get("doubts") or ()
        for diagnostic in read_section(raw, f"{key}.{dtype}", find_identity("cpu"), dtype).diagnostics:
            if diagnostic not in own:
                reasons.setdefault(diagnostic, []).append(dtype)
    instead = fallback_model(find_identity("cpu"), "")
    return [f"{', '.join(types)}: tuning rejected: {why}; used instead: {instead}" for why, types in reasons.items()]


def trusted_calibration(name: str, dtype: str) -> Calibration | None:
    """Return the model of a device's tuning as decisions use it; None if there is none, or if it is rejected."""
    tuned, known = config_tuning(name, dtype), find_identity(name)
    real = config_tuning(name, DTYPES[dtype].real) if DTYPES[dtype].real else None
    return complete_calibration(tuned, real, devices.datasheet_model(known.key, known.name)) if tuned else None


def find_calibration(name: str, dtype: str) -> Calibration:
    """Return the model of a device: its tuning's, else the built-in one or the datasheet's; ValueError lists names."""
    exact = is_local_cpu(name) and dtype in INTEGERS
    if (known := trusted_calibration(name, dtype)) is not None:
        return with_integer_rates(known) if exact else known
    if is_local_cpu(name):
        built_in = cpu_calibration(blas_threads())
        return with_integer_rates(built_in) if exact else built_in
    if is_local_gpu(name) or name in _sections_by_key():
        found = find_identity(name)
        guess = devices.datasheet_model(found.key, found.name)
        if guess is None:
            raise ValueError(f"{found.name} has no tuning in use for {dtype}, and no datasheet")
        return untuned_gpu_calibration(guess, dtype)
    try:
        return untuned_gpu_calibration(datasheet_calibration(name), dtype)
    except ValueError:
        if matches := [key for key in tuned_keys() if key.startswith(f"{name}-")]:
            what = "ambiguous" if len(matches) > 1 else "incomplete"
            raise ValueError(f"{what} device {name!r}; the configs have {', '.join(matches)}") from None
        raise ValueError(f"unknown device {name!r}; valid: {', '.join(valid_names())}") from None


def _local_gpu(name: str) -> devices.Device:
    index = devices.parse_cuda_index(int(name) if name.isdecimal() else name)
    try:
        return devices.cuda_device(index)
    except ImportError as error:
        raise ValueError(f"the device {name!r} needs CuPy, which does not load: {error}") from error


def _sections_by_key() -> dict[str, JsonValue]:
    """Return one section of each device in the active configs; none where tunings are switched off."""
    if environment.tuning_mode() == "off":
        return {}
    found: dict[str, JsonValue] = {}
    for types_by_key in files.active_configs().files.values():
        for key, sections in types_by_key.items():
            for section in sections.values():
                found.setdefault(key, section)
    return found

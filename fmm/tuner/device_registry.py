"""Find devices by name: devices of this machine, which can be tuned, and devices in configs and datasheets.

The name of a local GPU is its index: `0` or `cuda:0`. The name of a device in a config is its key
(cuda-9.0-132sm-nvidia-h200). The name of any other GPU is the name of its datasheet. CuPy is imported only for a local
GPU.
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
from fmm.runtime.decisions.calibration_in_force import complete_calibration, related_gpu_calibration
from fmm.tuner.devices.cpu import CpuDevice
from fmm.tuner.devices.device import TunableDevice
from fmm.tuner.findings.model_in_use import device_memory_bytes, device_name, fallback_model_text

# ---- devices that can be tuned


class UnknownDeviceError(ValueError):
    """Raised if no device of this machine has the name; the message lists the valid names."""


def select_devices(name: str | None) -> list[TunableDevice]:
    """Return the devices of this machine that a name selects: the index of a GPU, `cpu` or `all`.

    Without a name, return GPU 0 if this GPU is usable, else the CPU.
    """
    count = gpu_count()
    valid = [*map(str, range(count)), "cpu", "all"]
    if name is None:
        name = "0" if count else "cpu"
    if name not in valid:
        why = _gpu_failure_text() if name.isdecimal() and not count else ""
        raise UnknownDeviceError(f"unknown device {name!r}; valid: {', '.join(valid)}{why}")
    return [_tunable_device(n) for n in (valid[:-1] if name == "all" else [name])]


def _tunable_device(name: str) -> TunableDevice:
    if name == "cpu":
        return CpuDevice()
    from fmm.tuner.devices.cuda import CudaDevice  # imports CuPy

    return CudaDevice(int(name))


def gpu_count() -> int:
    """Return the number of usable CUDA devices; 0 if CuPy or the driver is missing."""
    try:
        return _cuda_device_count()
    except Exception:  # CuPy and the driver may raise any error: no GPU is usable then
        return 0


def _cuda_device_count() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


def _gpu_failure_text() -> str:
    try:
        _cuda_device_count()
    except Exception as error:
        return f" (no usable GPU: {type(error).__name__}: {error})"
    return ""


# ---- devices whose decisions can be predicted

LOCAL_DEVICE_NAMES = ("cpu", "0")  # the names of this machine's devices in messages; 0 represents the index of any GPU


def valid_device_names() -> tuple[str, ...]:
    """Return the names of all devices for which `fmm-tune predict` can predict a decision."""
    return (*LOCAL_DEVICE_NAMES, *datasheets.datasheet_names(), *tuned_device_keys())


def valid_devices_text() -> str:
    """Return a line of text that lists the names of `valid_device_names`."""
    keys = ", ".join(tuned_device_keys())
    tuned = f"; by a tuning in the active configs: {keys}" if keys else ""
    return (
        f"devices: cpu; a GPU here by its number: 0; by a datasheet: {', '.join(datasheets.datasheet_names())}{tuned}"
    )


def tuned_device_keys() -> tuple[str, ...]:
    """Return the keys of the devices in the active configs."""
    return tuple(_sections_by_device())


def is_cpu_name(name: str) -> bool:
    """Return True if the name is `cpu`, in upper or lower case."""
    return name.casefold() == "cpu"


def is_local_gpu(name: str) -> bool:
    """Return True for the name of a local GPU: a number, `cuda` or `cuda:0`."""
    return name.isdecimal() or name.partition(":")[0] == "cuda"


def find_datasheet(name: str) -> datasheets.Datasheet | None:
    """Return the datasheet of a GPU by a local index or the datasheet's name; None if there is no datasheet."""
    if is_local_gpu(name):
        guess = _find_local_gpu(name).guess
        return datasheets.datasheet_of(guess.name) if guess else None
    with suppress(ValueError):
        return datasheets.datasheet_of(name)
    return None


def find_device_identity(name: str) -> Identity:
    """Return the identity of a device, found by a local name, its key or its datasheet's name.

    A name that matches no device is returned as the key of an unknown device.
    """
    if is_cpu_name(name):
        return identity.cpu_identity(blas_threads())
    if is_local_gpu(name):
        return _find_local_gpu(name).identity
    sections = _sections_by_device()
    key = name if name in sections else _find_tuned_device_key(name, sections)
    return Identity(key, device_name(key, sections[key]) if key in sections else key)


def _find_tuned_device_key(name: str, sections: Mapping[str, JsonValue]) -> str:
    """Return the key of the tuned card with this datasheet; return the name itself for no or several tuned cards."""
    with suppress(ValueError):
        wanted = datasheets.datasheet_of(name)
        models = {
            key: devices.calibration_from_datasheet(key, device_name(key, section)) for key, section in sections.items()
        }
        found = [key for key, model in models.items() if model is not None and model.name == wanted.name]
        return found[0] if len(found) == 1 else name
    return name


def tuning_from_config(name: str, dtype: str) -> Tuning | None:
    """Return the tuning of an element type on a device from the active configs; None if there is no tuning."""
    own = "float64" if is_cpu_name(name) and dtype in INTEGERS else dtype  # integer matrices use the tuning of float64
    return (
        None
        if environment.tuning_mode() == "off"
        else files.active_configs().find_tuning(find_device_identity(name), own)
    )


def memory_bytes_from_config(name: str) -> int | None:
    """Return a device's memory in bytes from the active configs; None for a device that is in no active config."""
    known = find_device_identity(name)
    section = _sections_by_device().get(known.key)
    return (
        None
        if section is None
        else device_memory_bytes(section, devices.calibration_from_datasheet(known.key, known.name))
    )


def tuning_rejection_reason(name: str, dtype: str) -> str:
    """Return as text why fmm.matmul rejects a device's tuning; empty for an accepted or missing tuning."""
    tuned = tuning_from_config(name, dtype)
    if not tuned or not tuned.diagnostics:
        return ""
    return f"tuning rejected: {tuned.diagnostics[0]}; used instead: {fallback_model_text(tuned.identity, dtype)}"


def cpu_rejection_lines(sections: Mapping[str, JsonValue], key: str) -> list[str]:
    """Return lines that say why the installed libraries make fmm.matmul reject sections of this CPU."""
    if key != find_device_identity("cpu").key:
        return []
    reasons: dict[str, list[str]] = {}
    for dtype, raw in sections.items():
        own = raw.get("doubts") or ()
        for diagnostic in read_section(raw, f"{key}.{dtype}", find_device_identity("cpu"), dtype).diagnostics:
            if diagnostic not in own:
                reasons.setdefault(diagnostic, []).append(dtype)
    instead = fallback_model_text(find_device_identity("cpu"), "")
    return [f"{', '.join(types)}: tuning rejected: {why}; used instead: {instead}" for why, types in reasons.items()]


def trusted_calibration(name: str, dtype: str) -> Calibration | None:
    """Return a tuning's calibration, with datasheet rates added where needed; None for a missing or rejected tuning."""
    tuned, known = tuning_from_config(name, dtype), find_device_identity(name)
    real = tuning_from_config(name, DTYPES[dtype].real) if DTYPES[dtype].real else None
    return (
        complete_calibration(tuned, real, devices.calibration_from_datasheet(known.key, known.name)) if tuned else None
    )


def find_calibration(name: str, dtype: str) -> Calibration:
    """Return a device's calibration from its tuning; without a tuning, a CPU's built-in one or a GPU datasheet's.

    Raise ValueError with the valid names for an unknown device.
    """
    exact = is_cpu_name(name) and dtype in INTEGERS
    if (known := trusted_calibration(name, dtype)) is not None:
        return with_integer_rates(known) if exact else known
    if is_cpu_name(name):
        built_in = cpu_calibration(blas_threads())
        return with_integer_rates(built_in) if exact else built_in
    if is_local_gpu(name) or name in _sections_by_device():
        found = find_device_identity(name)
        guess = devices.calibration_from_datasheet(found.key, found.name)
        if guess is None:
            raise ValueError(f"{found.name} has no tuning in use for {dtype}, and no datasheet")
        return related_gpu_calibration(guess, dtype) or guess
    try:
        unmeasured = datasheet_calibration(name)
        return related_gpu_calibration(unmeasured, dtype) or unmeasured
    except ValueError:
        if matches := [key for key in tuned_device_keys() if key.startswith(f"{name}-")]:
            what = "ambiguous" if len(matches) > 1 else "incomplete"
            raise ValueError(f"{what} device {name!r}; the configs have {', '.join(matches)}") from None
        raise ValueError(f"unknown device {name!r}; valid: {', '.join(valid_device_names())}") from None


def _find_local_gpu(name: str) -> devices.Device:
    index = devices.parse_cuda_index(int(name) if name.isdecimal() else name)
    try:
        return devices.cuda_device(index)
    except ImportError as error:
        raise ValueError(f"the device {name!r} needs CuPy, which does not load: {error}") from error


def _sections_by_device() -> dict[str, JsonValue]:
    """Return one section, of any type, for each device key in the active configs; empty if the tuning mode is `off`."""
    if environment.tuning_mode() == "off":
        return {}
    found: dict[str, JsonValue] = {}
    for types_by_key in files.active_configs().files.values():
        for key, sections in types_by_key.items():
            for section in sections.values():
                found.setdefault(key, section)
    return found

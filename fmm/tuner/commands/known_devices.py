"""The devices of which a prediction can be asked: this processor, GPUs here, those of datasheets and of configs.

A GPU here goes by its number (0, or cuda:0), one of a config by its key there (cuda-9.0-132sm-nvidia-h200). CuPy is
loaded for a GPU here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from fmm.config import environment, files, identity
from fmm.config.identity import Identity
from fmm.config.older_keys import meant_key
from fmm.config.schema import Raw, Tuned, read_section
from fmm.dtypes import DTYPES, INTEGERS
from fmm.hardware import datasheets
from fmm.kernels.cpu.threads.thread_pool import blas_threads
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration, with_integer_rates
from fmm.runtime import devices
from fmm.runtime.decisions.calibration_in_force import complete_calibration
from fmm.tuner.findings.described import instead
from fmm.tuner.findings.model_in_use import device_memory, device_name, guess_of

HERE = ("cpu", "0")  # 0 stands for whatever GPUs there are


def valid_names() -> tuple[str, ...]:
    """What can be asked for now."""
    return (*HERE, *datasheets.device_names(), *tuned_keys())


def tuned_keys() -> tuple[str, ...]:
    """Of the devices that the configs in force know."""
    return tuple(_sections_by_key())


def meant_name(name: str) -> str:
    """The name of a device; of an older key today's, if the configs in force know one such card."""
    return meant_key(name, tuned_keys())


def names_in_words() -> str:
    """The same as a sentence for people."""
    keys = ", ".join(tuned_keys())
    tuned = f"; by a tuning in the configs in force: {keys}" if keys else ""
    return f"devices: cpu; a GPU here by its number: 0; by a datasheet: {', '.join(datasheets.device_names())}{tuned}"


def is_cpu(name: str) -> bool:
    return name.casefold() == "cpu"


def is_gpu_here(name: str) -> bool:
    """Is it a number, or cuda:0 and the like?"""
    return name.isdecimal() or name.partition(":")[0] == "cuda"


def sheet_of(name: str) -> datasheets.Device | None:
    """The datasheet of a device by its name, or of a GPU here; None of others."""
    if is_gpu_here(name):
        guess = _gpu_here(name).guess
        return datasheets.device(guess.name) if guess else None
    with suppress(ValueError):
        return datasheets.device(name)
    return None


def identity_of(name: str) -> Identity:
    """Of a device as the configs in force know it; of one that they do not, its name alone."""
    if is_cpu(name):
        return identity.cpu_identity(blas_threads())
    if is_gpu_here(name):
        return _gpu_here(name).identity
    section = _sections_by_key().get(name)
    return Identity(name, name if section is None else device_name(name, section))


def tuning_of(name: str, dtype: str) -> Tuned | None:
    """What the configs in force say of it."""
    own = "float64" if is_cpu(name) and dtype in INTEGERS else dtype  # integers are not tuned themselves
    return None if environment.tuning_mode() == "off" else files.active_configs().tuned(identity_of(name), own)


def memory_in_config(name: str) -> int | None:
    """Bytes of the device, as the configs in force know it; None where none does."""
    known = identity_of(name)
    section = _sections_by_key().get(known.key)
    return None if section is None else device_memory(section, guess_of(known.key, known.name))


def not_used(name: str, dtype: str) -> str:
    """Why fmm.matmul sets a tuning aside, and so do we."""
    tuned = tuning_of(name, dtype)
    if not tuned or not tuned.doubts:
        return ""
    return f"the tuning here is not used: {tuned.doubts[0]}; {instead(tuned.identity, dtype)}"


def not_used_here(sections: Mapping[str, Raw], key: str) -> list[str]:
    """Of a config's sections of this processor: which fmm.matmul would not use as it is installed here, and why."""
    if key != identity_of("cpu").key:
        return []
    reasons: dict[str, list[str]] = {}
    for dtype, raw in sections.items():
        own = raw.get("doubts") or ()
        for doubt in read_section(raw, f"{key}.{dtype}", identity_of("cpu"), dtype).doubts:
            if doubt not in own:
                reasons.setdefault(doubt, []).append(dtype)
    then = instead(identity_of("cpu"), "")
    return [f"{', '.join(x)}: the tuning here is not used: {why}; {then}" for why, x in reasons.items()]


def trusted_calibration(name: str, dtype: str) -> Calibration | None:
    """The model by which products are chosen there, by a tuning that is used."""
    tuned, known = tuning_of(name, dtype), identity_of(name)
    real = tuning_of(name, DTYPES[dtype].real) if DTYPES[dtype].real else None
    return complete_calibration(tuned, real, guess_of(known.key, known.name)) if tuned else None


def calibration_of(name: str, dtype: str) -> Calibration:
    """Of a device whose tuning is used, else of a datasheet; ValueError, which names the valid ones, of any other."""
    exact = is_cpu(name) and dtype in INTEGERS
    if (known := trusted_calibration(name, dtype)) is not None:
        return with_integer_rates(known) if exact else known
    if is_cpu(name):
        return with_integer_rates(cpu_calibration(blas_threads())) if exact else cpu_calibration(blas_threads())
    if is_gpu_here(name) or name in _sections_by_key():
        return _untuned(identity_of(name), dtype)
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

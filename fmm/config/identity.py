"""The identity of a device: the key of its tunings in a config, and the versions of the libraries and the driver."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from fmm.config.reader import JsonValue
from fmm.kernels.cpu.blas_kernel import cpuinfo_field
from fmm.kernels.cpu.compiled_sums import is_compiler_installed
from fmm.kernels.cpu.openblas import openblas_kernel


@dataclass(frozen=True)
class Identity:
    """The key, name and library versions of a device.

    A tuning in a config is found by `key`. The entries of a tuning are used only if `versions` equals the versions that
    the tuning recorded.
    """

    key: str
    name: str
    versions: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)


@lru_cache(maxsize=64)
def cpu_identity(threads: int) -> Identity:
    """Return the identity of this CPU with this number of BLAS threads."""
    versions = {
        "numpy": np.__version__,
        "blas": blas_version(),
        SUMS_VERSION_NAME: COMPILED_SUMS if is_compiler_installed() else "numpy",
        PROCESSOR_MODEL: processor_model(),
        BLAS_KERNEL: openblas_kernel(),
    }
    versions = {name: version for name, version in versions.items() if version}
    return Identity(cpu_device_key(threads), processor_name(), MappingProxyType(versions))


# On a CPU, the matrix sums of a plan are computed by compiled code (llvmlite) or by NumPy, as Identity.versions records
# under SUMS_VERSION_NAME. NumPy's sums take longer, so fmm rejects a tuning that was measured with compiled sums if
# llvmlite is missing.
SUMS_VERSION_NAME, COMPILED_SUMS = "sums", "llvmlite"
# Virtual machines give several generations of processors the same name, for example "AMD EPYC", and OPENBLAS_CORETYPE
# selects another kernel of OpenBLAS. A tuning is rejected where the processor's model or OpenBLAS's kernel differs.
PROCESSOR_MODEL, BLAS_KERNEL = "processor model", "OpenBLAS kernel"


def cpu_device_key(threads: int) -> str:
    """Return the device key of this processor with this number of BLAS threads; a folder of results/ has this name."""
    return "-".join(["cpu", *_alphanumeric_words(processor_name()), f"{threads}t"])


def _alphanumeric_words(name: str) -> list[str]:
    return "".join(c if c.isalnum() else " " for c in name.lower()).split()


@lru_cache(maxsize=1)
def processor_name() -> str:
    """Return the processor's name as the operating system reports it."""
    return cpuinfo_field("model name") or platform.processor() or platform.machine()


def model_rejection_reasons(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons against a model that was fitted with the versions `then`, if the versions are `now`."""
    if then.get(SUMS_VERSION_NAME) == COMPILED_SUMS != now.get(SUMS_VERSION_NAME, COMPILED_SUMS):
        yield "it was tuned with compiled sums, and llvmlite is installed no more"
    for name in (PROCESSOR_MODEL, BLAS_KERNEL):
        if (before := then.get(name)) != (here := now.get(name, before)) and before is not None:
            yield f"it was tuned with the {name} {before}; the {name} is now {here}"


def processor_model() -> str:
    """Return the family and model of this x86 processor, such as "25.1"; an empty string on other systems."""
    return ".".join(filter(None, map(cpuinfo_field, ("cpu family", "model"))))


def blas_version() -> str:
    """Return the name and version of the BLAS that NumPy was built with."""
    try:
        found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{found['name']} {found['version']}"
    except (KeyError, TypeError):
        return "unknown"


def gpu_device_key(name: str, capability: str, sms: int) -> str:
    """Return the key of a GPU, for example cuda-9.0-132sm-nvidia-h200; cards with the same key share a tuning.

    The name is part of the key: an H100 has as many multiprocessors as an H200, but slower memory.
    """
    return "-".join([f"cuda-{capability}-{sms}sm", *_alphanumeric_words(name)])


def parse_gpu_device_key(key: str) -> tuple[str, int] | None:
    """Return the compute capability and the number of multiprocessors that a GPU's key names; None for a CPU's key."""
    found = re.fullmatch(r"cuda-(\d{1,3}\.\d{1,3})-(\d{1,9})sm(-.*)?", key)
    return (found[1], int(found[2])) if found else None


def recorded_device_name(section: JsonValue) -> str:
    """Return the device name that a section of a config records in its conditions; empty if no name is recorded."""
    conditions = section.get("conditions") if isinstance(section, dict) else None
    name = conditions.get("device") if isinstance(conditions, dict) else None
    return name if isinstance(name, str) else ""

"""Identity: what a tuning is filed under, and the versions whose change casts doubt on it."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from fmm.config.reader import Raw
from fmm.kernels.cpu.compiled_sums import compiler_installed


@dataclass(frozen=True)
class Identity:
    """A device as a config knows it: `key` holds what changes the answers, `versions` what may have changed them."""

    key: str
    name: str
    versions: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)


@lru_cache(maxsize=64)
def cpu_identity(threads: int) -> Identity:
    """This CPU with so many BLAS threads."""
    versions = {"numpy": np.__version__, "blas": _blas_version(), SUMS: COMPILED if compiler_installed() else "numpy"}
    return Identity(cpu_key(threads), processor_name(), MappingProxyType(versions))


# On a CPU, what computes the sums of plans: a tuning with compiled sums says nothing of NumPy's, which take longer.
SUMS, COMPILED = "sums", "llvmlite"


def cpu_key(threads: int) -> str:
    """A short name for this processor and number of threads; folders under results/ have it too."""
    return "-".join(["cpu", *_words(processor_name()), f"{threads}t"])


def _words(name: str) -> list[str]:
    """The words of a name, as a key has them."""
    return "".join(c if c.isalnum() else " " for c in name.lower()).split()


@lru_cache(maxsize=1)
def processor_name() -> str:
    """The processor's name, as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _blas_version() -> str:
    """Name and version of the BLAS that NumPy was built with, as NumPy tells."""
    try:
        found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{found['name']} {found['version']}"
    except (KeyError, TypeError):
        return "unknown"


def gpu_key(name: str, capability: str, sms: int) -> str:
    """What two CUDA devices share if their answers are the same: cuda-9.0-132sm-nvidia-h200.

    Cards with one chip differ in their memory, and in their name: an H100 has as many multiprocessors as an H200.
    """
    return "-".join([f"cuda-{capability}-{sms}sm", *_words(name)])


def gpu_parts(key: str) -> tuple[str, int] | None:
    """Compute capability and number of multiprocessors, by a GPU's key; None of a processor."""
    found = re.fullmatch(r"cuda-(\d{1,3}\.\d{1,3})-(\d{1,9})sm(-.*)?", key)
    return (found[1], int(found[2])) if found else None


def named_device(section: Raw) -> str:
    """The name of the device that a section of a config is of; empty where it holds none."""
    conditions = section.get("conditions") if isinstance(section, dict) else None
    name = conditions.get("device") if isinstance(conditions, dict) else None
    return name if isinstance(name, str) else ""

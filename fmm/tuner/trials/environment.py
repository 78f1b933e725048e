"""Describe the environment of a measurement, for files of results: processor, libraries, commit and command."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fmm.config.identity import cpu_device_key, processor_name
from fmm.kernels.cpu.blas_kernel import slow_kernel_warning
from fmm.kernels.cpu.openblas import openblas_kernel
from fmm.kernels.cpu.thread_pool import blas_threads, usable_processors
from fmm.runtime.source_commit import source_commit


def environment_record(command: list[str]) -> dict[str, Any]:
    """Return the environment of a measurement: processor, system, library versions, threads, commit, date, command.

    The field `blas_warning` is empty unless OpenBLAS runs kernels for an older processor.
    """
    return {
        "processor": processor_name(),
        "processors": usable_processors(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": _blas_versions(),
        "blas_threads": blas_threads(),
        "blas_kernel": openblas_kernel(),
        "blas_warning": slow_kernel_warning(),
        "commit": source_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(command),
    }


def command_line_words() -> list[str]:
    """Return the program's name, without its folder, and the arguments of the user's command."""
    name = Path(sys.argv[0]).name
    return ["fmm-tune" if name == "cli.py" else name, *sys.argv[1:]]


def results_folder_name() -> str:
    """Return the name of the folder in results/ for this processor and number of BLAS threads."""
    return cpu_device_key(blas_threads())


def _blas_versions() -> str:
    """Return the name, version and kernel architecture of each loaded BLAS library, as text."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "unknown (threadpoolctl is not installed)"
    found = [i for i in threadpool_info() if i["user_api"] == "blas"]
    return ", ".join(f"{i['internal_api']} {i['version']} {i.get('architecture', '')}".strip() for i in found)

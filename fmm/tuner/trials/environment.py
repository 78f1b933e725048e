"""Describe the environment of a measurement: processor, libraries, commit and command, for the files of results."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fmm.config.identity import cpu_device_key, processor_name
from fmm.kernels.cpu.blas_kernel import slow_kernel_warning
from fmm.kernels.cpu.openblas import openblas_kernel
from fmm.kernels.cpu.thread_pool import blas_threads, usable_processors


def environment_record(command: list[str]) -> dict[str, Any]:
    """Return processor, system, versions of Python, NumPy and BLAS, BLAS threads and kernel, commit, date and command.

    `blas_warning` is empty unless OpenBLAS runs a kernel for an older processor.
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


def source_commit() -> str:
    """Return the git commit of the source tree, with `-dirty` if files changed since; empty for an installed wheel.

    The variable FMM_COMMIT names the commit of a source tree that was copied without its repository.
    """
    if commit := os.environ.get("FMM_COMMIT"):
        return commit
    root = Path(__file__).parents[3]
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def _blas_versions() -> str:
    """Return name, version and kernel of each loaded BLAS library, as text."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "unknown (threadpoolctl is not installed)"
    found = [i for i in threadpool_info() if i["user_api"] == "blas"]
    return ", ".join(f"{i['internal_api']} {i['version']} {i.get('architecture', '')}".strip() for i in found)

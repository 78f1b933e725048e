"""fmm.show_config, which prints the information for a bug report, from versions to active configs.

It imports no library.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from fmm.config.environment import VENDOR_VARIABLES, environment_value, is_disabled, tuning_mode
from fmm.config.files import SHIPPED_CONFIG, active_configs, read_config, search_path, site_folder
from fmm.config.identity import blas_version, cpu_identity, processor_name
from fmm.config.reader import ConfigError
from fmm.dtypes import DTYPES
from fmm.hardware.nvml import installed_driver, installed_gpus
from fmm.kernels.cpu.blas_kernel import slow_kernel_warning
from fmm.kernels.cpu.openblas import openblas_kernel
from fmm.kernels.cpu.thread_pool import blas_threads, usable_processors
from fmm.runtime.source_commit import source_commit
from fmm.version import __version__

# Packages (by the names of their distributions) that change the products or the products' speed. The versions of the
# packages are read without an import.
OPTIONAL_PACKAGES = (
    *("cupy", "cupy-cuda12x", "cupy-cuda13x", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cuda-nvrtc"),
    *("torch", "jax", "jaxlib", "dask", "distributed", "opt-einsum", "scipy"),
    *("llvmlite", "numba", "optuna", "threadpoolctl"),
)
# Environment variables of other programs that change the products, the products' speed, or the folders of fmm's files.
OTHER_VARIABLES = (
    *dict.fromkeys(name for variables in VENDOR_VARIABLES.values() for name in variables),
    *("CUBLAS_EMULATION_STRATEGY", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "CUPY_CACHE_DIR", "CXX"),
    *("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME"),
)


def show_config() -> None:
    """Print the information for a bug report: versions, processor, BLAS, GPUs, driver, active configs and environment.

    The printed lines contain names of folders. If OpenBLAS runs a kernel for an older processor, a warning is printed.

    Notes
    -----
    `python -m fmm --version --verbose` prints the same lines, and `python -m fmm --version --json` the same facts as
    JSON.

    Examples
    --------
    >>> import fmm
    >>> fmm.show_config()
    fmm...
    processor: ...
    """
    print(*config_lines(), sep="\n")


def config_facts() -> dict[str, Any]:
    """Return the information that show_config prints, as a dictionary that json.dumps accepts."""
    driver = installed_driver()
    return {
        "fmm": {"version": __version__, "folder": str(Path(__file__).parents[1]), "commit": source_commit()},
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "system": platform.platform(),
        "processor": {"name": processor_name(), "usable": usable_processors()},
        "numpy": np.__version__,
        "blas": {
            "build": blas_version(),
            "kernel": openblas_kernel(),
            "threads": blas_threads(),
            "warning": slow_kernel_warning(),
        },
        "packages": installed_versions(),
        "driver": None if driver is None else driver._asdict(),
        "gpus": [gpu._asdict() for gpu in installed_gpus()],
        "tuning_mode": "disabled by FMM_DISABLE" if is_disabled() else tuning_mode(),
        "configs": list(config_file_facts()),
        "processor_tunings": dict(processor_tunings()),
        "environment": environment_facts(),
    }


def config_lines() -> Iterator[str]:
    """Yield the lines that show_config prints."""
    facts = config_facts()
    own, python, processor, blas = facts["fmm"], facts["python"], facts["processor"], facts["blas"]
    commit = f", commit {own['commit']}" if own["commit"] else ""
    yield f"fmm {own['version']}{commit}, in {own['folder']}"
    yield f"{python['implementation']} {python['version']}, NumPy {facts['numpy']}, {facts['system']}"
    yield f"processor: {processor['name']}, {processor['usable']} usable"
    yield f"BLAS: {blas['build']}, {blas['kernel'] or 'unknown'} kernel, {blas['threads']} threads"
    if blas["warning"]:
        yield f"warning: {blas['warning']}"
    for gpu in facts["gpus"]:
        yield f"GPU: {gpu['name']}, compute capability {gpu['capability']}, {gpu['memory_bytes'] / 2**30:.0f} GiB"
    driver = facts["driver"]
    yield f"driver: {driver['version']}, up to CUDA {driver['cuda']}" if driver else "driver: no NVIDIA driver found"
    yield f"packages: {', '.join(f'{name} {found}' for name, found in facts['packages'].items()) or 'none'}"
    yield f"tuning mode: {facts['tuning_mode']}"
    for config in facts["configs"]:
        content = config["error"] or ", ".join(config["devices"]) or "no device"
        yield f"config ({config['source']}): {config['path']}: {content}"
    for dtype, source in facts["processor_tunings"].items():
        yield f"tuning of this processor: {dtype}: {source}"
    for name, value in facts["environment"].items():
        yield f"environment: {name}={value}"


def installed_versions() -> dict[str, str]:
    """Return the version of each installed package in OPTIONAL_PACKAGES; no package is imported."""
    found = {}
    for name in OPTIONAL_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def config_file_facts() -> Iterator[dict[str, Any]]:
    """Yield each config file, in search order, with its devices, or with an error if the file cannot be used.

    A missing config file is an error only if FMM_CONFIG names the file.
    """
    named = environment_value("FMM_CONFIG")
    for path in search_path(named):
        fact = {
            "path": str(path),
            "source": "FMM_CONFIG" if named else _config_source(path),
            "devices": [],
            "error": "",
        }
        try:
            if named or path.exists():
                yield fact | {"devices": list(read_config(path))}
        except (ConfigError, OSError) as error:
            yield fact | {"error": f"not used: {error}"}


def _config_source(path: Path) -> str:
    if path == SHIPPED_CONFIG:
        return "shipped"
    return "site" if path.parent == site_folder() else "user"


def processor_tunings() -> Iterator[tuple[str, str]]:
    """Yield each element type with a tuning of this processor, and the source of its model (or why it has no model)."""
    identity = cpu_identity(blas_threads())
    for dtype in DTYPES:
        if tuned := active_configs().find_tuning(identity, dtype):
            model = tuned.trusted_calibration
            yield dtype, model.source if model else next(iter(tuned.diagnostics), "without a model")


def environment_facts() -> dict[str, str]:
    """Return the environment variables that are set and begin with FMM_ or are in OTHER_VARIABLES."""
    names = [*sorted(name for name in os.environ if name.startswith("FMM_")), *OTHER_VARIABLES]
    return {name: os.environ[name] for name in names if name in os.environ}

"""fmm.show_config: print the versions, the processor, its BLAS and the configs in force."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from fmm.config.environment import is_disabled, tuning_mode
from fmm.config.files import active_configs
from fmm.config.identity import processor_name
from fmm.kernels.cpu.blas_kernel import slow_kernel_warning
from fmm.kernels.cpu.openblas import openblas_kernel
from fmm.kernels.cpu.thread_pool import blas_threads


def show_config() -> None:
    """Print the versions, the processor, the kernel that BLAS runs, and the configs in force.

    A warning is printed if OpenBLAS runs a kernel for an older processor.

    Examples
    --------
    >>> import fmm
    >>> fmm.show_config()
    fmm...
    processor: ...
    """
    print(*config_lines(), sep="\n")


def config_lines() -> Iterator[str]:
    """Yield the lines that show_config prints."""
    try:
        own = version("fmm-tune")
    except PackageNotFoundError:  # a source tree that is not installed
        own = "not installed"
    yield f"fmm {own}, NumPy {np.__version__}"
    yield f"processor: {processor_name()}"
    yield f"BLAS: {openblas_kernel() or 'unknown'} kernel, {blas_threads()} threads"
    if warning := slow_kernel_warning():
        yield f"warning: {warning}"
    yield f"tuning mode: {'disabled by FMM_DISABLE' if is_disabled() else tuning_mode()}"
    for path, devices in active_configs().files.items():
        yield f"config: {path} ({', '.join(devices) or 'no device'})"

"""The GPU that a benchmark runs on: its folder in results/, and what is noted of it beside the samples."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from fmm.tuner.trials.environment import source_commit

ROOT = Path(__file__).parents[1]


def results_folder() -> Path:
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    name: str = properties["name"].decode()
    return ROOT / "results" / name.lower().replace(" ", "-")


def device_count() -> int:
    return int(cupy.cuda.runtime.getDeviceCount())


def environment() -> dict[str, Any]:
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    return {
        "device": properties["name"].decode(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": properties["multiProcessorCount"],
        "memory": properties["totalGlobalMem"],
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cuda": cupy.cuda.runtime.runtimeGetVersion(),
        "cublas": cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()),
        "cupy": cupy.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "commit": source_commit() or "unknown",
        "command": " ".join([f"python -m {_module()}", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def _module() -> str:
    """The benchmark that was started."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).stem

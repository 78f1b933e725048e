"""The files of device_code/, of which the generated CUDA sources consist but for a stub."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def text(name: str) -> str:
    return (resources.files("fmm.kernels.cuda.device_code") / name).read_text(encoding="utf-8")

"""A bench by the name that a user gives its device."""

from __future__ import annotations

from benchmarks.papers.bench import Bench, HostBench
from fmm.runtime.devices import parse_cuda_index


def bench_of(name: str) -> Bench:
    """`cpu`, or a CUDA device by its number or as `cuda:0`; ValueError if it does not answer."""
    if name == "cpu":
        return HostBench()
    index = parse_cuda_index(int(name) if name.isdecimal() else name)
    try:
        from benchmarks.papers.cuda_bench import CudaBench  # CuPy

        return CudaBench(index)
    except Exception as error:  # whatever the import or the driver raises
        raise ValueError(f"the device {name!r} does not answer: {type(error).__name__}: {error}") from None

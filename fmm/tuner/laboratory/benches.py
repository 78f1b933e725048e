"""Which benches there are, by the names that the command takes."""

from __future__ import annotations

from fmm.tuner.laboratory.bench import Bench, HostBench


def bench_of(name: str) -> Bench:
    """`cpu`, or the number of a CUDA device; ValueError if it does not answer."""
    if name == "cpu":
        return HostBench()
    try:
        from fmm.tuner.laboratory.cuda_bench import CudaBench  # CuPy

        return CudaBench(int(name))
    except Exception as error:  # whatever the import or the driver raises
        raise ValueError(f"the device {name!r} does not answer: {type(error).__name__}: {error}") from None

"""Which benches there are, by the names that the command takes."""

from __future__ import annotations

from typing import Any

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.problem import Problem
from fmm.runtime.devices import cuda_index
from fmm.tuner.laboratory.bench import Bench, HostBench
from fmm.tuner.laboratory.experiment import Experiment, Part


def bench_of(name: str) -> Bench:
    """`cpu`, or a CUDA device by its number or as `cuda:0`; ValueError if it does not answer."""
    if name == "cpu":
        return HostBench()
    index = cuda_index(int(name) if name.isdecimal() else name)
    try:
        from fmm.tuner.laboratory.cuda_bench import CudaBench  # CuPy

        return CudaBench(index)
    except Exception as error:  # whatever the import or the driver raises
        raise ValueError(f"the device {name!r} does not answer: {type(error).__name__}: {error}") from None


class PlannedBench:
    """What an experiment asks of a device before it measures: a CUDA device that is not there, or a processor. Of what
    fmm itself would choose it knows nothing."""

    def __init__(self, on_host: bool) -> None:
        self.on_host = on_host

    def chosen(self, problem: Problem, max_error_growth: float | None = None, emulation: bool = True) -> Plan:
        return VENDOR


def planned_parts(experiment: Experiment, scale: float, on_host: bool = False) -> tuple[Part, ...]:
    """The parts of an experiment, known without the device that is to measure them."""
    bench: Any = PlannedBench(on_host)
    return tuple(experiment.parts(bench, scale))

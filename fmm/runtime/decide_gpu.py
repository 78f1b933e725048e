"""Decisions for products on CUDA devices: which calibration a device has, and what the model chooses with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from fmm.config import environment, files
from fmm.config.identity import Identity, gpu_key
from fmm.hardware import datasheets
from fmm.hardware.chip import Chip
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import workspace
from fmm.perfmodel.calibration import Calibration, datasheet
from fmm.perfmodel.choose import Limits, choose
from fmm.problem import Problem
from fmm.runtime.decide import Decision, answer, winning


@dataclass(frozen=True)
class Gpu:
    """A CUDA device as its driver describes it."""

    index: int
    name: str
    capability: str
    sms: int
    versions: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    chip: Chip | None = field(default=None, hash=False, compare=False)

    @cached_property
    def identity(self) -> Identity:
        """What a tuning of it is filed under."""
        return Identity(gpu_key(self.capability, self.sms), self.name, self.versions)


@lru_cache(maxsize=64)
def gpu(index: int) -> Gpu:
    """The device with this number; ValueError if there is none, ImportError without CuPy."""
    import cupy

    from fmm.kernels.cuda.launch import cublas
    from fmm.kernels.cuda.launch.device_facts import chip_of

    runtime = cupy.cuda.runtime
    count = runtime.getDeviceCount()
    if not 0 <= index < count:
        raise ValueError(f"there is no device cuda:{index}; this machine has {count}")
    facts = runtime.getDeviceProperties(index)
    name = facts["name"].decode() if isinstance(facts["name"], bytes) else str(facts["name"])
    numbers = {
        "driver": runtime.driverGetVersion(),
        "cuda": runtime.runtimeGetVersion(),
        "cublas": cublas.cublas_version(),
    }
    versions = {**{name: str(number) for name, number in numbers.items()}, "cupy": str(cupy.__version__)}
    capability = f"{facts['major']}.{facts['minor']}"
    return Gpu(index, name, capability, int(facts["multiProcessorCount"]), versions, chip_of(index))


@lru_cache(maxsize=64)
def calibration_of_device(device: Gpu) -> Calibration | None:
    """What the model knows of a device: its datasheet, until it is tuned; None if it is not in the table.

    A name alone is not enough: cards of one name are sold with fewer multiprocessors, and a device can be split.
    """
    words = device.name.upper().replace("-", " ").split()
    for name in datasheets.device_names():
        known = datasheets.device(name)
        parts = name.upper().split()
        named = any(words[i : i + len(parts)] == parts for i in range(len(words)))
        if named and (known.capability, known.sms) == (device.capability, device.sms):
            return datasheet(name)
    return None


def decide_on(device: Gpu, problem: Problem, limits: Limits) -> Decision:
    """The choice on a device: by its config, else its datasheet; the vendor's product where nothing is known of it."""
    return answer(problem, limits, device.identity, lambda: calibration_of_device(device))


def leaner_on(device: Gpu, problem: Problem, than: Plan, limits: Limits) -> Iterator[Plan]:
    """What to try when memory ran out: plans with ever less workspace that still win; none at last.

    By the model, whoever chose the plan: an entry of a config names no others.
    """
    known = _known(device, problem)
    if known is not None and problem.dtype in known.rates:
        used = workspace(than, *problem.size, problem.itemsize)
        yield from winning(choose(problem, known, limits).considered, limits, used)


def _known(device: Gpu, problem: Problem) -> Calibration | None:
    """The calibration by which this device's plans are compared: its config's, else its datasheet's."""
    tuned = None if environment.mode() == "off" else files.configs().tuned(device.identity, problem.dtype)
    return tuned.calibration if tuned and tuned.calibration else calibration_of_device(device)

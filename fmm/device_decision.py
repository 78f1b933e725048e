"""Decisions for products on CUDA devices: who answers for a device, and with which calibration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from fmm import config, identity
from fmm.decision import Decision, answer
from fmm.identity import Identity
from fmm.kernels.plan import VENDOR, Plan
from fmm.kernels.recipe import workspace
from fmm.perfmodel import devices
from fmm.perfmodel.calibration import Calibration, datasheet
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.problem import Problem


class UnknownDeviceError(Exception):
    """A device, or a type on it, of which nothing is known; the argument says what."""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device as its driver describes it, and what a tuning of it is filed under."""

    identity: Identity
    capability: str
    sms: int

    @property
    def name(self) -> str:
        return self.identity.name

    @staticmethod
    def of(name: str, capability: str, sms: int) -> Gpu:
        """A device of this kind, wherever it is."""
        major, minor = map(int, capability.split("."))
        return Gpu(Identity(identity.gpu_key(major, minor, sms), name), capability, sms)


@lru_cache(maxsize=64)
def gpu(index: int) -> Gpu:
    """The device with this number; ValueError if there is none, ImportError without CuPy."""
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if not 0 <= index < count:
        raise ValueError(f"there is no device cuda:{index}; this machine has {count}")
    facts = cupy.cuda.runtime.getDeviceProperties(index)
    return Gpu(identity.gpu(index), f"{facts['major']}.{facts['minor']}", int(facts["multiProcessorCount"]))


def calibration_of_device(device: Gpu, dtype: str) -> Calibration:
    """What the model knows of a type on a device: as it was tuned, else from its datasheet; UnknownDeviceError."""
    tuned = None if config.mode() == "off" else config.configs().tuned(device.identity, dtype)
    return tuned.calibration if tuned and tuned.calibration else _of_datasheet(device, dtype)


@lru_cache(maxsize=64)
def _of_datasheet(device: Gpu, dtype: str) -> Calibration:
    """By name, capability and size: cards of one name are sold with fewer multiprocessors, and some are split."""
    words = device.name.upper().replace("-", " ").split()
    for name in devices.device_names():
        known = devices.device(name)
        parts = name.upper().split()
        named = any(words[i : i + len(parts)] == parts for i in range(len(words)))
        if named and (known.capability, known.sms) == (device.capability, device.sms):
            found = datasheet(name)
            if dtype not in found.rates:
                raise UnknownDeviceError(f"the datasheet of {device.name} has no rate for {dtype}")
            return found
    raise UnknownDeviceError(f"{device.name} ({device.sms} multiprocessors) is neither tuned nor among the datasheets")


def decide_on(device: Gpu, problem: Problem, limits: Limits) -> Decision:
    """The choice on a device; the vendor's product where nothing is known of it. Nothing is measured in passing: that
    would have to wait for the device."""
    try:
        found = answer(problem, limits, device.identity, lambda: _of_datasheet(device, problem.dtype))
    except UnknownDeviceError as why:
        return Decision(VENDOR, problem, f"the vendor answers: {why}")
    return replace(found, trial=None)


def leaner_on(device: Gpu, problem: Problem, than: Plan, limits: Limits) -> Iterator[Plan]:
    """What to try when memory ran out: plans with ever less workspace that still win; none at last."""
    used = workspace(than, *problem.size, problem.itemsize)
    try:
        considered = choose(problem, calibration_of_device(device, problem.dtype), limits).considered
    except UnknownDeviceError:
        return
    rest = [c for c in considered if c.time < 1 and c.error_growth <= limits.error_growth and c.workspace < used]
    yield from (c.plan for c in sorted(rest, key=lambda c: -c.workspace) if c.plan != VENDOR)

"""The model of a config's section as fmm.matmul uses it, and what it does not know.

A section holds what was fitted to one type. A choice goes by more: on a GPU also by the datasheet's rates of leaves
that this tuning did not measure, of complex numbers also by what is known of real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fmm.config.identity import Identity, gpu_parts, named_device
from fmm.config.schema import ConfigError, Raw, Tuned, read_section
from fmm.dtypes import DTYPES
from fmm.hardware.datasheets import device
from fmm.kernels.plans.leaf import Leaf
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import compared_plans
from fmm.runtime.decisions.calibration_in_force import completed_calibration
from fmm.runtime.devices import datasheet_of


@dataclass(frozen=True)
class ModelInUse:
    """By what choices are made for one type of a device."""

    tuned: Tuned
    calibration: Calibration | None  # None: the tuning is not used, or holds no model
    guess: Calibration | None = None  # what is known of the device without a tuning; None of a processor
    # Leaves whose rates are the datasheet's: those that no tuning measures, and others, which this one did not.
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # leaves that are not taken, since they failed when they were measured
    memory: int | None = None  # bytes of the device, where they are known

    @property
    def on_cpu(self) -> bool:
        return not self.tuned.identity.key.startswith("cuda")


def model_in_use(key: str, dtype: str, sections: Mapping[str, Any]) -> ModelInUse:
    """Of a type, by all sections of the device; ConfigError if its own is damaged."""
    tuned, real = _checked(key, dtype, sections[dtype]), _real_type(key, dtype, sections)
    guess = guess_of(key, tuned.identity.name)
    memory = device_memory(sections[dtype], guess)
    calibration = completed_calibration(tuned, real, guess)
    if calibration is None or guess is None:
        return ModelInUse(tuned, calibration, guess, memory=memory)
    measured = {rate for x in (tuned, real) if x and x.trusted for rate in x.trusted.rates}
    own = list(dict.fromkeys(_leaves_with_rates(dtype, guess)))
    guessed = [leaf for leaf, rate in own if rate in calibration.rates.keys() - measured]
    assumed, left_out = ([x.name for x in guessed if bool(x.candidacy.probed) == probed] for probed in (False, True))
    failed = [leaf.name for leaf, rate in own if rate not in calibration.rates]
    return ModelInUse(tuned, calibration, guess, tuple(assumed), tuple(left_out), tuple(failed), memory)


def guess_of(key: str, name: str) -> Calibration | None:
    """What the datasheet tells of a GPU by its key in a config and its name; None of a processor, or of a GPU that is
    in no table."""
    parts = gpu_parts(key)
    return datasheet_of(name, *parts) if parts else None


def device_name(key: str, section: Raw) -> str:
    """The name of the device that a section is of, else its key."""
    return named_device(section) or key


def device_memory(section: Raw, guess: Calibration | None) -> int | None:
    """Bytes of the device that a section is of, as the tuning wrote them down, else by a GPU's datasheet."""
    conditions = section.get("conditions") if isinstance(section, dict) else None
    found = conditions.get("memory") if isinstance(conditions, dict) else None
    if isinstance(found, int | float) and found > 0:
        return int(found)
    return int(device(guess.name).memory_gb * 1e9) if guess else None


def _checked(key: str, dtype: str, section: Raw) -> Tuned:
    return read_section(section, f"{key}.{dtype}", Identity(key, device_name(key, section)), dtype)


def _real_type(key: str, dtype: str, sections: Mapping[str, Any]) -> Tuned | None:
    """What was tuned for the parts of complex numbers."""
    real = DTYPES[dtype].real
    with suppress(ConfigError):
        return _checked(key, real, sections[real]) if real in sections else None
    return None


def _leaves_with_rates(dtype: str, guess: Calibration) -> Iterator[tuple[Leaf, str]]:
    """Those that are compared unasked for this type and have a rate of their own on such a device, with its name."""
    for plan in compared_plans(guess.batches):
        leaf, rate = plan.leaf_use.leaf, plan.rate_name(dtype)
        if leaf.time.rate and plan.considered_for(dtype) and rate in guess.rates:
            yield leaf, rate

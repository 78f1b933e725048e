"""The model of a config's section as fmm.matmul uses it, and what it does not know.

A section holds what was fitted to one type. A choice goes by more: on a GPU also by the datasheet's rates of leaves
that no tuning measures, of complex numbers also by what is known of real ones. And by less, where a tuning is older
than a leaf: that is not taken until a new tuning has measured it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from fmm.config.identity import Identity
from fmm.config.schema import ConfigError, Raw, Tuned, checked_section
from fmm.dtypes import DTYPES
from fmm.kernels.plans.leaf import Leaf
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choosable import candidates
from fmm.runtime.decisions.calibration_in_force import completed_calibration
from fmm.runtime.devices import datasheet_of


@dataclass(frozen=True)
class ModelInUse:
    """By what choices are made for one type of a device."""

    tuned: Tuned
    calibration: Calibration | None  # None: the tuning is not used, or holds no model
    guess: Calibration | None = None  # what is known of the device without a tuning; None of a processor
    assumed: tuple[str, ...] = ()  # leaves whose rates are the datasheet's, since no tuning measures them
    lacking: tuple[str, ...] = ()  # leaves that a tuning measures today, and that this one is older than

    @property
    def renewed(self) -> Calibration | None:
        """The calibration with the datasheet's rates of what is lacking; None where nothing is."""
        if self.calibration is None or self.guess is None or not self.lacking:
            return None
        rates = MappingProxyType({**self.guess.rates, **self.calibration.rates})
        return replace(self.calibration, rates=rates)


def model_in_use(key: str, dtype: str, sections: Mapping[str, Any]) -> ModelInUse:
    """Of a type, by all sections of the device; ConfigError if its own is damaged."""
    tuned, real = _checked(key, dtype, sections[dtype]), _real_type(key, dtype, sections)
    guess = guess_of(key, tuned.identity.name)
    calibration = completed_calibration(tuned, real, guess)
    if calibration is None or guess is None:
        return ModelInUse(tuned, calibration, guess)
    measured = {rate for x in (tuned, real) if x and x.trusted for rate in x.trusted.rates}
    own = list(_leaves_with_rates(dtype, guess))
    assumed = dict.fromkeys(leaf.name for leaf, rate in own if rate in calibration.rates.keys() - measured)
    lacking = dict.fromkeys(leaf.name for leaf, rate in own if rate not in calibration.rates)
    return ModelInUse(tuned, calibration, guess, tuple(assumed), tuple(lacking))


def guess_of(key: str, name: str) -> Calibration | None:
    """What the datasheet tells of a GPU by its key in a config and its name; None of a processor, or of a GPU that is
    in no table."""
    found = re.fullmatch(r"cuda-(\d+\.\d+)-(\d+)sm", key)
    return datasheet_of(name, found[1], int(found[2])) if found else None


def device_name(key: str, section: Raw) -> str:
    """The name of the device that a section is of, else its key."""
    conditions = section.get("conditions") if isinstance(section, dict) else None
    name = conditions.get("device") if isinstance(conditions, dict) else None
    return name if isinstance(name, str) else key


def _checked(key: str, dtype: str, section: Raw) -> Tuned:
    return checked_section(section, f"{key}.{dtype}", Identity(key, device_name(key, section)), dtype)


def _real_type(key: str, dtype: str, sections: Mapping[str, Any]) -> Tuned | None:
    """What was tuned for the parts of complex numbers."""
    real = DTYPES[dtype].real
    with suppress(ConfigError):
        return _checked(key, real, sections[real]) if real in sections else None
    return None


def _leaves_with_rates(dtype: str, guess: Calibration) -> Iterator[tuple[Leaf, str]]:
    """Those that are compared unasked for this type and have a rate of their own on such a device, with its name."""
    for plan in candidates(guess.batches):
        leaf, rate = plan.leaf_use.leaf, plan.rate_name(dtype)
        if leaf.time.rate and plan.considered_for(dtype) and rate in guess.rates:
            yield leaf, rate

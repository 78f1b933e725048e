"""What a tuning's trials show: the fit, its error, the noise, entries, thresholds: the section of the config.

A function of what is recorded, so trials up to any moment are worth as much as they can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from statistics import median
from typing import Any

from fmm.config import certify, schema
from fmm.config.schema import Thresholds
from fmm.kernels.plans.leaf import plan_leaves
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration, Rate
from fmm.runtime.decisions.calibration_in_force import add_unmeasured_rates
from fmm.tuner.devices.device import Device
from fmm.tuner.findings.diagnostics import (
    distant_margin,
    disturbance,
    disturbed_margin,
    largest_pair,
    losing_margin,
    machine_doubts,
    model_doubts,
    noise_floor,
    promised_margin,
    unexplained_share,
)
from fmm.tuner.findings.thresholds import chosen_from, thresholds, with_intervals
from fmm.tuner.fit import model as fitting
from fmm.tuner.fit.blocks import chosen_strategies, fitted_blocks
from fmm.tuner.fit.sampled import sample_calibrations
from fmm.tuner.search.certify import all_entries, paired_samples
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import PRODUCT, Size, Trial

# The stages whose trials the fit sees. Never the held-out ones; nor those of the search, which are on few shapes and of
# plans that Optuna made up, unlike those between which the model is to choose. The first stage is one of rough
# products, which show what can be measured at all.
SCALE = "scale"
MEASURED = ("rates", "probe", "tiles")
FITTED = (SCALE, *MEASURED)
HELD_OUT = "held out"


def model_so_far(journal: Journal, dtype: str) -> Calibration:
    """The model by what was measured so far, with the rates of leaves that were not, as fmm.matmul would have it."""
    trials = trials_that_count(journal, dtype)
    return completed(fit_trials(journal.device, trials, dtype), journal.device, trials)


def completed(fitted: fitting.Fit, device: Device, trials: Sequence[Trial]) -> Calibration:
    return add_unmeasured_rates(fitted.calibration, device.untuned(), failed_rates(trials))


def trials_that_count(journal: Journal, dtype: str) -> tuple[Trial, ...]:
    """All that the tuning measured, and what the first look before it did, if nobody disturbed that."""
    first = journal.first_look
    if not first or machine_doubts_of(journal.device, first, dtype):
        return tuple(journal.recorded)
    return *first, *journal.recorded


def machine_doubts_of(device: Device, trials: Sequence[Trial], dtype: str) -> tuple[str, ...]:
    """What speaks against all that was measured."""
    fitted = fit_trials(device, trials, dtype).calibration
    seen = fitting.stage_medians(trials, (*MEASURED, HELD_OUT))
    disturbed_by = disturbance(trials, fitted, dtype)
    return tuple(machine_doubts(noise_floor(trials), disturbed_by, unexplained_share(seen, fitted)))


def fit_trials(device: Device, trials: Sequence[Trial], dtype: str) -> fitting.Fit:
    """The fit of what was measured; it has the rates of those leaves alone that were timed."""
    observed = tuple(fitting.stage_medians(trials, FITTED))
    if fitting.few_plans(observed):
        return scaled_by_trials(device, trials, dtype)
    return _fitted(starting_calibration(device.untuned(), dtype), dtype, observed)


def scaled_by_trials(device: Device, trials: Sequence[Trial], dtype: str) -> fitting.Fit:
    """What was known of such devices, with the rates that were measured: what a first look finds."""
    observed = fitting.stage_medians(trials, FITTED)
    return fitting.scaled_calibration(starting_calibration(device.known(dtype), dtype), dtype, observed)


@lru_cache(maxsize=8)
def _fitted(start: Calibration, dtype: str, observed: tuple[fitting.Observation, ...]) -> fitting.Fit:
    """Kept: a fit takes seconds, and the search that follows it adds nothing to what it sees."""
    return fitting.fit_calibration(start, dtype, observed)


def starting_calibration(calibration: Calibration, dtype: str) -> Calibration:
    """The calibration to begin with, reduced to one type."""
    rates = calibration.rates
    rate = rates.get(dtype) or (next(iter(rates.values())) if rates else Rate(1e12, 1e4, 32.0))
    names = [leaf.rate for leaf in plan_leaves() if dtype in leaf.types]
    own = {name: rates[name] for name in names if name in rates}
    return replace(calibration, rates={dtype: rate, **own})


def one_level(*tunings: Sequence[Trial]) -> list[tuple[Size, float]]:
    """Shape and best speedup of one level above the library, but for those held out: what epsilon is found from."""
    found: dict[Size, float] = {}
    for trials in tunings:
        for size, speedup in _one_level(trials):
            found[size] = max(found.get(size, 0.0), speedup)
    return list(found.items())


def _one_level(trials: Sequence[Trial]) -> Iterator[tuple[Size, float]]:
    for stage in (*FITTED, "search"):
        own = [t for t in trials if t.stage == stage and t.op == PRODUCT]
        for size in dict.fromkeys(t.size for t in own):
            for plan, base, seconds in paired_samples([t for t in own if t.size == size]):
                if one_level_above_library(Plan.parse(plan)):
                    yield size, median(certify.paired_ratios(base, seconds))


def one_level_above_library(plan: Plan) -> bool:
    """Does it save products once, and does the library multiply the rest? (Copying rows to where they begin evenly
    saves none.)"""
    saves = any(level.saves_products for level in plan.levels)
    return plan.depth == 1 and saves and plan.leaf_use.leaf.of_library


def concluded_section(journal: Journal, dtype: str) -> dict[str, Any] | None:
    """The section of the config; None if no more was measured than the first rough products: what they say of the
    device's rate is off by several times, and the runtime knows better how to do without.

    After a first look there are two models where anything is known of such devices: all parameters fitted, or what was
    known and scaled, as the first look did. The one that is off by less on held-out shapes is taken: a fit of a tuning
    that was stopped early may be the worse one. (What is said of a CPU that nobody measured is no such model.)"""
    if not any(o.kind == "vendor" for o in fitting.stage_medians(journal.recorded, MEASURED)):
        return None
    device, trials = journal.device, trials_that_count(journal, dtype)
    fits = [fit_trials(device, trials, dtype)]
    if len(trials) > len(journal.recorded) and device.known(dtype) != device.untuned():
        fits.append(scaled_by_trials(device, trials, dtype))
    noise, models = noise_floor(trials), [checked_fit(fit, device, trials, dtype) for fit in fits]
    best = min(range(len(fits)), key=lambda i: (bool(models[i].doubts), models[i].off))
    fitted, model = fits[best], models[best]
    calibration = replace(model.calibration, rates=fitted.calibration.rates)
    tiles = fitted_blocks(trials, device.chip)
    strategies = chosen_strategies(dtype, device.chip, tiles)
    disturbed, apart = machine_doubts_of(device, trials, dtype), in_rounds_of_their_own(journal, trials)
    found = sure_thresholds(calibration, dtype, fitted.intervals, apart, strategies)
    entries = {e.key: replace(e, verified=not disturbed) for some in apart for e in all_entries(some, noise)}
    return {
        "versions": dict(device.identity.versions),
        "conditions": {"device": device.identity.name, **device.conditions},
        "tuned": {"at": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": round(journal.elapsed, 1)},
        "calibration": schema.calibration_fields(calibration, dtype),
        "intervals": {name: list(ends) for name, ends in fitted.intervals.items()},
        "error": {name: e.fields for name, e in model.error.items()},
        "thresholds": found.fields,
        "blocks": None if tiles is None else tiles.fields,
        "noise": noise,
        "doubts": [*disturbed, *model.doubts],
        "failed": list(failed_rates(trials)),
        "entries": [e.fields for e in entries.values()],
    }


def in_rounds_of_their_own(journal: Journal, trials: Sequence[Trial]) -> tuple[Sequence[Trial], Sequence[Trial]]:
    """The trials that count, those of the first look apart."""
    return trials[: len(trials) - len(journal.recorded)], journal.recorded


def sure_thresholds(
    calibration: Calibration,
    dtype: str,
    intervals: Mapping[str, Sequence[float]],
    apart: Sequence[Sequence[Trial]],
    strategies: Mapping[str, str],
) -> Thresholds:
    """A fitted model's thresholds, with the intervals that those of its parameters leave them."""
    measured = one_level(*apart)
    observed = fitting.stage_medians([t for trials in apart for t in trials], FITTED)
    admitted = sample_calibrations(calibration, dtype, intervals, observed)
    return with_intervals(thresholds(calibration, dtype, measured, strategies), calibration, dtype, admitted, measured)


OUT_OF_MEMORY = "out of memory"


def failed_rates(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Of leaves that have a rate of their own, were tried, and never worked, for another reason than want of memory."""
    plans = {t.plan: Plan.parse(t.plan) for t in trials}
    rates = {text: plan.rate_name(trials[0].dtype) for text, plan in plans.items() if plan.leaf_use.leaf.rate}
    tried = [t for t in trials if t.plan in rates]
    wrong = {rates[t.plan] for t in tried if t.failed and not t.failed.startswith(OUT_OF_MEMORY)}
    return tuple(sorted(wrong - {rates[t.plan] for t in tried if t.seconds is not None}))


@dataclass(frozen=True)
class Checked:
    """A fitted model with the margins that it needs, its errors on held-out shapes, and what speaks against it."""

    calibration: Calibration
    error: Mapping[str, fitting.Error]
    doubts: tuple[str, ...]

    @property
    def off(self) -> float:
        """By how much its speedups are off, too high or too low; its margin where that is more."""
        return max(self.calibration.margin, self.error["speedup"].median)


def checked_fit(fitted: fitting.Fit, device: Device, trials: Sequence[Trial], dtype: str) -> Checked:
    """A fit as fmm.matmul would go by it, judged."""
    whole, held = completed(fitted, device, trials), fitting.stage_medians(trials, (HELD_OUT,))
    return checked_model(whole, dtype, held, disturbance(trials, whole, dtype), largest_pair(trials))


def checked_model(
    fitted: Calibration,
    dtype: str,
    held: Sequence[fitting.Observation],
    disturbed: float | None,
    measured: float,
) -> Checked:
    """Judge a fitted model by the held-out shapes; `measured` is the side of the largest product with a plan."""
    tiled = [o for o in held if o.run.plan.uses_tile_model or o.kind == "vendor"]
    others = [o for o in held if not o.run.plan.uses_tile_model]
    error, own = (fitting.prediction_errors(fitted, seen) for seen in (others, tiled))
    losing = [losing_margin(fitted, seen) for seen in (others, tiled)]
    promised = [promised_margin(e["speedup"]) for e in (error, own)]
    pays = chosen_from(replace(fitted, margin=promised[0], tiled_margin=promised[1]), dtype, 1)
    least = max(disturbed_margin(disturbed), distant_margin(pays, measured))
    margins = [min(max(p, x, least), 1.0) for p, x in zip(promised, losing, strict=True)]
    found = replace(fitted, margin=margins[0], tiled_margin=margins[1])
    errors = error | ({"tiled": own["speedup"]} if own["speedup"].count else {})
    return Checked(found, errors, tuple(model_doubts(error["speedup"], losing[0])))

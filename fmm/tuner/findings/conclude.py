"""Conclude a tuning: compute a config section with model, errors, entries and thresholds from the recorded trials.

The section depends on the recorded trials alone, so an interrupted tuning has a section, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from statistics import median
from typing import Any

from fmm.config import certification, schema
from fmm.config.schema import Thresholds
from fmm.kernels.plans.leaf import plan_leaves
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.crossovers import baseline_text
from fmm.runtime.decisions.calibration_in_force import add_unmeasured_rates
from fmm.tuner.devices.device import TunableDevice
from fmm.tuner.findings.crossovers import (
    level_samples,
    margins_excluding_slow_plans,
    measure_crossovers,
    measured_crossovers_of_baselines,
)
from fmm.tuner.findings.diagnostics import (
    MIN_OWN_RATE_MARGIN,
    largest_measured_side,
    machine_diagnostics,
    margin_for_error,
    margin_for_extrapolation,
    margin_for_losses,
    margin_for_slowdown,
    model_diagnostics,
    noise_floor,
    slowdown_by_other_work,
    upper_decile_of_vendor_errors,
)
from fmm.tuner.findings.thresholds import add_threshold_intervals, compute_thresholds, crossover_of_levels
from fmm.tuner.fit import model as fitting
from fmm.tuner.fit.blocks import fit_block_model, strategies_by_side
from fmm.tuner.fit.sampled import sample_calibrations
from fmm.tuner.search.certify import config_entries, paired_samples
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import DEFAULT_OPERATION, ProductSize, Trial

# Names of stages of a tuning, as the trials record the names. The model is fitted to the trials of FITTED_STAGES, and
# checked on the trials of HELD_OUT_STAGE. The model is not fitted to the trials of the stage "search": these trials
# cover few shapes, and fmm.matmul would never consider many of their plans.
SCALE_STAGE = "scale"  # stage of a tuning's first products; their times determine the sizes of all other products
PROBE_STAGES = ("rates", "probe", "tiles")
FITTED_STAGES = (SCALE_STAGE, *PROBE_STAGES)
HELD_OUT_STAGE = "held out"
CHECKING_STAGES = (HELD_OUT_STAGE, "search", "certify")
OUT_OF_MEMORY_TEXT = "out of memory"


def conclude_section(journal: Journal, dtype: str) -> dict[str, Any] | None:
    """Return the config section of a tuning; None if no product of the vendor was measured in PROBE_STAGES.

    If the tuning had a first look and fmm ships a model for this kind of device, two models are compared: a fit of all
    parameters, and the shipped model scaled to the measured rates. The section has the model with the smaller error on
    held-out shapes, since a fit of many parameters to few trials may be bad.
    """
    if not any(o.run_kind == "vendor" for o in fitting.observed_medians(journal.recorded, PROBE_STAGES)):
        return None
    device, trials = journal.device, usable_trials(journal, dtype)
    fits = [fit_trials(device, trials, dtype)]
    if len(trials) > len(journal.recorded) and device.prior_model(dtype) != device.untuned_model():
        fits.append(scale_prior_model(device, trials, dtype))
    noise, models = noise_floor(trials), [check_fit(fit, device, trials, dtype) for fit in fits]
    best = min(range(len(fits)), key=lambda i: (bool(models[i].diagnostics), models[i].model_error))
    fitted, model = fits[best], models[best]
    calibration = replace(model.calibration, rates=fitted.calibration.rates)
    tiles = fit_block_model(trials, device.chip)
    strategies = strategies_by_side(dtype, device.chip, tiles)
    noisy, looks = diagnose_machine(device, trials, dtype), split_first_look_trials(journal, trials)
    thresholds = thresholds_with_intervals(calibration, dtype, fitted.intervals, looks, strategies, tau_intervals=False)
    entries = {e.entry_key: replace(e, verified=not noisy) for look in looks for e in config_entries(look, noise)}
    return {
        "versions": dict(device.identity.versions),
        "conditions": {"device": device.identity.name, **device.measurement_conditions},
        "tuned": {"at": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": round(journal.elapsed_seconds, 1)},
        "calibration": schema.calibration_fields(calibration, dtype),
        "intervals": {name: list(ends) for name, ends in fitted.intervals.items()},
        "error": {name: e.json_fields for name, e in model.error.items()},
        "thresholds": thresholds.json_fields,
        "blocks": None if tiles is None else tiles.json_fields,
        "noise": noise,
        "doubts": [*noisy, *model.diagnostics],
        "failed": list(failed_leaf_rates(trials)),
        "entries": [e.json_fields for e in entries.values()],
    }


# ---- the fit


def interim_calibration(journal: Journal, dtype: str) -> Calibration:
    """Return the calibration fitted to the trials so far; unmeasured leaves have the rates of the untuned model."""
    trials = usable_trials(journal, dtype)
    return with_rates_of_unmeasured_leaves(fit_trials(journal.device, trials, dtype), journal.device, trials)


def with_rates_of_unmeasured_leaves(
    fitted: fitting.CalibrationFit, device: TunableDevice, trials: Sequence[Trial]
) -> Calibration:
    """Return a fitted calibration; leaves without a measured rate have the untuned model's rate."""
    return add_unmeasured_rates(fitted.calibration, device.untuned_model(), failed_leaf_rates(trials))


def usable_trials(journal: Journal, dtype: str) -> tuple[Trial, ...]:
    """Return the trials of the first look followed by the trials of the tuning; a noisy first look is left out."""
    first = journal.first_look
    if not first or diagnose_machine(journal.device, first, dtype):
        return tuple(journal.recorded)
    return *first, *journal.recorded


def diagnose_machine(device: TunableDevice, trials: Sequence[Trial], dtype: str) -> tuple[str, ...]:
    """Return the reasons to reject all measurements of a tuning, such as noise from other work on the device."""
    fitted = fit_trials(device, trials, dtype).calibration
    seen = fitting.observed_medians(trials, (*PROBE_STAGES, HELD_OUT_STAGE))
    slower = slowdown_by_other_work(trials, fitted, dtype)
    return tuple(machine_diagnostics(noise_floor(trials), slower, upper_decile_of_vendor_errors(seen, fitted)))


def fit_trials(device: TunableDevice, trials: Sequence[Trial], dtype: str) -> fitting.CalibrationFit:
    """Return the calibration fitted to the trials of FITTED_STAGES; only timed leaves have rates."""
    observed = tuple(fitting.observed_medians(trials, FITTED_STAGES))
    if fitting.has_too_few_plans(observed):
        return scale_prior_model(device, trials, dtype)
    return _cached_calibration_fit(starting_calibration(device.untuned_model(), dtype), dtype, observed)


def scale_prior_model(device: TunableDevice, trials: Sequence[Trial], dtype: str) -> fitting.CalibrationFit:
    """Return the model that fmm ships for this kind of device, scaled to the measured rates."""
    observed = fitting.observed_medians(trials, FITTED_STAGES)
    return fitting.scale_calibration(starting_calibration(device.prior_model(dtype), dtype), dtype, observed)


@lru_cache(maxsize=8)
def _cached_calibration_fit(
    start: Calibration, dtype: str, observed: tuple[fitting.Observation, ...]
) -> fitting.CalibrationFit:
    """Return the fit of these observations; fits are cached, since a fit takes seconds and is needed repeatedly."""
    return fitting.fit_calibration(start, dtype, observed)


def starting_calibration(calibration: Calibration, dtype: str) -> Calibration:
    """Return a calibration from which a fit for one element type starts: rates of other types are removed."""
    rates = calibration.rates
    rate = rates.get(dtype) or (next(iter(rates.values())) if rates else ProductRate(1e12, 1e4, 32.0))
    names = [leaf.rate for leaf in plan_leaves() if dtype in leaf.types]
    own = {name: rates[name] for name in names if name in rates}
    return replace(calibration, rates={dtype: rate, **own})


def failed_leaf_rates(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the names of the rates of leaves that failed in every trial; running out of memory is not a failure."""
    plans = {t.plan: Plan.parse(t.plan) for t in trials}
    rates = {text: plan.rate_name(trials[0].dtype) for text, plan in plans.items() if plan.leaf_use.leaf.rate}
    tried = [t for t in trials if t.plan in rates]
    wrong = {rates[t.plan] for t in tried if t.failed and not t.failed.startswith(OUT_OF_MEMORY_TEXT)}
    return tuple(sorted(wrong - {rates[t.plan] for t in tried if t.seconds is not None}))


# ---- the check on held-out shapes


@dataclass(frozen=True)
class CheckedModel:
    """A fitted model with margins, errors on held-out shapes, and reasons to reject the model."""

    calibration: Calibration
    error: Mapping[str, fitting.PredictionError]
    diagnostics: tuple[str, ...]

    @property
    def model_error(self) -> float:
        """The larger of two numbers: the margin, and the median error of predicted speedups on held-out shapes."""
        return max(self.calibration.margin, self.error["speedup"].median)


def check_fit(
    fitted: fitting.CalibrationFit, device: TunableDevice, trials: Sequence[Trial], dtype: str
) -> CheckedModel:
    """Return a fitted model, with crossovers and margins, and with its errors on the held-out trials."""
    whole, held = (
        with_rates_of_unmeasured_leaves(fitted, device, trials),
        fitting.observed_medians(trials, (HELD_OUT_STAGE,)),
    )
    crossovers = measure_crossovers(trials, whole)
    bounded = replace(whole, measured_crossovers=measured_crossovers_of_baselines(crossovers))

    def is_allowed_by_crossovers(o: fitting.Observation) -> bool:
        own = crossovers.get(baseline_text(o.run.plan))
        excluded = bounded.has_too_many_levels(o.run.plan, o.problem)
        return not (own and excluded and own.overestimates_speedup_of(o.run.plan, o.problem))

    checked = [t for t in trials if t.stage in CHECKING_STAGES]
    losing = margins_excluding_slow_plans(level_samples(checked, bounded))
    slower, usable = slowdown_by_other_work(trials, whole, dtype), [o for o in held if is_allowed_by_crossovers(o)]
    return model_with_required_margins(
        bounded, dtype, usable, slower, largest_measured_side(trials), losing, excluded=len(held) - len(usable)
    )


def model_with_required_margins(
    fitted: Calibration,
    dtype: str,
    held: Sequence[fitting.Observation],
    slower: float | None,
    measured: float,
    losing: tuple[float, float] = (0.0, 0.0),
    excluded: int = 0,
) -> CheckedModel:
    """Return a fitted model with the margins that its errors on held-out observations require.

    The model has two margins: one for plans with the vendor's leaf, and one for plans with fmm's own leaves. Errors on
    plans with the vendor's leaf do not raise the margin of plans with fmm's own leaves, and vice versa. `slower` is the
    slowdown relative to an idle device. `measured` is the side of the largest product that was timed with a plan other
    than `vendor`. `losing` has the two margins with which the model chooses no plan that was measured to be slower than
    the vendor. `excluded` is the number of held-out plans that are never chosen because of the measured crossovers.
    """
    tiled = [o for o in held if o.run.plan.uses_tile_model or o.run_kind == "vendor"]
    others = [o for o in held if not o.run.plan.uses_tile_model]
    error, own = (fitting.prediction_errors(fitted, seen) for seen in (others, tiled))
    with_vendor_leaf = [o for o in held if o.has_vendor_leaf]
    with_own_leaf = [o for o in held if o.run_kind == "vendor" or not o.has_vendor_leaf]
    families = with_vendor_leaf, with_own_leaf
    for_losses = [margin_for_losses(fitted, seen) for seen in families]
    for_error = [margin_for_error(fitting.prediction_errors(fitted, seen)["speedup"]) for seen in families]
    if any(o.run_kind == "own rate" for o in held):
        for_error[1] = max(for_error[1], MIN_OWN_RATE_MARGIN)
    # The margin for extrapolation depends on the side from which one level is predicted to gain. On a GPU, this side is
    # predicted without the limits of the measured tau1, tau2 and tau3, so that the cached rankings of plans also serve
    # to compute the thresholds.
    free = replace(fitted, measured_crossovers=()) if fitted.batches else fitted
    pays = crossover_of_levels(replace(free, margin=for_error[0], tiled_margin=for_error[1]), dtype, 1)
    least = max(margin_for_slowdown(slower), margin_for_extrapolation(pays, measured))
    required = zip(for_error, for_losses, losing, strict=True)
    margin, tiled_margin = (min(max(least, *margins), 1.0) for margins in required)
    model = replace(fitted, margin=margin, tiled_margin=tiled_margin)
    errors = error | ({"tiled": own["speedup"]} if own["speedup"].count else {})
    return CheckedModel(model, errors, tuple(model_diagnostics(error["speedup"], max(for_losses), excluded)))


# ---- thresholds


def split_first_look_trials(journal: Journal, trials: Sequence[Trial]) -> tuple[Sequence[Trial], Sequence[Trial]]:
    """Return the first look's trials and the tuning's trials separately: samples of the two must not be paired."""
    return trials[: len(trials) - len(journal.recorded)], journal.recorded


def thresholds_with_intervals(
    calibration: Calibration,
    dtype: str,
    intervals: Mapping[str, Sequence[float]],
    looks: Sequence[Sequence[Trial]],
    strategies: Mapping[str, str],
    tau_intervals: bool = True,
) -> Thresholds:
    """Return the thresholds of a fitted model with 95 % intervals, and the measured crossovers.

    If `tau_intervals` is False, the model's tau1, tau2 and tau3 have no intervals on a GPU that has measured
    crossovers.
    """
    measured, trials = one_level_speedups(*looks), [t for look in looks for t in look]
    calibration = replace(calibration, measured_crossovers=())
    crossovers = measure_crossovers(trials, calibration)
    bounded = replace(calibration, measured_crossovers=measured_crossovers_of_baselines(crossovers))
    observed = fitting.observed_medians(trials, FITTED_STAGES)
    sampled = sample_calibrations(calibration, dtype, intervals, observed)
    found = replace(
        compute_thresholds(bounded, dtype, measured, strategies),
        measured_intervals={name: x.intervals for name, x in crossovers.items() if x.intervals},
    )
    tau_intervals = tau_intervals or not (calibration.batches and found.measured_taus)
    return add_threshold_intervals(found, calibration, dtype, sampled, measured, tau_intervals)


def one_level_speedups(*tunings: Sequence[Trial]) -> list[tuple[ProductSize, float]]:
    """Return the best measured speedup of a plan with one level, for each shape of FITTED_STAGES and the search."""
    found: dict[ProductSize, float] = {}
    for trials in tunings:
        for stage in (*FITTED_STAGES, "search"):
            own = [t for t in trials if t.stage == stage and t.op == DEFAULT_OPERATION]
            for size in dict.fromkeys(t.size for t in own):
                for plan, base, seconds in paired_samples([t for t in own if t.size == size]):
                    if is_one_level_above_vendor(Plan.parse(plan)):
                        speedup = median(certification.paired_ratios(base, seconds))
                        found[size] = max(found.get(size, 0.0), speedup)
    return list(found.items())


def is_one_level_above_vendor(plan: Plan) -> bool:
    """Return True if the plan has the vendor's leaf and exactly one level, and this level saves products."""
    saves = any(level.saves_products for level in plan.levels)
    return plan.depth == 1 and saves and plan.leaf_use.leaf.is_vendor_product

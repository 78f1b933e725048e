"""Compute what Optuna added to a search from its trials: Optuna's best plan beside the model's first choice.

A search times the plan that the model ranks first, further plans of the model, and plans that Optuna proposes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from fmm.config.certification import paired_ratios
from fmm.kernels.plans.plan import Plan
from fmm.tuner.search.certify import paired_samples
from fmm.tuner.search.race import OPTUNA, SEARCH_STAGE
from fmm.tuner.trials.record import DEFAULT_OPERATION, ProductSize, RecordedTuning, Trial


@dataclass(frozen=True)
class SearchGain:
    """The model's first choice on a searched shape, and Optuna's best plan; speedups are over the vendor's product."""

    dtype: str
    size: ProductSize
    model_plan: Plan
    model_speedup: float
    optuna_plan: Plan
    optuna_speedup: float
    proposals: int  # number of Optuna's proposals that were timed

    @property
    def gain(self) -> float:
        """The speedup of Optuna's best plan over the model's first choice."""
        return self.optuna_speedup / self.model_speedup


def search_gains(trials: Iterable[Trial]) -> Iterator[SearchGain]:
    """Yield the gain of each shape on which a plan of the model and a plan of Optuna were timed."""
    searched = [t for t in trials if t.stage == SEARCH_STAGE and t.op == DEFAULT_OPERATION]
    for size in dict.fromkeys(t.size for t in searched):
        own = [t for t in searched if t.size == size]
        proposed = {t.plan for t in own if t.proposer == OPTUNA}
        speedups = {plan: median(paired_ratios(base, seconds)) for plan, base, seconds in paired_samples(own)}
        first = next((plan for plan in speedups if plan not in proposed), None)
        by_optuna = {plan: speedup for plan, speedup in speedups.items() if plan in proposed}
        if first is not None and by_optuna:
            best = max(by_optuna, key=lambda plan: by_optuna[plan])
            yield SearchGain(
                own[0].dtype,
                size,
                Plan.parse(first),
                speedups[first],
                Plan.parse(best),
                by_optuna[best],
                len(by_optuna),
            )


def search_gains_of_device(tunings: Iterable[RecordedTuning], device: str) -> list[SearchGain]:
    """Return the gains of a device's tunings; of repeated searches for one shape and type, the last one counts."""
    own = (tuning for tuning in tunings if tuning.header.device == device)
    found = {(gain.dtype, gain.size): gain for tuning in own for gain in search_gains(tuning.trials)}
    return list(found.values())

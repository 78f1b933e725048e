"""The models that ship with the package: `python -m benchmarks shipped` fits them to recorded tunings.

For each type the fit uses the trials of one or more tunings of a card, and the whole calls that runs of regret measured
on every second shape. The other half of these shapes and the tunings' held-out trials judge the fit. The margin by
which a plan must be predicted to win is the margin with the best choices on the first half. No certified entries are
shipped, because nobody certified anything on the user's card. The error of the block model of fmm's own kernel comes
from `blocks.json`: from shapes that the fit of its terms did not see (the built-in terms were fitted to all of them).

`--blocks` writes that error and the tiles alone. `--thresholds` keeps the models and computes the thresholds of the
same trials again. `--margins` keeps the models and chooses their margins again: for a model whose margins were chosen
before the candidates or the code of the margins changed. `--card H100` and `--dtype float64` leave the models of other
cards and types as they are. `python -m benchmarks regret` then measures the choices on unseen shapes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType

from benchmarks.held_out import HELD_OUT_FILE_NAME, recorded_rows
from benchmarks.matrices import OWN_ARITHMETIC
from benchmarks.replay import replayed_choice, tuned_model
from fmm.config import files, reader, schema, store
from fmm.config.files import SHIPPED_CONFIG
from fmm.config.identity import gpu_device_key
from fmm.config.schema import JsonValue, Thresholds
from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import datasheet_of
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import GEMM_OPERANDS, OperandBlocks
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.problem import Problem
from fmm.runtime.devices import gpu_from_description
from fmm.tuner.devices.device import TimedRun
from fmm.tuner.findings.conclude import FITTED_STAGES, model_with_required_margins, starting_calibration
from fmm.tuner.findings.diagnostics import largest_measured_side, noise_floor
from fmm.tuner.findings.thresholds import add_threshold_intervals, compute_thresholds
from fmm.tuner.fit.blocks import (
    BLOCK_MODEL_DTYPE,
    StrategyTimes,
    chip_with_fit,
    fastest_strategies,
    select_block_terms,
    strategies_by_side,
)
from fmm.tuner.fit.model import Observation, fit_calibration, observed_medians
from fmm.tuner.fit.sampled import sample_calibrations
from fmm.tuner.trials.record import RecordedTuning, TrialFile

# Candidate margins: the share of the vendor's time by which a plan must be predicted to win. One margin for plans with
# the vendor's products, one for plans with ours. (A tuning takes the model's median error, since it has no choices.)
CANDIDATE_MARGINS = (0.01, 0.02, 0.03, 0.05, 0.08)
RESULTS = Path(__file__).parents[1] / "results"
# Seconds of the vendor's product. For shorter products the host decides the time of a call. Products that were timed in
# every round were graphs by then, and may be shorter. (In float64 plans pay only for longer products, and short
# products do not help the fit: with them 8 choices of 460 are poor, without them 6.)
SHORTEST_SECONDS, SHORTEST_REPLAYED_SECONDS = 300e-6, 40e-6
LONG_CALL_TYPES = ("float64",)
# Plans slower than this multiple of the vendor's time are left out of the fit: only those with a fast first sample were
# timed in every round.
MAX_FITTED_RATIO = 1.5
# Seconds of a launch, in addition to the `small` term of each pass. A tuning launches kernel by kernel from the host,
# but recurring short products are replayed as graphs. (With the 4.8 us of a busy host the vendor was chosen for two of
# 59 shapes in TF32, at 0.61 and 0.64 of the best plan's speed; with 0 for none, in either half of the shapes.)
LAUNCH_SECONDS, HOST_SECONDS = 0.0, 0.0
# Seconds of the host for a replayed call. (results/nvidia-h200/host.json: 17 us through CuPy and 25 us through torch at
# 2048. With the 45 us of a first call the vendor was chosen for seven of 220 products in bfloat16 and TF32, at 0.46
# to 0.77 of the speed of copies to aligned rows.)
REPLAYED_CALL_SECONDS = 25e-6


@dataclass(frozen=True)
class Card:
    """A card with shipped models: its name, datasheet and folder of results, and its folders of trials by type."""

    name: str
    sheet: str
    folder: str
    sources: Mapping[str, Sequence[str]]

    @property
    def key(self) -> str:
        sheet = datasheet_of(self.sheet)
        return gpu_device_key(self.name, sheet.capability, sheet.sms)

    @property
    def results(self) -> Path:
        return RESULTS / self.folder

    @property
    def chip(self) -> Chip:
        return datasheet_chip(datasheet_of(self.sheet))

    def tunings(self, dtype: str) -> list[RecordedTuning]:
        """Return the recorded tunings of this type."""
        return [t for name in self.sources[dtype] for t in recorded_tunings(self.results / name, dtype)]


REAL_TYPES = "float32", "float64", "bfloat16", "float16", "tf32"
H200_TRIALS = {"float32": ("tiles",), "float64": (".",), "bfloat16": (".",), "float16": ("quick",), "tf32": ("quick",)}
CARDS = (
    Card("NVIDIA H200", "H200", "nvidia-h200", H200_TRIALS),
    Card("NVIDIA H100 80GB HBM3", "H100", "nvidia-h100-80gb-hbm3", dict.fromkeys(REAL_TYPES, (".",))),
)
# The error of the block model was measured on this card; all cards have the same multiprocessors.
BLOCK_SAMPLES = RESULTS / "nvidia-h200" / "blocks.json"


def recorded_blocks(path: Path, table: str = "plain") -> list[StrategyTimes]:
    """Return the shapes of blocks.json in the random order of their measurement.

    The table `fused` has kernels that form sums of blocks.
    """
    operands: OperandBlocks = (2, 2, 2) if table == "fused" else GEMM_OPERANDS
    rows = json.loads(path.read_text(encoding="utf-8"))[table]
    return [
        StrategyTimes(x["kind"], (x["m"], x["k"], x["n"]), {s: median(t) for s, t in x["seconds"].items()}, operands)
        for x in rows
    ]


def recorded_tunings(folder: Path, dtype: str) -> list[RecordedTuning]:
    found = TrialFile(folder / "trials.jsonl").read_tunings()
    return [t for t in found if t.header.settings.get("dtype") == dtype]


def observed_tunings(tunings: Sequence[RecordedTuning], stages: Sequence[str]) -> list[Observation]:
    """Return the medians of each tuning; the samples of a tuning come from one card."""
    return [o for tuning in tunings for o in observed_medians(tuning.trials, stages)]


def whole_calls(folder: Path, dtype: str) -> list[Observation]:
    """Return the medians of runs of regret, without plans that are far slower than the vendor."""
    found, least = [], SHORTEST_SECONDS if dtype in LONG_CALL_TYPES else SHORTEST_REPLAYED_SECONDS
    for row in recorded_rows(folder / HELD_OUT_FILE_NAME):
        vendor = median(row.seconds["vendor"])
        if row.dtype.removesuffix(OWN_ARITHMETIC) == dtype and vendor >= least:
            names = [
                name
                for name in (row.seconds if vendor >= SHORTEST_SECONDS else row.complete_calls)
                if name != "default"
            ]
            timed = [(Plan.parse(name), median(row.seconds[name])) for name in names]
            worth = [(plan, own) for plan, own in timed if own <= MAX_FITTED_RATIO * vendor]
            # The fit of a leaf with a rate of its own uses products without levels.
            enough = [(plan, own) for plan, own in worth if not (plan.leaf_use.leaf.rate and plan.levels)]
            found += [Observation(Problem(*row.size, dtype), TimedRun(plan), own) for plan, own in enough]
    return found


def every_second_shape(observed_tunings: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Return the observations of every second shape, and the others."""
    shapes = list(dict.fromkeys(o.problem for o in observed_tunings))
    first = set(shapes[::2])
    return [o for o in observed_tunings if o.problem in first], [o for o in observed_tunings if o.problem not in first]


def without_repeated_tiles(tuned: Sequence[Observation], calls: Sequence[Observation]) -> list[Observation]:
    """Return the tunings' observations; without those of our own tiles if whole calls by tiles were timed too.

    (With all observations two more choices of 250 in float32 without emulation are poor.)
    """
    timed_inside = any(o.run_kind == "inside" for o in calls)
    return [o for o in tuned if not (timed_inside and o.run.plan.uses_tile_model)]


def with_best_margins(calibration: Calibration, dtype: str, folder: Path) -> Calibration:
    """Return the calibration with the margins that give the fewest poor choices on every second shape.

    Among equal margins the one with the largest mean share of the best plan's speed wins.
    """
    rows = [
        row for row in recorded_rows(folder / HELD_OUT_FILE_NAME) if row.dtype.removesuffix(OWN_ARITHMETIC) == dtype
    ]
    shapes = list(dict.fromkeys(row.size for row in rows))
    rows = [row for row in rows if row.size in set(shapes[::2])]
    if not rows:
        return calibration

    def margin_merit(margins: tuple[float, float]) -> tuple[int, float, float]:
        tried = replace(calibration, margin=margins[0], tiled_margin=margins[1])
        judged = [x for row in rows if (x := replayed_choice(row, tried).as_chosen) is not None]
        return -sum(x.is_poor for x in judged), mean(x.share_of_best for x in judged), sum(margins)

    margin, tiled_margin = max(product(CANDIDATE_MARGINS, CANDIDATE_MARGINS), key=margin_merit)
    return replace(calibration, margin=margin, tiled_margin=tiled_margin)


def fitted_section(card: Card, calls: Sequence[Observation], dtype: str) -> dict[str, JsonValue]:
    tunings, sheet = card.tunings(dtype), datasheet_calibration(card.sheet)
    (_, others), seen = every_second_shape(calls), fitted_to(tunings, calls)
    fitted = fit_calibration(starting_calibration(sheet, dtype), dtype, seen)
    largest = max(largest_measured_side(t.trials) for t in tunings)
    calibration = replace(fitted.calibration, launch=LAUNCH_SECONDS, host=HOST_SECONDS, call=REPLAYED_CALL_SECONDS)
    rates = {
        **starting_calibration(sheet, dtype).rates,
        **calibration.rates,
    }  # leaves without a measured rate have the datasheet's
    calibration = replace(calibration, rates=MappingProxyType(rates))
    model = model_with_required_margins(
        calibration, dtype, [*observed_tunings(tunings, ("held out",)), *others], None, largest
    )
    calibration = with_best_margins(model.calibration, dtype, card.results)
    noise = max((x for t in tunings if (x := noise_floor(t.trials)) is not None), default=None)
    runs = ", ".join(t.header.run for t in tunings)
    intervals = {name: list(ends) for name, ends in fitted.intervals.items() if name not in ("launch", "host")}
    return {
        **schema.empty_section(dict(tunings[-1].header.versions)),
        "conditions": {"device": card.name},
        "tuned": {"at": datetime.now(UTC).isoformat(timespec="seconds"), "effort": "shipped", "run": runs},
        "calibration": schema.calibration_fields(calibration, dtype, card.sheet),
        "intervals": intervals,
        "error": {name: e.json_fields for name, e in model.error.items()},
        "thresholds": model_thresholds(calibration, dtype, intervals, seen).json_fields,
        "noise": noise,
        "doubts": list(model.diagnostics),
    }


def with_blocks(raw: JsonValue, dtype: str, card: Card) -> dict[str, JsonValue]:
    """Return the section with this card's tiles of our own kernel, and the error of the model that chooses tiles.

    Without samples of the card itself, the samples of an H200 with the card's chip are used.
    """
    own_samples = card.results / BLOCK_SAMPLES.name
    shapes = recorded_blocks(own_samples if own_samples.is_file() else BLOCK_SAMPLES)
    found = select_block_terms(shapes, card.chip)
    if own_samples.is_file() and own_samples != BLOCK_SAMPLES:  # the H200's lack the strategies with the copy engine
        found = replace(found, strategies=tuple(fastest_strategies(shapes, chip_with_fit(card.chip, found))))
    tiles = strategies_by_side(dtype, card.chip, found)
    own = found.json_fields if dtype == BLOCK_MODEL_DTYPE else None
    return {**raw, "thresholds": {**raw["thresholds"], "block_strategy": tiles}, "blocks": own}


def fitted_to(tunings: Sequence[RecordedTuning], calls: Sequence[Observation]) -> list[Observation]:
    """Return the observations of a fit: those of the tunings, and the whole calls of every second shape."""
    seen, _ = every_second_shape(calls)
    return [*without_repeated_tiles(observed_tunings(tunings, FITTED_STAGES), seen), *seen]


def model_thresholds(
    calibration: Calibration, dtype: str, intervals: Mapping[str, Sequence[float]], seen: Sequence[Observation]
) -> Thresholds:
    """Return the thresholds of the model, with the intervals that the observations admit."""
    admitted = sample_calibrations(calibration, dtype, intervals, seen)
    return add_threshold_intervals(compute_thresholds(calibration, dtype), calibration, dtype, admitted)


def with_new_thresholds(
    section: JsonValue, dtype: str, card: Card, seen: Sequence[Observation]
) -> dict[str, JsonValue]:
    """Return a section with its present model and new thresholds."""
    calibration = schema.read_calibration(section["calibration"], "calibration", dtype, card.name, "")
    return {**section, "thresholds": model_thresholds(calibration, dtype, section["intervals"], seen).json_fields}


def with_new_margins(section: JsonValue, dtype: str, card: Card) -> dict[str, JsonValue]:
    """Return a section with its present model and the margins that are the best for this model today."""
    sheet = datasheet_of(card.sheet)
    device = gpu_from_description(card.name, sheet.capability, sheet.sms)
    best = with_best_margins(tuned_model(SHIPPED_CONFIG, dtype, device), dtype, card.results)
    before, margins = section["calibration"], {"margin": best.margin, "tiled_margin": best.tiled_margin}
    print(card.sheet, dtype, *(f"{name} {before[name]} -> {value}" for name, value in margins.items()))
    return {**section, "calibration": {**before, **margins}}


def main(arguments: Sequence[str]) -> int:
    """Write the shipped config; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks shipped", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", action="store_true", help="leave models and thresholds as they are")
    parser.add_argument("--thresholds", action="store_true", help="leave the models as they are")
    parser.add_argument("--margins", action="store_true", help="choose the margins of the present models again")
    parser.add_argument("--dtype", choices=REAL_TYPES, help="with --margins: this type alone (default: all)")
    parser.add_argument("--card", choices=[card.sheet for card in CARDS], help="this card alone (default: all)")
    options = parser.parse_args(arguments)
    if options.dtype and not options.margins:
        parser.error("--dtype goes with --margins")
    config = files.read_config(SHIPPED_CONFIG)
    for card in CARDS:
        if options.card not in (None, card.sheet):
            continue
        if options.margins:
            names = [options.dtype] if options.dtype else list(config[card.key])
            config[card.key] |= {name: with_new_margins(config[card.key][name], name, card) for name in names}
        else:
            previous = config[card.key] if options.blocks or options.thresholds else None
            types = previous if previous and options.blocks else sections_of(card, previous)
            config[card.key] = {dtype: with_blocks(raw, dtype, card) for dtype, raw in types.items()}
    store.write_file(SHIPPED_CONFIG, reader.config_text(config))
    return 0


def sections_of(card: Card, before: Mapping[str, JsonValue] | None) -> dict[str, dict[str, JsonValue]]:
    """Fit the sections of all types; with `before`, keep its models and compute the thresholds alone."""
    types: dict[str, dict[str, JsonValue]] = {}
    for dtype in card.sources:
        calls = whole_calls(card.results, dtype)
        if before is not None:
            types[dtype] = with_new_thresholds(before[dtype], dtype, card, fitted_to(card.tunings(dtype), calls))
        else:
            types[dtype] = fitted_section(card, calls, dtype)
        fitted = types[dtype]["calibration"]
        print(
            card.sheet, dtype, f"margin {fitted['margin']:.3f}, {fitted['tiled_margin']:.3f}", *types[dtype]["doubts"]
        )
    return types

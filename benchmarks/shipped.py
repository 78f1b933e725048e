"""The models that ship with the package: `python -m benchmarks.shipped` fits them to tunings that are on record.

Of each type the trials of one or more tunings of such cards are put together, and what earlier runs of
`benchmarks.regret` measured of whole calls: of every second shape. The other half of these, and what the tunings held
out, judge the fit. By how much a plan must be predicted to win is settled by that first half too: by as much as leads
to the best choices there. No entry is taken along: nobody certified anything on the cards of those who install it.
What the block model of our own kernel is off by, and what terms of a fit are off by on shapes that they did not see,
is found from `blocks.json` (the built-in terms saw all of it); `--blocks` writes that alone, and the tiles. With
`--thresholds` the models stay as they are, and of them and of the same trials the thresholds alone are made anew.
`--card H100` leaves the models of other cards as they are. `python -m benchmarks.regret` then says what the choices
are worth on shapes that none of them saw.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType

from benchmarks.held_out import FILE, OWN, recorded_rows
from benchmarks.replay import replayed
from fmm.config import files, reader, schema, store
from fmm.config.files import SHIPPED
from fmm.config.identity import gpu_key
from fmm.config.schema import Raw, Thresholds
from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import device
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import GEMM, Operands
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.problem import Problem
from fmm.tuner.devices.device import Run
from fmm.tuner.findings.conclude import FITTED, checked_model, starting_calibration
from fmm.tuner.findings.diagnostics import largest_pair, noise_floor
from fmm.tuner.findings.thresholds import thresholds, with_intervals
from fmm.tuner.fit.blocks import DTYPE, Measured, chosen_strategies, judged_blocks
from fmm.tuner.fit.model import Observation, fit_calibration, stage_medians
from fmm.tuner.fit.sampled import sample_calibrations
from fmm.tuner.trials.record import Trials, Tuning

# By which shares of the vendor's time a plan may have to be predicted to win: one for the vendor's products, one for
# ours. (What a tuning takes is the model's median error, for which it knows no choices.)
MARGINS = (0.01, 0.02, 0.03, 0.05, 0.08)
RESULTS = Path(__file__).parents[1] / "results"
# Seconds of the vendor's product: of shorter ones the processor decides the time; of those that were timed in every
# round, as graphs by then, of still shorter ones. (In float64, whose plans pay only above that, short products do not
# help: with them 8 choices of 460 are poor, without 6.)
SHORTEST, SHORTEST_REPLAYED = 300e-6, 40e-6
LONG_ALONE = ("float64",)
# Plans that take more than so many times as long as the vendor's product are left out of the fit. (Those that were
# timed in every round alone would be the lucky ones.)
WORTH_FITTING = 1.5
# Seconds of a start beside what `small` counts for each pass. A tuning's launches are the processor's, call by call;
# short products that recur are replayed as graphs, whatever the host. (With the 4.8 us of a busy host two of 59 shapes
# in TF32 were left to the vendor at 0.61 and 0.64 of the best plan's speed; none is with 0, in either half of them.)
LAUNCH, HOST = 0.0, 0.0
# What such a call takes the processor. (results/nvidia-h200/host.json: 17 us through CuPy and 25 us through torch at
# 2048. With the 45 us of a first call seven products in bfloat16 and TF32 of 220 were left to the vendor at 0.46 to
# 0.77 of the speed that copies to aligned rows have.)
CALL = 25e-6


@dataclass(frozen=True)
class Card:
    """A kind of card that models ship for: its name, its datasheet, the folder of what was measured on it, and where in
    that the trials of each type are."""

    name: str
    sheet: str
    folder: str
    sources: Mapping[str, Sequence[str]]

    @property
    def key(self) -> str:
        known = device(self.sheet)
        return gpu_key(self.name, known.capability, known.sms)

    @property
    def results(self) -> Path:
        return RESULTS / self.folder

    @property
    def chip(self) -> Chip:
        return datasheet_chip(device(self.sheet))

    def tunings(self, dtype: str) -> list[Tuning]:
        """Those of the type that are on record."""
        return [t for name in self.sources[dtype] for t in recorded(self.results / name, dtype)]


REAL = "float32", "float64", "bfloat16", "float16", "tf32"
H200_TRIALS = {"float32": ("tiles",), "float64": (".",), "bfloat16": (".",), "float16": ("quick",), "tf32": ("quick",)}
CARDS = (
    Card("NVIDIA H200", "H200", "nvidia-h200", H200_TRIALS),
    Card("NVIDIA H100 80GB HBM3", "H100", "nvidia-h100-80gb-hbm3", dict.fromkeys(REAL, (".",))),
)
# What the block model of our own kernel is off by was found on one of these; all have the same multiprocessors.
BLOCKS = RESULTS / "nvidia-h200" / "blocks.json"


def recorded_blocks(path: Path, table: str = "plain") -> list[Measured]:
    """Return the shapes of blocks.json in the random order of their measurement; table `fused`: kernels with sums."""
    operands: Operands = (2, 2, 2) if table == "fused" else GEMM
    rows = json.loads(path.read_text(encoding="utf-8"))[table]
    return [
        Measured(x["kind"], (x["m"], x["k"], x["n"]), {s: median(t) for s, t in x["seconds"].items()}, operands)
        for x in rows
    ]


def recorded(folder: Path, dtype: str) -> list[Tuning]:
    found = Trials(folder / "trials.jsonl").tunings()
    return [t for t in found if t.header.settings.get("dtype") == dtype]


def observed(tunings: Sequence[Tuning], stages: Sequence[str]) -> list[Observation]:
    """Each tuning's medians: cards are not mixed within one."""
    return [o for tuning in tunings for o in stage_medians(tuning.trials, stages)]


def whole_calls(folder: Path, dtype: str) -> list[Observation]:
    """Medians of what was timed beside default calls, but for plans that are nobody's choice there."""
    found, least = [], SHORTEST if dtype in LONG_ALONE else SHORTEST_REPLAYED
    for row in recorded_rows(folder / FILE):
        vendor = median(row.seconds["vendor"])
        if row.dtype.removesuffix(OWN) == dtype and vendor >= least:
            names = [name for name in (row.seconds if vendor >= SHORTEST else row.whole) if name != "default"]
            timed = [(Plan.parse(name), median(row.seconds[name])) for name in names]
            worth = [(plan, own) for plan, own in timed if own <= WORTH_FITTING * vendor]
            # (Of leaves with rates of their own there are too few.)
            known = [(plan, own) for plan, own in worth if not plan.leaf_use.leaf.rate]
            found += [Observation(Problem(*row.size, dtype), Run(plan), own) for plan, own in known]
    return found


def halves(observed: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Those of every second shape, and the others."""
    shapes = list(dict.fromkeys(o.problem for o in observed))
    first = set(shapes[::2])
    return [o for o in observed if o.problem in first], [o for o in observed if o.problem not in first]


def without_repeated_tiles(tuned: Sequence[Observation], calls: Sequence[Observation]) -> list[Observation]:
    """The tunings' observations, but for those by our own tiles where whole calls by these were timed, too. (With them
    two choices more of 250 in float32 without emulation are poor.)"""
    known = any(o.kind == "inside" for o in calls)
    return [o for o in tuned if not (known and o.run.plan.uses_tile_model)]


def with_best_margins(known: Calibration, dtype: str, folder: Path) -> Calibration:
    """With those by which the fewest choices are poor on every second shape of the runs, and these are the best."""
    rows = [row for row in recorded_rows(folder / FILE) if row.dtype.removesuffix(OWN) == dtype]
    shapes = list(dict.fromkeys(row.size for row in rows))
    rows = [row for row in rows if row.size in set(shapes[::2])]
    if not rows:
        return known

    def merit(margins: tuple[float, float]) -> tuple[int, float, float]:
        tried = replace(known, margin=margins[0], tiled_margin=margins[1])
        judged = [x for row in rows if (x := replayed(row, tried).as_chosen) is not None]
        return -sum(x.poor for x in judged), mean(x.share_of_best for x in judged), sum(margins)

    margin, tiled_margin = max(product(MARGINS, MARGINS), key=merit)
    return replace(known, margin=margin, tiled_margin=tiled_margin)


def section(card: Card, calls: Sequence[Observation], dtype: str) -> dict[str, Raw]:
    tunings, sheet = card.tunings(dtype), datasheet_calibration(card.sheet)
    (_, others), seen = halves(calls), fitted_to(tunings, calls)
    fitted = fit_calibration(starting_calibration(sheet, dtype), dtype, seen)
    largest = max(largest_pair(t.trials) for t in tunings)
    known = replace(fitted.calibration, launch=LAUNCH, host=HOST, call=CALL)
    rates = {
        **starting_calibration(sheet, dtype).rates,
        **known.rates,
    }  # of leaves that were not there: the datasheet's
    known = replace(known, rates=MappingProxyType(rates))
    model = checked_model(known, dtype, [*observed(tunings, ("held out",)), *others], None, largest)
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
        "error": {name: e.fields for name, e in model.error.items()},
        "thresholds": todays_thresholds(calibration, dtype, intervals, seen).fields,
        "noise": noise,
        "doubts": list(model.diagnostics),
    }


def with_blocks(raw: Raw, dtype: str, card: Card) -> dict[str, Raw]:
    """The section with the tiles of our own kernel that are launched there, and the model that chooses them."""
    found = judged_blocks(recorded_blocks(BLOCKS), card.chip)
    tiles = chosen_strategies(dtype, card.chip, found)
    own = found.fields if dtype == DTYPE else None
    return {**raw, "thresholds": {**raw["thresholds"], "block_strategy": tiles}, "blocks": own}


def fitted_to(tunings: Sequence[Tuning], calls: Sequence[Observation]) -> list[Observation]:
    """What the tunings measured, and of whole calls those of every second shape."""
    seen, _ = halves(calls)
    return [*without_repeated_tiles(observed(tunings, FITTED), seen), *seen]


def todays_thresholds(
    calibration: Calibration, dtype: str, intervals: Mapping[str, Sequence[float]], seen: Sequence[Observation]
) -> Thresholds:
    """Those of the model, with the intervals that what it was fitted to leaves."""
    admitted = sample_calibrations(calibration, dtype, intervals, seen)
    return with_intervals(thresholds(calibration, dtype), calibration, dtype, admitted)


def with_todays_thresholds(known: Raw, dtype: str, card: Card, seen: Sequence[Observation]) -> dict[str, Raw]:
    """A section whose model is as it was."""
    calibration = schema.read_calibration(known["calibration"], "calibration", dtype, card.name, "")
    return {**known, "thresholds": todays_thresholds(calibration, dtype, known["intervals"], seen).fields}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", action="store_true", help="leave models and thresholds as they are")
    parser.add_argument("--thresholds", action="store_true", help="leave the models as they are")
    parser.add_argument("--card", choices=[card.sheet for card in CARDS], help="only these (all unless given)")
    options = parser.parse_args(arguments)
    known = files.read_config(SHIPPED)
    for card in CARDS:
        if options.card in (None, card.sheet):
            kept = known[card.key] if options.blocks or options.thresholds else None
            types = kept if kept and options.blocks else sections_of(card, kept)
            known[card.key] = {dtype: with_blocks(raw, dtype, card) for dtype, raw in types.items()}
    store.replace_file(SHIPPED, reader.config_text(known))
    return 0


def sections_of(card: Card, before: Mapping[str, Raw] | None) -> dict[str, dict[str, Raw]]:
    """Of every type, fitted anew; or as before, with new thresholds."""
    types: dict[str, dict[str, Raw]] = {}
    for dtype in card.sources:
        calls = whole_calls(card.results, dtype)
        if before is not None:
            types[dtype] = with_todays_thresholds(before[dtype], dtype, card, fitted_to(card.tunings(dtype), calls))
        else:
            types[dtype] = section(card, calls, dtype)
        known = types[dtype]["calibration"]
        print(card.sheet, dtype, f"margin {known['margin']:.3f}, {known['tiled_margin']:.3f}", *types[dtype]["doubts"])
    return types


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

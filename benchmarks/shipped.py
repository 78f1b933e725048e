"""The models that ship with the package: `python -m benchmarks.shipped` fits them to tunings that are on record.

Of each type the trials of one or more tunings of H200s are put together; what was held out there judges the fit, and no
entry is taken along: nobody certified anything on the cards of those who install it. `python -m benchmarks.regret` then
says what the choices are worth on shapes that none of them saw.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from fmm.config import schema, store
from fmm.config.locate import SHIPPED
from fmm.config.schema import Raw
from fmm.perfmodel.calibration import Calibration, datasheet
from fmm.tuner.findings.conclude import FITTED, checked_model, starting_calibration
from fmm.tuner.findings.doubts import largest_pair, noise_floor
from fmm.tuner.findings.thresholds import thresholds
from fmm.tuner.fit.model import Observation, fit_calibration, stage_medians
from fmm.tuner.trials.record import Trials, Tuning

ROOT = Path(__file__).parents[1]
KEY, DEVICE, SHEET = "cuda-9.0-132sm", "NVIDIA H200", "H200"
# Where the trials of each type are.
SOURCES = {
    "float32": ("tiles",),
    "float64": (".",),
    "bfloat16": (".",),
    "float16": ("quick",),
    "tf32": ("quick",),
}


def recorded(folder: Path, dtype: str) -> list[Tuning]:
    found = Trials(folder / "trials.jsonl").tunings()
    return [t for t in found if t.header.settings.get("dtype") == dtype and t.header.device == KEY]


def observed(tunings: Sequence[Tuning], stages: Sequence[str]) -> list[Observation]:
    """Each tuning's medians: cards are not mixed within one."""
    return [o for tuning in tunings for o in stage_medians(tuning.trials, stages)]


def section(tunings: Sequence[Tuning], dtype: str, sheet: Calibration) -> dict[str, Raw]:
    fitted = fit_calibration(starting_calibration(sheet, dtype), dtype, observed(tunings, FITTED))
    largest = max(largest_pair(t.trials) for t in tunings)
    known = fitted.calibration
    rates = {
        **starting_calibration(sheet, dtype).rates,
        **known.rates,
    }  # of leaves that were not there: the datasheet's
    known = replace(known, rates=MappingProxyType(rates))
    model = checked_model(known, dtype, observed(tunings, ("held out",)), None, largest)
    noise = max((x for t in tunings if (x := noise_floor(t.trials)) is not None), default=None)
    runs = ", ".join(t.header.run for t in tunings)
    return {
        **schema.empty_section(dict(tunings[-1].header.versions)),
        "conditions": {"device": DEVICE},
        "tuned": {"at": datetime.now(UTC).isoformat(timespec="seconds"), "effort": "shipped", "run": runs},
        "calibration": schema.calibration_fields(model.calibration, dtype),
        "intervals": {name: list(ends) for name, ends in fitted.intervals.items()},
        "error": {name: e.fields for name, e in model.error.items()},
        "thresholds": thresholds(model.calibration, dtype).fields,
        "noise": noise,
        "doubts": list(model.doubts),
    }


def main() -> int:
    sheet, types = datasheet(SHEET), dict[str, dict[str, Raw]]()
    for dtype, folders in SOURCES.items():
        tunings = [t for name in folders for t in recorded(ROOT / "results" / "nvidia-h200" / name, dtype)]
        types[dtype] = section(tunings, dtype, sheet)
        known = types[dtype]["calibration"]
        print(dtype, f"margin {known['margin']:.3f}, {known['tiled_margin']:.3f}", *types[dtype]["doubts"])
    store.replace_file(SHIPPED, schema.config_text({KEY: types}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

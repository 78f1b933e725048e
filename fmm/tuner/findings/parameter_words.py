"""What each fitted parameter of the model is, in words, for the report and for docs/tuning.md, which says the same.

Their units and bounds are in fmm.tuner.fit.parameters, the formula that they stand in is that of
fmm.perfmodel.predict.predict_from_work.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fmm.tuner.fit.parameters import BY_NAME, TILE

LIBRARY = "the library's product"
MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "rate.flops": f"speed of {LIBRARY} of very large matrices; pi is one over it",
        "rate.fill": "with so many entries of C the device is half busy",
        "rate.pipe": "with so many steps along the inner dimension half of a product is start-up",
        "rate.rows": "with so many rows of C, reading B takes as long as multiplying",
        "rate.cols": "with so many columns of C, reading A takes as long as multiplying",
        "rate.memory": "at which thin products read and write their operands",
        "rate.unaligned": f"so many times as long {LIBRARY} takes where rows do not begin at multiples of 16 bytes",
        "rate.odd": "the same where they do not even begin at multiples of 4 bytes",
        "rate.alone": "of what these two add, the share where only A's rows are such",
        "rate.copied": "so many times as long products of aligned copies of such rows take",
        "rate.batch": "so many times as long products take that start together, or side by side",
        "rate.tile": "C is computed in whole squares of so many rows and columns",
        "stream": "at which sums of blocks read and write memory; alpha is three numbers over it",
        "small": "with so many bytes a pass of sums reaches half of that speed",
        "sequential": "share of that speed in levels that are done one product after the other",
        "ragged": "share of that speed on rows that do not begin on cache lines",
        "scalar": "share of that speed on rows that are moved one number at a time",
        "parts": "share of that speed to and from real or imaginary parts, every second number in memory",
        "deep": "share of that speed where three levels are summed in one pass",
        "launch": "that each start of a product or sum takes",
        "host": "of the processor, at least, to start one product",
        "overlap": "share of an overlapped level's sums that is hidden behind its products",
        "idle": "in which a thread has nothing to do, at a plan's beginning and end",
        "spin": "lost to BLAS's threads, which wait busily on a processor after a product",
        "apart": "share of their speed that sums of small plans reach, which run one step at a time",
        "rate.tiled": f"so many times as long our own kernel takes as {LIBRARY}, both very large",
        "rate.tiled_odd": "so many times as long it takes where it reads rows that are not aligned",
        "rate.waves": "with so many of its tiles the device is half busy",
        "rate.inside": "that one addition on the way into our own kernel's product takes as long as",
    }
)


def meaning_of(name: str) -> str:
    """In words; of a term that the model once had, that it has it no more."""
    return MEANINGS.get(name, "a term of an earlier model")


def unit_of(name: str) -> str:
    """Its unit, empty for factors and shares."""
    found = TILE if name == TILE.name else BY_NAME.get(name)
    return found.unit if found else ""


SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
SCALED = ("flop/s", "bytes/s", "bytes", "s")  # units that are told in thousands and thousandths


def spelled(unit: str, *values: float) -> tuple[list[str], str]:
    """Values of a unit in that multiple of it which suits the largest, and its name: 17.4 and `Gbytes/s`."""
    if unit not in SCALED:
        return [f"{x:.3g}" for x in values], unit
    least = SCALES[-1] if max(values) else (1.0, "")
    scale, prefix = next((s for s in SCALES if max(values) >= s[0]), least)
    return [f"{x / scale:.3g}" for x in values], f"{prefix}{unit}"

"""Summarize a tuning as tables of texts, for the terminal and for the HTML report.

`SectionText` returns the tables of one config section (one device and element type). `TypeSummary` has the decisions
for square products of one section. fmm.tuner.findings.device_summary prints the table of a whole device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from fmm.config.schema import (
    NAMES_IN_SECONDS,
    TAU_NAMES,
    Entry,
    JsonValue,
    ThresholdInterval,
    Thresholds,
    read_thresholds,
)
from fmm.dtypes import DTYPES
from fmm.kernels.plans.explain import format_error_growth
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.crossovers import NEVER_WINS_SIDE
from fmm.perfmodel.papers.recursion_points import WINOGRAD_WORK, recursion_point
from fmm.tuner.findings.diagnostics import is_noisy_tuning
from fmm.tuner.findings.model_in_use import (
    ModelInUse,
    SquareDecision,
    decide_large_square,
    decide_squares,
    fallback_model_text,
    first_gaining_side,
    gaining_odd_sides,
    model_in_use,
    skip_reason_by_default_limits,
    unmeasured_leaves,
)
from fmm.tuner.findings.thresholds import LEVEL_COUNTS, ROUND_SIDES, crossover_of_levels, finite_or_none
from fmm.tuner.fit.parameters import fixed_parameters, parameter_unit, text_with_unit_prefix

NEVER_TEXT, UNDETERMINED_TEXT, NOT_MEASURED_TEXT, NOISY_TEXT = "never", "not determined", "not measured", "noisy"
# sides of the square products in the table of a device: 1024 to 32768
SUMMARY_SIDES = tuple(1024 << i for i in range(6))
# side of the large square product in a TypeSummary; if gains begin at a larger side, that side is used instead
SUMMARY_SQUARE_SIDE = 16000
MAX_ODD_ROWS = 4  # largest number of odd sides in the table `squares`
RESUME_NOTE = "--resume continues"
ALPHA_OVER_PI = "alpha/pi"  # head of the column with the ratio of the thresholds alpha and pi


@dataclass(frozen=True)
class TextTable:
    """A table of text cells with a title and an optional one-line note."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @property
    def value_by_label(self) -> dict[str, str]:
        """The first two columns as a dictionary: first cell of a row -> second cell of the row."""
        return {row[0]: row[1] for row in self.rows}

    @property
    def text_lines(self) -> Iterator[str]:
        """Yield the table as lines of text: the title, the rows with aligned cells, the note."""
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        yield self.title
        for row in (self.columns, *self.rows):
            yield f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip()
        if self.note:
            yield f"  ({self.note})"


def text_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> TextTable:
    """Return a table with these column heads and rows."""
    return TextTable(title, tuple(columns), tuple(map(tuple, rows)), note)


# ---- cells


def threshold_text(name: str, value: float | None) -> str:
    """Return a threshold as text: alpha and pi with four digits, sides as whole numbers, epsilon with its sign."""
    if value is None:
        return UNDETERMINED_TEXT if name == "epsilon" else NEVER_TEXT
    if name == "epsilon":
        return f"{value:+.4g}" if value else "0"
    return f"{value:.4g}" if name in NAMES_IN_SECONDS else f"{value:.0f}"


def interval_text(name: str, interval: ThresholdInterval | None) -> str:
    """Return the 95 % interval of a threshold as text; empty if there is no recorded interval."""
    return f"[{', '.join(threshold_text(name, end) for end in interval)}]" if interval else ""


def gibibytes_text(count: int) -> str:
    """Return a number of bytes as text in GiB, without the unit."""
    found = count / 2**30
    return f"{found:.1f}" if found < 10 else f"{found:.0f}"


def percent_text(value: float | None) -> str:
    """Return a fraction as text in percent; `not measured` for None."""
    return NOT_MEASURED_TEXT if value is None else f"{value:.1%}"


def entry_size_text(entry: Entry) -> str:
    """Return as text for which products an entry holds: the size, the operation and the workspace limit."""
    size = str(entry.size[0]) if len(set(entry.size)) == 1 else " x ".join(map(str, entry.size))
    what = [entry.op] * (entry.op != "product") + ["workspace=0"] * entry.lean
    return f"{size} ({', '.join(what)})" if what else size


def vendor_name(calibration: Calibration) -> str:
    """Return the name of the vendor's library on this kind of device: `cuBLAS` or `NumPy`."""
    return "cuBLAS" if calibration.batches else "NumPy"


# ---- one section


class SectionText:
    """The tables that describe one config section.

    `sections` has all sections of the device by element type, including this section.
    """

    def __init__(self, section: Mapping[str, Any], dtype: str, key: str, sections: Mapping[str, Any] | None = None):
        self.section, self.dtype, self.key = section, dtype, key
        self.used = model_in_use(key, dtype, {**(sections or {}), dtype: section})
        self.fitted = self.used.tuned.calibration

    @property
    def text_lines(self) -> Iterator[str]:
        """Yield the lines of all tables."""
        for table in self.section_tables:
            yield from (f"  {line}" for line in table.text_lines)

    @property
    def section_tables(self) -> Iterator[TextTable]:
        """Yield the tables that have rows: first decisions, then crossovers and thresholds, then the model."""
        noisy = is_noisy_tuning(self.used.tuned.diagnostics)
        found = [
            self.diagnostics_table(),
            self.squares_table(),
            self.certified_entries_table(),
            self.unmeasured_leaves_table(),
        ]
        if self.fitted is not None:
            thresholds = None if noisy else read_thresholds(self.section["thresholds"])
            if thresholds is not None:
                found += [self.crossovers_table(thresholds, self.fitted), self.measured_crossovers_table(thresholds)]
                found += [self.thresholds_table(thresholds)]
                found += [self.one_level_table(thresholds), self.tile_strategies_table(thresholds)]
            found += [
                self.model_table(self.fitted, noisy),
                *([] if noisy else [self.fixed_parameters_table(self.fitted)]),
            ]
        yield from (table for table in found if table.rows)

    def diagnostics_table(self) -> TextTable:
        """Return a table with the reasons to reject the tuning, and what fmm.matmul uses instead of the tuning."""
        instead = fallback_model_text(self.used.tuned.identity, self.dtype)
        rows = [(diagnostic, instead) for diagnostic in self.used.tuned.diagnostics]
        return text_table("rejected", ("diagnostic", "used instead"), rows)

    def squares_table(self) -> TextTable:
        """Return a table of fmm.matmul's decisions for square products, starting at the first side with a gain."""
        model = self.used.calibration
        first = None if model is None else first_gaining_side(model, self.dtype)
        odd = list(gaining_odd_sides(model, self.dtype)) if model is not None and model.batches else []
        sides = [side for side in ROUND_SIDES if first is not None and side >= first] + odd[-MAX_ODD_ROWS:]
        rows = [_decision_row(x) for x in decide_squares(self.used, sides) if x.has_gain or x.entry]
        columns = "side", "speedup", "basis", "error growth", "workspace [GiB]", "plan"
        start = "" if first is None else f"predicted from side {first}"
        beyond = f", odd sides from {odd[0]}" if odd else ""
        return text_table("squares", columns, rows, f"{start}{beyond}" if rows else "")

    def certified_entries_table(self) -> TextTable:
        """Return a table of the certified entries, with the reason if fmm.matmul skips an entry."""
        rows = []
        for entry in self.used.tuned.entries.values():
            vendor = entry.plan == str(VENDOR)
            interval = "" if vendor else f"[{entry.low:.2f}, {entry.high:.2f}]"
            speedup = "1" if vendor else f"{entry.speedup:.2f}"
            skipped = skip_reason_by_default_limits(self.used, entry)
            rows.append((entry_size_text(entry), speedup, interval, str(entry.rounds), entry.plan, skipped))
        columns = "size", "speedup", "95 % interval", "rounds", "plan", "skipped because"
        keep = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
        return text_table("certified entries", columns[:keep], (row[:keep] for row in rows))

    def unmeasured_leaves_table(self) -> TextTable:
        """Return a table of failed leaves, and of leaves for which decisions use the datasheet's rate."""
        chosen, rows = unmeasured_leaves(self.used), list[tuple[str, str]]()
        rows += [(leaf, "datasheet; no tuning measures this leaf") for leaf in chosen if leaf in self.used.assumed]
        rows += [(leaf, "datasheet; this tuning skipped the leaf") for leaf in chosen if leaf in self.used.left_out]
        rows += [(leaf, "none; the leaf failed and is excluded") for leaf in self.used.failed]
        return text_table("leaves without a measured rate", ("leaf", "rate"), rows)

    def crossovers_table(self, found: Thresholds, fitted: Calibration) -> TextTable:
        """Return a table of the sides from which 1, 2 and 3 levels gain: Li, Ranka and Sahni's tau1, tau2, tau3."""
        model, rows = self.used.calibration, []
        for levels, name in zip(LEVEL_COUNTS, TAU_NAMES, strict=True):
            spread = getattr(found, name)
            taken = (
                ""
                if model is None
                else threshold_text(name, finite_or_none(crossover_of_levels(model, self.dtype, levels)))
            )
            sides = (threshold_text(name, x) for x in (spread.low, spread.value))
            apart = threshold_text(name, found.without_emulation.get(name)) if found.without_emulation else ""
            ends = interval_text(name, found.intervals.get(name))
            rows.append((str(levels), *sides, ends, threshold_text(name, spread.high), taken, apart))
        margin = f"margin {fitted.margin:.1%} gained"
        columns = "levels", "no loss", "2 % gained (tau)", "95 % interval", margin, "chosen", "tau, no emulation"
        keep = len(columns) if found.without_emulation else len(columns) - 1
        return text_table("crossover sides of squares", columns[:keep], (row[:keep] for row in rows))

    def measured_crossovers_table(self, found: Thresholds) -> TextTable:
        """Return a table of the measured tau1, tau2 and tau3, which limit the number of levels of every decision."""

        def crossover_text(tau: float | None) -> str:
            return "no bound" if tau is None else NEVER_TEXT if tau >= NEVER_WINS_SIDE else f"{tau:.0f}"

        rows = [(bounds.baseline, *map(crossover_text, bounds.crossover_sides)) for bounds in found.measured_crossovers]
        note = "up to tau1 no level is chosen, up to tau2 one, up to tau3 two" if rows else ""
        return text_table("measured crossovers, effective sides", ("without levels", *TAU_NAMES), rows, note)

    def thresholds_table(self, found: Thresholds) -> TextTable:
        """Return a table of D'Alberto and Nicolau's alpha, pi, recursion point n1 and epsilon."""
        rows = [
            (
                name,
                threshold_text(name, found.threshold_value(name)),
                unit,
                interval_text(name, found.intervals.get(name)),
            )
            for name, unit in (("alpha", "s/element"), ("pi", "s/flop"), ("n1", "side"), ("epsilon", "flop"))
        ]
        rows.insert(3, ("n1 measured", measured_recursion_text(found), "side", ""))
        columns = "threshold", "value", "unit", "95 % interval"
        note = f"Equation 3: n1 = {Fraction(n1_per_alpha_over_pi(self.dtype))} alpha / pi"
        return text_table("recursion point", columns, rows, note)

    def one_level_table(self, found: Thresholds) -> TextTable:
        """Return a table with the measured speedup of one level for each side of a square."""
        rows = [(side, f"{gain:.2f}") for side, gain in found.one_level.items()]
        return text_table("one level, measured", ("side", "speedup"), rows)

    def tile_strategies_table(self, found: Thresholds) -> TextTable:
        """Return a table with the tile strategy of fmm's own float32 kernel for each side of a square."""
        return text_table("tiles of fmm's own kernel", ("side", "strategy"), found.block_strategy.items())

    def model_table(self, fitted: Calibration, noisy: bool) -> TextTable:
        """Return a table of the fitted model's rates, the noise, the margin, and the errors on held-out shapes."""
        rows = []
        if not noisy:
            rows += [
                (
                    f"{vendor_name(fitted)}, large products",
                    f"{fitted.require_rate(self.dtype).flops / 1e9:,.0f}",
                    "Gflop/s",
                ),
                ("sums of blocks", f"{fitted.stream / 1e9:,.0f}", "GB/s"),
            ]
        rows += [
            ("noise of equal products", percent_text(self.section["noise"]), ""),
            ("margin", f"{fitted.margin:.1%}", ""),
        ]
        for what in ("speedup", "time"):
            error = (self.section["error"] or {}).get(what) or {"count": 0}
            rows.append((f"held-out {what}s", f"{error['count']:.0f}", ""))
            if error["count"]:
                rows.append((f"{what} error, median", f"{error['median']:.1%}", ""))
                rows.append((f"{what} error, 95th percentile", f"{error['p95']:.1%}", ""))
        if not noisy and (blocks := self.section.get("blocks")):
            rows.append(("block model error, built-in terms", f"{blocks['built_in_error']:.1%}", ""))
            if blocks["fitted"] and not blocks.get("built_in"):
                rows.append(("block model error, fitted terms", f"{blocks['error']:.1%}", ""))
        return text_table("model", ("quantity", "value", "unit"), rows)

    def fixed_parameters_table(self, fitted: Calibration) -> TextTable:
        """Return a table of the parameters that the fit did not vary, with the sources of their values."""
        rows = []
        for parameter in fixed_parameters(self.section["intervals"] or {}, fitted, self.dtype, self.used.guess):
            (text,), unit = text_with_unit_prefix(parameter_unit(parameter.name), parameter.value)
            determined = parameter.source != UNDETERMINED_TEXT
            rows.append((parameter.name, *((text, unit) if determined else ("", "")), parameter.source))
        return text_table("fixed parameters", ("parameter", "value", "unit", "source"), rows)


def _decision_row(x: SquareDecision) -> tuple[str, ...]:
    speedup = f"{x.speedup:.2f}" if x.has_gain else "1"
    return (
        str(x.side),
        speedup,
        x.speedup_basis,
        format_error_growth(x.error_growth),
        gibibytes_text(x.workspace),
        str(x.plan),
    )


# ---- D'Alberto and Nicolau's Table 3


@dataclass(frozen=True)
class ThresholdColumn:
    """A column of the table `thresholds`, which shows one threshold."""

    head: str
    name: str  # name of a field of Thresholds, or ALPHA_OVER_PI
    text: Callable[[float], str]
    # True if a larger threshold gives a smaller printed number, for example 1/pi: the ends of the interval are then
    # swapped.
    falls: bool = False

    def cell_text(self, found: Thresholds, dtype: str, intervals: bool) -> str:
        """Return the threshold as text; if `intervals` is True, its 95 % interval follows."""
        if self.name == "n1_measured":
            return measured_recursion_text(found)
        value: float | None
        if self.name == ALPHA_OVER_PI:
            value, interval = found.alpha / found.pi, _alpha_over_pi_interval(found, dtype)
        else:
            value, interval = found.threshold_value(self.name), found.intervals.get(self.name)
        if value is None:
            return threshold_text(self.name, None)
        interval = interval if intervals else None
        if not interval:
            return self.text(value)
        ends = [NEVER_TEXT if end is None else self.text(end) for end in interval]
        return f"{self.text(value)} [{', '.join(reversed(ends) if self.falls else ends)}]"


def n1_per_alpha_over_pi(dtype: str) -> float:
    """Return n1 divided by alpha/pi, by D'Alberto and Nicolau's Equation 3.

    Equation 3 counts two flops for a multiply-add. A complex multiply-add has eight real flops, of pi seconds each.
    """
    return recursion_point(2 / DTYPES[dtype].flops, WINOGRAD_WORK)


def _alpha_over_pi_interval(found: Thresholds, dtype: str) -> ThresholdInterval | None:
    """Return the 95 % interval of alpha/pi, computed from the interval of n1; None if n1 has no interval."""
    if (interval := found.intervals.get("n1")) is None:
        return None
    low, high = (None if end is None else end / n1_per_alpha_over_pi(dtype) for end in interval)
    return low, high


def _whole_number_text(x: float) -> str:
    return f"{x:.0f}"


THRESHOLD_COLUMNS = (
    ThresholdColumn("1/pi [Gflop/s]", "pi", lambda x: f"{1e-9 / x:,.0f}", falls=True),
    ThresholdColumn("1/alpha [Madd/s]", "alpha", lambda x: f"{1e-6 / x:,.0f}", falls=True),
    ThresholdColumn(ALPHA_OVER_PI, ALPHA_OVER_PI, _whole_number_text),
    ThresholdColumn("n1", "n1", _whole_number_text),
    ThresholdColumn("n1 measured", "n1_measured", _whole_number_text),
    ThresholdColumn("epsilon", "epsilon", lambda x: threshold_text("epsilon", x)),
    *(ThresholdColumn(name, name, _whole_number_text) for name in TAU_NAMES),
)


def thresholds_of_types(types: Iterable[tuple[str, JsonValue]], intervals: bool = False) -> TextTable:
    """Return D'Alberto and Nicolau's Table 3 for a device: the thresholds, with a row for each element type."""
    rows = []
    for dtype, section in types:
        found = read_thresholds(section["thresholds"])
        if found is not None:
            noisy = is_noisy_tuning(section.get("doubts") or ())
            cells = (column.cell_text(found, dtype, intervals) for column in THRESHOLD_COLUMNS)
            rows.append((dtype, *(NOISY_TEXT if noisy else cell for cell in cells)))
    return text_table("thresholds", ("type", *(column.head for column in THRESHOLD_COLUMNS)), rows)


def measured_recursion_text(found: Thresholds) -> str:
    """Return the measured recursion point as text.

    The text is a bound, such as `< 1024`, if one level was faster on all timed squares or slower on the largest one.
    """
    if found.n1_measured is not None:
        return f"{found.n1_measured:.0f}"
    if not found.one_level:
        return NOT_MEASURED_TEXT
    sides = [int(side) for side in found.one_level]
    return f"< {min(sides)}" if list(found.one_level.values())[-1] > 1 else f"> {max(sides)}"


# ---- all types of a device


@dataclass(frozen=True)
class TypeSummary:
    """fmm.matmul's decisions for square products of one element type on a device."""

    dtype: str
    used: ModelInUse

    @cached_property
    def first_gain_side(self) -> int | None:
        """Smallest side from which the model predicts gains for all squares; None if it predicts no gain."""
        model = self.used.calibration
        return None if model is None else first_gaining_side(model, self.dtype)

    @cached_property
    def large_square_decision(self) -> SquareDecision | None:
        """Decision for a large square with a gain; None if no square gains."""
        return (
            None
            if self.first_gain_side is None
            else decide_large_square(self.used, self.first_gain_side, SUMMARY_SQUARE_SIDE)
        )

    @property
    def skipped_leaves(self) -> list[str]:
        """Leaves that chosen plans use although this tuning has not measured the leaves."""
        return [leaf for leaf in unmeasured_leaves(self.used) if leaf in self.used.left_out]

    @property
    def json_fields(self) -> dict[str, Any]:
        """The decisions for square products as a dictionary for JSON."""
        model = self.used.calibration
        sides = sorted({*ROUND_SIDES, *SUMMARY_SIDES, *(entry.size[0] for entry in _square_entries(self.used))})
        return {
            "faster_from": self.first_gain_side,
            "levels_from": [finite_or_none(crossover_of_levels(model, self.dtype, n)) for n in LEVEL_COUNTS]
            if model
            else None,
            "squares": [answer.json_fields for answer in decide_squares(self.used, sides)],
        }


def _square_entries(used: ModelInUse) -> Iterator[Entry]:
    """Yield the verified certified entries of square products."""
    for entry in used.tuned.entries.values():
        if entry.op == "product" and len(set(entry.size)) == 1 and entry.verified and not entry.lean:
            yield entry


def tuning_command(key: str, dtypes: Sequence[str], option_value: str = "") -> str:
    """Return the fmm-tune command that tunes these element types of a device; without `dtypes`, all element types.

    `option_value` is the value of --device that selects a GPU. If it is empty, as for a config of another machine, the
    command names no GPU.
    """
    value = option_value if key.startswith("cuda") else "cpu"
    device = f" --device {value}" if value else ""
    types = f" --dtype {','.join(dtypes)}" if dtypes else ""
    return f"fmm-tune{device}{types}"

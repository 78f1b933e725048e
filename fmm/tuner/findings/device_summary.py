"""Print the tuning of a device in about 25 lines: speedups, crossovers, errors, workspace and recursion by type.

`summarize_device` computes the lines of the summary from the sections of a config. A measured number is bold on a
colour terminal and has the mark `*` in plain text; a predicted number has no mark. A missing number is shown as `-`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import log
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from time import monotonic
from typing import TextIO

from fmm.config import environment, files
from fmm.config.schema import TAU_NAMES, JsonValue, Thresholds, read_thresholds
from fmm.dtypes import DTYPES
from fmm.kernels.plans.explain import format_error_growth
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.crossovers import NEVER_WINS_SIDE, baseline_text, count_levels
from fmm.tuner.findings.model_in_use import (
    SquareDecision,
    decide_square,
    device_name,
    fallback_model_text,
    model_in_use,
)
from fmm.tuner.findings.summary import NEVER_TEXT, SUMMARY_SIDES, TypeSummary, gibibytes_text, tuning_command

NO_NUMBER = "-"
MEASURED_MARK = "*"
EMULATED = "emulated"  # name of the row for all plans that use emulation
DETAILED_SIDE = 16384  # side of the square product for which the columns error, workspace and levels are computed
DEFAULT_WIDTH = 80  # width of the output in columns if stdout is no terminal
MARK_IN_COLOUR = "bold"
BOLD, RESET = "\033[1m", "\033[0m"
IDLE_ADVICE = "measure on an idle machine"


# ---- cells


@dataclass(frozen=True)
class SummaryCell:
    """A cell of a table; `measured` is True if its number was measured on this device, False if it was predicted."""

    text: str = NO_NUMBER
    measured: bool = False

    def plain_text(self, marked: bool) -> str:
        """Return the cell's text; if `marked` is True, a measured number has the mark `*`."""
        return f"{self.text}{MEASURED_MARK}" if self.measured and marked else self.text


@dataclass(frozen=True)
class SummaryTable:
    """One of the two tables of a device: its name, the columns' heads, and a row of cells for each element type."""

    name: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[SummaryCell, ...]], ...]
    legend: str  # text below the table; {mark} is replaced by the mark of measured numbers
    left_aligned: int = 0  # number of columns, counted from the right, that are left-aligned
    dropped_first: int = 0  # number of columns, counted from the left, that may be dropped on a narrow terminal

    def text_lines(self, width: int, colour: bool) -> Iterator[str]:
        """Yield the lines of the table; to fit `width` characters, first gaps are narrowed, then columns dropped."""
        first = max(len(self.name), *(len(name) + 2 for name, _ in self.rows), 12)
        widths = [
            max(len(head), *(len(row[i].plain_text(not colour)) for _, row in self.rows))
            for i, head in enumerate(self.heads)
        ]
        gap = 2 if first + sum(x + 2 for x in widths) <= width else 1
        start = 0
        while start < self.dropped_first and first + sum(x + gap for x in widths[start:]) > width:
            start += 1
        heads = tuple(map(SummaryCell, self.heads))
        for name, cells in ((self.name, heads), *((f"  {name}", cells) for name, cells in self.rows)):
            texts = (self._padded_cell_text(cells[i], widths[i], i, colour) for i in range(start, len(cells)))
            yield "".join((name.ljust(first), *(f"{' ' * gap}{text}" for text in texts))).rstrip()
        legend = self.legend_text(MARK_IN_COLOUR if colour else MEASURED_MARK)
        yield from wrap(legend, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)

    def legend_text(self, mark: str) -> str:
        """Return the text below the table, in which `mark` stands for the mark of measured numbers."""
        return self.legend.format(mark=mark)

    def _padded_cell_text(self, cell: SummaryCell, width: int, column: int, colour: bool) -> str:
        """Return the text of a cell, padded to the width of its column."""
        text = cell.plain_text(not colour)
        blanks = " " * (width - len(text))
        shown = f"{BOLD}{text}{RESET}" if colour and cell.measured else text
        return f"{shown}{blanks}" if column >= len(self.heads) - self.left_aligned else f"{blanks}{shown}"


def speedup_cell(answer: SquareDecision | None) -> SummaryCell:
    """Return the speedup of a decision as a cell; `-` for the vendor's plan."""
    if answer is None or not answer.has_gain:
        return SummaryCell()
    digits = 2 if answer.speedup < 1.195 else 1
    return SummaryCell(f"{answer.speedup:.{digits}f}x", answer.entry is not None)


def matrix_side_cell(side: float | None, measured: bool = False) -> SummaryCell:
    """Return a side as a cell with a whole number; `-` for None, `never` for NEVER_WINS_SIDE."""
    if side is None:
        return SummaryCell()
    return SummaryCell(NEVER_TEXT if side >= NEVER_WINS_SIDE else f"{side:,.0f}", measured)


# ---- one type


@dataclass(frozen=True)
class ElementTypeFindings:
    """The numbers of one element type in the tables of a device; without a usable section, all numbers are missing."""

    dtype: str
    section: JsonValue
    summary: TypeSummary | None  # None if the type has no section

    @cached_property
    def decisions(self) -> Mapping[int, SquareDecision | None]:
        """fmm.matmul's decisions for the squares of the table, by side."""
        if self.summary is None:
            return dict.fromkeys(SUMMARY_SIDES)
        return {side: decide_square(self.summary.used, side) for side in SUMMARY_SIDES}

    @property
    def decision_shown_in_detail(self) -> SquareDecision | None:
        """Among decisions with a gain, the one with the side nearest to DETAILED_SIDE; None if no square has a gain."""
        gains = [x for x in self.decisions.values() if x and x.has_gain]
        return min(gains, key=lambda x: abs(log(x.side / DETAILED_SIDE)), default=None)

    @property
    def speedup_cells(self) -> Iterator[SummaryCell]:
        """Yield the cells of the type's row in the first table: speedups, crossover, error growth and workspace."""
        yield from map(speedup_cell, self.decisions.values())
        yield matrix_side_cell(self.summary.first_gain_side if self.summary else None)
        if (best := self.decision_shown_in_detail) is None:
            yield from (SummaryCell(), SummaryCell())
        else:
            yield SummaryCell(f"{format_error_growth(best.error_growth)}x")
            yield SummaryCell(f"{gibibytes_text(best.workspace)} GiB")

    @cached_property
    def thresholds(self) -> Thresholds | None:
        """The recorded thresholds; None for a rejected tuning."""
        usable = self.summary is not None and self.summary.used.calibration is not None
        return read_thresholds(self.section["thresholds"]) if usable else None

    @property
    def recursion_threshold_rows(self) -> Iterator[tuple[str, tuple[SummaryCell, ...]]]:
        """Yield the type's rows in the second table, one for each baseline, with tau1, tau2 and tau3.

        The first row, of the vendor as the baseline, also has alpha/pi, n1 and the block strategy.
        """
        found, large = self.thresholds, self.decisions[DETAILED_SIDE]
        baselines = _taus_by_baseline(found)
        names = [row.baseline for row in baselines]
        chosen, labels = _baseline_row_of_decision(names, large), shortest_distinct_plan_names(names)
        for i, row in enumerate(baselines):
            ratio, n1, strategy = self._vendor_threshold_cells(found) if not i else (SummaryCell(),) * 3
            levels = level_count_cell(large) if i == chosen else SummaryCell()
            yield self.dtype if not i else f"  {labels[i]}", (ratio, n1, *row.crossover_cells, levels, strategy)

    def _vendor_threshold_cells(self, found: Thresholds | None) -> tuple[SummaryCell, SummaryCell, SummaryCell]:
        """Return the cells of alpha/pi, n1 and the block strategy."""
        if found is None:
            return SummaryCell(), SummaryCell(), SummaryCell()
        strategy = SummaryCell(block_strategy_text(found.block_strategy) or NO_NUMBER)
        return SummaryCell(f"{found.alpha / found.pi:,.0f}"), matrix_side_cell(found.n1), strategy


@dataclass(frozen=True)
class BaselineTaus:
    """The crossovers tau1, tau2 and tau3 of the plans with one baseline: the measured and the predicted ones."""

    baseline: str  # the plan without its levels; EMULATED for all baselines that use emulation
    measured: Mapping[str, float | None]
    predicted: Mapping[str, float | None]

    @property
    def crossover_cells(self) -> Iterator[SummaryCell]:
        """Yield a cell for each crossover: the measured crossover, or the predicted one if none was measured.

        A predicted crossover is limited by the measured crossovers, so that tau1 <= tau2 <= tau3.
        """
        sides = [self.measured.get(name) for name in TAU_NAMES]
        for i, (name, side) in enumerate(zip(TAU_NAMES, sides, strict=True)):
            if side is not None:
                yield matrix_side_cell(side, True)
                continue
            predicted = self.predicted.get(name)
            if predicted:
                predicted = max([predicted, *(tau for tau in sides[:i] if tau)])
                predicted = min([predicted, *(tau for tau in sides[i + 1 :] if tau)])
            yield matrix_side_cell(predicted)


def level_count_cell(answer: SquareDecision | None) -> SummaryCell:
    """Return the number of levels of a decision's plan as a cell."""
    return SummaryCell() if answer is None else SummaryCell(str(count_levels(answer.plan)), answer.entry is not None)


def _baseline_row_of_decision(baselines: Sequence[str], answer: SquareDecision | None) -> int:
    """Return the index of the table row that shows the baseline of the decision's plan; 0 if no row matches.

    If no row has exactly the plan's baseline, the first row matches in which the baseline has the same first level or
    leaf, such as `f16x3`.
    """
    if answer is None:
        return 0
    own, first = baseline_text(answer.plan), [_first_level_or_leaf_name(baseline) for baseline in baselines]
    if own in baselines:
        return baselines.index(own)
    names = [_first_level_or_leaf_name(own), *([EMULATED] if answer.plan.uses_emulation else [])]
    return next((i for i, name in enumerate(first) if name in names), 0)


def _taus_by_baseline(found: Thresholds | None) -> list[BaselineTaus]:
    """Return the crossovers for each baseline, first for the vendor.

    If plans with emulation exist, but crossovers were measured for no baseline with emulation, the last row has the
    predicted crossovers of plans with emulation.
    """
    if found is None:
        return [BaselineTaus("", {}, {})]
    model = {name: found.threshold_value(name) for name in TAU_NAMES}
    emulated = {name: Plan.parse(name).uses_emulation for name in (str(VENDOR), *found.measured_taus)}
    rows = [
        BaselineTaus(
            name, found.measured_taus.get(name, {}), model if is_emulated else found.without_emulation or model
        )
        for name, is_emulated in emulated.items()
    ]
    if found.without_emulation and not any(emulated.values()):
        rows.append(BaselineTaus(EMULATED, {}, model))
    return rows


def block_strategy_text(strategies: Mapping[str, str]) -> str:
    """Return as text the block strategy with the longest run of consecutive sides, and both ends of the run.

    Examples
    --------
    >>> block_strategy_text({"512": "Small", "1024": "Deep", "2048": "Deep"})
    'Deep (1024-2048)'
    """
    # sort texts of whole numbers by value: `int` as the key would raise an error for a damaged text
    sides = sorted(strategies, key=lambda side: (len(side), side))
    runs = [(name, list(own)) for name, own in groupby(sides, key=lambda side: strategies[side])]
    if not runs:
        return ""
    name, own = max(runs, key=lambda run: len(run[1]))
    return f"{name} ({own[0]}-{own[-1]})" if len(own) > 1 else f"{name} ({own[0]})"


# ---- one device


@dataclass(frozen=True)
class DeviceSummary:
    """The summary of a device: a headline, two tables, and lines on failures, the config and the next commands."""

    key: str
    types: Sequence[ElementTypeFindings]
    config: str  # path of the config as text
    in_force: bool  # True if fmm.matmul reads this config
    seconds: float | None  # duration of the tuning in seconds; None if no tuning has run, as in `fmm-tune show`
    failures: Mapping[str, str]  # element type -> reason why this run of fmm-tune has no usable result for the type
    option_value: str = ""  # value of --device that selects the device here; empty if unknown

    @property
    def vendor(self) -> str:
        """The name of the vendor's library."""
        return "cuBLAS" if self.key.startswith("cuda") else "NumPy"

    @property
    def device_name_text(self) -> str:
        """The device's name, with the versions of the vendor's library and the driver."""
        section: JsonValue = next((x.section for x in self.types if x.summary), {})
        name = device_name(self.key, section)
        return f"{name}{_versions_text(section.get('versions') or {}, section.get('conditions') or {})}"

    @property
    def tuning_status_text(self) -> str:
        """Text with the number of types, and the duration of the tuning or the date of the last tuning."""
        count = f"{len(self.types)} type{'s' * (len(self.types) != 1)}"
        if self.seconds is not None:
            return f"tuned in {minutes_and_seconds_text(self.seconds)}, {count}"
        days = [str((x.section.get("tuned") or {}).get("at") or "")[:10] for x in self.types if x.summary]
        return f"{count}, tuned {max(days)}" if any(days) else count

    @cached_property
    def speedups(self) -> SummaryTable:
        """The table of speedups by side and type."""
        heads = (*map(str, SUMMARY_SIDES), "crossover", "error", "workspace")
        rows = tuple((x.dtype, tuple(x.speedup_cells)) for x in self.types)
        vendor = self.vendor
        legend = (
            f"speedup of n x n products over {vendor}; {{mark}}: measured here, else predicted{self._error_text}; "
            f"{NO_NUMBER}: no gain, {vendor} computes; crossover: first n with a gain; error: expected, over "
            f"{vendor}'s; workspace: temporary memory; both at {DETAILED_SIDE} or the nearest gain"
        )
        return SummaryTable("speedup, n =", heads, rows, legend, dropped_first=len(SUMMARY_SIDES))

    @property
    def _error_text(self) -> str:
        """Text with the errors of predicted speedups on held-out shapes, over all types; empty without errors."""
        usable = [x.section for x in self.types if x.summary and x.summary.used.calibration]
        errors = [(section["error"] or {}).get("speedup") or {} for section in usable]
        half, most = ([e[name] for e in errors if e.get(name) is not None] for name in ("median", "p95"))
        return (
            f" (by type, half within {_share_range_text(half)} %, 95 % within {_share_range_text(most)} %)"
            if half and most
            else ""
        )

    @cached_property
    def recursion(self) -> SummaryTable:
        """The table of alpha/pi, n1, tau1 to tau3, levels and block strategy by type."""
        heads = ("alpha/pi", "n1", *TAU_NAMES, "levels", "block strategy")
        legend = (
            "tau1, tau2, tau3: largest n without a level of Strassen's recursion, with at most one, with at most two "
            f"({{mark}}: measured; then no choice has more levels); levels: of the choice at {DETAILED_SIDE}, in its "
            f"row; indented rows: levels above another product than {self.vendor}'s of this type; alpha/pi: an "
            "addition's time over a flop's; n1 = 15 alpha/pi (complex: 15/4): recursion point of FMM_TUNING_MODE=hasa; "
            "block strategy: tiles of fmm's own kernel, by n"
        )
        rows = tuple(row for x in self.types for row in x.recursion_threshold_rows)
        return SummaryTable("recursion", heads, rows, legend, left_aligned=1)

    @property
    def failure_line(self) -> str:
        """The line with the failed types and leaves, and the command that tunes them; empty without a failure."""
        by_reason: dict[str, list[str]] = {}
        for dtype, why in self._failures_by_type():
            by_reason.setdefault(why, []).append(dtype)
        parts = [f"{', '.join(types)}: {why}" for why, types in by_reason.items()]
        again = list(dict.fromkeys(dtype for types in by_reason.values() for dtype in types))
        some = again if len(again) < max(len(self.types), 2) else []
        return f"to do   {'; '.join(parts)}: {tuning_command(self.key, some, self.option_value)}" if parts else ""

    def _failures_by_type(self) -> Iterator[tuple[str, str]]:
        """Yield (element type, reason) for each rejected tuning, failed run, failed leaf and skipped leaf."""
        for x in self.types:
            used = x.summary.used if x.summary else None
            why = self.failures.get(x.dtype)
            if used and used.tuned.diagnostics:
                instead = fallback_model_text(used.tuned.identity, x.dtype)
                yield x.dtype, f"rejected, {why or used.tuned.diagnostics[0]} ({instead} is used; {IDLE_ADVICE})"
            elif why:
                yield x.dtype, why
            elif used and used.failed:
                yield x.dtype, f"{_shortened_plan_list(used.failed)} failed"
            elif x.summary and (skipped := x.summary.skipped_leaves):
                yield x.dtype, f"{_shortened_plan_list(skipped)} not measured"

    @property
    def config_text(self) -> str:
        """The line with the config's path, and how to set FMM_CONFIG if fmm.matmul does not read this config."""
        return f"config  {self.config}" if self.in_force else f"config  not read without FMM_CONFIG={self.config}"

    @property
    def next_commands_text(self) -> str:
        """The line with commands that show more than this summary."""
        shown = f"fmm-tune show {self.types[0].dtype} | " if self.types else ""
        return f"next    fmm-tune report | {shown}fmm.explain(a, b)"

    def text_lines(self, width: int = DEFAULT_WIDTH, colour: bool = False) -> Iterator[str]:
        """Yield the lines of the summary; if `colour` is True, measured numbers are bold instead of marked with `*`."""
        yield from _left_and_right_aligned_lines(self.device_name_text, self.tuning_status_text, width)
        yield from self.speedups.text_lines(width, colour)
        yield from self.recursion.text_lines(width, colour)
        if failure := self.failure_line:
            yield from wrap(failure, width, subsequent_indent="        ", break_on_hyphens=False)
        yield from _left_and_right_aligned_lines(self.config_text, self.next_commands_text, width)


def summarize_device(
    key: str,
    sections: Mapping[str, JsonValue],
    config: Path,
    *,
    in_force: bool,
    dtypes: Iterable[str] = (),
    seconds: float | None = None,
    failures: Mapping[str, str] | None = None,
    option_values: Collection[str] = (),
) -> DeviceSummary:
    """Return the summary of a device from its config sections (element type -> section).

    `dtypes` has the types to show, by default all types that have a section. The row of a type without a section has no
    numbers. `option_values` has the values of --device that select this device or equal devices.
    """
    shown = set(dtypes) or set(sections)
    types = [
        ElementTypeFindings(
            dtype,
            sections.get(dtype),
            TypeSummary(dtype, model_in_use(key, dtype, sections)) if dtype in sections else None,
        )
        for dtype in (*(x for x in DTYPES if x in shown), *(shown - DTYPES.keys()))
    ]
    value = next(iter(option_values)) if len(option_values) == 1 else ""
    return DeviceSummary(key, types, _short_path(config), in_force, seconds, failures or {}, value)


def is_config_in_force(path: Path) -> bool:
    """Return True if fmm reads the config file with this path."""
    return path.resolve() in {x.resolve() for x in files.search_path(environment.environment_value("FMM_CONFIG"))}


def print_summary(summary: DeviceSummary, stream: TextIO, began: float | None = None) -> None:
    """Print the summary of a device as wide as the terminal; without a terminal, print plain text.

    If `began` has the value of time.monotonic() at the start of a tuning, the headline has the tuning's duration. The
    duration includes the seconds that computing the table takes.
    """
    if began is not None:
        list(summary.text_lines())  # compute all cells, which takes seconds
        summary = replace(summary, seconds=monotonic() - began)
    colour = stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    for line in summary.text_lines(get_terminal_size((DEFAULT_WIDTH, 24)).columns, colour):
        print(line, file=stream)


# ---- texts


def minutes_and_seconds_text(seconds: float) -> str:
    """Return a duration as text, such as `45 s` or `2 min 41 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _first_level_or_leaf_name(text: str) -> str:
    """Return the first name in a plan's text, such as `residues` for `residues(14) > bytes`."""
    return text.partition(" ")[0].partition("(")[0]


def shortest_distinct_plan_names(plans: Sequence[str]) -> list[str]:
    """Return the first name in each plan's text; if two plans have the same first name, return their whole texts.

    Examples
    --------
    >>> shortest_distinct_plan_names(["vendor", "3m > vendor", "3m > f16x3", "residues(14) > bytes"])
    ['vendor', '3m > vendor', '3m > f16x3', 'residues']
    """
    first = [_first_level_or_leaf_name(text) for text in plans]
    return [name if first.count(name) == 1 else text for name, text in zip(first, plans, strict=True)]


def _shortened_plan_list(texts: Iterable[str]) -> str:
    """Return, separated by commas, the first name in each plan's text; repeated names are left out."""
    return ", ".join(dict.fromkeys(map(_first_level_or_leaf_name, texts)))


def _share_range_text(shares: Sequence[float]) -> str:
    """Return the smallest and the largest of these fractions as text in percent, without the sign `%`."""
    low, high = f"{100 * min(shares):.1f}", f"{100 * max(shares):.1f}"
    return low if low == high else f"{low} to {high}"


def _versions_text(versions: Mapping[str, JsonValue], conditions: Mapping[str, JsonValue]) -> str:
    """Return the versions of the vendor's library and the driver in brackets; empty if none are recorded."""
    cublas, driver = str(versions.get("cublas") or ""), str(conditions.get("driver_version") or "")
    found = [f"cuBLAS {int(cublas) // 10000}.{int(cublas) // 100 % 100}"] if cublas.isdigit() else []
    found += [f"driver {driver.partition('.')[0]}"] if driver else []
    if threads := conditions.get("threads"):
        found.append(f"{threads} thread{'s' * (threads != 1)}")
    if blas := versions.get("blas"):
        found.append(str(blas))
    return f" ({', '.join(found)})" if found else ""


def _short_path(path: Path) -> str:
    """Return a path as text, with ~ for the home folder."""
    home = os.path.expanduser("~")
    return f"~{str(path)[len(home) :]}" if home != "~" and path.is_relative_to(home) else str(path)


def _left_and_right_aligned_lines(left: str, right: str, width: int) -> Iterator[str]:
    """Yield one line with `left` and `right` at its two edges, or two lines if one line is too short."""
    if len(left) + 2 + len(right) <= width:
        yield f"{left}{right.rjust(width - len(left))}"
    else:
        yield from (left, right)

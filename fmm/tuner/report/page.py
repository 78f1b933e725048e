"""Write the report as one self-contained HTML page, from the same tables as `fmm-tune show`.

No element of the page has a fixed width, so the page never scrolls sideways, not even on a phone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

from fmm.tuner.findings.device_summary import (
    MARK_IN_COLOUR,
    NO_NUMBER,
    DeviceSummary,
    SummaryCell,
    SummaryTable,
    summarize_device,
)
from fmm.tuner.findings.diagnostics import is_noisy_tuning
from fmm.tuner.findings.summary import (
    NOISY_TEXT,
    SectionText,
    TextTable,
    text_table,
    thresholds_of_types,
    tuning_command,
)
from fmm.tuner.fit.parameters import is_parameter_determined, parameter_meaning, parameter_unit, text_with_unit_prefix
from fmm.tuner.report.overview import (
    MEASURED_SPEEDUP,
    VENDOR_SPEEDUP,
    SideSpeedup,
    all_types_caption,
    crossover_side,
    largest_timed_sides_text,
    product_speedups,
    reported_vendor_name,
    speedups_frame,
)
from fmm.tuner.report.plan_names import find_plan_texts, plan_names_table
from fmm.tuner.report.type_figures import caption_text
from fmm.tuner.report.type_report import TypeReport

NARROW_CELL_LETTERS = 14  # on a phone, a cell with more than this number of characters fills a whole row
WHOLE_ROW_CLASS = ' class="whole"'  # HTML class of a cell that fills a whole row on a phone
EARLIER_GAIN_MARK = " *"  # mark of a crossover side if plans were also faster on some smaller measured squares
SUGGESTED_COMMANDS = (
    ("fmm.matmul(a, b)", "the product, decided by this config"),
    ("print(fmm.explain(a, b))", "the decision, with its plan, error and workspace"),
    ("fmm.matmul(a, b, max_error_growth=3)", "at most 3 times the vendor's error"),
    ("fmm.matmul(a, b, workspace=10**9)", "at most 10^9 bytes beside the operands"),
    ('fmm.matmul(a, b, plan="strassen > vendor")', "this plan"),
    ("fmm-tune show", "the same tables in a terminal"),
    ("fmm-tune --shapes FILE", "certify plans for your shapes, lines of M K N"),
)


def report_html(
    found: Sequence[tuple[TypeReport, Mapping[str, str]]], gains: Sequence[SideSpeedup], pictures: tuple[str, str]
) -> str:
    """Return the whole HTML page: speedups of all types, suggested commands, and details of each type.

    `pictures` has two SVG texts of the overview figure: for wide and for narrow screens.
    """
    wide, narrow = pictures
    reports = [report for report, _ in found]
    base = reported_vendor_name(reports)
    names = dict.fromkeys(str((report.section["conditions"] or {}).get("device", report.device)) for report in reports)
    starts = {
        report.dtype: crossover_text(report, crossover_side(report), product_speedups(gains, report.dtype))
        for report in reports
    }
    next_table = text_table("next", ("command", "purpose"), (*SUGGESTED_COMMANDS, *suggested_tunings(reports, gains)))
    details = "\n".join(
        (
            _folded_section_html(
                "Speedups with intervals", speedups_html_table(gains, base, starts, largest_timed_sides_text(reports))
            ),
            *_folded_tables_html(reports, gains),
            *(_type_details_html(report, drawn) for report, drawn in found),
        )
    )
    glossary = plan_names_table((*plan_texts_on_page(reports, gains), *find_plan_texts(unescape(details))))
    return PAGE_TEMPLATE.format(
        title=escape(", ".join(names)),
        base=escape(base),
        style=PAGE_CSS,
        table="\n".join(map(summary_html, device_summaries(reports))),
        wide=wide,
        narrow=narrow,
        caption=escape(all_types_caption(reports, gains)),
        next=html_table(next_table, code=True),
        details="\n".join((details, _folded_section_html(glossary.title, html_table(glossary, code=True)))),
    )


def suggested_tunings(reports: Sequence[TypeReport], gains: Sequence[SideSpeedup]) -> Iterator[tuple[str, str]]:
    """Yield (command, reason) for each device with a usable tuning that left promising plans untimed."""
    untried = {gain.dtype for gain in gains if gain.untried}
    for device in dict.fromkeys(report.device for report in reports):
        usable = [report for report in reports if report.device == device and not report.tuned.diagnostics]
        if partial := [report.dtype for report in usable if report.dtype in untried and not report.used.left_out]:
            yield tuning_command(device, partial), "measure the plans that were not tried"


# ---- the table of a device, as `fmm-tune show` prints it


def device_summaries(reports: Sequence[TypeReport]) -> Iterator[DeviceSummary]:
    """Yield the summary of each device; the path is empty, since the page does not show the path of the config."""
    for device in dict.fromkeys(report.device for report in reports):
        own = [report for report in reports if report.device == device]
        dtypes = [report.dtype for report in own]
        yield summarize_device(device, own[0].sections, Path(), in_force=True, dtypes=dtypes)


def summary_html(summary: DeviceSummary) -> str:
    """Return the summary of a device as HTML: speedups, recursion, and what failed or was too noisy."""
    failure = f"<p>{escape(summary.failure_line)}</p>" if summary.failure_line else ""
    return "\n".join(
        (
            f"<p>{escape(f'{summary.device_name_text}, {summary.tuning_status_text}')}</p>",
            _summary_table_html(summary.speedups),
            _summary_table_html(summary.recursion),
            failure,
        )
    )


def _summary_table_html(table: SummaryTable) -> str:
    """Return one of the two tables of a device summary as HTML; measured numbers are bold."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (table.name, *table.heads))
    rows = "".join(
        f'<tr><th scope="row">{escape(name.strip())}</th>{_summary_cells_html(table.heads, cells)}</tr>'
        for name, cells in table.rows
    )
    legend = escape(table.legend_text(MARK_IN_COLOUR))
    body = f'<table class="gains folded"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'{body}\n<p class="key"><small>{legend}</small></p>'


def _summary_cells_html(heads: Sequence[str], cells: Sequence[SummaryCell]) -> str:
    """Return the cells of a row of a device summary as HTML."""
    classes = ("measured" if c.measured else "none" if c.text == NO_NUMBER else "start" for c in cells)
    return "".join(
        f'<td class="{css}" data-side="{escape(head)}">{escape(cell.text)}</td>'
        for head, cell, css in zip(heads, cells, classes, strict=True)
    )


# ---- tables as HTML


def html_table(table: TextTable, code: bool = False) -> str:
    """Return a table of texts as HTML; if `code` is True, the first column is in a monospaced font.

    Each cell also has the name of its column in an attribute: phones show this name instead of the table's head.
    """
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    body = "".join(_table_row_html(table.columns, row, code) for row in table.rows)
    note = f'<p class="key"><small>{escape(table.note)}</small></p>' if table.note else ""
    return f'<table class="numbers folded"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{note}'


def _table_row_html(columns: Sequence[str], row: Sequence[str], code: bool) -> str:
    """Return a row of a table of texts as HTML."""
    first, *cells = row
    classes = (WHOLE_ROW_CLASS if len(cell) > NARROW_CELL_LETTERS else "" for cell in cells)
    found = "".join(
        f'<td{css} data-side="{escape(name)}">{escape(cell)}</td>'
        for name, cell, css in zip(columns[1:], cells, classes, strict=True)
    )
    name = f"<code>{escape(first)}</code>" if code else escape(first)
    return f'<tr><th scope="row">{name}</th>{found}</tr>'


def _folded_section_html(title: str, html: str) -> str:
    """Return a section as HTML; only its title is visible until a reader opens the section."""
    return f"<details><summary>{escape(title)}</summary>\n{html}</details>"


def speedups_html_table(
    gains: Sequence[SideSpeedup], base: str = "the vendor", starts: Mapping[str, str] | None = None, timed: str = ""
) -> str:
    """Return the table of speedups as HTML, with a row for each type and a column for each side.

    `starts` has the crossover side of each type as text. `timed` is a text with the largest timed sides.
    """
    known = starts or {}
    frame = speedups_frame(gains)
    frame = frame.assign(column=frame["side"] - frame["beside"])
    sides = sorted(set(frame["column"]))
    met = zip(frame["dtype"], frame["op"], frame["beside"], strict=True)
    kinds = list(dict.fromkeys((*((dtype, "product", 0) for dtype in known), *met)))
    head = "".join(f'<th scope="col">{side}</th>' for side in ("faster from side", *sides))
    rows = []
    for kind in sorted(kinds, key=lambda kind: [d for d, *_ in kinds].index(kind[0])):
        dtype, op, beside = kind
        own = frame[(frame["dtype"] == dtype) & (frame["op"] == op) & (frame["beside"] == beside)]
        start = known.get(dtype, "") if kind == (dtype, "product", 0) else _first_gaining_side(own) if beside else ""
        name = f"{dtype}{f', {op}' * (op != 'product')}{f', side + {beside}' * (beside > 0)}"
        rows.append(_speedup_row_html(name, start, own, sides, base))
    top = f'<thead><tr><th scope="col">type</th>{head}</tr></thead>'
    body = f'<table class="gains folded">{top}<tbody>{"".join(rows)}</tbody></table>'
    return f'{body}\n<p class="key"><small>{_speedup_legend_html(gains, base, known, timed)}</small></p>'


def _speedup_legend_html(gains: Sequence[SideSpeedup], base: str, starts: Mapping[str, str], timed: str) -> str:
    """Return the legend of the table of speedups as HTML, which explains each kind of cell."""
    parts = [
        '<span class="measured">1.23</span> measured, with its 95&nbsp;% interval',
        '<span class="predicted">≈ 1.23</span> predicted',
        f'<span class="vendor">{escape(base)}</span> the vendor multiplies',
        "empty: beyond twice the largest timed product",
    ]
    if timed:
        parts.append(f"largest timed products, as the side of a cube: {escape(timed)}")
    if any(gain.beside for gain in gains):
        parts.append("side + 1: odd sides 1025, 2049, ...")
    if any(gain.untried for gain in gains):
        parts.append("untried: predicted for a plan that was not tried")
    if any(EARLIER_GAIN_MARK in text for text in starts.values()):
        parts.append("*: some smaller squares gain too, as measured")
    if any(gain.op != "product" for gain in gains):
        parts.append("gram: a matrix times its adjoint, one triangle computed")
    return "; ".join(parts)


def _first_gaining_side(own: Any) -> str:
    """Return as text the smallest side in a DataFrame of speedups on which a plan is faster than the vendor.

    The text is empty if no plan is faster on any side.
    """
    sides = own[own["kind"] != VENDOR_SPEEDUP]["side"]
    return str(min(sides)) if len(sides) else ""


def _speedup_row_html(name: str, start: str, own: Any, sides: Sequence[int], base: str) -> str:
    """Return a row of the table of speedups as HTML."""
    found = {row.column: row for row in own.itertuples()}
    cells = "".join(_speedup_cell_html(found.get(side), side, base) for side in sides)
    first = f'<td class="{"start" if start else "none"}" data-side="faster from side">{escape(start)}</td>'
    return f'<tr><th scope="row">{escape(name)}</th>{first}{cells}</tr>'


def _speedup_cell_html(gain: Any, column: int, base: str) -> str:
    """Return a cell of the table of speedups as HTML; `gain` is a row of the DataFrame, or None for an empty cell."""
    side = column if gain is None else gain.side
    if gain is None:
        return f'<td class="none" data-side="{side}"></td>'
    text = escape(base)
    if gain.kind == MEASURED_SPEEDUP:
        text = f"{gain.speedup:.2f}<small>{gain.low:.2f} to {gain.high:.2f}</small>"
    elif gain.kind != VENDOR_SPEEDUP:
        text = f"≈ {gain.speedup:.2f}"
    if gain.untried:
        text += f"<small>untried ≈ {gain.untried:.2f}</small>"
    return f'<td class="{gain.kind}" data-side="{side}" title="{escape(gain.plan)}">{text}</td>'


def crossover_text(report: TypeReport, side: int | None, won: Sequence[SideSpeedup]) -> str:
    """Return the crossover side of a type as text, or a word that says why there is no crossover.

    `won` has the type's speedups above 1. EARLIER_GAIN_MARK is appended if fmm.matmul also gains on a side below the
    crossover.
    """
    if report.tuned.trusted_calibration is None:
        return "rejected"
    if side is None:
        return "as measured" if won else "never"
    return f"{side}{EARLIER_GAIN_MARK if any(gain.side < side for gain in won) else ''}"


# ---- sections that are closed until a reader opens them


def _folded_tables_html(reports: Sequence[TypeReport], gains: Sequence[SideSpeedup]) -> Iterator[str]:
    """Yield two folded sections: the plans of the table of speedups, and the papers' thresholds of all types."""
    won = [gain for gain in gains if gain.kind != VENDOR_SPEEDUP]
    if won:
        columns = "type", "side", "speedup", "error growth", "workspace [GiB]", "plan"
        yield _folded_section_html("Plans", html_table(text_table("plans", columns, map(_plan_row_cells, won))))
    thresholds = thresholds_of_types(((report.dtype, report.section) for report in reports), intervals=True)
    if thresholds.rows:
        yield _folded_section_html("The papers' thresholds", html_table(thresholds))


def _plan_row_cells(gain: SideSpeedup) -> tuple[str, ...]:
    """Return the cells of a row in the table of plans."""
    name = gain.dtype if gain.op == "product" else f"{gain.dtype}, {gain.op}"
    gained = f"{gain.speedup:.2f}" if gain.kind == MEASURED_SPEEDUP else f"≈ {gain.speedup:.2f}"
    return name, f"{gain.side}", gained, f"{gain.error_growth:.2g}", f"{gain.workspace / 2**30:.2f}", gain.plan


def plan_texts_on_page(reports: Sequence[TypeReport], gains: Sequence[SideSpeedup]) -> Iterator[str]:
    """Yield the text of every plan that the tables and figures of the page show."""
    yield from (gain.plan for gain in gains)
    for report in reports:
        yield from (entry.plan for entry in report.tuned.entries.values())
        yield from (str(plan) for _, plan, *_ in report.measured_speedups)
        yield from map(str, dict.fromkeys(report.plan_map[1].values()))


def _type_details_html(report: TypeReport, pictures: Mapping[str, str]) -> str:
    """Return the folded section of one type: the tables of `fmm-tune show`, the figures, the fitted parameters."""
    text = SectionText(report.section, report.dtype, report.device, report.sections)
    tables = "\n".join(f"<h3>{escape(table.title)}</h3>{html_table(table)}" for table in text.section_tables)
    drawn = "\n".join(
        f"<figure>{svg}<figcaption>{escape(caption_text(name, report))}</figcaption></figure>"
        for name, svg in pictures.items()
    )
    tuned = report.section["tuned"] or {}
    day = str(tuned.get("at") or report.tuning.header.started)[:10]
    how = f"effort {report.tuning.header.settings.get('effort')}, {day}, {len(report.section_trials)} samples"
    return (
        f"<details><summary>{escape(report.title)}</summary>\n<p>{escape(how)}</p>\n{tables}\n"
        f'<div class="pictures">{drawn}</div>\n<h3>fitted parameters</h3>\n{parameters_html(report)}</details>'
    )


def parameters_html(report: TypeReport) -> str:
    """Return an HTML table of the fitted parameters with values, 95 % intervals and meanings."""
    if is_noisy_tuning(report.tuned.diagnostics):
        return f"<p>{NOISY_TEXT}</p>"
    calibration = report.section["calibration"]
    values = {**calibration, **{f"rate.{k}": v for k, v in calibration["rate"].items()}}
    rows = []
    for name, (low, high) in (report.section["intervals"] or {}).items():
        if name not in values:
            continue
        value, ends = "", "not determined"
        if is_parameter_determined(name, low, high):
            (text,), unit = text_with_unit_prefix(parameter_unit(name), values[name])
            value = f"{text} {unit}".rstrip()
            texts, unit = text_with_unit_prefix(parameter_unit(name), low, high)
            ends = f"{' to '.join(texts)} {unit}".rstrip()
        rows.append((name, value, ends, parameter_meaning(name)))
    return html_table(text_table("fitted parameters", ("parameter", "value", "95 % interval", "meaning"), rows))


PAGE_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 1.5rem auto;
  padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 0.25rem; }
h2 { font-size: 1.15rem; margin: 1.75rem 0 0.5rem; }
h1 + p { margin-top: 0; color: #555; }
code { font: 0.9em/1.4 ui-monospace, monospace; background: #f4f4f4; padding: 0.1em 0.25em; border-radius: 3px; }
figure { margin: 1rem 0; }
figcaption { color: #555; font-size: 0.85rem; line-height: 1.4; }
svg { display: block; width: 100%; max-width: 48rem; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.95rem; font-variant-numeric: tabular-nums; }
td, th { padding: 0.3rem 0.4rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
td:first-child, th:first-child { text-align: left; }
small { display: block; color: #666; font-size: 0.75rem; line-height: 1.3; font-weight: 400; }
.measured { font-weight: 600; background: #e8f3ec; } .predicted, .beyond { color: #444; background: #f6f6f0; }
.vendor, .none { color: #767676; }
.start { color: #222; }
.key span { padding: 0 0.3rem; }
.narrow { display: none; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 1.5rem; }
details { border-top: 1px solid #ddd; padding: 0.5rem 0; }
summary { cursor: pointer; font-weight: 600; }
h3 { font-size: 1rem; margin: 1.25rem 0 0.25rem; }
dl { display: grid; grid-template-columns: fit-content(11rem) 1fr; gap: 0.3rem 1rem; font-size: 0.9rem; }
dl.typed { grid-template-columns: fit-content(24rem) 1fr; }
dt { font-weight: 600; } dd { margin: 0; }
.numbers td:not(:first-child), .numbers th { overflow-wrap: normal; }
.numbers td:last-child { overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  .wide { display: none; } .narrow { display: block; }
  dl { display: block; } dd { margin: 0 0 0.5rem; }
  .folded thead { display: none; }
  .folded tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); padding: 0.5rem 0; }
  .folded th[scope=row] { grid-column: 1 / -1; border: 0; font-size: 1.05rem; }
  .folded td { text-align: left; border: 0; }
  .folded .none { display: none; } .folded .whole { grid-column: 1 / -1; }
  .folded td::before { content: attr(data-side); display: block; color: #666; font-size: 0.75rem; font-weight: 400; }
}
"""
PAGE_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fmm: {title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style></head><body>
<h1>fmm on {title}</h1>
<p>Speedup of <code>fmm.matmul(a, b)</code> over {base} by type and side of square matrices, and the recursion:</p>
{table}
<figure><div class="wide">{wide}</div><div class="narrow">{narrow}</div><figcaption>{caption}</figcaption></figure>
<h2>Next</h2>
{next}
<h2>Details</h2>
{details}
</body></html>
"""

"""The report as one HTML page that needs nothing else, and that nothing in it scrolls sideways: on a phone neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fmm.tuner.findings.described import NOT_MEASURED, described_rows
from fmm.tuner.findings.parameter_words import meaning_of, spelled, unit_of
from fmm.tuner.fit.parameters import BY_NAME
from fmm.tuner.report.case import Case
from fmm.tuner.report.overview import LEFT, MEASURED, Gain, gains_frame, library, meaning_of_cases, notes_of_cases
from fmm.tuner.report.pictures import PICTURES

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fmm: {title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light; }}
* {{ box-sizing: border-box; }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 1.5rem auto;
  padding: 0 1rem; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; line-height: 1.2; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
figure {{ margin: 1rem 0; }}
figcaption {{ color: #555; font-size: 0.9rem; }}
svg {{ display: block; width: 100%; max-width: 48rem; height: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: 0.95rem; font-variant-numeric: tabular-nums; }}
td, th {{ padding: 0.3rem 0.4rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }}
td:first-child, th:first-child {{ text-align: left; }}
small {{ display: block; color: #666; font-size: 0.75rem; line-height: 1.2; }}
.measured {{ font-weight: 600; }} .predicted, .beyond {{ color: #555; }} .vendor, .none {{ color: #999; }}
.narrow {{ display: none; }}
details {{ border-top: 1px solid #ddd; padding: 0.5rem 0; }}
summary {{ cursor: pointer; font-weight: 600; }}
dl {{ display: grid; grid-template-columns: 6rem 1fr; gap: 0.3rem 1rem; font-size: 0.9rem; }}
dt {{ font-weight: 600; }} dd {{ margin: 0; }}
.numbers td:not(:first-child), .numbers th:not(:first-child) {{ overflow-wrap: normal; }}
@media (max-width: 40rem) {{
  .wide {{ display: none; }} .narrow {{ display: block; }}
  dl {{ display: block; }} dd {{ margin: 0 0 0.5rem; }}
  .gains thead {{ display: none; }}
  .gains tr {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); padding: 0.5rem 0; }}
  .gains th[scope=row] {{ grid-column: 1 / -1; border: 0; font-size: 1.05rem; }}
  .gains td {{ text-align: left; border: 0; }}
  .gains .none {{ display: none; }}
  .gains td::before {{ content: attr(data-side); display: block; color: #666; font-size: 0.75rem; }}
}}
</style></head><body>
<h1>fmm on {title}</h1>
<p>{meaning}</p>
{notes}{table}
<figure><div class="wide">{wide}</div><div class="narrow">{narrow}</div><figcaption>{caption}</figcaption></figure>
<h2>Details</h2>
{details}
</body></html>
"""
LEGEND = (
    "Times as fast as {base}, on square matrices of this side. Bold: measured, below it the 95 % interval; with ≈: "
    "predicted; “{short}”: nothing is faster, so that fmm leaves it to that; empty: beyond what was measured, where "
    "only the first plans are shown of a type that has none before. Rows named gram: a matrix times its adjoint, one "
    "half of which is computed."
)
BREAK = "<br>"
SHORT = {"NumPy's product": "NumPy", "the vendor's product": "vendor"}  # what is long for a cell


def report_page(
    found: Sequence[tuple[Case, Mapping[str, str]]], gains: Sequence[Gain], pictures: tuple[str, str], caption: str
) -> str:
    """All cases: the table, the picture for a screen or for a phone, what they mean, and all else folded."""
    wide, narrow = pictures
    cases = [case for case, _ in found]
    names = dict.fromkeys(str((case.section["conditions"] or {}).get("device", case.device)) for case in cases)
    details = "\n".join(_case_html(case, pictures) for case, pictures in found)
    return PAGE.format(
        title=escape(", ".join(names)), meaning=escape(meaning_of_cases(cases, gains)), notes=_notes(cases),
        table=gains_table(gains, library(cases)), wide=wide, narrow=narrow, caption=escape(caption), details=details,
    )  # fmt: skip


def _notes(cases: Sequence[Case]) -> str:
    return "".join(f"<p>{escape(note)}</p>\n" for note in notes_of_cases(cases))


def gains_table(gains: Sequence[Gain], base: str = "the vendor's product") -> str:
    """Types by sizes; `base` is what all is compared with."""
    short = SHORT.get(base, base)
    frame = gains_frame(gains)
    sides, kinds = sorted(set(frame["side"])), list(dict.fromkeys(zip(frame["dtype"], frame["op"], strict=True)))
    head = "".join(f'<th scope="col">{side}</th>' for side in sides)
    rows = []
    for dtype, op in kinds:
        known = {row.side: row for row in frame[(frame["dtype"] == dtype) & (frame["op"] == op)].itertuples()}
        cells = "".join(_cell(known.get(side), side, short) for side in sides)
        name = dtype if op == "product" else f"{dtype}, {op}"
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    top = f'<thead><tr><th scope="col">type</th>{head}</tr></thead>'
    legend = escape(LEGEND.format(base=base, short=short))
    return f'<table class="gains">{top}<tbody>{"".join(rows)}</tbody></table>\n<p><small>{legend}</small></p>'


def _cell(gain: Any, side: int, short: str) -> str:
    if gain is None:
        return f'<td class="none" data-side="{side}"></td>'
    text = escape(short)
    if gain.kind == MEASURED:
        text = f"{gain.speedup:.2f}<small>{gain.low:.2f} to {gain.high:.2f}</small>"
    elif gain.kind != LEFT:
        text = f"≈ {gain.speedup:.2f}"
    return f'<td class="{gain.kind}" data-side="{side}" title="{escape(gain.plan)}">{text}</td>'


# ---- details


def _case_html(case: Case, pictures: Mapping[str, str]) -> str:
    header = case.tuning.header
    how = f"Effort {header.settings.get('effort')}, {_when(case)}, {len(case.tuning.trials)} samples."
    drawn = "\n".join(
        f"<figure>{svg}<figcaption>{escape((PICTURES[name].__doc__ or '').strip())}</figcaption></figure>"
        for name, svg in pictures.items()
    )
    return (
        f"<details><summary>{escape(case.title)}</summary>\n<p>{escape(how)}</p>\n{_said(case)}\n"
        f"{_parameters(case)}\n{_errors(case)}\n{drawn}</details>"
    )


def _said(case: Case) -> str:
    """What `fmm-tune show` says, each label with its lines."""
    lines: list[tuple[str, list[str]]] = []
    for label, text in described_rows(case.section, case.dtype, case.device, case.sections):
        if label or not lines:
            lines.append((label, []))
        lines[-1][1].append(escape(text))
    rows = (f"<dt>{label}</dt><dd>{BREAK.join(texts)}</dd>" for label, texts in lines)
    return f"<dl>{''.join(rows)}</dl>"


def _when(case: Case) -> str:
    """The day on which it was tuned, as `fmm-tune show` tells it."""
    tuned = case.section["tuned"] or {}
    return str(tuned.get("at") or case.tuning.header.started)[:10]


def _parameters(case: Case) -> str:
    """Those that were fitted, with their intervals, and what each is."""
    known = {**case.section["calibration"], **{f"rate.{k}": v for k, v in case.section["calibration"]["rate"].items()}}
    rows = "".join(
        f"<tr><td>{escape(name)}<small>{escape(meaning_of(name))}</small></td>"
        f"<td>{_value(name, known[name])}</td><td>{_interval(name, low, high)}</td></tr>"
        for name, (low, high) in (case.section["intervals"] or {}).items()
        if name in known
    )
    return (
        f'<table class="numbers"><tr><th>fitted parameter</th><th>value</th><th>95 % interval</th></tr>{rows}</table>'
    )


def _value(name: str, value: float) -> str:
    """A parameter with its unit below it, in thousands of it where that is read more easily."""
    (text,), unit = spelled(unit_of(name), value)
    return f"{text}<small>{escape(unit)}</small>"


def _interval(name: str, low: float, high: float) -> str:
    if name in BY_NAME and not BY_NAME[name].determined(low, high):
        return "not determined by these samples"
    texts, unit = spelled(unit_of(name), low, high)
    return f"{' to '.join(texts)}<small>{escape(unit)}</small>"


def _errors(case: Case) -> str:
    rows = "".join(_error_row(what, e) for what, e in (case.section["error"] or {}).items())
    head = "<tr><th>held out</th><th>count</th><th>median error</th><th>95th percentile</th><th>bias</th></tr>"
    return f"<p></p><table>{head}{rows}</table>"


def _error_row(what: str, e: Mapping[str, float]) -> str:
    if not e["count"]:
        return f'<tr><td>{escape(what)}</td><td colspan="4">{NOT_MEASURED}</td></tr>'
    shares = f"<td>{e['median']:.2%}</td><td>{e['p95']:.2%}</td><td>{e['bias']:+.2%}</td>"
    return f"<tr><td>{escape(what)}</td><td>{e['count']:.0f}</td>{shares}</tr>"

"""What is folded on the page about one type: what `fmm-tune show` says, the model's numbers, the pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from fmm.tuner.findings.described import NOT_MEASURED, described_parts
from fmm.tuner.findings.diagnostics import is_disturbed
from fmm.tuner.findings.parameter_words import meaning_of, spelled, unit_of
from fmm.tuner.findings.parts import Table
from fmm.tuner.findings.threshold_words import TOO_DISTURBED
from fmm.tuner.fit.parameters import is_determined
from fmm.tuner.report.case import Case
from fmm.tuner.report.type_figures import caption

BREAK = "<br>"
NARROW, LONG = 14, ' class="whole"'  # letters of a cell that on a phone stands beside others
ERROR_HEAD = "held out", "count", "median error", "95th percentile", "bias"
ERRORS = {
    "time": "times, of plans and of the library's product",
    "speedup": "speedups, of pairs of a plan and the library's product",
    "tiled": "speedups, of pairs of our own tiled kernel and that",
}


def case_details(case: Case, pictures: Mapping[str, str]) -> str:
    """One type, folded."""
    header = case.tuning.header
    how = f"Tuned with effort {header.settings.get('effort')} on {_when(case)}: {len(case.trials)} samples."
    drawn = "\n".join(
        f"<figure>{svg}<figcaption>{escape(caption(name, case))}</figcaption></figure>"
        for name, svg in pictures.items()
    )
    return (
        f"<details><summary>{escape(case.title)}</summary>\n<p>{escape(how)}</p>\n{_said(case)}\n"
        f'<div class="pictures">{drawn}</div>\n<h3>How well the model predicts</h3>\n{_errors(case)}\n'
        f"<h3>The model's fitted numbers</h3>\n{parameters_table(case)}</details>"
    )


def numbers_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells say below which head they stand, for phones; a row that is shorter is one long cell."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(_row(head, row) for row in rows)
    return f'<table class="numbers folded"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def _row(head: Sequence[str], row: Sequence[str]) -> str:
    first, *cells = row
    found = [
        f'<td{LONG if len(cell) > NARROW else ""} data-side="{escape(name)}">{escape(cell)}</td>'
        for name, cell in zip(head[1:], cells, strict=False)
    ]
    if len(cells) < len(head) - 1:
        found = [f'<td class="whole" colspan="{len(head) - 1}">{escape(cells[0])}</td>']
    return f'<tr><th scope="row">{escape(first)}</th>{"".join(found)}</tr>'


def _said(case: Case) -> str:
    """What `fmm-tune show` says, each label with its lines."""
    lines: list[tuple[str, list[str]]] = []
    for label, part in described_parts(case.section, case.dtype, case.device, case.sections):
        if label or not lines:
            lines.append((label, []))
        lines[-1][1].append(_said_part(part))
    rows = (f"<dt>{label}</dt><dd>{''.join(texts)}</dd>" for label, texts in lines)
    return f"<dl>{''.join(rows)}</dl>"


def _said_part(part: str | Table) -> str:
    return numbers_table(part.rows[0], part.rows[1:]) if isinstance(part, Table) else f"{escape(part)}{BREAK}"


def _when(case: Case) -> str:
    """The day on which it was tuned, as `fmm-tune show` tells it."""
    tuned = case.section["tuned"] or {}
    return str(tuned.get("at") or case.tuning.header.started)[:10]


def parameters_table(case: Case) -> str:
    """Those that were fitted, with their intervals, and what each is; no value of one that was not determined."""
    if is_disturbed(case.tuned.diagnostics):
        return f"<p>{TOO_DISTURBED[:1].upper()}{TOO_DISTURBED[1:]}.</p>"
    known = {**case.section["calibration"], **{f"rate.{k}": v for k, v in case.section["calibration"]["rate"].items()}}
    rows = "".join(
        f"<tr><td>{escape(name)}<small>{escape(meaning_of(name))}</small></td>"
        f"<td>{_value(name, known[name]) if is_determined(name, low, high) else ''}</td>"
        f"<td>{_interval(name, low, high)}</td></tr>"
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
    if not is_determined(name, low, high):
        return "not determined by these samples"
    texts, unit = spelled(unit_of(name), low, high)
    return f"{' to '.join(texts)}<small>{escape(unit)}</small>"


def _errors(case: Case) -> str:
    return numbers_table(ERROR_HEAD, [_error_row(what, e) for what, e in (case.section["error"] or {}).items()])


def _error_row(what: str, e: Mapping[str, float]) -> tuple[str, ...]:
    name = ERRORS.get(what, what)
    if not e["count"]:
        return name, NOT_MEASURED
    return name, f"{e['count']:.0f}", f"{e['median']:.2%}", f"{e['p95']:.2%}", f"{e['bias']:+.2%}"

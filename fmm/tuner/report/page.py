"""The report as one HTML page that needs nothing else, and that nothing in it scrolls sideways: on a phone neither."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape, unescape
from typing import Any

from fmm.tuner.findings.advice import TO_ITS_END, tuning_command
from fmm.tuner.findings.summary import TypeInShort
from fmm.tuner.report.case import Case
from fmm.tuner.report.details import case_details, numbers_table
from fmm.tuner.report.meaning import meaning, not_used, notes_of_cases
from fmm.tuner.report.overview import (
    LEFT,
    MEASURED,
    Gain,
    caption_of_all_types,
    gains_frame,
    largest_timed,
    library,
    starts_at,
    won_by,
)
from fmm.tuner.report.plan_words import plan_words, plans_in
from fmm.tuner.report.recursion_table import ABOUT, HEAD, recursion_rows
from fmm.tuner.report.template import PAGE, STYLE
from fmm.tuner.report.words import NEXT, WORDS

LEGEND = (
    "Sides are rows and columns; numbers are ratios of times. "
    '<span class="measured">1.23</span> measured, below it the 95&nbsp;% interval; '
    '<span class="predicted">≈ 1.23</span> predicted; <span class="vendor">{short}</span> nothing is faster, '
    "so that fmm leaves it to {base}; empty: more than twice as large as what was measured."
)
LEGEND_TIMED = " The largest products that were timed have as much work as squares of these sides: {}."
LEGEND_ODD = " Side + 1: squares of the odd sides 1025, 2049 and so on, on which the library is slow."
LEGEND_UNTRIED = " Untried: more is predicted by another plan, which this tuning did not try."
FIRST = " *"
LEGEND_FIRST = " *: from there on all squares; below it only those that were measured to be."
LEGEND_GRAM = " Gram: a matrix times its adjoint, one half of which is computed."
SHORT = {"NumPy's product": "NumPy", "the vendor's product": "vendor"}  # what is long for a cell
HOW_PLANS_ARE_READ = (
    "A plan says how a product is computed: <code>level &gt; level &gt; ... &gt; leaf</code>. Each level makes fewer "
    "products of smaller matrices, for more sums of blocks; the leaf, behind the last &gt;, multiplies these. Options "
    "of a level follow after dots. So <code>strassen^2.batched &gt; vendor</code> is two levels of Strassen's "
    'algorithm at once, whose 49 products the library does together. <code>fmm.matmul(a, b, plan="...")</code> runs '
    "any plan, and <code>fmm.explain(a, b)</code> names the one that is chosen. The names on this page:"
)


def report_page(
    found: Sequence[tuple[Case, Mapping[str, str]]], gains: Sequence[Gain], pictures: tuple[str, str]
) -> str:
    """All cases: the table, the picture for a screen or for a phone, what they mean, and all else folded."""
    wide, narrow = pictures
    cases = [case for case, _ in found]
    base = library(cases)
    names = dict.fromkeys(str((case.section["conditions"] or {}).get("device", case.device)) for case in cases)
    starts = {case.dtype: starts_at(case) for case in cases}
    by_type = [case_details(case, pictures) for case, pictures in found]
    details = "\n".join((*_folded_tables(cases, gains), *by_type))
    words = plan_words((*named_plans(cases, gains), *plans_in(unescape(HOW_PLANS_ARE_READ + details))))
    read = f"<p>{HOW_PLANS_ARE_READ}</p>{definitions(words.items(), typed=True)}"
    said = _folded("How a plan is read", read), _folded("What the words mean", definitions(WORDS))
    told = {case.dtype: _start_text(case, starts[case.dtype], won_by(gains, case.dtype)) for case in cases}
    typed = definitions((*NEXT, *tunings_left(cases, gains)), typed=True)
    table = gains_table(gains, base, told, largest_timed(cases))
    return PAGE.format(
        title=escape(", ".join(names)), base=escape(base), style=STYLE, table=table, wide=wide,
        narrow=narrow, caption=escape(caption_of_all_types(cases, gains)), next=typed,
        meaning=_meaning(cases, gains, starts, base), details="\n".join((*said, details)),
    )  # fmt: skip


def _meaning(cases: Sequence[Case], gains: Sequence[Gain], starts: Mapping[str, int | None], base: str) -> str:
    """The two sentences, unless nothing is used, and what is not used."""
    doubts = not_used(cases)
    known = {dtype: side for dtype, side in starts.items() if side}
    types = [TypeInShort(case.dtype, case.used) for case in cases]
    said = [meaning(gains, known, base, types)] if gains or not doubts else []
    return "\n".join(f"<p>{escape(text)}</p>" for text in (*said, *([" ".join(doubts)] if doubts else [])))


def tunings_left(cases: Sequence[Case], gains: Sequence[Gain]) -> Iterator[tuple[str, str]]:
    """What is worth tuning again, and why."""
    untried = {gain.dtype for gain in gains if gain.untried}
    for device in dict.fromkeys(case.device for case in cases):
        own = [case for case in cases if case.device == device]
        unused = [case.dtype for case in own if case.tuned.diagnostics]
        partial = [c.dtype for c in own if not c.tuned.diagnostics and (c.used.left_out or c.dtype in untried)]
        if unused:
            yield tuning_command(device, unused), TO_ITS_END
        if partial:
            yield tuning_command(device, partial), "measures what was not tried so far"


# ---- the table


def gains_table(
    gains: Sequence[Gain],
    base: str = "the vendor's product",
    starts: Mapping[str, str] | None = None,
    timed: str = "",
) -> str:
    """Types by sizes; `base` is what all is compared with, `starts` says of each type from which side on, `timed` how
    large the products were that were timed."""
    short, known = SHORT.get(base, base), starts or {}
    frame = gains_frame(gains)
    frame = frame.assign(column=frame["side"] - frame["beside"])
    sides = sorted(set(frame["column"]))
    met = zip(frame["dtype"], frame["op"], frame["beside"], strict=True)
    kinds = list(dict.fromkeys((*((dtype, "product", 0) for dtype in known), *met)))
    head = "".join(f'<th scope="col">{side}</th>' for side in ("faster from side", *sides))
    rows = []
    for kind in sorted(kinds, key=lambda kind: [d for d, *_ in kinds].index(kind[0])):
        dtype, op, beside = kind
        own = frame[(frame["dtype"] == dtype) & (frame["op"] == op) & (frame["beside"] == beside)]
        start = known.get(dtype, "") if kind == (dtype, "product", 0) else _first_gain(own) if beside else ""
        rows.append(_gains_row(_row_name(*kind), start, own, sides, short))
    top = f'<thead><tr><th scope="col">type</th>{head}</tr></thead>'
    legend = LEGEND.format(base=escape(base), short=escape(short))
    legend += LEGEND_TIMED.format(escape(timed)) if timed else ""
    legend += LEGEND_ODD if any(gain.beside for gain in gains) else ""
    legend += LEGEND_UNTRIED if any(gain.untried for gain in gains) else ""
    legend += LEGEND_FIRST if any(FIRST in text for text in known.values()) else ""
    legend += LEGEND_GRAM if any(gain.op != "product" for gain in gains) else ""
    body = f'<table class="gains folded">{top}<tbody>{"".join(rows)}</tbody></table>'
    return f'{body}\n<p class="key"><small>{legend}</small></p>'


def _row_name(dtype: str, op: str, beside: int) -> str:
    return f"{dtype}{f', {op}' * (op != 'product')}{f', side + {beside}' * (beside > 0)}"


def _first_gain(own: Any) -> str:
    """The first side on which anything is faster."""
    sides = own[own["kind"] != LEFT]["side"]
    return str(min(sides)) if len(sides) else ""


def _gains_row(name: str, start: str, own: Any, sides: Sequence[int], short: str) -> str:
    found = {row.column: row for row in own.itertuples()}
    cells = "".join(_cell(found.get(side), side, short) for side in sides)
    first = f'<td class="{"start" if start else "none"}" data-side="faster from side">{escape(start)}</td>'
    return f'<tr><th scope="row">{escape(name)}</th>{first}{cells}</tr>'


def _cell(gain: Any, column: int, short: str) -> str:
    side = column if gain is None else gain.side
    if gain is None:
        return f'<td class="none" data-side="{side}"></td>'
    text = escape(short)
    if gain.kind == MEASURED:
        text = f"{gain.speedup:.2f}<small>{gain.low:.2f} to {gain.high:.2f}</small>"
    elif gain.kind != LEFT:
        text = f"≈ {gain.speedup:.2f}"
    if gain.untried:
        text += f"<small>untried ≈ {gain.untried:.2f}</small>"
    return f'<td class="{gain.kind}" data-side="{side}" title="{escape(gain.plan)}">{text}</td>'


def _start_text(case: Case, side: int | None, won: Sequence[Gain]) -> str:
    if case.tuned.trusted is None:
        return "not used"
    if side is None:
        return "as measured" if won else "nowhere"
    return f"{side}{FIRST if any(gain.side < side for gain in won) else ''}"


# ---- what is folded


def _folded_tables(cases: Sequence[Case], gains: Sequence[Gain]) -> Iterator[str]:
    notes = "".join(f"<p>{escape(note)}</p>" for note in notes_of_cases(cases, gains))
    if notes:
        yield _folded("What was not measured", notes)
    won = [gain for gain in gains if gain.kind != LEFT]
    if won:
        yield _folded("By which plans, at which error, with how much memory", _plans_table(won))
    rows = list(recursion_rows((case.dtype, case.section) for case in cases))
    if rows:
        yield _folded("The papers' thresholds", f"<p>{escape(ABOUT)}</p>{numbers_table(HEAD, rows)}")


def _plans_table(won: Sequence[Gain]) -> str:
    """A row for each gain: what the first table's cells stand for."""
    head = "type", "side", "times as fast", "error, times the usual", "memory, GiB", "plan"
    return numbers_table(head, map(_plan_row, won))


def _plan_row(g: Gain) -> tuple[str, ...]:
    name = g.dtype if g.op == "product" else f"{g.dtype}, {g.op}"
    gained = f"{g.speedup:.2f}" if g.kind == MEASURED else f"≈ {g.speedup:.2f}"
    return name, f"{g.side}", gained, f"{g.error_growth:.2g}", f"{g.workspace / 2**30:.2f}", g.plan


def named_plans(cases: Sequence[Case], gains: Sequence[Gain]) -> Iterator[str]:
    """The plans of the tables and of the pictures."""
    yield from (gain.plan for gain in gains)
    for case in cases:
        yield from (entry.plan for entry in case.tuned.entries.values())
        yield from (str(plan) for _, plan, *_ in case.speedups)
        yield from map(str, dict.fromkeys(case.map[1].values()))


def _folded(title: str, html: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{html}</details>"


def definitions(rows: Iterable[tuple[str, str]], typed: bool = False) -> str:
    """Words and what they mean; of what is typed, as it is typed."""
    kind, start, end = (' class="typed"', "<code>", "</code>") if typed else ("", "", "")
    found = (f"<dt>{start}{escape(word)}{end}</dt><dd>{escape(text)}</dd>" for word, text in rows)
    return f"<dl{kind}>{''.join(found)}</dl>"

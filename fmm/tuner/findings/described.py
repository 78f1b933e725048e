"""A section of a config in a few lines, each with a label: first what it means to those who multiply and what it costs,
then what was measured, the papers' thresholds, and how sure all that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fmm.config.environment import environment_value
from fmm.config.files import shipped_model
from fmm.config.identity import Identity
from fmm.config.schema import Entry, read_thresholds
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.tuner.findings.advice import tuning_advice
from fmm.tuner.findings.diagnostics import is_disturbed
from fmm.tuner.findings.kept_parameters import described_kept
from fmm.tuner.findings.model_in_use import (
    CANARY,
    ModelInUse,
    chosen_square,
    guess_of,
    model_in_use,
    set_aside,
    unmeasured_in_use,
)
from fmm.tuner.findings.outcome import outcome, vendors_name
from fmm.tuner.findings.parts import Part, labelled_rows, table_of, told_lines
from fmm.tuner.findings.threshold_words import NEVER as NEVER
from fmm.tuner.findings.threshold_words import TOO_DISTURBED, described_blocks, described_levels, described_recursion

NOT_MEASURED = "not measured"
MORE = 1.25  # times as fast as measured


def described(
    section: Mapping[str, Any], dtype: str, key: str = "", sections: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """All lines of a section; `key` is the device's in the config, `sections` those of its other types."""
    return told_lines(described_parts(section, dtype, key, sections))


def described_rows(
    section: Mapping[str, Any], dtype: str, key: str = "", sections: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, str]]:
    """The same as labels and texts; what belongs to the label above has an empty one."""
    return labelled_rows(described_parts(section, dtype, key, sections))


def described_parts(
    section: Mapping[str, Any], dtype: str, key: str = "", sections: Mapping[str, Any] | None = None
) -> Iterator[Part]:
    """The same as labels, each with a sentence or a table."""
    used = model_in_use(key, dtype, {**(sections or {}), dtype: section})
    doubts, calibration = used.tuned.diagnostics, used.tuned.calibration
    yield from (("not used", f"{doubt[:1].upper()}{doubt[1:]}.") for doubt in doubts)
    if doubts:
        yield "", f"So fmm.matmul leaves this model aside. What it does now: {instead(used.tuned.identity, dtype)}."
        yield "", tuning_advice(used.tuned.identity.key, [dtype])
    yield from outcome(used)
    yield from zip(("besides", "", ""), map(_sentence, not_measured(used)), strict=False)
    yield from _entries(used)
    if calibration is not None:
        if doubts:
            yield "", "The lines below are what this tuning found. Nothing goes by them."
        yield from measured_lines(section, used, calibration, dtype)


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."


# ---- certified entries


def _entries(used: ModelInUse) -> Iterator[Part]:
    """By which products of exactly these sizes go, whatever is said of others."""
    entries = list(used.tuned.entries.values())
    if not entries:
        return
    base = "NumPy's product" if used.on_cpu else "cuBLAS"
    head = "size", f"times as fast as {base} [95 %]", "rounds", "plan"
    passed_over = [_plain_square(entry) and bool(set_aside(used, entry)) for entry in entries]
    told = (
        "At exactly these sizes this was measured; fmm.matmul goes by something newer there, see each row:"
        if all(passed_over)
        else "At exactly these sizes fmm.matmul goes by what was measured, not by the model"
        + (", but where a row says otherwise:" if any(passed_over) else ":")
    )
    yield "measured", told
    yield "", table_of(head, (_entry_row(entry, used) for entry in entries))
    yield from _not_tried(used, entries, base)


def _entry_row(entry: Entry, used: ModelInUse) -> tuple[str, ...]:
    gain = f"{entry.speedup:.2f} [{entry.low:.2f}, {entry.high:.2f}]"
    if entry.plan == str(VENDOR):
        gain = "1: no plan was clearly faster"
    return entry_size(entry), gain, str(entry.rounds), f"{entry.plan}{_aside(entry, used)}"


def _aside(entry: Entry, used: ModelInUse) -> str:
    """Why fmm.matmul does not go by an entry, if so."""
    if not entry.verified:
        return f" ({CANARY})"
    if _plain_square(entry):
        why = set_aside(used, entry)
        return f" (not taken: {why})" if why else ""
    return ""


def _plain_square(entry: Entry) -> bool:
    return len(set(entry.size)) == 1 and entry.op == "product" and not entry.lean


def entry_size(entry: Entry) -> str:
    """Of which products an entry is, in words."""
    size = str(entry.size[0]) if len(set(entry.size)) == 1 else " x ".join(map(str, entry.size))
    what = [entry.op] * (entry.op != "product") + ["workspace=0"] * entry.lean
    return f"{size} ({', '.join(what)})" if what else size


def _not_tried(used: ModelInUse, entries: Sequence[Entry], base: str) -> Iterator[Part]:
    """What the model says to be clearly faster there, and nobody tried."""
    if used.calibration is None:
        return
    more: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        if _plain_square(entry):
            best = chosen_square(used.calibration, used.tuned.dtype, entry.size[0])
            if 1 / best.time > MORE * entry.high:
                more.setdefault(best.plan.leaf, []).append((entry.size[0], 1 / best.time))
    for leaf, found in more.items():
        sides, gains = sorted(side for side, _ in found), sorted(gain for _, gain in found)
        yield (
            "",
            f"Not tried at {_range(sides, '{}')}: plans that end in {leaf}, which fmm.matmul takes at other sides.",
        )
        yield "", f"They are predicted to be {_range(gains, '{:.2f}')} times as fast as {base} there."


def _range(values: Sequence[float], form: str) -> str:
    ends = [form.format(x) for x in (values[0], values[-1])]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


# ---- what is not used, or not known


def instead(identity: Identity, dtype: str) -> str:
    """What fmm.matmul does where a tuning is not used."""
    if not identity.key.startswith("cuda"):
        return "fmm measures this processor for a moment in each process, and goes by that"
    if not environment_value("FMM_CONFIG") and shipped_model(identity, dtype) is not None:
        return "fmm goes by the model that comes with it for such cards"
    known = guess_of(identity.key, identity.name)
    return "fmm goes by the datasheet alone" if known else "all products are the library's own"


def not_measured(used: ModelInUse) -> Iterator[str]:
    """Who else multiplies on this device, or cannot, and how that is known; of rates that were not measured, only those
    by which plans are chosen."""
    chosen = unmeasured_in_use(used)
    assumed, left_out = ([x for x in chosen if x in some] for some in (used.assumed, used.left_out))
    if assumed:
        yield f"plans that end in {', '.join(assumed)} go by the datasheet: no tuning measures them"
    if left_out:
        yield (
            f"plans that end in {', '.join(left_out)} go by the datasheet: this tuning did not measure them (a "
            "new one does, unless it is stopped early)"
        )
    if used.failed:
        yield f"plans that end in {', '.join(used.failed)} are not taken: they failed when they were measured"


EARLIER = "of an earlier fmm, which meant something else by them"
AGAIN = "`fmm-tune conclude` makes today's of what was measured"


def of_an_earlier_fmm(thresholds: Any) -> bool:
    """Does a section have thresholds that this fmm does not read?"""
    return bool(thresholds) and read_thresholds(thresholds) is None


# ---- what was measured, and how sure it is


def measured_lines(section: Mapping[str, Any], used: ModelInUse, fitted: Calibration, dtype: str) -> Iterator[Part]:
    """Rates, thresholds, the noise and the model's error; of a disturbed tuning the latter two alone."""
    disturbed = is_disturbed(used.tuned.diagnostics)
    if disturbed:
        yield "figures", f"Rates and thresholds: {TOO_DISTURBED}."
    else:
        yield from _figures(section, used, fitted, dtype)
    noise = section["noise"]
    yield (
        "noise",
        f"{NOT_MEASURED}." if noise is None else f"The same product, timed twice, differs by up to {noise:.1%}.",
    )
    margin = _margin(used, fitted)
    yield from zip(("model", "", ""), (*_errors(section["error"]), margin), strict=False)
    kept = None if disturbed else described_kept(section["intervals"] or {}, fitted, dtype, used.guess)
    yield from () if kept is None else (kept,)


def _figures(section: Mapping[str, Any], used: ModelInUse, fitted: Calibration, dtype: str) -> Iterator[Part]:
    """Rates and thresholds."""
    products, sums = fitted.rate(dtype).flops / 1e9, fitted.stream / 1e9
    yield "rates", f"{vendors_name(fitted)}, large: {products:,.0f} Gflop/s; sums of blocks: {sums:,.0f} GB/s."
    found = read_thresholds(section["thresholds"])
    if found is not None:
        yield from described_levels(found, used, fitted)
        yield from described_recursion(found, dtype)
        yield from described_blocks(found, section.get("blocks"))
    elif section["thresholds"]:
        yield "levels", f"the thresholds are {EARLIER}: {AGAIN}"


def _margin(used: ModelInUse, fitted: Calibration) -> str:
    """What a margin does, in one sentence."""
    taken = "would be" if used.calibration is None else "is"
    return (
        f"The margin is {fitted.margin:.1%}: a plan {taken} taken only if it is predicted to take less time than "
        f"{vendors_name(fitted)} by more than that. It is what predictions may promise too much; what they promise too "
        "little costs no time."
    )


def _errors(error: Mapping[str, Any] | None) -> Iterator[str]:
    time, speedup = ((error or {}).get(name) or {"count": 0} for name in ("time", "speedup"))
    if not speedup["count"] or not time["count"]:
        yield "Not checked: no products were measured beside those that it was fitted to."
        return
    yield (
        f"Checked on {speedup['count']} held-out products by plans, which no fit saw. Half of the predicted speedups "
        f"are off by less than {speedup['median']:.1%}, 95 % by less than {speedup['p95']:.1%}; half of the times by "
        f"less than {time['median']:.1%}, 95 % by less than {time['p95']:.1%}."
    )


def share_or_nothing(value: float | None) -> str:
    """A share in per cent, or that nobody measured it."""
    return NOT_MEASURED if value is None else f"{value:.1%}"

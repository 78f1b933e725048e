"""A section of a config in a few lines, each with a label: first what it means to those who multiply and what it costs,
then what was measured, the papers' thresholds, and how sure all that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from fmm.config.environment import environment_value
from fmm.config.files import shipped_model
from fmm.config.identity import Identity
from fmm.config.schema import Entry
from fmm.config.thresholds import Spread, Thresholds, read_thresholds
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.papers.huang import FIGURE_3_THREADS
from fmm.perfmodel.papers.recursion_points import WINOGRAD, recursion_point
from fmm.tuner.findings.model_in_use import ModelInUse, guess_of, model_in_use
from fmm.tuner.findings.outcome import LARGE, by_sides, chosen_square, outcome, vendors_name
from fmm.tuner.trials.record import Size

NOT_MEASURED = "not measured"
NEVER = "never"
LABEL = 10  # letters of the labels, so that the lines are aligned
WIDE = 110  # letters of a line behind its label
MORE = 1.25  # times as fast as measured


def described(
    section: Mapping[str, Any], dtype: str, key: str = "", sections: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """All lines of a section; `key` is the device's in the config, `sections` those of its other types."""
    for label, text in described_rows(section, dtype, key, sections):
        first, *more = wrap(text, WIDE, break_long_words=False, break_on_hyphens=False)
        yield f"  {label:{LABEL}} {first}"
        yield from (f"  {'':{LABEL}} {line}" for line in more)


def described_rows(
    section: Mapping[str, Any], dtype: str, key: str = "", sections: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, str]]:
    """The same as labels and texts; what belongs to the label above has an empty one."""
    used = model_in_use(key, dtype, {**(sections or {}), dtype: section})
    doubts, calibration = used.tuned.doubts, used.tuned.calibration
    yield from (("not used", doubt) for doubt in doubts)
    if doubts:
        yield "", f"so that {instead(used.tuned.identity, dtype)}; tune again when the device is idle"
    if used.calibration is not None:
        yield from outcome(used.calibration, dtype)
        yield from zip(("besides", "", ""), not_measured(used), strict=False)
    if calibration is not None:
        if doubts:
            yield "", "What it found, for who wants to judge it:"
        yield from measured_lines(section, used, calibration, dtype)
    yield from (("measured", _entry_text(entry, used)) for entry in used.tuned.entries.values())


def _entry_text(entry: Entry, used: ModelInUse) -> str:
    """An entry; beside it what the model says where that is clearly more, by something that was not tried."""
    trusted = "" if entry.verified else " (set aside until `fmm-tune canary`)"
    of = "" if entry.op == "product" else f" ({entry.op})"
    more, square = "", len(set(entry.size)) == 1 and entry.op == "product" and not entry.lean
    if used.calibration is not None and square:
        best = chosen_square(used.calibration, used.tuned.dtype, entry.size[0])
        if 1 / best.time > MORE * entry.high:
            more = f"; not tried: {best.plan}, which the model predicts to be {1 / best.time:.2f} times as fast"
    return f"{_size(entry.size)}{of}: {entry.plan}, {entry.text}{trusted}{more}"


def instead(identity: Identity, dtype: str) -> str:
    """What fmm.matmul does where a tuning is not used."""
    if not identity.key.startswith("cuda"):
        return "fmm goes by what it measures in each process"
    if not environment_value("FMM_CONFIG") and shipped_model(identity, dtype) is not None:
        return "fmm goes by the model that comes with it for such cards"
    known = guess_of(identity.key, identity.name)
    return "fmm goes by the datasheet alone" if known else "all products are the library's own"


def not_measured(used: ModelInUse) -> Iterator[str]:
    """Who else multiplies on this device, or cannot, and how that is known."""
    if used.assumed:
        yield f"plans that end in {', '.join(used.assumed)} go by the datasheet: no tuning measures them"
    if used.left_out:
        yield (
            f"plans that end in {', '.join(used.left_out)} go by the datasheet: this tuning did not measure them; one "
            "that is not stopped early does"
        )
    if used.failed:
        yield f"plans that end in {', '.join(used.failed)} are not taken: they failed when they were measured"


EARLIER = "of an earlier fmm, which meant something else by them"
AGAIN = "`fmm-tune conclude` makes today's of what was measured"


def of_an_earlier_fmm(thresholds: Any) -> bool:
    """Does a section have thresholds that this fmm does not read?"""
    return bool(thresholds) and read_thresholds(thresholds) is None


def _size(size: Size) -> str:
    return " x ".join(map(str, size))


# ---- what was measured, and how sure it is


def measured_lines(
    section: Mapping[str, Any], used: ModelInUse, fitted: Calibration, dtype: str
) -> Iterator[tuple[str, str]]:
    """Rates, thresholds, the noise and the model's error."""
    products, sums = fitted.rate(dtype).flops / 1e9, fitted.stream / 1e9
    yield "rates", f"{vendors_name(fitted)}, large: {products:,.0f} Gflop/s; sums of blocks: {sums:,.0f} GB/s"
    found = read_thresholds(section["thresholds"])
    if found is not None:
        yield from described_levels(found, fitted, dtype)
        yield from _otherwise(found, used, dtype)
        yield from described_recursion(found, dtype)
        yield from _blocks(found, section.get("blocks"))
    elif section["thresholds"]:
        yield "levels", f"the thresholds are {EARLIER}: {AGAIN}"
    noise = section["noise"]
    yield "noise", NOT_MEASURED if noise is None else f"the same product, timed twice, differs by up to {noise:.1%}"
    yield "model", _errors(section["error"], fitted.margin)


def described_levels(found: Thresholds, fitted: Calibration, dtype: str) -> Iterator[tuple[str, str]]:
    """The sides from which plans are taken."""
    taus = found.tau1, found.tau2, found.tau3
    counts = "one level", "two", "three"
    gain = ", ".join(f"{count} {_from(tau.value)}" for count, tau in zip(counts, taus, strict=True))
    yield "levels", f"predicted to gain 2 %: {gain} (tau1, tau2, tau3);"
    yield "", f"to lose nothing: {_ends(taus, 'low')}; more than the model's error, so that"
    yield "", f"fmm.matmul takes them: {_ends(taus, 'high')}"
    yield from _above(found.tau1.value, fitted, dtype)


def described_recursion(found: Thresholds, dtype: str) -> Iterator[tuple[str, str]]:
    """As in D'Alberto and Nicolau's Table 3: alpha, pi, and the recursion point by the model beside what was measured.

    Their Equation 2 counts a multiply-add as two flops, of complex numbers too; pi is a flop of real ones."""
    factor, counted = recursion_point(1.0, WINOGRAD), DTYPES[dtype].flops // 2
    pi = "pi" if counted == 1 else f"({counted} pi)"  # of one flop as Equation 2 counts them
    yield "recursion", f"alpha {found.alpha:.3g} s to add an element, pi {found.pi:.3g} s a flop of large products:"
    if found.n1 is None:
        yield "", f"by Equation 3 one level pays {NEVER}"
    else:
        ratio = f"alpha / {pi} = {found.n1 / factor:.0f}"
        yield "", f"{ratio}: one level pays from n1 = {factor:g} alpha / {pi} = {found.n1:.0f} on (Equation 3);"
    yield "", f"{_seen(found)};"
    yield "", _corrected(found, factor, pi)


def _otherwise(found: Thresholds, used: ModelInUse, dtype: str) -> Iterator[tuple[str, str]]:
    """Where fmm.matmul goes by more than the model that these are of."""
    if used.calibration is None:
        return
    leaf = chosen_square(used.calibration, dtype, int(found.tau1.value or LARGE) // 16 * 16).plan.leaf
    if leaf in (*used.assumed, *used.left_out):
        yield "", f"(by what was measured: {leaf}, which was not, is predicted to be faster than these levels)"
    elif dtype.startswith("complex") and used.calibration != used.tuned.calibration:
        yield "", "(by the rates of complex products; what is gained above is told by those of real ones too)"


def _above(tau1: float | None, calibration: Calibration, dtype: str) -> Iterator[tuple[str, str]]:
    """Who multiplies below tau1, if not the vendor: levels must be faster than that, and n1 knows the vendor alone."""
    below = chosen_square(calibration, dtype, int(tau1) // 32 * 16).plan if tau1 else VENDOR
    if below.leaf != VENDOR.leaf and not below.levels:
        yield "", f"(up to there {below.leaf} is faster than {vendors_name(calibration)}: levels must pay above that)"


def _ends(taus: Sequence[Spread], end: str) -> str:
    return ", ".join(_from(getattr(tau, end)) for tau in taus)


def _from(x: float | None) -> str:
    return NEVER if x is None else f"from {x:.0f}"


def _seen(found: Thresholds) -> str:
    """What the measured products say of the recursion point."""
    gains = ", ".join(f"{gain:.2f} at {side}" for side, gain in found.one_level.items())
    by = f" (one level over the library: {gains})" if gains else ""
    if found.n1_measured is not None:
        return f"measured: from {found.n1_measured:.0f} on{by}"
    if not gains:
        return "no measured square tells from where on it does"
    gained = list(found.one_level.values())[-1] > 1
    where = "pays on all squares that were timed" if gained else "does not pay yet on the largest square that was timed"
    return f"measured: it {where}{by}"


def _corrected(found: Thresholds, factor: float, pi: str) -> str:
    """By what alpha / pi must be changed so that Equation 2 says what was measured."""
    if found.epsilon is None:
        return "nothing was measured by which Equation 2 could be corrected"
    if not found.epsilon or found.n1 is None:
        return f"Equation 2 agrees with what was measured as far as any alpha / {pi} does: epsilon = 0"
    ratio = found.n1 / factor
    return (
        f"Equation 2 agrees best with what was measured if epsilon = {found.epsilon:+.0f} is added to alpha / {pi}: "
        f"{ratio + found.epsilon:.0f} in the place of {ratio:.0f}"
    )


def _blocks(found: Thresholds, blocks: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """The tiles of our own product kernel, and how far its model is to be trusted."""
    if found.block_strategy:
        own = [name for name in dict.fromkeys(found.block_strategy.values()) if name not in FIGURE_3_THREADS]
        beside = f" and ours ({', '.join(own)})" if own else ""
        yield "blocks", f"tiles of our own kernel, by Huang's strategies{beside}: {by_sides(found.block_strategy)}"
    if blocks:
        terms = "fitted to this device" if blocks["fitted"] else "as built in"
        yield "", f"block model on {blocks['shapes']} shapes, its terms {terms}: off by {blocks['error']:.1%}"


def _errors(error: Mapping[str, Any] | None, margin: float) -> str:
    time, speedup = ((error or {}).get(name) or {"count": 0} for name in ("time", "speedup"))
    if not speedup["count"] or not time["count"]:
        return "not checked: held-out shapes were not measured"
    return (
        f"on {speedup['count']} held-out pairs of a plan and the usual product: speedups off by "
        f"{speedup['median']:.1%}, times by {time['median']:.1%} (95 %: {time['p95']:.1%}); to be chosen, a plan "
        f"must be predicted to save {margin:.1%}"
    )


def share_or_nothing(value: float | None) -> str:
    """A share in per cent, or that nobody measured it."""
    return NOT_MEASURED if value is None else f"{value:.1%}"

"""The thresholds of a tuning in words and tables that name the papers: levels of recursion, alpha and pi, tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fmm.config.certify import GAIN
from fmm.config.schema import SECONDS, TAUS, Interval, Spread, Thresholds
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.papers.huang import FIGURE_3_THREADS
from fmm.perfmodel.papers.recursion_points import WINOGRAD, recursion_point
from fmm.tuner.findings.model_in_use import LARGE, ModelInUse, answers_for, chosen_square
from fmm.tuner.findings.outcome import by_sides, vendors_name
from fmm.tuner.findings.parts import Part, table_of
from fmm.tuner.findings.thresholds import LEVELS, ROUND, chosen_from, finite, levels_of

NEVER = "never"
UNDETERMINED = "not determined"
TOO_DISTURBED = "too disturbed to say"
POINTS = (*SECONDS, "n1", "epsilon")
MOST_OF_ONE_LEVEL = WINOGRAD.classical / WINOGRAD.products  # 8/7: where the halves are multiplied as fast as the whole


# ---- one of them


def spelled(name: str, value: float | None) -> str:
    """A threshold: seconds in four digits, sides whole; epsilon with its sign."""
    if value is None:
        return UNDETERMINED if name == "epsilon" else NEVER
    if name == "epsilon":
        return f"{value:+.4g}" if value else "0"
    return f"{value:.4g}" if name in SECONDS else f"{value:.0f}"


def spelled_interval(name: str, interval: Interval | None) -> str:
    """Where 95 % of the models have it that the measurements admit; empty where none was recorded."""
    return f"[{', '.join(spelled(name, end) for end in interval)}]" if interval else ""


# ---- levels of recursion


def described_levels(found: Thresholds, used: ModelInUse, fitted: Calibration) -> Iterator[Part]:
    """From which sides on one, two or three levels pay, and which are taken."""
    dtype, taus = used.tuned.dtype, (found.tau1, found.tau2, found.tau3)
    rows = list(_rows_of_levels(found, taus, fitted.margin))
    taken = None
    if used.calibration is not None:
        taken = [finite(chosen_from(used.calibration, dtype, levels)) for levels in LEVELS]
        where = " elsewhere" if used.tuned.entries else ""  # than at the sizes that were measured
        rows.append((f"as fmm.matmul takes them{where}", *map(_side, taken)))
    yield "levels", table_of(("of recursion on squares, from a side of", "one", "two", "three"), rows)
    yield "", "(Li, Ranka and Sahni's tau1, tau2, tau3: up to tau1 no level, up to tau2 one, up to tau3 two.)"
    yield "", "(From there on at all sides; some smaller ones may have as many.)"
    yield "", f"({_of_which_leaf(found.tau1, fitted, dtype, 'All but the last row: of' if taken else 'Of')})"
    if found.without_emulation:
        sides = ", ".join(_side(found.without_emulation.get(name)) for name in TAUS)
        yield "", f"(Without emulation, FMM_EMULATION=0, tau1, tau2, tau3 are {sides}: of products in {dtype} itself.)"
    if taken is not None and _differ(taken, taus):
        yield "", f"({_why_others(found, used, fitted)})"
    if taken is not None and (others := _by_memory(used, taken)):
        yield "", f"({others})"


def _rows_of_levels(found: Thresholds, taus: Sequence[Spread], margin: float) -> Iterator[tuple[str, ...]]:
    """By how much the model has to promise, and how sure that is."""
    yield "so that nothing is lost", *(_side(tau.low) for tau in taus)
    yield "so that 2 % are gained: tau1, tau2, tau3", *(_side(tau.value) for tau in taus)
    intervals = [spelled_interval(name, found.intervals.get(name)) for name in TAUS]
    if any(intervals):
        yield "95 % intervals of tau1, tau2, tau3", *intervals
    yield f"so that the margin is gained: {margin:.1%}", *(_side(tau.high) for tau in taus)


def _side(x: float | None) -> str:
    return spelled(TAUS[0], x)


def _of_which_leaf(tau1: Spread, fitted: Calibration, dtype: str, these: str) -> str:
    """Below what the levels stand, and whom they must be faster than."""
    base = vendors_name(fitted)
    side = int(tau1.value or LARGE) // 16 * 16
    above = chosen_square(fitted, dtype, side).plan.leaf_use.leaf
    below = chosen_square(fitted, dtype, side // 32 * 16).plan
    if below.leaf_use.leaf.of_library or below.levels:
        return f"{these} plans that end in {f'{VENDOR.leaf} ({base})' if above.of_library else above.name}."
    return (
        f"{these} plans that end in {above.name}. Below tau1 {below.leaf} multiplies without levels, faster than "
        f"{base}. Levels must be faster than that, so that tau1 is far above n1."
    )


def _differ(taken: list[float | None], taus: tuple[Spread, ...]) -> bool:
    return any(own != tau.high for own, tau in zip(taken, taus, strict=True))


def _by_memory(used: ModelInUse, taken: Sequence[float | None]) -> str:
    """Where fewer or more levels are taken than the table says, which asks for no memory: since the fastest plan does
    not fit there."""
    told = []
    for answer in answers_for(used, ROUND):
        usual, own = sum(side is not None and answer.side >= side for side in taken), levels_of(answer.plan)
        if answer.entry is None and answer.gains and min(own, len(LEVELS)) != usual:
            told.append(f"{own} at {answer.side} ({answer.plan})")
    if not told:
        return ""
    return (
        "The sides hold however much memory the plans need. Where the fastest does not fit, a leaner one is taken, "
        f"with other levels: {', '.join(told)}."
    )


def _why_others(found: Thresholds, used: ModelInUse, fitted: Calibration) -> str:
    """Why fmm.matmul's own choice is not what the thresholds say: it goes by more than the model that they are of."""
    assert used.calibration is not None
    dtype = used.tuned.dtype
    leaf = chosen_square(used.calibration, dtype, int(found.tau1.value or LARGE) // 16 * 16).plan.leaf
    if leaf in (*used.assumed, *used.left_out):
        return (
            f"fmm.matmul takes others, since it has {leaf} too. That was not measured: the thresholds leave it out. "
            "It is predicted to be faster than these levels."
        )
    if dtype.startswith("complex") and used.calibration != used.tuned.calibration:
        return (
            "fmm.matmul takes others, since it can make real products of complex ones (3m), by the rates of real ones."
        )
    if fitted.margin < GAIN - 1:
        return "fmm.matmul asks for no more than the margin."
    return "The thresholds were made by an earlier fmm: `fmm-tune conclude --thresholds` makes today's."


# ---- D'Alberto and Nicolau's


def described_recursion(found: Thresholds, dtype: str) -> Iterator[Part]:
    """As in D'Alberto and Nicolau's Table 3: alpha, pi, and the recursion point by the model beside what was measured.

    Their Equation 2 counts a multiply-add as two flops, of complex numbers too; pi is a flop of real ones."""
    factor, counted = recursion_point(1.0, WINOGRAD), DTYPES[dtype].flops // 2
    pi = "pi" if counted == 1 else f"({counted} pi)"  # of one flop as Equation 2 counts them
    yield (
        "recursion",
        "By D'Alberto and Nicolau's model (ICS 2007): one level saves one product of eight, for 15 sums of blocks.",
    )
    yield "", f"alpha = {found.alpha:.4g} s to add one element, pi = {found.pi:.4g} s for one flop of a large product."
    if found.n1 is None:
        yield "", f"By their Equation 3 it {NEVER} pays."
    else:
        ratio = f"alpha / {pi} = {found.n1 / factor:.4g}"
        yield "", f"{ratio}. It pays from n1 = {factor:g} alpha / {pi} = {found.n1:.0f} on (their Equation 3)."
        yield "", f"(The paper has 22 in the place of {factor:g}: 18 sums and 4 copies, which fmm does without.)"
        yield "", "n1 knows alpha and pi alone; tau1 is of the whole model, and the one that counts."
    yield from (("", sentence) for sentence in (*_seen(found), _corrected(found, factor, pi), *_how_sure(found)))


def _how_sure(found: Thresholds) -> Iterator[str]:
    """The intervals of what does not stand in a table, where any were recorded."""
    told = [f"{name} {spelled_interval(name, found.intervals.get(name))}" for name in POINTS if name in found.intervals]
    if told:
        yield (
            f"{', '.join(told)}: 95 % of the models that the measurements admit have them there. (How other devices of "
            "this kind differ is not in it.)"
        )
    if told and "alpha" not in found.intervals:
        yield "(alpha has none: these samples did not determine it, and it is that of other devices of this kind.)"


def _seen(found: Thresholds) -> Iterator[str]:
    """What the measured products say of the recursion point."""
    gains = ", ".join(f"{gain:.2f} at {side}" for side, gain in found.one_level.items())
    if not gains:
        yield "One level was timed on no square."
        return
    yield f"One level, timed in turn with the library on squares of rising sides, is so many times as fast: {gains}."
    if max(found.one_level.values()) > MOST_OF_ONE_LEVEL:
        yield (
            f"(More than 8/7 = {MOST_OF_ONE_LEVEL:.2f} is not the saved product alone: the library is faster on halves "
            "of that size than on the whole.)"
        )
    if found.n1_measured is not None:
        yield f"n1 as measured: it pays from {found.n1_measured:.0f} on, the first square from which on all gained."
    elif len(found.one_level) == 1:
        yield f"It {'pays' if _last_gains(found) else 'does not pay'} on the one square that was timed."
    elif not _last_gains(found):
        yield "It does not pay yet on the largest square that was timed."
    elif min(found.one_level.values()) > 1:
        count = len(found.one_level)
        yield f"It pays on {'both' if count == 2 else f'all {count}'} squares that were timed."


def _last_gains(found: Thresholds) -> bool:
    return list(found.one_level.values())[-1] > 1


def _corrected(found: Thresholds, factor: float, pi: str) -> str:
    """By what alpha / pi must be changed so that Equation 2 says what was measured."""
    epsilon = found.epsilon
    if epsilon is None:
        return (
            f"Their correction epsilon is {UNDETERMINED}: that takes products that gained by one level and others that "
            "did not."
        )
    what = (
        f"Their correction epsilon, the least that must be added to alpha / {pi} so that Equation 2 (n1 for any shape) "
        "says what was measured of most shapes, squares or not"
    )
    if not epsilon or found.n1 is None:
        return f"{what}: 0, nothing is to be corrected."
    ratio = found.n1 / factor
    return f"{what}: {spelled('epsilon', epsilon)}, {ratio + epsilon:.4g} in the place of {ratio:.4g}."


# ---- Huang, Yu and van de Geijn's


def described_blocks(found: Thresholds, blocks: Mapping[str, Any] | None) -> Iterator[Part]:
    """The tiles of our own product kernel, and how far its model is to be trusted."""
    if found.block_strategy:
        own = [name for name in dict.fromkeys(found.block_strategy.values()) if name not in FIGURE_3_THREADS]
        beside = f", {', '.join(own)} being ours" if own else ""
        tiles = by_sides(found.block_strategy)
        yield "blocks", f"Tiles of fmm's own kernel (Huang, Yu and van de Geijn's strategies{beside}): {tiles}."
    if blocks:
        yield "", _block_error(blocks)


def _block_error(blocks: Mapping[str, Any]) -> str:
    """By how much their model is off, and on which shapes. (Older configs do not hold what a fit does not see.)"""
    built_in, held_back, count = blocks["built_in_error"], blocks.get("held_back"), blocks["shapes"]
    if blocks["fitted"]:
        told = f"Their model, its terms fitted to this device, is off by {blocks['error']:.1%} on shapes that the fit"
        return f"{told} {'saw' if held_back is None else 'did not see'}, as built in by {built_in:.1%} on all {count}."
    told = f"Their model, its terms as built in, is off by {built_in:.1%} on {count} shapes"
    if held_back is None:
        return f"{told}."
    return f"{told}; terms fitted to half of them, by {held_back:.1%} on the other half, so they are not taken."

"""Certify the best plans of a search on fresh operands, and compute the config's entries from recorded trials.

A certified plan must be faster than the vendor's product and the peer. The peer is the fastest plan without levels, if
this plan is faster than the vendor's product; for example, the peer may be another algorithm of cuBLAS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from fmm.config import certification
from fmm.config.schema import Entry
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.problem import OPERATIONS, Problem
from fmm.tuner.devices.device import TimedRun
from fmm.tuner.search.race import RaceResult, needs_no_workspace
from fmm.tuner.trials.journal import Journal, RoundLimits
from fmm.tuner.trials.record import Trial

CERTIFY_SEED = 1  # seed of the random operands of a certification; the search uses seed 0


def certify_best_plans(journal: Journal, found: RaceResult, limits: RoundLimits, noise: float) -> None:
    """Measure the best plans of a search on fresh operands until a plan is certified.

    The best plan without workspace is measured, too.
    """
    promising = [plan for plan, seen in found.plans if seen > 1]
    peer = next((plan for plan in promising if not plan.levels), None)
    raced = []
    for plan in dict.fromkeys([*promising[:2], *([peer] if peer else [])]):
        raced.append(plan)
        if _certify_faster_plan(journal, "certify", found.problem, VENDOR, plan, limits, noise) and (
            peer in (None, plan) or _certify_faster_plan(journal, "peer", found.problem, peer, plan, limits, noise)
        ):
            break
    without = next((plan for plan in promising if needs_no_workspace(plan, found.problem)), None)
    if without and without not in raced:
        _certify_faster_plan(journal, "certify", found.problem, VENDOR, without, limits, noise)
    journal.on_finding()


def _certify_faster_plan(
    journal: Journal, stage: str, problem: Problem, rival: Plan, plan: Plan, limits: RoundLimits, noise: float
) -> bool:
    """Measure `plan` and `rival` in paired rounds; return True if `plan` is certified to be faster."""
    base, run = TimedRun(rival), TimedRun(plan)
    with journal.open_timed_problem(stage, problem, CERTIFY_SEED) as timed:
        # if one of the two fails, the rounds end: each list of samples has the same rounds
        samples = timed.sample_rounds([base, run], limits, lambda s: () if s[base] and s[run] else (base, run))
    return bool(samples[run] and samples[base]) and certification.is_certified(samples[base], samples[run], noise)


def entries_from_search(trials: Sequence[Trial], noise: float | None) -> list[Entry]:
    """Return a config entry for each searched shape, with the first certified plan, or else `vendor`.

    A shape can have a second entry, for workspace=0. A shape has no entry if the tuning ended before its best plan was
    certified. If no noise floor was measured, the list is empty.
    """
    found: list[Entry] = []
    if noise is None:
        return found
    for size in dict.fromkeys(t.size for t in trials if t.stage == "search"):
        searched, confirmed = ([t for t in trials if t.stage == s and t.size == size] for s in ("search", "certify"))
        if all(t.plan == "vendor" or needs_no_workspace(Plan.parse(t.plan), t.problem) for t in searched):
            found += no_workspace_entry(searched, confirmed, noise)  # the search has timed only plans without workspace
            continue
        shown = [
            certification.config_entry_from_rounds(size, *pairs, noise, "certified")
            for pairs in paired_samples(confirmed)
        ]
        wins = beats_peer_predicate(searched, [t for t in trials if t.stage == "peer" and t.size == size], noise)
        shown = [e for e in shown if e.plan == "vendor" or wins(e.plan)]
        best = next((e for e in shown if e.plan != "vendor"), None)
        if best is None and not confirmed:
            seen = [
                certification.config_entry_from_rounds(size, *pairs, noise, "certified")
                for pairs in paired_samples(searched)
            ]
            shown = seen if seen and all(e.plan == "vendor" for e in seen) and not _has_faster_plan(searched) else []
        elif best is None:
            shown = [e for e in shown if e.rounds >= certification.MIN_ROUNDS]
        found += [best] if best else shown[-1:]
        if best and not needs_no_workspace(Plan.parse(best.plan), searched[0].problem):
            found += no_workspace_entry(searched, confirmed, noise)
    return found


def config_entries(trials: Sequence[Trial], noise: float | None) -> Iterator[Entry]:
    """Yield the config entries of all operations (products, gram products and others)."""
    for op in OPERATIONS:
        own = [t for t in trials if t.op == op]
        yield from (replace(entry, op=op) for entry in entries_from_search(own, noise))


def no_workspace_entry(searched: Sequence[Trial], confirmed: Sequence[Trial], noise: float) -> list[Entry]:
    """Return a list with the certified entry for workspace=0; the list is empty if no entry can be certified.

    The entry has a certified plan, or `vendor` if no plan without workspace is faster.
    """
    for trials in (confirmed, searched):
        pairs = [x for x in paired_samples(trials) if needs_no_workspace(Plan.parse(x[0]), trials[0].problem)]
        shown = [certification.config_entry_from_rounds(trials[0].size, *x, noise, "certified") for x in pairs]
        if shown and trials is confirmed:
            best = max(shown, key=lambda e: e.speedup)
            return [replace(best, lean=True)] if best.rounds >= certification.MIN_ROUNDS else []
        if shown and all(median(certification.paired_ratios(*x[1:])) <= 1 for x in pairs):
            return [replace(shown[0], lean=True)]
    return []


def beats_peer_predicate(searched: Sequence[Trial], raced: Sequence[Trial], noise: float) -> Callable[[str], bool]:
    """Return a function of a plan that is True if the plan was certified to be faster than the peer, or is the peer.

    If the peer is not faster than the vendor, the function is True for all plans.
    """
    leaves = {
        p: median(certification.paired_ratios(base, own))
        for p, base, own in paired_samples(searched)
        if not Plan.parse(p).levels
    }
    peer = max(leaves, key=lambda p: leaves[p], default="vendor")
    if leaves.get(peer, 0.0) <= 1:
        return lambda plan: True
    won = {p for p, base, own in paired_samples(raced, peer) if certification.is_certified(base, own, noise)}
    return lambda plan: plan in (peer, *won)


# In PAIRED_STAGES, each round timed only one plan, and the vendor's product or the peer. In all other stages,
# the vendor's product and all plans are timed in the same rounds.
PAIRED_STAGES = ("search", "certify", "peer")
SecondsByPlan = dict[str, float | None]  # the seconds are None if the plan failed


def paired_samples(trials: Sequence[Trial], peer: str = "vendor") -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield (plan, seconds of the vendor or peer, seconds of the plan) for each plan in the trials of a shape.

    Both lists of seconds have one number for each round that timed both. A plan that failed in a round is left out, and
    so is a plan that was never timed in a round with the vendor or peer.
    """
    trials = [t for t in trials if t.part == "whole" and not t.twin]
    is_paired = bool(trials) and trials[0].stage in PAIRED_STAGES
    rounds = _rounds_of_one_plan(trials, peer) if is_paired else _rounds_of_all_plans(trials)
    for plan in dict.fromkeys(t.plan for t in trials if t.plan != peer):
        own = [(seconds.get(peer), seconds[plan]) for seconds in rounds if plan in seconds]
        pairs = [(base, found) for base, found in own if base is not None and found is not None]
        if pairs and None not in (found for _, found in own):
            yield plan, [base for base, _ in pairs], [found for _, found in pairs]


def _rounds_of_one_plan(trials: Sequence[Trial], peer: str) -> list[SecondsByPlan]:
    """Return the seconds of each round in which one plan and the vendor or peer were timed, plan by plan."""
    base, rounds = iter([t.seconds for t in trials if t.plan == peer]), list[SecondsByPlan]()
    for plan in dict.fromkeys(t.plan for t in trials if t.plan != peer):
        rounds += [{peer: next(base, None), plan: t.seconds} for t in trials if t.plan == plan]
    return rounds


def _rounds_of_all_plans(trials: Sequence[Trial]) -> list[SecondsByPlan]:
    """Return the seconds of each round in which all plans were timed; later rounds may time other plans.

    A round ends when a plan is timed again, or when all plans that did not fail in the round before have been timed.
    """
    rounds: list[SecondsByPlan] = [{}]
    expected = set[str]()
    for t in trials:
        if t.plan in rounds[-1] or (expected and expected <= rounds[-1].keys()):
            expected = {plan for plan, seconds in rounds[-1].items() if seconds is not None}
            rounds.append({})
        rounds[-1][t.plan] = t.seconds
    return rounds


def _has_faster_plan(trials: Sequence[Trial]) -> bool:
    """Return True if the median speedup of any plan over the vendor is above 1."""
    return any(median(certification.paired_ratios(base, own)) > 1 for _, base, own in paired_samples(trials))

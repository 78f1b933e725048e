"""Certify the best plans of a search on fresh operands, and derive the entries of a config from the trials.

A plan must beat the vendor's product and its peer: the vendor's best other way to multiply this shape.
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

CERTIFY_SEED = 1  # seed of the operands in the certification; the search has 0


def certify_best(journal: Journal, found: RaceResult, limits: RoundLimits, noise: float) -> None:
    """Measure the best plans of a search on fresh operands until one is certified, then the best without workspace."""
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
    journal: Journal, stage: str, problem: Problem, than: Plan, plan: Plan, limits: RoundLimits, noise: float
) -> bool:
    """Measure two plans in pairs; return True if `plan` is certified to be faster than `than`."""
    base, run = TimedRun(than), TimedRun(plan)
    with journal.open_problem(stage, problem, CERTIFY_SEED) as timed:
        samples = timed.sample_rounds([base, run], limits)
    return bool(samples[run] and samples[base]) and certification.is_certified(samples[base], samples[run], noise)


def entries_of_operation(trials: Sequence[Trial], noise: float | None) -> list[Entry]:
    """Return the entries of the searched shapes: the first certified plan's, else the vendor's.

    A shape has no entry if the tuning ended before its best plan was certified; no shape has one without a noise floor.
    """
    found: list[Entry] = []
    if noise is None:
        return found
    for size in dict.fromkeys(t.size for t in trials if t.stage == "search"):
        searched, confirmed = ([t for t in trials if t.stage == s and t.size == size] for s in ("search", "certify"))
        if all(t.plan == "vendor" or needs_no_workspace(Plan.parse(t.plan), t.problem) for t in searched):
            found += no_workspace_entry(searched, confirmed, noise)  # other plans were not tried
            continue
        shown = [
            certification.entry_from_rounds(size, *pairs, noise, "certified") for pairs in paired_samples(confirmed)
        ]
        wins = beats_peer_predicate(searched, [t for t in trials if t.stage == "peer" and t.size == size], noise)
        shown = [e for e in shown if e.plan == "vendor" or wins(e.plan)]
        best = next((e for e in shown if e.plan != "vendor"), None)
        if best is None and not confirmed:
            seen = [
                certification.entry_from_rounds(size, *pairs, noise, "certified") for pairs in paired_samples(searched)
            ]
            shown = seen if seen and all(e.plan == "vendor" for e in seen) and not _has_faster_plan(searched) else []
        elif best is None:
            shown = [e for e in shown if e.rounds >= certification.MIN_ROUNDS]
        found += [best] if best else shown[-1:]
        if best and not needs_no_workspace(Plan.parse(best.plan), searched[0].problem):
            found += no_workspace_entry(searched, confirmed, noise)
    return found


def config_entries(trials: Sequence[Trial], noise: float | None) -> Iterator[Entry]:
    """Yield the entries of each operation."""
    for op in OPERATIONS:
        own = [t for t in trials if t.op == op]
        yield from (replace(entry, op=op) for entry in entries_of_operation(own, noise))


def no_workspace_entry(searched: Sequence[Trial], confirmed: Sequence[Trial], noise: float) -> list[Entry]:
    """Return a list of the entry for workspace=0: a certified plan's, or the vendor's if no plan gains."""
    for trials in (confirmed, searched):
        pairs = [x for x in paired_samples(trials) if needs_no_workspace(Plan.parse(x[0]), trials[0].problem)]
        shown = [certification.entry_from_rounds(trials[0].size, *x, noise, "certified") for x in pairs]
        if shown and trials is confirmed:
            best = max(shown, key=lambda e: e.speedup)
            return [replace(best, lean=True)] if best.rounds >= certification.MIN_ROUNDS else []
        if shown and all(median(certification.paired_ratios(*x[1:])) <= 1 for x in pairs):
            return [replace(shown[0], lean=True)]
    return []


def beats_peer_predicate(searched: Sequence[Trial], raced: Sequence[Trial], noise: float) -> Callable[[str], bool]:
    """Return a predicate that is true for plans that beat the peer, or for all plans if the vendor beats its peer."""
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


# Stages in which every plan has rounds of its own with the vendor's product or its peer.
PAIRED_STAGES = ("search", "certify", "peer")


def paired_samples(trials: Sequence[Trial], peer: str = "vendor") -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield each plan with the vendor's (or peer's) seconds and its own, round by round, in one shape's trials."""
    trials = [t for t in trials if t.part == "whole" and not t.twin]
    vendor = [t.seconds for t in trials if t.plan == peer and t.seconds is not None]
    for plan in dict.fromkeys(t.plan for t in trials if t.plan != peer):
        rounds = [t.seconds for t in trials if t.plan == plan]  # a plan's last round may be a failure
        own = [s for s in rounds if s is not None]
        base = vendor[: len(own)]
        if trials[0].stage in PAIRED_STAGES:
            vendor = vendor[len(rounds) :]
        if base and len(own) == len(rounds):
            yield plan, base, own[: len(base)]


def _has_faster_plan(trials: Sequence[Trial]) -> bool:
    """Return True if any plan looked faster than the vendor."""
    return any(median(certification.paired_ratios(base, own)) > 1 for _, base, own in paired_samples(trials))

"""Which products of a program ran by a plan, how many and how much faster, and which were left alone, and why."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from fmm.api import explain
from fmm.kernels.plans.plan import VENDOR
from fmm.runtime.decisions.decide import Decision

LINES = 30  # of the table, the products with the most arithmetic first
# By the place where fmm is installed: which of the library's products do not come there, and the place where they do.
UNSEEN = {
    "numpy": ("the operator @ and methods (a.dot(b)) of NumPy's arrays", ""),
    "cupy": ("methods (a.dot(b)) of CuPy's arrays", ""),
    "torch": ("torch's products on the host", "torch-cpu"),
    "torch-cpu": ("torch's products on CUDA devices", "torch"),
    "torch-inductor": ("products by fmm's candidate in Inductor", ""),
}


class Kind(NamedTuple):
    """Products that are alike."""

    where: str  # the function of the library that was called
    left: tuple[int, ...]
    right: tuple[int, ...]
    dtype: str

    @property
    def flops(self) -> int:
        stack = max(prod(self.left[:-2]), prod(self.right[:-2]))
        return 2 * stack * prod(self.left[-2:]) * (self.right[-1] if len(self.right) > 1 else 1)

    @property
    def sizes(self) -> str:
        return f"{' x '.join(map(str, self.left))} by {' x '.join(map(str, self.right))}"


@dataclass
class Report:
    """Counts products by kind; each kind's decision is asked for once."""

    counts: Counter[Kind] = field(default_factory=Counter)
    decisions: dict[Kind, Decision | str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def note(self, kind: Kind, decided: Callable[[], Decision]) -> None:
        with self._lock:
            self.counts[kind] += 1
            if kind in self.decisions:
                return
            self.decisions[kind] = ""  # whoever asks meanwhile need not
        try:
            found: Decision | str = decided()
        except Exception as error:  # the library rejects the call; a report is no place to do so
            found = str(error)
        self.decisions[kind] = found

    def __str__(self) -> str:
        with self._lock:  # threads of the program may go on multiplying
            counts, decisions = dict(self.counts), dict(self.decisions)
        planned = [kind for kind in counts if _plan(decisions[kind])]
        calls, by_plans = sum(counts.values()), sum(counts[kind] for kind in planned)
        flops = {kind: count * kind.flops for kind, count in counts.items()}
        share = sum(flops[kind] for kind in planned) / max(sum(flops.values()), 1)
        lines = [f"fmm: {by_plans} of {calls} products ran by plans, {share:.0%} of the arithmetic"]
        order = sorted(counts, key=lambda kind: -flops[kind])
        lines += [f"  {counts[kind]:7d}  {line}" for kind in order[:LINES] for line in _lines(kind, decisions[kind])]
        if len(order) > LINES:
            lines.append(f"  and {len(order) - LINES} kinds of smaller products")
        return "\n".join(lines)


def unseen_line(places: Collection[str]) -> str:
    """What a report did not see, where fmm was installed in these places."""
    if not places:
        return "  not seen: any product, since fmm was installed for no library that the program loaded"
    own = [text for place, (text, seen_at) in UNSEEN.items() if place in places and seen_at not in places]
    libraries = list(dict.fromkeys(place.partition("-")[0] for place in places))
    before = f"calls before fmm was installed for {' and '.join(libraries)}"
    parts = [*own, before, "calls of fmm's own functions, and other processes"]
    return f"  not seen: {'; '.join(parts)}"


def _lines(kind: Kind, decision: Decision | str) -> Iterator[str]:
    head = f"{kind.where}, {kind.dtype}, {kind.sizes}: "
    if isinstance(decision, str):
        yield head + f"left alone: {decision}"
    elif decision.plan == VENDOR:
        yield head + f"left alone: {decision.reason}"
    else:
        faster = expected_speedup(decision)
        told = f"{faster:.2f} times as fast is expected" if faster else decision.reason
        yield head + f"{decision.plan}: {told}"


def _plan(decision: Decision | str) -> bool:
    return isinstance(decision, Decision) and decision.plan != VENDOR


def expected_speedup(decision: Decision) -> float | None:
    """By the model that chose the plan; None if it was certified: then its reason says what was measured."""
    times = (candidate.time for candidate in decision.considered if candidate.plan == decision.plan)
    return next((1 / time for time in times if time > 0), None)


_report: Report | None = None


def begin_report() -> Report:
    """From now on products are counted."""
    global _report
    _report = Report()
    return _report


def end_report() -> None:
    global _report
    _report = None


def reporting() -> bool:
    return _report is not None


def noted(where: str, a: Any, b: Any, decided: Callable[[], Decision] | None = None) -> None:
    """Counts a product, if somebody wants a report."""
    if _report is not None:
        kind = Kind(where, tuple(a.shape), tuple(b.shape), str(a.dtype).removeprefix("torch."))
        _report.note(kind, decided or (lambda: explain(a, b)))

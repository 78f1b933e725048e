"""A report: which products of a program ran by a plan, how many and how much faster, which were left alone, and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from fmm.kernels.plans.plan import VENDOR
from fmm.runtime.call_record import CallRecord
from fmm.runtime.decisions.decide import Decision

LINES = 30  # of the table, the products with the most arithmetic first
GENERATED = "products for which torch.compile generates code of its own"
# By the place where fmm is installed: which of the library's products do not come there, and in which places they do.
UNSEEN: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "numpy": (
        ("the operator @ and methods (a.dot(b)) of NumPy's arrays, numpy.einsum without optimize, functions in C", ()),
    ),
    "cupy": (("methods (a.dot(b)) of CuPy's arrays", ()),),
    "torch": (("torch's products on the host", ("torch-cpu",)), (GENERATED, ())),
    "torch-cpu": (("torch's products on CUDA devices", ("torch",)), (GENERATED, ())),
    "torch-inductor": (
        ("torch's products but for those of fmm's candidate in Inductor", ("torch", "torch-cpu")),
        (GENERATED, ()),
    ),
}


class Kind(NamedTuple):
    """Products that are alike."""

    where: str  # the function of the library that was called
    left: tuple[int, ...]
    right: tuple[int, ...]
    dtype: str  # in which they are computed

    @property
    def flops(self) -> int:
        stack = max(prod(self.left[:-2]), prod(self.right[:-2]))
        return 2 * stack * prod(self.left[-2:]) * (self.right[-1] if len(self.right) > 1 else 1)

    @property
    def sizes(self) -> str:
        return f"{' x '.join(map(str, self.left))} by {' x '.join(map(str, self.right))}"


class Outcome(NamedTuple):
    """What a product came to."""

    plan: str  # that ran; "" if the library's own product did
    told: str  # how much faster it is, or why it was left alone
    speedup: float | None = None  # by the model

    def __str__(self) -> str:
        return f"{self.plan or 'left alone'}: {self.told}"


class Counted(NamedTuple):
    """So many products of a kind came to the same."""

    times: int
    kind: Kind
    outcome: Outcome

    @property
    def flops(self) -> int:
        return self.times * self.kind.flops

    @property
    def line(self) -> str:
        return f"  {self.times:7d}  {self.kind.where}, {self.kind.dtype}, {self.kind.sizes}: {self.outcome}"

    @property
    def fields(self) -> dict[str, Any]:
        return {"times": self.times, **self.kind._asdict(), **self.outcome._asdict()}


@dataclass(frozen=True)
class Report:
    """What was counted, the products with the most arithmetic first; printing it shows the first ones."""

    products: tuple[Counted, ...]
    unseen: str = ""  # which products were not seen

    @property
    def calls(self) -> int:
        return sum(product.times for product in self.products)

    @property
    def by_plans(self) -> int:
        return sum(product.times for product in self.products if product.outcome.plan)

    @property
    def share(self) -> float:
        """Of the arithmetic, what ran by plans."""
        planned = sum(product.flops for product in self.products if product.outcome.plan)
        return planned / max(sum(product.flops for product in self.products), 1)

    @property
    def fields(self) -> dict[str, Any]:
        """The same for json.dumps."""
        told = {"calls": self.calls, "by_plans": self.by_plans, "share": self.share, "unseen": self.unseen}
        return {**told, "products": [product.fields for product in self.products]}

    def __str__(self) -> str:
        lines = [f"fmm: {self.by_plans} of {self.calls} products ran by plans, {self.share:.0%} of the arithmetic"]
        lines += [product.line for product in self.products[:LINES]]
        if len(self.products) > LINES:
            lines.append(f"  and {len(self.products) - LINES} kinds of smaller products")
        return "\n".join([*lines, f"  not seen: {self.unseen}"] if self.unseen else lines)


def unseen_products(places: Collection[str]) -> str:
    """What a report did not see, where fmm was installed in these places."""
    if not places:
        return "any product, since fmm was installed for no library that the program loaded"
    missing = (each for place, told in UNSEEN.items() if place in places for each in told)
    own = list(dict.fromkeys(text for text, seen_at in missing if not set(seen_at).intersection(places)))
    libraries = list(dict.fromkeys(place.partition("-")[0] for place in places))
    before = f"calls before fmm was installed for {' and '.join(libraries)}"
    return "; ".join([*own, before, "calls of fmm's own functions, and other processes"])


# ---- outcomes


def outcome_of(answer: CallRecord) -> Outcome:
    """Of a product of which it was noted what answered it."""
    decision, plan, why = answer
    if plan is not None and plan != VENDOR:
        faster = expected_speedup(decision) if plan == decision.plan else None
        return Outcome(str(plan), f"{faster:.2f} times as fast is expected" if faster else decision.reason, faster)
    return Outcome("", f"{why}; {decision.plan} was chosen" if why else decision.reason)


def outcome_at_once(decision: Decision) -> Outcome:
    """Of a product for which the library was asked at once, while this would have been decided."""
    if decision.plan == VENDOR:
        return Outcome("", decision.reason)
    return Outcome("", "the library answered a product of these sizes a moment ago")


def expected_speedup(decision: Decision) -> float | None:
    """By the model that chose the plan; None if it was certified: then its reason says what was measured."""
    times = (candidate.time for candidate in decision.candidates if candidate.plan == decision.plan)
    return next((1 / time for time in times if time > 0), None)

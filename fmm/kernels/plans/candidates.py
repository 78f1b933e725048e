"""Candidates: which plans are worth a comparison, made from the levels and leaves that are registered.

A form says how a level and a leaf become plans. Each level says in which forms it is worth considering (an algorithm's
file, in its line `consider`), and each leaf in which it may end a plan: so what is added is considered, without anybody
else's having to know of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Final

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.consider import ABOVE, ABOVE_AS_IT_IS, SEARCHED
from fmm.kernels.plans.leaf import Leaf, ending_rows
from fmm.kernels.plans.level import LEVEL_KINDS, CandidateLevel, PlanLevel, parse_level
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.registry import depends_on_rows


@dataclass(frozen=True)
class CandidateForm:
    """Plans of one form: `{a}` in a pattern is the level, and the leaf follows. What cannot be parsed is left out."""

    name: str
    device: str  # cpu or cuda
    patterns: tuple[str, ...]
    most_products: int  # that a plan of the form may make
    reason: str
    needs: str = ""  # a library without which it is not worth considering

    def plans(self, level: CandidateLevel, leaf: str) -> Iterator[Plan]:
        """What the form makes of a level and a leaf. Too large compositions are not even tried: they take seconds."""
        for pattern in self.patterns if self.name in level.forms else ():
            power = sum(int(p or 1) for p in re.findall(r"\{a\}(?:\^(\d))?", pattern))
            if level.products**power <= self.most_products:
                with suppress(PlanError):
                    yield Plan.parse(f"{pattern.format(a=level.text)} > {leaf}")


# From the fastest down to those that need the least workspace.
CANDIDATE_FORMS: Final = (
    CandidateForm(
        "nested",
        "cpu",
        ("{a}", "{a} > {a}", "{a} > {a} > {a}"),
        7**3,
        "level by level: a CPU's caches hold the sums of one level, and not of several at once",
    ),
    CandidateForm(
        "nested",
        "cpu",
        ("{a}^2",),
        7**2,
        "two levels in one pass: compiled sums load and store every number once, and have no panels to keep in a cache",
        needs="llvmlite",
    ),
    CandidateForm(
        "one pass",
        "cuda",
        ("{a}.batched.pad16", "{a}^2.batched.pad16", "{a}^3.batched.pad16"),
        7**3,
        # In one pass every sum is formed by itself, so Winograd's sharing saves no traffic there and costs registers:
        # its sums are never faster than Strassen's, of three levels half as fast (H200).
        "one to three levels in one pass with a batch of leaf products: the fewest passes over memory",
    ),
    CandidateForm(
        "outer",
        "cuda",
        (
            "{a}.overlapped.pad16 > {a}^2.batched.pad16",
            "{a}.overlapped.pad16 > {a}^3.batched.pad16",
            "{a}^2.overlapped.pad16 > {a}^2.batched.pad16",
            "{a}^2.overlapped.pad16 > {a}^3.batched.pad16",
        ),
        7**5,
        "such batches below one or two levels with two products at a time: sums of one run beside the other's products",
    ),
    CandidateForm(
        "in place",
        "cuda",
        ("{a}.overlapped.pad16", "{a}.pad16", "{a}^2.overlapped.pad16", "{a}^2.pad16"),
        7**2,
        # Alone, Winograd's levels leave more of A and B in place than Strassen's.
        "one or two levels that read blocks of A and B where they are: less is copied, and less workspace needed",
    ),
    CandidateForm(
        "copied", "cuda", ("{a}.batched.pad16",), 1, "no level at all, but aligned: the vendor's slow products are fast"
    ),
    CandidateForm(
        "inside",
        "cuda",
        ("{a}.fused.pad4", "{a}.pad4 > {a}.fused.pad4"),
        7**2,
        "the sums inside our own kernel: a level that needs no workspace, and one below another that needs a seventh",
    ),
)


# Levels that may stand above any candidate on a GPU: those that do one product after the other need the least
# workspace. (Of 65536 x 65536 in float32 on an H200: one of these above two overlapped levels and three in one pass is
# 1.96 times as fast as cuBLAS, two above three in one pass 1.67 times, with 51 and 31 GiB in the place of 156.)
PATTERNS_ABOVE: Final = (
    "{a}.sequential.pad16",
    "{a}.pad16",
    "{a}.overlapped.pad16",
    "{a}^2.pad16",
    "{a}^2.overlapped.pad16",
)


@depends_on_rows
@lru_cache(maxsize=4)
def candidate_plans(device: str) -> tuple[Plan, ...]:
    """What is compared on such a device (`cpu`, `cuda`): the vendor's product first, then what a tuning probes too."""
    more = [plan for name in _form_names(device) for plan in _plans_of(name, device, lambda leaf: leaf.forms)]
    found = [plan for plan in dict.fromkeys([*probed_plans(device), *more])]
    above = [plan for level in considered_levels() if level.above for plan in _with_above(level, found, device)]
    return tuple(dict.fromkeys([*found, *above]))


def _with_above(level: CandidateLevel, plans: Sequence[Plan], device: str) -> Iterator[Plan]:
    """The plans below a level that changes the numbers. A batch is one of leaves; a CPU runs its orders alike, but for
    the lean one."""
    (first,) = Plan.parse(f"{level.text} > {VENDOR}").levels
    if device == "cpu" and (first.batched or first.side_by_side):
        return
    for plan in plans:
        if not (first.batched and plan.levels):
            with suppress(PlanError):
                made = Plan((first, *plan.levels), plan.leaf)
                if any(made.takes_type(dtype) for dtype in first.types or DTYPES):
                    yield made


@depends_on_rows
@lru_cache(maxsize=4)
def probed_plans(device: str) -> tuple[Plan, ...]:
    """Of these, the ones that a tuning measures on its probes: the vendor's product first, other leaves alone last."""
    found = [plan for name in _form_names(device) for plan in _plans_of(name, device, lambda leaf: leaf.probed)]
    return tuple(dict.fromkeys([VENDOR, *found]))


@depends_on_rows
@lru_cache(maxsize=4)
def levels_above(device: str) -> tuple[PlanLevel, ...]:
    """Levels that may stand above any of these, where they need too much workspace."""
    found: list[PlanLevel] = []
    for level in considered_levels() if device == "cuda" else ():
        patterns = PATTERNS_ABOVE if ABOVE in level.forms else ("{a}",) if ABOVE_AS_IT_IS in level.forms else ()
        for pattern in patterns:
            with suppress(PlanError):
                found.append(parse_level(pattern.format(a=level.text)))
    return tuple(dict.fromkeys(found))


def _forms_on(device: str) -> list[CandidateForm]:
    usable = [form for form in CANDIDATE_FORMS if not form.needs or find_spec(form.needs) is not None]
    return [form for form in usable if form.device == device]


def _form_names(device: str) -> tuple[str, ...]:
    return (*(form.name for form in _forms_on(device)), "alone")


def _plans_of(name: str, device: str, forms: Callable[[Leaf], tuple[str, ...]]) -> list[Plan]:
    """Those of one form; `forms`: in which of them a leaf may end a plan."""
    leaves = [x for leaf in leaves_on(device) if name in forms(leaf) for x in leaf.tried_names]
    if name == "alone":
        return [Plan(leaf=leaf) for leaf in leaves]
    made = [form for form in _forms_on(device) if form.name == name]
    levels = considered_levels()
    return [plan for form in made for leaf in leaves for level in levels for plan in form.plans(level, leaf)]


# Cuts of a product that is its own adjoint that are compared, by device; and forms and levels of the products below the
# diagonal. On a CPU BLAS's own function has nothing to gain from many small ones.
CUTS: Final = {"cpu": (1, 2, 3), "cuda": (1, 2, 3, 4, 5)}
HALF_FORMS: Final = ("nested", "one pass", "outer")
HALF_LEVELS: Final = 1  # algorithms that are tried there
HALF_ALONE: Final = "half"  # the form of a leaf that is considered for such products alone, and for no blocks of them


@depends_on_rows
@lru_cache(maxsize=4)
def half_candidates(device: str) -> tuple[Plan, ...]:
    """What is compared for products that are their own adjoints: the vendor's way first, then cuts whose products below
    the diagonal are the vendor's or one of the plans that are fast for products; blocks on the diagonal by the plan's
    leaf, or, instead of the vendor, by one that has a kernel for halves."""
    inner = [VENDOR, *_plans_of("alone", device, lambda leaf: leaf.forms)]
    for form in _forms_on(device):
        levels = [level for level in considered_levels() if form.name in level.forms][:HALF_LEVELS]
        names = [x for leaf in leaves_on(device) if form.name in leaf.forms for x in leaf.tried_names]
        if form.name in HALF_FORMS:
            inner += [plan for name in names for level in levels for plan in form.plans(level, name)]
    found = [VENDOR, *(Plan(leaf=x.name) for x in ending_rows() if device in x.devices and x.forms and x.halves)]
    below_cuts = [f".{leaf.name}" for leaf in leaves_on(device) if leaf.halves and not leaf.emulates]
    below_cuts += [f".{leaf.name}.outer" for leaf in leaves_on(device) if leaf.turned_halves]
    for cuts in CUTS[device]:
        for plan in dict.fromkeys(inner):
            others = below_cuts if plan.leaf == VENDOR.leaf else []
            found += [Plan.parse(f"gram^{cuts}{by} > {plan}") for by in ("", *others)]
    return tuple(found)


def leaves_on(device: str) -> list[Leaf]:
    """The leaves, and levels done whole, that such a device has and that are considered for products at all."""
    return [leaf for leaf in ending_rows() if device in leaf.devices and set(leaf.forms) - {HALF_ALONE}]


def peer_plans(device: str) -> tuple[Plan, ...]:
    """What else the vendor has for a product: a plan must beat these too."""
    return tuple(Plan(leaf=name) for leaf in leaves_on(device) if "peer" in leaf.forms for name in leaf.tried_names)


@depends_on_rows
@lru_cache(maxsize=1)
def considered_levels() -> tuple[CandidateLevel, ...]:
    """Of all kinds; those that need less workspace behind the others."""
    found = [level for kind in LEVEL_KINDS for level in kind.considered()]
    return tuple(sorted(found, key=lambda level: level.lean))


def searched_levels(device: str) -> tuple[CandidateLevel, ...]:
    """What a search looks at on such a device: of schemes and of tables, what is compared anyway comes first."""
    forms = [form.name for form in _forms_on(device)] + ([SEARCHED] if device == "cpu" else [])

    def first_form(level: CandidateLevel) -> int:
        return min((forms.index(form) for form in level.forms if form in forms), default=len(forms))

    found = [level for level in considered_levels() if first_form(level) < len(forms)]
    return tuple(sorted(found, key=lambda level: (level.lean, first_form(level))))

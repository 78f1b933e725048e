"""How the plans on the page are read: each name that occurs in one, explained once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType

from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.algorithms.step_table import step_table, step_table_names
from fmm.kernels.plans.plan import Plan, PlanError

# Options and levels that are no algorithm; docs/plans.md says more of each.
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "aligned": "no product is saved: matrices whose rows begin at odd places are copied to where they begin evenly",
        "classical": "blocks as they are, no product saved",
        "3m": "a complex product by three products of real numbers",
        "gram": "a matrix times its adjoint: one half is computed, in blocks, and mirrored",
        "sforza": "Sforza's recursion of a matrix times its adjoint",
        "balanced": "the longest side is halved while it is at least so many times as long as the others",
        "residues": "by products of bytes, modulo so many numbers, of which the result is put together",
        "bytes": "products of bytes, added up as 32-bit integers",
        "scaled": "rows and columns are multiplied by powers of two first, for data whose sizes differ much",
        "quarters": "four blocks of the result, one after the other",
        "stacked": "all sums of blocks first, then the products, then the sums of these",
        "batched": "all products of the level start together",
        "overlapped": "sums are made beside products",
        "sequential": "one product after the other, which needs the least memory",
        "fused": "sums are made inside the kernel that multiplies, without temporaries",
        "streams": "products of a fused level run on two streams",
        "atomic": "products of a fused level run together and add to the result by atomic updates",
        "variants": "products of a fused level with equally many blocks start together",
        "unequal": "blocks may differ by one row or column",
        "peel": "rows and columns that do not divide are multiplied apart",
        "pad": "zeros beyond the edge make equal blocks (they are not stored)",
        "inside": "rows and columns along the inner dimension are scaled",
        "outside": "rows and columns of the result are scaled",
        "inner": "sums are written so that both matrices of a product lie along its inner dimension",
        "outer": "sums are written so that both matrices of a product lie along its outer dimensions",
        "plain": "a way in which our own kernel brings tiles to shared memory",
        "texture": "another way in which our own kernel brings tiles to shared memory",
        "conj-a": "A is conjugated on the way",
        "conj-b": "B is conjugated on the way",
    }
)
# Whose a scheme is, by how its name begins; the longest beginning counts.
AUTHORS: Mapping[str, str] = MappingProxyType(
    {
        "strassen": "Strassen's algorithm (1969)",
        "strassen-huang": "Strassen's algorithm in Huang, Yu and van de Geijn's order",
        "winograd": "Winograd's variant of Strassen's algorithm, with fewer sums",
        "dps": "Dumas, Pernet and Sedoglavic's algorithm (2024), with less error",
        "hk": "Hopcroft and Kerr's algorithm (1971)",
        "laderman": "Laderman's algorithm (1976)",
        "smirnov": "Smirnov's algorithm (2013)",
    }
)
POWER = "so many levels of that at once, whose sums are made in one pass"


def plan_words(plans: Iterable[str]) -> dict[str, str]:
    """What each name means that occurs in these plans, in the order of the alphabet."""
    found: dict[str, str] = {}
    for text in dict.fromkeys(plans):
        found.update(_words_of(Plan.parse(text)))
    return dict(sorted(found.items()))


def plans_in(text: str) -> Iterator[str]:
    """The plans that a text names, but for leaves alone."""
    for found in dict.fromkeys(re.findall(r"[\w^.()*-]+(?: > [\w^.()*-]+)+", text)):
        with suppress(PlanError):
            yield str(Plan.parse(found))


def _words_of(plan: Plan) -> Iterator[tuple[str, str]]:
    for name in names_in(str(plan)):
        if name in scheme_names() and name not in WORDS:
            yield name, _scheme_words(name)
        elif name in step_table_names():
            yield name, f"an order of operations, as published: {step_table(name).source}"
        elif name.startswith("pad") and name != "pad":
            yield name, f"{WORDS['pad']}, with sides that are multiples of {name[3:]}"
        elif name in WORDS:
            yield name, WORDS[name]
        elif name.startswith("^"):
            yield "^2, ^3", POWER
        elif re.fullmatch(r"lt\d+", name):
            yield "lt0 ... lt31", "one of the kernels that cuBLASLt lists for the product, by its place in that list"
        else:
            yield name, _leaf_words(plan, name)


def names_in(text: str) -> list[str]:
    """`strassen^2.batched > vendor`: strassen, ^2, batched, vendor."""
    return re.findall(r"\^\d+|[a-z0-9]*[a-z][a-z0-9]*(?:-[a-z0-9]+)*", text)


def _scheme_words(name: str) -> str:
    found, begins = scheme(name), [begin for begin in AUTHORS if name.startswith(begin)]
    by = f"{AUTHORS[max(begins, key=len)]}: " if begins else ""
    cut = f"A is cut into {found.m} x {found.k} blocks and B into {found.k} x {found.n}"
    return (
        f"{by}{cut}; {found.rank} products of blocks in the place of {found.m * found.k * found.n}, and sums of blocks"
    )


def _leaf_words(plan: Plan, name: str) -> str:
    """What multiplies where no level is left."""
    leaf = plan.leaf_use.leaf
    return leaf.meaning if name == "tile" or leaf.name != "tile" else "sizes of its tiles"

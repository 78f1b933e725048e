"""Explain the names in the texts of plans: what each level, option and leaf means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType

from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.algorithms.step_table import step_table, step_table_names
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.tuner.findings.summary import TextTable, text_table

# The meanings of levels and options in plans, without schemes; docs/plans.md describes each level and option in detail.
PLAN_NAME_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "aligned": "copies matrices with unaligned rows to aligned ones; saves no product",
        "classical": "the classical product of blocks; saves no product",
        "3m": "a complex product by three real products",
        "gram": "a matrix times its adjoint: one triangle is computed in blocks, then mirrored",
        "sforza": "Sforza's recursion for a matrix times its adjoint",
        "balanced": "halves the longest side while it exceeds the others by this factor",
        "residues": "products of bytes modulo this many numbers, combined to the result",
        "residues2m": "a complex product by two products of bytes modulo each of this many numbers",
        "bytes": "products of bytes, accumulated in 32-bit integers",
        "scaled": "scales rows and columns by powers of two first",
        "quarters": "four blocks of C, one after the other",
        "stacked": "all sums of A and B first, then the products, then the sums of C",
        "batched": "all products of the level in one batch",
        "overlapped": "sums of one product run concurrently with other products",
        "sequential": "one product after the other; needs the least workspace",
        "fused": "sums inside the product kernel, without temporaries",
        "streams": "the products of a fused level run on two streams",
        "atomic": "the products of a fused level run concurrently and add to C atomically",
        "variants": "the products of a fused level with equal numbers of blocks share a launch",
        "unequal": "blocks may differ by one row or column",
        "peel": "the core with equal blocks is multiplied first, then thin strips",
        "pad": "zeros beyond the edge, which are not stored, make equal blocks",
        "inside": "scales along the inner dimension",
        "outside": "scales the rows and columns of C",
        "inner": "sums are stored contiguous along the inner dimension",
        "outer": "sums are stored contiguous along the outer dimensions",
        "plain": "fmm's own kernel loads tiles to shared memory directly",
        "texture": "fmm's own kernel loads tiles to shared memory as textures",
        "conj-a": "conjugates A when it is read",
        "conj-b": "conjugates B when it is read",
    }
)
# The author of a scheme, by the beginning of the scheme's name; of several matching beginnings, the longest is used.
ALGORITHM_AUTHORS: Mapping[str, str] = MappingProxyType(
    {
        "strassen": "Strassen's algorithm (1969)",
        "strassen-huang": "Strassen's algorithm in Huang, Yu and van de Geijn's order",
        "winograd": "Winograd's variant of Strassen's algorithm, with fewer sums",
        "dps": "Dumas, Pernet and Sedoglavic's algorithm (2024), with a smaller error",
        "hk": "Hopcroft and Kerr's algorithm (1971)",
        "laderman": "Laderman's algorithm (1976)",
        "smirnov": "Smirnov's algorithm (2013)",
    }
)


def plan_names_table(plans: Iterable[str]) -> TextTable:
    """Return a table with the meaning of each name in the texts of these plans."""
    note = "a plan is level > level > ... > leaf: levels make smaller products, the leaf multiplies"
    rows = list(plan_name_meanings(plans).items())
    return text_table("names in plans", ("name", "meaning"), rows, note if rows else "")


def plan_name_meanings(plans: Iterable[str]) -> dict[str, str]:
    """Return a dictionary: name in the texts of these plans -> meaning, in alphabetical order."""
    found: dict[str, str] = {}
    for text in dict.fromkeys(plans):
        found.update(_name_meanings_of_plan(Plan.parse(text)))
    return dict(sorted(found.items()))


def _name_meanings_of_plan(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield (name, meaning) for each level, option and leaf of a plan."""
    for name in split_plan_names(str(plan)):
        if name in scheme_names() and name not in PLAN_NAME_MEANINGS:
            yield name, _scheme_meaning(name)
        elif name in step_table_names():
            yield name, f"an order of operations, as published: {step_table(name).source}"
        elif name.startswith("pad") and name != "pad":
            yield name, f"{PLAN_NAME_MEANINGS['pad']}; sides are multiples of {name[3:]}"
        elif name in PLAN_NAME_MEANINGS:
            yield name, PLAN_NAME_MEANINGS[name]
        elif name.startswith("^"):
            yield "^2, ^3", "two or three levels at once, with their sums in one pass"
        elif re.fullmatch(r"lt\d+", name):
            yield "lt0 ... lt31", "cuBLASLt's candidate kernel with this index"
        else:
            leaf = plan.leaf_use.leaf
            yield name, leaf.meaning if name == "tile" or leaf.name != "tile" else "tile size of the kernel"


def _scheme_meaning(name: str) -> str:
    """Return as text the author of a scheme, its dimensions <m, k, n>, and its number of products."""
    found, begins = scheme(name), [begin for begin in ALGORITHM_AUTHORS if name.startswith(begin)]
    by = f"{ALGORITHM_AUTHORS[max(begins, key=len)]}: " if begins else ""
    classical = found.m * found.k * found.n
    return f"{by}<{found.m}, {found.k}, {found.n}> with {found.rank} products instead of {classical}"


def split_plan_names(text: str) -> list[str]:
    """Return the names in a plan's text: for `strassen^2.batched > vendor`, strassen, ^2, batched and vendor."""
    return re.findall(r"\^\d+|[a-z0-9]*[a-z][a-z0-9]*(?:-[a-z0-9]+)*", text)


def find_plan_texts(text: str) -> Iterator[str]:
    """Yield the text of every plan with at least one level that occurs in a text."""
    for found in dict.fromkeys(re.findall(r"[\w^.()*-]+(?: > [\w^.()*-]+)+", text)):
        with suppress(PlanError):
            yield str(Plan.parse(found))

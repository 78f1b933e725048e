"""The catalogue of schemes: which there are, by which names, and their compositions.

A scheme is a file in schemes/, or a text that was registered. Either gives all six orders of its sizes a name, if its
own name ends in them; compositions are spelt `strassen^2` and `strassen*hk223`. A scheme is proved when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Final

from fmm.kernels.algorithms.consider import considered_forms
from fmm.kernels.algorithms.scheme import Scheme, SchemeError
from fmm.kernels.algorithms.scheme_composition import composed_scheme, rotated_scheme, transposed_scheme
from fmm.kernels.algorithms.scheme_text import parse_scheme
from fmm.kernels.algorithms.text_files import TextFiles
from fmm.kernels.registry import depends_on_rows

LARGEST = 2500  # products of a composition: strassen^4 has 2401, and takes seconds to compose


FILES: Final = TextFiles("schemes", "scheme")


def register_scheme(text: str) -> Scheme:
    """From now on, plans may name the scheme of this text; SchemeError if it is no matrix multiplication."""
    found = parse_scheme(text)
    if found.name in _catalogue():
        raise SchemeError(f"there is a scheme {found.name!r} already")
    FILES.add(found.name, text)
    return found


def unregister_scheme(name: str) -> None:
    FILES.remove(name)


def scheme_names() -> tuple[str, ...]:
    """Every scheme that can be named: the files, and the permutations of those named after their size."""
    return tuple(sorted(_catalogue()))


def considered_schemes() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names, and in which forms they are worth considering; files whose line cannot be read are left out."""
    for name, (file, _) in sorted(_catalogue().items()):
        try:
            yield name, considered_forms(FILES.text(file))
        except ValueError:
            continue


@depends_on_rows
@lru_cache(maxsize=1)
def _catalogue() -> dict[str, tuple[str, str]]:
    """name -> (file, permutation letters). A file whose name ends in its sizes, as hk223, gives all six orders."""
    files = sorted(FILES.names())
    names = {name: (name, "mkn") for name in files}
    for file in files:
        digits = re.fullmatch(r"(.*?)(\d)(\d)(\d)", file)
        if digits:
            sizes = dict(zip("mkn", digits.groups()[1:], strict=True))
            for order in _ORDERS:
                names.setdefault(digits[1] + "".join(sizes[x] for x in order), (file, order))
    return names


@depends_on_rows
@lru_cache(maxsize=256)
def scheme(expression: str) -> Scheme:
    """A scheme by name: `strassen`, `strassen^2`, `strassen*hk223`; the leftmost factor is the outermost level."""
    factors: list[Scheme] = []
    for part in expression.split("*"):
        name, caret, power = part.strip().partition("^")
        if caret and not (power.isdecimal() and 1 <= int(power) <= 6):
            raise SchemeError(f"{expression!r}: the power {power!r} is not a whole number from 1 to 6")
        factors += [_named(name.strip())] * int(power or 1)
    if (rank := prod(f.rank for f in factors)) > LARGEST:
        raise SchemeError(f"{expression!r} has {rank} products; at most {LARGEST} are composed in one pass")
    if len(factors) == 1:
        return factors[0]
    return composed_scheme(tuple(factors), short_spelling(expression))


def short_spelling(expression: str) -> str:
    """The short spelling of a composition: equal neighbours as a power, no spaces."""
    names: list[tuple[str, int]] = []
    for part in expression.replace(" ", "").split("*"):
        name, _, power = part.partition("^")
        times = int(power or 1)
        if names and names[-1][0] == name:
            names[-1] = (name, names[-1][1] + times)
        else:
            names.append((name, times))
    return "*".join(name if times == 1 else f"{name}^{times}" for name, times in names)


@depends_on_rows
@lru_cache(maxsize=256)
def _named(name: str) -> Scheme:
    if name not in _catalogue():
        raise SchemeError(f"unknown scheme {name!r}; the schemes are {', '.join(scheme_names())}")
    file, order = _catalogue()[name]
    base = parse_scheme(FILES.text(file), f"{file}.txt")
    if base.name != file:
        raise SchemeError(f"{file}.txt: its name line says {base.name!r}; it must be {file!r}")
    return _permutation(base, order, name)


def _permutation(base: Scheme, order: str, name: str) -> Scheme:
    flip, turns = _ORDERS[order]
    base = transposed_scheme(base, name) if flip else base
    for _ in range(turns):
        base = rotated_scheme(base, name)
    return base


# The letters of the new size in terms of the old <m,k,n>: whether to transpose first, and how often to rotate.
_ORDERS = {
    "mkn": (False, 0),
    "knm": (False, 1),
    "nmk": (False, 2),
    "nkm": (True, 0),
    "kmn": (True, 1),
    "mnk": (True, 2),
}

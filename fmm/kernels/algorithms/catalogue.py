"""The catalogue of schemes: names, permutations of the sizes, and compositions.

A scheme is a file in schemes/, or a text that a user registered. If a scheme's name ends in its sizes m, k, n (hk223),
the catalogue also has derived schemes for the other orders of the sizes (hk232, hk322). Compositions are written
`strassen^2` and `strassen*hk223`. When a scheme is read, the Brent equations prove that it multiplies matrices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import Final

from fmm.kernels.algorithms.additions import Matrix
from fmm.kernels.algorithms.scheme import Scheme, SchemeError
from fmm.kernels.algorithms.scheme_text import parse_scheme
from fmm.kernels.algorithms.text_files import AlgorithmTexts
from fmm.kernels.registry import clear_on_registration

# Largest number of products of a composition. strassen^4 has 2401 products, and takes seconds to compose.
MAX_COMPOSED_PRODUCTS = 2500
SCHEME_FILES: Final = AlgorithmTexts("schemes", "scheme")


def register_scheme(text: str) -> Scheme:
    """Register the scheme of this text for use in plans; raise SchemeError if the scheme does not compute A B."""
    found = parse_scheme(text)
    if found.name in _scheme_catalogue():
        raise SchemeError(f"there is a scheme {found.name!r} already")
    SCHEME_FILES.register_text(found.name, text)
    return found


def unregister_scheme(name: str) -> None:
    """Remove a scheme that a user registered."""
    SCHEME_FILES.unregister_text(name)


def scheme_names() -> tuple[str, ...]:
    """Return the names of all schemes: of files, of registered texts, and of permuted sizes (hk223, hk232, ...)."""
    return tuple(sorted(_scheme_catalogue()))


def candidate_schemes() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (scheme name, names of the PlanPatterns whose plans may contain the scheme).

    Skip a scheme if the `consider` line of its file is invalid.
    """
    for name, (file, _) in sorted(_scheme_catalogue().items()):
        if (forms := SCHEME_FILES.candidate_plan_forms(file)) is not None:
            yield name, forms


@clear_on_registration
@lru_cache(maxsize=1)
def _scheme_catalogue() -> dict[str, tuple[str, str]]:
    """Return a dict from the names of all schemes to (file, order of the sizes m, k, n).

    If a name ends in three sizes, such as hk223, the dict has a name for each order of the sizes.
    """
    files = sorted(SCHEME_FILES.algorithm_names())
    names = {name: (name, "mkn") for name in files}
    for file in files:
        digits = re.fullmatch(r"(.*?)(\d)(\d)(\d)", file)
        if digits:
            sizes = dict(zip("mkn", digits.groups()[1:], strict=True))
            for order in _SIZE_PERMUTATIONS:
                names.setdefault(digits[1] + "".join(sizes[x] for x in order), (file, order))
    return names


@clear_on_registration
@lru_cache(maxsize=256)
def scheme(expression: str) -> Scheme:
    """Return a scheme by name: `strassen`, `strassen^2`, `strassen*hk223`.

    The first scheme of a composition is the outermost level.
    """
    factors: list[Scheme] = []
    for part in expression.split("*"):
        name, caret, power = part.strip().partition("^")
        if caret and not (power.isdecimal() and 1 <= int(power) <= 6):
            raise SchemeError(f"{expression!r}: the power {power!r} is not a whole number from 1 to 6")
        factors += [_read_scheme(name.strip())] * int(power or 1)
    if (rank := prod(f.rank for f in factors)) > MAX_COMPOSED_PRODUCTS:
        raise SchemeError(
            f"{expression!r} has {rank} products; at most {MAX_COMPOSED_PRODUCTS} are composed in one pass"
        )
    if len(factors) == 1:
        return factors[0]
    return composed_scheme(tuple(factors), canonical_expression(expression))


def canonical_expression(expression: str) -> str:
    """Return a composition's text without spaces, where a power replaces equal neighbours: `strassen^2*hk223`."""
    names: list[tuple[str, int]] = []
    for part in expression.replace(" ", "").split("*"):
        name, _, power = part.partition("^")
        times = int(power or 1)
        if names and names[-1][0] == name:
            names[-1] = (name, names[-1][1] + times)
        else:
            names.append((name, times))
    return "*".join(name if times == 1 else f"{name}^{times}" for name, times in names)


@clear_on_registration
@lru_cache(maxsize=256)
def _read_scheme(name: str) -> Scheme:
    if name not in _scheme_catalogue():
        raise SchemeError(f"unknown scheme {name!r}; the schemes are {', '.join(scheme_names())}")
    file, order = _scheme_catalogue()[name]
    found = parse_scheme(SCHEME_FILES.read_text(file), f"{file}.txt")
    if found.name != file:
        raise SchemeError(f"{file}.txt: its name line says {found.name!r}; it must be {file!r}")
    transpose, rotations = _SIZE_PERMUTATIONS[order]
    if transpose:
        found = transposed_scheme(found, name)
    for _ in range(rotations):
        found = rotated_scheme(found, name)
    return found


# How to derive a scheme for another order of its sizes m, k, n: transpose the scheme if the first value is True, and
# then rotate it as often as the second value says.
_SIZE_PERMUTATIONS = {
    "mkn": (False, 0),
    "knm": (False, 1),
    "nmk": (False, 2),
    "nkm": (True, 0),
    "kmn": (True, 1),
    "mnk": (True, 2),
}


# ---- schemes derived from other schemes


def transposed_scheme(scheme: Scheme, name: str) -> Scheme:
    """Return the scheme <n,k,m> that follows from a scheme <m,k,n> and the identity C^T = B^T A^T."""
    u = _transposed_grid(scheme.v, scheme.k, scheme.n)
    v = _transposed_grid(scheme.u, scheme.m, scheme.k)
    w = _transposed_grid(scheme.w, scheme.m, scheme.n)
    return Scheme(name, f"transpose of {scheme.name}: {scheme.source}", scheme.n, scheme.k, scheme.m, u, v, w)


def rotated_scheme(scheme: Scheme, name: str) -> Scheme:
    """Return the scheme <k,n,m> that follows from a scheme <m,k,n>.

    The sum of all A_ij B_jl C_li does not change if A is replaced by B, B by C, and C by A. Therefore the coefficients
    V, W and U, in place of U, V and W, also form a scheme.
    """
    v = _transposed_grid(scheme.w, scheme.m, scheme.n)
    w = _transposed_grid(scheme.u, scheme.m, scheme.k)
    return Scheme(name, f"rotation of {scheme.name}: {scheme.source}", scheme.k, scheme.n, scheme.m, scheme.v, v, w)


def _transposed_grid(x: Matrix, rows: int, columns: int) -> Matrix:
    """Return the rows of a coefficient matrix in the order of the transposed grid of blocks; each block has a row."""
    return tuple(x[i * columns + j] for j in range(columns) for i in range(rows))


def composed_scheme(factors: tuple[Scheme, ...], name: str) -> Scheme:
    """Return the composition (Kronecker product) of schemes.

    Each scheme multiplies the blocks of the previous scheme.
    """
    first, *rest = factors
    for second in rest:
        first = _kronecker_product(first, second)
    source = " (x) ".join(f.name for f in factors)
    return Scheme(name, source, first.m, first.k, first.n, first.u, first.v, first.w, factors)


def _kronecker_product(x: Scheme, y: Scheme) -> Scheme:
    def kronecker_rows(p: Matrix, q: Matrix, columns: int, inner_rows: int, inner_columns: int) -> Matrix:
        rows = []
        for i, s, j, t in product(range(len(p) // columns), range(inner_rows), range(columns), range(inner_columns)):
            outer, inner = p[i * columns + j], q[s * inner_columns + t]
            rows.append(tuple(a * b for a in outer for b in inner))
        return tuple(rows)

    u = kronecker_rows(x.u, y.u, x.k, y.m, y.k)
    v = kronecker_rows(x.v, y.v, x.n, y.k, y.n)
    w = kronecker_rows(x.w, y.w, x.n, y.m, y.n)
    return Scheme(f"{x.name}*{y.name}", "", x.m * y.m, x.k * y.k, x.n * y.n, u, v, w)

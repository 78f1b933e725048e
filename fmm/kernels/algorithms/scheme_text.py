"""Read the text form of a scheme: a head (values such as `size 2 2 2`), products M1, M2, ..., and the blocks of C.

When a text is read, the Brent equations prove the scheme. The file schemes/strassen.txt is an example.
"""

from __future__ import annotations

import re
from fractions import Fraction

from fmm.kernels.algorithms.additions import Matrix, Rational
from fmm.kernels.algorithms.scheme import Scheme, SchemeError, block_name
from fmm.kernels.algorithms.text_files import parse_candidate_forms

HEADER_WORDS = ("name", "source", "size", "consider")
_TERM_PATTERN = re.compile(r"\s*([+-]?)\s*(?:(\d+(?:/[1-9]\d*)?)\s*\*?\s*)?([ABCM]\d+(?:,\d+)?)")


def parse_scheme(text: str, origin: str = "scheme") -> Scheme:
    """Return the scheme of a text, proved by the Brent equations; raise SchemeError with the file and the defect."""
    try:
        scheme = _read_scheme(text)
        parse_candidate_forms(text)
        if (defect := scheme.failed_brent_equation()) is not None:
            raise SchemeError(f"not a matrix multiplication: {defect}")
    except (KeyError, ValueError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise SchemeError(f"{origin}: {reason}") from None
    return scheme


def _read_scheme(text: str) -> Scheme:
    head, equations = _read_header_and_equations(text)
    m, k, n = (int(x) for x in head["size"].split())
    products = [key for key in equations if key.startswith("M")]
    if products != [f"M{p + 1}" for p in range(len(products))]:
        raise SchemeError(f"products must be M1, M2, ... in order, not {', '.join(products)}")
    pairs = [_split_product_factors(name, equations[name]) for name in products]
    u = _coefficient_matrix([_parse_block_sum(left, "A", m, k) for left, _ in pairs], m * k)
    v = _coefficient_matrix([_parse_block_sum(right, "B", k, n) for _, right in pairs], k * n)
    blocks = [block_name("C", c, n) for c in range(m * n)]
    w = tuple(_read_block_equation(equations, block, len(products)) for block in blocks)
    if strange := [key for key in equations if key not in (*products, *blocks)]:
        raise SchemeError(f"{strange[0]} is neither a product nor a block of C")
    for p, name in enumerate(products):
        if not all(any(row[p] for row in matrix) for matrix in (u, v, w)):
            raise SchemeError(f"{name} is empty or unused")
    return Scheme(head["name"], head.get("source", ""), m, k, n, u, v, w)


def _read_header_and_equations(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the values of header lines by their first word, and the right sides of equations by their left sides."""
    head: dict[str, str] = {}
    equations: dict[str, str] = {}
    for line in filter(None, (line.split("#")[0].strip() for line in text.splitlines())):
        left, equals, right = (part.strip() for part in line.partition("="))
        word, _, rest = line.partition(" ")
        where, key, value = (head, word, rest.strip()) if word in HEADER_WORDS else (equations, left, right)
        if where is equations and not (equals and re.fullmatch(r"[MC]\d+(,\d+)?", key)):
            raise SchemeError(f"cannot read the line {line!r}")
        if key in where:
            raise SchemeError(f"{key} is given twice")
        where[key] = value
    return head, equations


def _split_product_factors(name: str, equation: str) -> tuple[str, str]:
    pair = re.fullmatch(r"\((.*)\)\s*\*?\s*\((.*)\)", equation)
    if pair is None:
        raise SchemeError(f"{name} is not of the form (sum of A)(sum of B)")
    return pair[1], pair[2]


def _parse_block_sum(text: str, letter: str, rows: int, columns: int) -> dict[int, Fraction]:
    """Return a sum of blocks as a dict from the index of each block to its coefficient."""
    terms: dict[int, Fraction] = {}
    position = 0
    while position < len(text.rstrip()):
        match = _TERM_PATTERN.match(text, position)
        if match is None or match[3][0] != letter or (terms and not match[1]):
            raise SchemeError(f"cannot read {text.strip()!r} as a sum of {letter} blocks")
        position = match.end()
        index = _block_index(match[3], letter, rows, columns)
        terms[index] = terms.get(index, Fraction(0)) + Fraction(match[2] or 1) * (-1 if match[1] == "-" else 1)
    return terms


def _block_index(name: str, letter: str, rows: int, columns: int) -> int:
    """Return the row-major index of a block (A23 or A2,3), or the index of a product (0 for M1)."""
    if letter == "M":
        row, column = 1, int(name[1:])
    else:
        first, _, second = name[1:].partition(",")
        row, column = (int(first), int(second)) if second else (int(first[:1]), int(first[1:] or 0))
    inside = 1 <= row <= rows and column >= 1
    if not inside or (letter != "M" and column > columns):
        raise SchemeError(f"{name} is outside the {rows} x {columns} grid")
    return (row - 1) * columns + column - 1


def _coefficient_matrix(sums: list[dict[int, Fraction]], rows: int) -> Matrix:
    return tuple(tuple(_integral_as_int(s.get(row, Fraction(0))) for s in sums) for row in range(rows))


def _read_block_equation(equations: dict[str, str], block: str, rank: int) -> tuple[Rational, ...]:
    terms = _parse_block_sum(equations[block], "M", 1, rank)
    if terms and max(terms) >= rank:
        raise SchemeError(f"{block} uses M{max(terms) + 1}, but there are {rank} products")
    return tuple(_integral_as_int(terms.get(p, Fraction(0))) for p in range(rank))


def _integral_as_int(c: Fraction) -> Rational:
    """Return an integral Fraction as an int (faster to compare and to hash), and any other Fraction unchanged."""
    return c.numerator if c.denominator == 1 else c

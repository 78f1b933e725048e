"""Schemes: the files are proved, what is computed from them agrees with the papers, and bad files say what is wrong."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fmm.kernels.algorithms.additions import Matrix
from fmm.kernels.algorithms.catalogue import (
    canonical_expression,
    composed_scheme,
    rotated_scheme,
    scheme,
    scheme_names,
    transposed_scheme,
)
from fmm.kernels.algorithms.scheme import Scheme, SchemeError
from fmm.kernels.algorithms.scheme_text import parse_scheme

# The package's attribute of this name is the function.
MODULE = importlib.import_module("fmm.kernels.algorithms.catalogue")
FOLDER = Path(MODULE.__file__ or "").parent / "schemes"
FILES = sorted(path.stem for path in FOLDER.glob("*.txt"))

STRASSEN = (FOLDER / "strassen.txt").read_text(encoding="utf-8")

COMPOSED = {  # expression -> (sizes, rank)
    "strassen^2": (4, 4, 4, 49),
    "winograd*hk223": (4, 4, 6, 77),
    "hk322*strassen": (6, 4, 4, 77),
    "dps*laderman": (6, 6, 6, 161),
    "classical*winograd": (4, 4, 4, 56),
    "classical*winograd^2": (8, 8, 8, 392),
}


# ---- the files


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_read_and_proved(name: str) -> None:
    found = parse_scheme((FOLDER / f"{name}.txt").read_text(encoding="utf-8"), f"{name}.txt")
    assert found.name == name
    assert found.source
    assert found.failed_brent_equation() is None
    assert found == scheme(name)


@pytest.mark.parametrize(
    ("left", "join", "defect"),
    [
        ("3 A11", "-6148914691236517205 M1", r"A11 B11 in C11 is -18446744073709551615, not 1"),  # 1 - 2^64
        (f"{10**40} A11", "M1", rf"A11 B11 in C11 is {10**40}, not 1"),
        (f"{10**40} A11", f"1/{10**40} M1", ""),
    ],
)
def test_coefficients_beyond_64_bits_are_proved_exactly(left: str, join: str, defect: str) -> None:
    text = f"name huge\nsource none\nsize 1 1 1\nM1 = ({left})(B11)\nC11 = {join}"
    if not defect:
        assert parse_scheme(text).failed_brent_equation() is None
        return
    with pytest.raises(SchemeError, match=f"not a matrix multiplication: the coefficient of {defect}"):
        parse_scheme(text)


def mutations(base: Scheme) -> Iterator[Scheme]:
    """Schemes with one wrong coefficient: a sign turned, a term too many; a spread of places in each matrix."""
    for letter in "uvw":
        matrix: Matrix = getattr(base, letter)
        cells = [(i, p) for i, row in enumerate(matrix) for p in range(len(row))]
        for i, p in cells[:: max(len(cells) // 12, 1)]:
            rows = [list(row) for row in matrix]
            rows[i][p] = -rows[i][p] if rows[i][p] else Fraction(1)
            changed: dict[str, Any] = {letter: tuple(map(tuple, rows))}
            yield replace(base, **changed)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", FILES)
def test_one_wrong_coefficient_is_rejected(name: str) -> None:
    """Changing one coefficient adds a non-zero rank-one term to an identity: it can never be right."""
    mutants = list(mutations(scheme(name)))
    assert len(mutants) >= (36 if name != "aligned" else 3)  # three coefficients in all
    for mutant in mutants:
        assert "is" in (mutant.failed_brent_equation() or "")
        with pytest.raises(SchemeError, match=r"^mutant\.txt: not a matrix multiplication: the coefficient of A"):
            parse_scheme(mutant.to_text(), "mutant.txt")


def test_the_defect_names_the_first_wrong_equation() -> None:
    wrong = STRASSEN.replace("C12 = M3 + M5", "C12 = M3 - M5")
    with pytest.raises(SchemeError, match=r"f\.txt: .* coefficient of A11 B22 in C12 is -2, not 0"):
        parse_scheme(wrong, "f.txt")


def test_coefficients_are_checked_exactly() -> None:
    nearly = STRASSEN.replace("C12 = M3 + M5", "C12 = M3 + 1000000001/1000000000 M5")
    with pytest.raises(SchemeError, match="not a matrix multiplication"):
        parse_scheme(nearly)


# ---- what the papers print

LI_STRASSEN = """
M1 = (A11 + A22)(B11 + B22)
M2 = (A21 + A22)(B11)
M3 = (A11)(B12 - B22)
M4 = (A22)(B21 - B11)
M5 = (A11 + A12)(B22)
M6 = (A21 - A11)(B11 + B12)
M7 = (A12 - A22)(B21 + B22)
C11 = M1 + M4 - M5 + M7
C12 = M3 + M5
C21 = M2 + M4
C22 = M1 - M2 + M3 + M6
"""  # Li, Ranka, Sahni (2011), section 1, in the order of their numbers

LI_WINOGRAD = """
S1 = A21 + A22; S2 = S1 - A11; S3 = A11 - A21; S4 = A12 - S2
S5 = B12 - B11; S6 = B22 - S5; S7 = B22 - B12; S8 = S6 - B21
M1 = S2 * S6; M2 = A11 * B11; M3 = A12 * B21; M4 = S3 * S7; M5 = S1 * S5; M6 = S4 * B22; M7 = A22 * S8
V1 = M1 + M2; V2 = V1 + M4
C11 = M2 + M3; C12 = V1 + M5 + M6; C21 = V2 - M7; C22 = V2 + M5
"""  # the same, Winograd's variant

HUANG_3 = [
    # Huang, Yu, van de Geijn (2020), Eq. (3): blocks numbered row by row from zero, products from zero
    ("A0 + A3", "B0 + B3", "C0 + C3"),
    ("A2 + A3", "B0", "C2 - C3"),
    ("A0", "B1 - B3", "C1 + C3"),
    ("A3", "B2 - B0", "C0 + C2"),
    ("A0 + A1", "B3", "C1 - C0"),
    ("A2 - A0", "B0 + B1", "C3"),
    ("A1 - A3", "B2 + B3", "C0"),
]

HUANG_FIGURE_6 = {
    # instances by how many blocks of A, of B and of C they touch
    "strassen-huang": {(2, 2, 2): 1, (2, 2, 1): 2, (1, 2, 2): 2, (2, 1, 2): 2},
    "strassen-huang^2": {
        (4, 4, 4): 1,
        **dict.fromkeys([(1, 4, 4), (2, 4, 4), (4, 1, 4), (4, 2, 4), (4, 4, 1), (4, 4, 2)], 4),
        **dict.fromkeys([(2, 2, 4), (2, 4, 2), (4, 2, 2)], 8),
    },
}

ADDITIONS = [
    # name, plain, shared
    ("strassen", 18, 18),
    ("strassen-huang", 18, 18),
    ("winograd", 24, 15),
    ("classical", 4, 4),
    ("laderman", 98, None),
]

RANKS = {
    "aligned": 1,
    "classical": 8,
    "strassen": 7,
    "strassen-huang": 7,
    "winograd": 7,
    "dps": 7,
    "hk223": 11,
    "hk233": 15,
    "laderman": 23,
    "hk244": 26,
    "smirnov336": 40,
}

STABILITY = {"classical": 2, "strassen": 12, "winograd": 18, "strassen-huang": 12, "strassen^2": 144, "dps": 13}


def test_strassens_equations_are_lis() -> None:
    printed = [line for line in LI_STRASSEN.splitlines() if line]
    assert [line for line in STRASSEN.splitlines() if re.match(r"[MC]\d", line)] == printed


def signed(text: str) -> dict[str, int]:
    """`A2 - A0` as {"A2": 1, "A0": -1}."""
    return {name: -1 if sign == "-" else 1 for sign, name in re.findall(r"([+-]?)\s*([A-Z]\d+)", text)}


def test_winograds_equations_are_lis() -> None:
    found: dict[str, Counter[str]] = {
        x: Counter({x: 1})
        for x in [f"{m}{i}{j}" for m in "AB" for i in "12" for j in "12"] + [f"M{p}" for p in "1234567"]
    }
    operands: dict[str, tuple[str, str]] = {}
    for equation in LI_WINOGRAD.replace("\n", ";").split(";"):
        target, _, value = (part.strip() for part in equation.partition("="))
        if "*" in value:
            left, _, right = (part.strip() for part in value.partition("*"))
            operands[target] = left, right
        elif target:
            total: Counter[str] = Counter()
            for name, sign in signed(value).items():
                for block, c in found[name].items():
                    total[block] += sign * c
            found[target] = total
    winograd = scheme("winograd")
    for p in range(7):
        left, right = operands[f"M{p + 1}"]
        assert [row[p] for row in winograd.u] == [found[left][f"A{x}"] for x in (11, 12, 21, 22)]
        assert [row[p] for row in winograd.v] == [found[right][f"B{x}"] for x in (11, 12, 21, 22)]
    for row, block in zip(winograd.w, ("C11", "C12", "C21", "C22"), strict=True):
        assert list(row) == [found[block][f"M{p}"] for p in range(1, 8)]


def test_huangs_instances() -> None:
    huang = scheme("strassen-huang")
    for p, instance in enumerate(HUANG_3):
        for text, letter, matrix in zip(instance, "ABC", (huang.u, huang.v, huang.w), strict=True):
            expected = signed(text)
            assert [row[p] for row in matrix] == [expected.get(f"{letter}{block}", 0) for block in range(4)]


@pytest.mark.parametrize("expression", HUANG_FIGURE_6)
def test_huangs_variants(expression: str) -> None:
    found = scheme(expression)
    touched = [[sum(1 for c in column if c) for column in zip(*x, strict=True)] for x in (found.u, found.v, found.w)]
    assert Counter(zip(*touched, strict=True)) == HUANG_FIGURE_6[expression]
    assert found.nonzero_counts == tuple(map(sum, touched))


@pytest.mark.parametrize(("name", "plain", "shared"), ADDITIONS)
def test_additions(name: str, plain: int, shared: int | None) -> None:
    assert scheme(name).separate_addition_count == plain
    if shared is not None:
        assert scheme(name).addition_count == shared


def test_winograds_shared_additions_are_4_4_and_7() -> None:
    programs = scheme("winograd").addition_programs  # S1..S4; S5..S8; V1, V2 and the five of C
    assert [programs.left.addition_count, programs.right.addition_count, programs.join.addition_count] == [4, 4, 7]


@pytest.mark.parametrize("name", RANKS)
def test_ranks(name: str) -> None:
    found = scheme(name)
    assert found.rank == RANKS[name]
    assert str(found) == f"{name} <{found.m},{found.k},{found.n};{found.rank}>"


def test_every_file_has_its_rank_here() -> None:
    assert set(FILES) == set(RANKS)


@pytest.mark.parametrize("name", STABILITY)
def test_stability_factors(name: str) -> None:
    assert scheme(name).stability_factor == STABILITY[name]


@pytest.mark.parametrize("expression", ["winograd*hk223", "dps*classical"])
def test_the_stability_factor_of_a_composition_is_that_of_its_coefficients(expression: str) -> None:
    found = scheme(expression)
    assert found.stability_factor == replace(found, factors=()).stability_factor


def test_error_growth() -> None:
    assert scheme("classical").error_growth == 1  # the yardstick
    # Strassen's C11 = M1 + M4 - M5 + M7: (4 + 2 + 2 + 4) products of unit variance, over k^2 = 4.
    assert scheme("strassen").error_growth == pytest.approx(3**0.5)
    assert scheme("strassen^2").error_growth == pytest.approx(3)
    assert scheme("dps").error_growth < scheme("strassen").error_growth < scheme("winograd").error_growth


# ---- permuting


@pytest.mark.parametrize(
    ("file", "digits"),
    [
        ("hk223", ("223", "232", "322")),
        ("hk233", ("233", "323", "332")),
        ("hk244", ("244", "424", "442")),
        ("smirnov336", ("336", "363", "633")),
    ],
)
def test_all_orders_of_a_rectangular_file_are_proved(file: str, digits: tuple[str, ...]) -> None:
    stem = file[:-3]
    family = {name for name in scheme_names() if re.fullmatch(rf"{stem}\d{{3}}", name) and sorted(name) == sorted(file)}
    assert family == {stem + d for d in digits}
    for name in sorted(family):
        found = scheme(name)
        assert "".join(map(str, found.size)) == name[-3:]
        assert (found.rank, found.failed_brent_equation(), found.name) == (scheme(file).rank, None, name)


@pytest.mark.parametrize("name", [*FILES, "hk223*winograd"])
def test_transposing_twice_and_rotating_thrice_are_the_identity(name: str) -> None:
    base = scheme(name)

    def coefficients(x: Scheme) -> tuple[object, ...]:
        return x.size, x.u, x.v, x.w

    once = transposed_scheme(base, "t")
    assert once.size == (base.n, base.k, base.m)
    assert once.failed_brent_equation() is None
    assert coefficients(transposed_scheme(once, "tt")) == coefficients(base)
    turned = rotated_scheme(base, "r")
    assert turned.size == (base.k, base.n, base.m)
    assert turned.failed_brent_equation() is None
    assert coefficients(rotated_scheme(rotated_scheme(turned, "rr"), "rrr")) == coefficients(base)


# ---- composing


@pytest.mark.parametrize("expression", COMPOSED)
def test_compositions_are_proved(expression: str) -> None:
    found = scheme(expression)
    assert (*found.size, found.rank) == COMPOSED[expression]
    assert found.name == expression
    if found.rank < 200:  # the Brent equations of a larger one take a while; its factors are proved
        assert found.failed_brent_equation() is None


def test_the_leftmost_factor_is_the_outermost_level() -> None:
    outer, inner = scheme("classical"), scheme("hk223")
    both = scheme("classical*hk223")
    for x, y, z, inner_columns in (
        (outer.u, inner.u, both.u, 2),
        (outer.v, inner.v, both.v, 3),
        (outer.w, inner.w, both.w, 3),
    ):
        p, q = np.array(x, float).reshape(2, 2, -1), np.array(y, float).reshape(2, inner_columns, -1)
        expected = np.einsum("ijp,stq->isjtpq", p, q).reshape(len(z), -1)
        assert np.array_equal(np.array(z, float), expected)


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("name", [*scheme_names(), *COMPOSED])
def test_programs_compute_the_coefficients(name: str) -> None:
    found = scheme(name)
    assert found.addition_programs.left.coefficient_matrix() == tuple(zip(*found.u, strict=True))
    assert found.addition_programs.right.coefficient_matrix() == tuple(zip(*found.v, strict=True))
    assert found.addition_programs.join.coefficient_matrix() == found.w


def test_a_composition_shares_sums_level_by_level() -> None:
    # Winograd twice: 4 + 4 sums once for each of 4 inner places, then for each of 7 products; 7 joins likewise.
    assert scheme("winograd^2").addition_count == 15 * (4 + 7)
    assert scheme("winograd^2").addition_count < scheme("winograd^2").separate_addition_count


@pytest.mark.parametrize("name", scheme_names())
def test_sharing_never_adds_additions(name: str) -> None:
    assert scheme(name).addition_count <= scheme(name).separate_addition_count


CANONICAL = [
    ("strassen", "strassen"),
    ("strassen^1", "strassen"),
    ("strassen*strassen", "strassen^2"),
    (" strassen * winograd * winograd^2 ", "strassen*winograd^3"),
    ("strassen*hk223*strassen", "strassen*hk223*strassen"),
]


@pytest.mark.parametrize(("text", "short"), CANONICAL)
def test_canonical_spelling(text: str, short: str) -> None:
    assert canonical_expression(text) == short
    assert canonical_expression(short) == short


@given(st.lists(st.tuples(st.sampled_from(["strassen", "hk223", "dps"]), st.integers(1, 3)), min_size=1, max_size=4))
def test_canonical_names_the_same_factors(parts: list[tuple[str, int]]) -> None:
    def factors(text: str) -> list[str]:
        return [name for part in text.split("*") for name, _, n in [part.partition("^")] for _ in range(int(n or 1))]

    text = "*".join(f"{name}^{times}" for name, times in parts)
    assert factors(canonical_expression(text)) == factors(text)


def test_composed_is_the_expression() -> None:
    by_hand = composed_scheme((scheme("winograd"), scheme("hk223")), "winograd*hk223")
    assert by_hand == scheme("winograd*hk223")
    assert by_hand.factors == (scheme("winograd"), scheme("hk223"))


# ---- the text form


@pytest.mark.parametrize("name", [*scheme_names(), "strassen^2", "winograd*hk223"])
def test_text_round_trip(name: str) -> None:
    found = scheme(name)
    again = parse_scheme(found.to_text(), "again")
    assert (again.name, again.source, again.size) == (found.name, found.source, found.size)
    assert (again.u, again.v, again.w) == (found.u, found.v, found.w)


def test_text_round_trip_with_ten_block_rows() -> None:
    """Blocks are named by two numbers without a separator: A101 must not be read as block 1, 01."""
    unit = tuple(tuple(Fraction(i == p) for p in range(10)) for i in range(10))
    tall = Scheme("tall", "ten rows times one number", 10, 1, 1, unit, ((Fraction(1),) * 10,), unit)
    assert tall.failed_brent_equation() is None
    again = parse_scheme(tall.to_text(), "tall.txt")
    assert (again.u, again.v, again.w) == (tall.u, tall.v, tall.w)


SPELLINGS = [
    # coefficients may be whole numbers or fractions, with or without a sign, a star or spaces
    ("M1 = (A11 + A22)(B11 + B22)", "M1 = (A22+A11) * (B22 + 1 B11)"),
    ("M2 = (A21 + A22)(B11)", "M2 = (1/2 A21 + 1/2*A22)(2 B11)  # halved and doubled"),
    ("C12 = M3 + M5", "C12 = 3 M3 + M5 - 2 M3"),
]


@pytest.mark.parametrize(("old", "new"), SPELLINGS)
def test_other_spellings_mean_the_same(old: str, new: str) -> None:
    assert old in STRASSEN
    found = parse_scheme(STRASSEN.replace(old, new))
    assert found.failed_brent_equation() is None
    assert found.w == scheme("strassen").w


def without(line: str) -> Callable[[str], str]:
    return lambda text: "\n".join(x for x in text.splitlines() if not x.startswith(line))


def swap(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert text.count(old) == 1
        return text.replace(old, new)

    return edit


MALFORMED = [
    # (id, edit, what the message must name)
    ("no size", without("size"), "size"),
    ("no name", without("name"), "name"),
    ("short size", swap("size    2 2 2", "size 2 2"), ""),
    ("size not a number", swap("size    2 2 2", "size 2 2 x"), "x"),
    ("size zero", swap("size    2 2 2", "size 0 2 2"), ""),
    ("larger size", swap("size    2 2 2", "size 2 2 3"), "C13"),
    ("no C block", without("C21"), "C21"),
    ("no product", without("M7"), "M7"),
    ("bad term", swap("(A11 + A12)", "(A11 + 2x)"), r"A11 \+ 2x"),
    ("two terms without a sign", swap("(A11 + A12)", "(A11 A12)"), "A11 A12"),
    ("B among the As", swap("(A11 + A12)", "(A11 + B12)"), r"A11 \+ B12"),
    ("dangling sign", swap("(A11 + A12)", "(A11 + )"), r"A11 \+"),
    ("one sum", swap("M5 = (A11 + A12)(B22)", "M5 = (A11 + A12)"), "M5"),
    ("row outside", swap("(A11 + A12)", "(A11 + A32)"), "A32 is outside the 2 x 2 grid"),
    ("column outside", swap("(A11 + A12)", "(A11 + A13)"), "A13 is outside the 2 x 2 grid"),
    ("row zero", swap("(A11 + A12)", "(A11 + A02)"), "A02 is outside"),
    ("product outside", swap("C12 = M3 + M5", "C12 = M3 + M8"), "C12 uses M8, but there are 7 products"),
    ("product zero", swap("C12 = M3 + M5", "C12 = M3 + M5 + M0"), "M0"),
    (
        "out of order",
        swap(
            "M1 = (A11 + A22)(B11 + B22)\nM2 = (A21 + A22)(B11)", "M2 = (A21 + A22)(B11)\nM1 = (A11 + A22)(B11 + B22)"
        ),
        "order",
    ),
    ("product twice", swap("M2 =", "M1 ="), "M1 is given twice"),
    ("C block twice", swap("C21 =", "C12 ="), "C12 is given twice"),
    ("division by zero", swap("(A11 + A12)", "(A11 + 1/0 A12)"), "1/0"),
    ("short block name", swap("(A11 + A12)", "(A11 + A1)"), "A1"),
    ("C block outside", lambda text: text + "\nC33 = M1\n", "C33"),
    ("unknown line", lambda text: text + "\nhello world\n", "hello"),
    ("unknown equation", lambda text: text + "\nD11 = M1\n", "D11"),
    ("size twice", swap("size    2 2 2", "size 3 3 3\nsize 2 2 2"), "size"),
    ("operand that cancels", swap("\nC11", "M8 = (A11 - A11)(B11)\n\nC11"), "M8"),
    ("empty operand", swap("\nC11", "M8 = ()(B11)\n\nC11"), "M8"),
    ("product that nobody uses", swap("\nC11", "M8 = (A11)(B11)\n\nC11"), "M8"),
]


@pytest.mark.parametrize(("edit", "named"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED])
def test_malformed_files_say_what_is_wrong(edit: Callable[[str], str], named: str) -> None:
    with pytest.raises(SchemeError, match=rf"^mine\.txt: .*{named}"):
        parse_scheme(edit(STRASSEN), "mine.txt")


# ---- the folder and the names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of schemes of our own, in place of the package's."""
    (tmp_path / "strassen.txt").write_text(STRASSEN, encoding="utf-8")

    def forget() -> None:
        for cached in (MODULE._scheme_catalogue, MODULE._read_scheme, MODULE.scheme):
            cached.cache_clear()

    monkeypatch.setattr(MODULE.SCHEME_FILES, "folder", tmp_path)
    forget()
    yield tmp_path
    monkeypatch.undo()
    forget()


def test_a_file_dropped_into_the_folder_is_found(folder: Path) -> None:
    assert scheme_names() == ("strassen",)
    text = scheme("strassen").to_text().replace("name    strassen", "name    mine").replace("M7", "M7")
    (folder / "mine.txt").write_text(text, encoding="utf-8")
    MODULE._scheme_catalogue.cache_clear()
    assert scheme_names() == ("mine", "strassen")
    assert scheme("mine").rank == 7
    assert scheme("mine*strassen").rank == 49


def test_a_dropped_file_named_by_its_size_gives_all_its_orders(folder: Path) -> None:
    text = (FOLDER / "hk223.txt").read_text(encoding="utf-8").replace("name    hk223", "name    my223")
    (folder / "my223.txt").write_text(text, encoding="utf-8")
    MODULE._scheme_catalogue.cache_clear()
    assert scheme_names() == ("my223", "my232", "my322", "strassen")
    assert scheme("my322").size == (3, 2, 2)
    assert scheme("my322").failed_brent_equation() is None


def test_a_file_of_its_own_wins_over_a_permutation(folder: Path) -> None:
    for name in ("hk223", "hk322"):
        (folder / f"{name}.txt").write_text(scheme_text(name), encoding="utf-8")
    MODULE._scheme_catalogue.cache_clear()
    assert scheme("hk322").source == "given"


def scheme_text(name: str) -> str:
    """hk223, or its transpose as a file of its own."""
    base = parse_scheme((FOLDER / "hk223.txt").read_text(encoding="utf-8"))
    return replace(base if name == "hk223" else transposed_scheme(base, name), source="given").to_text()


def test_a_name_line_that_differs_from_the_file_is_refused(folder: Path) -> None:
    (folder / "other.txt").write_text(STRASSEN, encoding="utf-8")
    MODULE._scheme_catalogue.cache_clear()
    with pytest.raises(SchemeError, match=r"other\.txt: its name line says 'strassen'; it must be 'other'"):
        scheme("other")


def test_a_wrong_file_is_refused_when_it_is_named(folder: Path) -> None:
    (folder / "wrong.txt").write_text(
        STRASSEN.replace("name    strassen", "name wrong").replace("- M5", "+ M5"), "utf-8"
    )
    MODULE._scheme_catalogue.cache_clear()
    with pytest.raises(SchemeError, match=r"wrong\.txt: not a matrix multiplication: .* in C11"):
        scheme("wrong")


BAD_NAMES = [
    ("nosuch", "unknown scheme 'nosuch'.*classical.*strassen.*winograd"),
    ("strassen*nosuch", "unknown scheme 'nosuch'"),
    ("strassen^0", "power '0' is not a whole number from 1 to"),
    ("strassen^99", "power '99' is not a whole number from 1 to"),
    ("strassen^x", "power 'x' is not a whole number"),
    ("strassen^-1", "power '-1' is not a whole number"),
    ("strassen*", "unknown scheme ''"),
    ("", "unknown scheme ''"),
]


@pytest.mark.parametrize(("expression", "message"), BAD_NAMES)
def test_bad_names_say_what_is_valid(expression: str, message: str) -> None:
    with pytest.raises(SchemeError, match=message):
        scheme(expression)


def test_names_are_found_once() -> None:
    assert scheme("winograd") is scheme("winograd")
    assert hash(scheme("strassen^2")) == hash(scheme("strassen^2"))
    assert scheme("strassen^1") is scheme("strassen")

"""Residues as a level: how it is written, what may stand below it, and that what it comes to is the product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fmm.dtypes import DTYPES, INTEGERS
from fmm.kernels.algorithms.residues import first_moduli, imaginary_unit, remainder_weights, symmetric_residue
from fmm.kernels.plans.explain import plan_rows, plan_table
from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.leaf import parse_leaf, plan_leaves
from fmm.kernels.plans.level import parse_level
from fmm.kernels.plans.levels.gram import gram_level
from fmm.kernels.plans.levels.residue_planes import (
    NormExponents,
    ReconstructFromResidues,
    SplitIntoResidues,
    integer_moduli_count,
    integer_workspace_bytes,
    residue_workspace_bytes,
)
from fmm.kernels.plans.levels.residues import ResiduesLevel, residue_leaves
from fmm.kernels.plans.lower import lower_level, lower_level_run_by_leaf
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.steps import LevelSteps, ProductBatch
from fmm.kernels.plans.sums import Place
from fmm.kernels.plans.workspace import (
    check_plan_type,
    count_leaf_products,
    count_multiplications,
    plan_workspace_bytes,
)
from fmm.perfmodel.candidates import candidate_plans, gram_candidates
from fmm.perfmodel.cost import cost
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.predict import predict
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from tests.support.remainders import whole_number

Matrix = np.ndarray[Any, Any]
ENDINGS = list(residue_leaves())

# ---- the text


@pytest.mark.parametrize("text", ENDINGS)
def test_texts_are_read_as_they_are_printed(text: str) -> None:
    """The level, with what is below it, in the place of a leaf; also where levels are given as such."""
    found, parts = Plan.parse(text), text.split(" > ")
    assert str(found) == found.leaf == text and found.levels == ()
    levels = tuple(parse_level(part) for part in parts[:-1])
    assert isinstance(levels[0], ResiduesLevel) and Plan(levels, "bytes") == found
    above = Plan((parse_level("strassen.batched.pad16"), *levels), "bytes")
    assert str(above) == f"strassen.batched.pad16 > {text}" and above.inner_plan == found


WRONG = [
    ("residues(14) > vendor", "below residues\\(14\\) there may be strassen"),
    ("residues(14) > winograd > bytes", "below residues\\(14\\) there may be strassen"),
    ("residues(14) > strassen > strassen > bytes", "below residues"),
    ("residues(8) > strassen^2 > bytes", "below residues"),  # of float64 alone
    ("residues > strassen^2 > bytes", "below residues there"),
    ("residues(14) > 3m > bytes", "below residues"),
    ("residues(14) > residues(14) > bytes", "below residues"),
    ("residues(12) > bytes", "float64: 13, 14, 15, 16; float32: 7, 8, 9"),
    ("residues(14)", "ends in 'residues\\(14\\)'"),
    ("bytes", "bytes multiplies only below residues"),
    ("strassen > bytes", "bytes multiplies only below residues"),
    ("residues(14) > bytes.inner", "ends in 'bytes.inner'"),
    ("residues2m > bytes", "complex128: 14, 15, 16, 17; complex64: 7, 8, 9"),
    ("residues2m(13) > bytes", "complex128: 14, 15, 16, 17; complex64: 7, 8, 9"),
    ("residues2m(15) > strassen^2 > bytes", "below residues2m\\(15\\)"),
    ("residues2m(15).fused > bytes", "unknown option 'fused' of residues2m; valid: conj-a, conj-b"),
    ("residues(14).conj-a > bytes", "unknown option 'conj-a' of residues"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_cannot_stand_there_is_refused(text: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Plan.parse(text)


def test_types() -> None:
    assert Plan.parse("residues(14) > bytes").leaf_types == ("float64",)
    assert Plan.parse("residues(8) > strassen > bytes").leaf_types == ("float32",)
    assert Plan.parse("3m > residues(14) > bytes").accepts_type("complex128")
    assert Plan.parse("residues2m(15) > strassen > bytes").leaf_types == ("complex128",)
    assert Plan.parse("strassen > residues2m(15) > bytes").accepts_type("complex128")
    assert not Plan.parse("strassen > residues2m(15).conj-a > bytes").accepts_type("complex128")
    assert Plan.parse("residues > bytes").leaf_types == INTEGERS
    assert Plan.parse("residues > strassen > bytes").leaf_types == ("int16", "int32", "uint16", "uint32")
    for dtype in DTYPES:  # integers alone, where no level stands above
        assert not Plan.parse("strassen > residues > bytes").accepts_type(dtype)


def test_integers_below_levels_are_refused_in_words() -> None:
    with pytest.raises(PlanError, match="residues > bytes multiplies nothing below levels there, not int32"):
        check_plan_type(Plan.parse("strassen > residues > bytes"), "int32")


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_the_workspace_of_integers_is_for_their_own_size(itemsize: int) -> None:
    """Of all types of this size, the one that needs most moduli; other sizes do not count."""
    size = (96, 128, 64)
    moduli = max(integer_moduli_count(name, size[1]) for name in INTEGERS if DTYPES[name].itemsize == itemsize)
    assert integer_workspace_bytes(0, itemsize, *size, 1) == residue_workspace_bytes(itemsize, moduli, 0, *size, 1)
    if itemsize > 1:
        assert integer_workspace_bytes(0, itemsize, *size, 1) > integer_workspace_bytes(0, 1, *size, 1)
        assert moduli == integer_moduli_count(f"int{8 * itemsize}", size[1])


def test_leaves_of_8_byte_numbers_without_levels_below_have_kernels_for_triangles() -> None:
    triangles = {row.name for row in plan_leaves() if row.level and row.kernel_triangles if ".conj" not in row.name}
    real = {f"residues({count}) > bytes" for count in (13, 14, 15, 16)}
    assert triangles == real | {f"residues2m({count}) > bytes" for count in (14, 15, 16, 17)}


def test_halves_by_residues() -> None:
    """Blocks on the diagonal by a leaf of their own: by the level, its leaf not said again."""
    plan = Plan.parse("gram.residues(14) > vendor")
    assert str(plan) == "gram.residues(14) > vendor"
    assert [str(use) for use in plan.all_leaves] == ["vendor", "residues(14) > bytes"]
    level = gram_level(2, "residues(14) > bytes")
    assert Plan((level,)).all_leaves[1] == parse_leaf("residues(14) > bytes")


# ---- candidates


COMPLEX_CANDIDATES = [f"residues2m({count}){below} > bytes" for count in (15, 17, 8) for below in ("", " > strassen")]


def test_candidates_come_from_the_registry() -> None:
    """What the level's rows say is considered, alone and below the others that are put above such."""
    considered = [row.name for row in plan_leaves() if row.level and row.forms]
    assert considered == [
        "residues > bytes",
        "residues > strassen > bytes",
        "residues(14) > bytes",
        "residues(14) > strassen > bytes",
        "residues(15) > bytes",
        "residues(15) > strassen > bytes",
        "residues(16) > bytes",
        "residues(16) > strassen > bytes",
        "residues(8) > bytes",
        "residues(8) > strassen > bytes",
        *COMPLEX_CANDIDATES,
    ]
    found = [str(plan) for plan in candidate_plans("cuda")]
    assert sorted(text for text in found if text.startswith("residues")) == sorted(considered)
    assert {f"3m.batched > {text}" for text in considered[2:6]} <= set(found)
    assert "gram^3 > residues(14) > strassen > bytes" in map(str, gram_candidates("cuda"))
    assert not any("bytes" in str(plan) for plan in candidate_plans("cpu"))


# ---- what it comes to


def steps_of(text: str, size: tuple[int, int, int], dtype: str, asked: GemmParams = PLAIN) -> LevelSteps:
    found = lower_level_run_by_leaf(
        Plan.parse(text), *size, DTYPES[dtype].itemsize, asked, dtype if DTYPES[dtype].exact else ""
    )
    assert found is not None and lower_level(Plan.parse(text), *size) is None  # a machine does it whole
    return found


def computed(steps: LevelSteps, a: Matrix, b: Matrix, c: Matrix) -> Matrix:
    """C by the steps, one by one with Python's integers: sums, residues, products of planes, and C from these."""
    held = {"A": a, "B": b, "C": c}
    held |= {name: np.full((rows, cols), 99, dtype=object) for name, rows, cols in steps.temporaries}
    numbers = first_moduli(next(step.moduli for step in steps.steps if isinstance(step, SplitIntoResidues)))
    for step in steps.steps:
        if isinstance(step, SplitIntoResidues):
            values = _compared_values(step, held)
            for i, (place, v) in enumerate(zip(step.writes, step.program.outputs, strict=True)):
                block(held, place)[...] = values[v] % numbers[i * len(numbers) // len(step.writes)]
        elif isinstance(step, ProductBatch):
            for i, x in enumerate(step.products):
                p = numbers[i * len(numbers) // len(step.products)]
                block(held, x.dest)[...] = (block(held, x.left) @ block(held, x.right)) % p
        else:
            assert isinstance(step, ReconstructFromResidues)
            values = _compared_values(step, held)
            for place, v in zip(step.writes, step.program.outputs, strict=True):
                block(held, place)[...] = values[v][: place.rows, : place.cols]
    return c


def block(held: dict[str, Matrix], place: Place) -> Matrix:
    return held[place.name][place.row : place.row + place.rows, place.col : place.col + place.cols]


def _compared_values(step: SplitIntoResidues | ReconstructFromResidues, held: dict[str, Matrix]) -> list[Matrix]:
    """What the program of a step finds, what a block lacks taken as zero; sums of as many planes as there are moduli
    are the whole numbers with these residues."""
    planes = step.writes if isinstance(step, SplitIntoResidues) else step.reads
    shape = planes[0].rows, planes[0].cols
    values = []
    for place in step.reads:
        values.append(np.zeros(shape, dtype=object))
        values[-1][: place.rows, : place.cols] = block(held, place)
    crt = range(*_whole_lines(step)) if isinstance(step, ReconstructFromResidues) else range(0)
    for i, terms in enumerate(step.program.lines):
        if i in crt:
            assert [c for c, _ in terms] == [1] * step.moduli
            values.append(whole_number([values[v] for _, v in terms]))
        else:
            values.append(sum((c * values[v] for c, v in terms), np.zeros(shape, dtype=object)))
    return values


def _whole_lines(step: ReconstructFromResidues) -> tuple[int, int]:
    """Those of the blocks of C, before alpha and beta."""
    blocks, lines = len(step.writes), len(step.program.lines)
    updated = len(step.program.lines[-1]) != step.moduli
    return lines - blocks * (1 + updated), lines - blocks * updated


SIZES = [(1, 1, 1), (5, 9, 3), (8, 33, 7)]


@pytest.mark.parametrize("text", ["residues > bytes", "residues > strassen > bytes"])
@pytest.mark.parametrize("size", SIZES)
def test_the_steps_are_the_product(text: str, size: tuple[int, int, int]) -> None:
    """Of int32 in its whole range, exactly; sums modulo p need no spare bit, whatever the level below."""
    rng, (m, k, n) = np.random.default_rng(3), size
    a, b, old = (rng.integers(-(2**31), 2**31, shape).astype(object) for shape in ((m, k), (k, n), (m, n)))
    c = computed(steps_of(text, size, "int32"), a, b, np.full((m, n), 77, dtype=object))
    assert (c == a @ b).all()
    updated = computed(steps_of(text, size, "int32", GemmParams(-2, 3)), a, b, old.copy())
    assert (updated == -2 * (a @ b) + 3 * old).all()


def test_two_levels_below_are_the_product_too() -> None:
    """Of numbers of 55 bits, as large as those to which rows and columns of float64 are scaled."""
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-(2**49), 2**49, shape).astype(object) for shape in ((5, 6), (6, 3)))
    found = steps_of("residues(14) > strassen^2 > bytes", (5, 6, 3), "float64")
    measures = [step for step in found.steps if isinstance(step, NormExponents)]
    assert [(step.source_place.name, step.axis) for step in measures] == [("A", 0), ("B", 1)]
    rest = replace(found, steps=tuple(step for step in found.steps if step not in measures))
    assert (computed(rest, a, b, np.full((5, 3), 77, dtype=object)) == a @ b).all()


@pytest.mark.parametrize("size", SIZES)
def test_complex_planes_are_the_product(size: tuple[int, int, int]) -> None:
    """Of Gaussian integers of 50 bits, by Python's integers: residues of Re + j Im and of Re - j Im, products, join."""
    rng, (m, k, n) = np.random.default_rng(5), size
    ar, ai, br, bi = (rng.integers(-(2**50), 2**50, shape).astype(object) for shape in ((m, k), (m, k), (k, n), (k, n)))
    numbers = remainder_weights(15, for_complex=True)
    real, imaginary = numbers.complex_weights
    cr, ci = np.zeros((m, n), object), np.zeros((m, n), object)
    for p, re_weight, im_weight in zip(numbers.moduli, real, imaginary, strict=True):
        j = imaginary_unit(p)
        plus, minus = (((ar + s * ai) % p) @ ((br + s * bi) % p) % p for s in (j, -j))
        cr, ci = cr + (plus + minus) * re_weight, ci + (plus - minus) * im_weight
    whole = np.vectorize(lambda x: symmetric_residue(x, numbers.product), otypes=[object])
    assert (whole(cr) == ar @ br - ai @ bi).all() and (whole(ci) == ar @ bi + ai @ br).all()


def test_complex_steps() -> None:
    """Thirty products of planes; the numbers of A and B are read twice, as for real numbers."""
    found = steps_of("residues2m(15) > strassen > bytes", (40, 30, 20), "complex128")
    (batch,) = (step for step in found.steps if isinstance(step, ProductBatch))
    assert len(batch.products) == 15 * 2 * 7
    splits = [step for step in found.steps if isinstance(step, SplitIntoResidues | ReconstructFromResidues)]
    assert all((step.moduli, step.planes_per_modulus) == (15, 2) for step in splits)
    n = 512
    plan = Plan.parse("residues2m(15) > bytes")
    counted = cost(plan, n, n, n, 16)
    assert dict(counted.leaves) == {(n, n, n): 30} and count_multiplications(plan, n, n, n) == n**3 / 2
    assert counted.bytes_read == 4 * 16 * n * n + 30 * n * n


def test_bytes_are_residues_themselves() -> None:
    steps = steps_of("residues > bytes", (40, 30, 20), "int8")
    (product,) = steps.products
    assert not steps.temporaries and [x.name for x in (product.left, product.right, product.dest)] == ["A", "B", "C"]
    assert (
        len(list(steps_of("residues > bytes", (40, 30, 20), "bool").products))
        == 1
        < len(list(steps_of("residues > bytes", (40, 3000, 20), "bool").products))
    )


# ---- what it costs


def test_counts() -> None:
    """A and B are read twice, for norms and for residues; 98 planes of each operand and of C are written and read."""
    n, item = 1024, 8
    plan, plane = Plan.parse("residues(14) > strassen > bytes"), 512 * 512
    found = cost(plan, n, n, n)
    assert dict(found.leaves) == {(512, 512, 512): 98} == count_leaf_products(plan, n, n, n)
    assert found.flops == 2 * 98 * 512**3 and found.leaf_bytes == 3 * 98 * plane
    assert found.bytes_read == 4 * item * n * n + 98 * plane
    assert found.bytes_written == 2 * 98 * plane + item * n * n + 2 * n  # with two bytes a line for the exponents
    assert found.launches == 6 and found.workspace == plan_workspace_bytes(plan, n, n, n, item)
    # Sums are formed once for A and B, and for C modulo each number; then the 14 residues are added up, by weights.
    assert found.additions == (10 + 14 * 8 + 4 * 13) * plane
    assert count_multiplications(plan, n, n, n) == 7 / 8 * n**3
    assert count_multiplications(Plan.parse("residues(14) > strassen^2 > bytes"), n, n, n) == 49 / 64 * n**3


def test_counts_below_other_levels() -> None:
    """Numbers are as wide as the level above leaves them; integers need moduli by their width."""
    n = 512
    plan, alone = Plan.parse("3m > residues(14) > bytes"), Plan.parse("residues(14) > bytes")
    found, inner = cost(plan, n, n, n, 16), cost(alone, n, n, n, 8)
    assert found.flops == 3 * inner.flops and found.leaf_bytes == 3 * inner.leaf_bytes
    assert count_multiplications(plan, n, n, n) == 3 / 4 * n**3
    whole = Plan.parse("residues > bytes")
    counts = {item: dict(cost(whole, n, n, n, item).leaves)[n, n, n] for item in (1, 2, 4, 8)}
    assert counts == {1: 1, 2: 6, 4: 10, 8: 18}


def test_as_one_product() -> None:
    """What is predicted is known of all of it together: above it as of a leaf."""
    plan = Plan.parse("strassen.batched.pad16 > residues(14) > bytes")
    found = cost(plan, 2048, 2048, 2048, count_leaf_steps=False)
    assert found.leaves == (((1024, 1024, 1024), 7),) and found.launches == 4
    assert cost(plan, 2048, 2048, 2048).launches == 3 + 6  # the same steps, of a batch
    problem, sheet = Problem(8192, 8192, 8192), datasheet_calibration("H200")
    alone, vendor = (
        predict(Plan.parse(text), problem, sheet).predicted_seconds for text in ("residues(14) > bytes", "vendor")
    )
    assert alone < vendor


def test_errors() -> None:
    """Levels below add nothing, levels above their own; fewer moduli cost more."""
    one, two = (expected_error_growth(Plan.parse(f"residues(14){x} > bytes")) for x in ("", " > strassen^2"))
    assert one == two == 1.0 < expected_error_growth(Plan.parse("residues(13) > strassen > bytes")) == 11.0
    above = expected_error_growth(Plan.parse("strassen.batched.pad16 > residues(14) > bytes"))
    assert above == expected_error_growth(Plan.parse("strassen.batched.pad16 > vendor")) > 1


# ---- what is said of it


def test_explained() -> None:
    plan = Plan.parse("3m > residues(14) > strassen > bytes")
    rows = list(plan_rows(plan, 1024, 1024, 1024, 16))
    assert [(row.level, row.problem, row.products) for row in rows] == [
        ("3m", "1024 x 1024 x 1024", 3),
        ("residues(14)", "1024 x 1024 x 1024", 14),
        ("strassen", "1024 x 1024 x 1024", 7),
        ("bytes", "512 x 512 x 512", 1),
    ]
    assert rows[1].does == "residues modulo 14 numbers"
    assert rows[1].temporaries == plan_workspace_bytes(plan.inner_plan, 1024, 1024, 1024, 8) > 0 == rows[2].temporaries
    table = plan_table(plan, 1024, 1024, 1024, 16)
    assert "65.6% of the classical multiplications, 294 leaf products, workspace" in table


def test_explained_integers() -> None:
    """As many moduli as the type needs; of bool the type must be said."""
    plan = Plan.parse("residues > bytes")
    for dtype, count in (("int64", 18), ("int16", 6), ("int8", 1), ("bool", 2)):
        first, *_ = plan_rows(plan, 8192, 8192, 8192, DTYPES[dtype].itemsize, dtype=dtype)
        assert first.products == count and (f"modulo {count} numbers" in first.does) == (dtype != "int8")

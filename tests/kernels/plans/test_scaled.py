"""The level `scaled`: exact scaling by powers of two around a fast product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fmm
from fmm import Plan, PlanError
from fmm.kernels.cpu.symbolic_proof import plan_defect
from fmm.kernels.cuda.record import record_operations
from fmm.perfmodel import cost, error_bound
from fmm.problem import Problem

TEXTS = ("scaled > vendor", "scaled.inside > winograd > vendor", "scaled.outside > strassen.sequential > vendor")
TYPES = ("float32", "float64", "complex64", "complex128")


def graded(m: int, k: int, n: int, dtype: str, inside: int, outside: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Columns of A and rows of B that grow in opposite directions, rows of A and columns of B of all sizes."""
    kind = np.complex128 if dtype[0] == "c" else np.float64
    a, b = (rng.standard_normal(s).astype(kind) for s in ((m, k), (k, n)))
    if dtype[0] == "c":
        a, b = a + 1j * rng.standard_normal((m, k)), b + 1j * rng.standard_normal((k, n))
    along = np.exp2(np.linspace(-inside, inside, k).round())
    down, right = (np.exp2(rng.integers(-outside, outside + 1, count).astype(float)) for count in (m, n))
    return (a * along * down[:, None]).astype(dtype), (b / along[:, None] * right).astype(dtype)


def beside_entries(c: Any, a: Any, b: Any) -> float:
    """The largest error beside the same entry of |A| |B|, in roundings."""
    exact = a.astype(np.clongdouble) @ b.astype(np.clongdouble)
    size = abs(a).astype(np.longdouble) @ abs(b).astype(np.longdouble)
    return float((abs(c - exact) / size).max() / np.finfo(a.dtype).eps)


@pytest.mark.parametrize("text", [*TEXTS, "balanced(2) > scaled > dps > vendor", "scaled > scaled > vendor"])
def test_it_is_printed_as_it_was_read_and_multiplies(text: str) -> None:
    plan = Plan.parse(text)
    assert str(plan) == text
    assert all(plan_defect(plan, *size) is None for size in ((2, 3, 2), (4, 4, 4), (3, 5, 7)))
    assert plan_defect(plan, 3, 4, 5, 2, -1) is None


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
def test_badly_scaled_data_keep_their_digits(dtype: str, rng: np.random.Generator) -> None:
    """Both scalings where both are needed; either alone only against what it is for."""
    wide = 40 if dtype in ("float64", "complex128") else 12
    for inside, outside, helps, fails in (
        (wide, wide, "scaled", "scaled.outside"),
        (wide, 0, "scaled.inside", "scaled.outside"),
        (0, wide, "scaled.outside", "scaled.inside"),
    ):
        a, b = graded(130, 97, 110, dtype, inside, outside, rng)
        errors = {
            way: beside_entries(fmm.matmul(a, b, plan=f"{way}winograd > vendor"), a, b)
            for way in ("", f"{helps} > ", f"{fails} > ")
        }
        assert errors[f"{helps} > "] < 100 < 1000 < min(errors[""], errors[f"{fails} > "])


def test_nothing_is_rounded(rng: np.random.Generator) -> None:
    """Whole numbers times powers of two come out exact, whatever stands in rows of zeros."""
    a, b = (np.rint(9 * rng.standard_normal(s)) for s in ((33, 40), (40, 29)))
    a[4], b[:, 7], a[:, 5] = 0, 0, 0
    wanted = a @ b
    down, along = np.exp2(rng.integers(-300, 300, 33)), np.exp2(rng.integers(-200, 200, 40))
    found = fmm.matmul(a * down[:, None] * along, b / along[:, None], plan="scaled > strassen > vendor")
    np.testing.assert_array_equal(found, wanted * down[:, None])


@pytest.mark.parametrize("text", ["scaled > strassen > vendor", "scaled.outside > winograd^2 > vendor"])
@pytest.mark.parametrize("dtype", TYPES)
def test_lines_of_zeros_get_no_rounding_errors(text: str, dtype: str, rng: np.random.Generator) -> None:
    """Rows of A and columns of B that are zero, beside rows and columns of tiny numbers."""
    a, b = (rng.standard_normal(size).astype(dtype) for size in ((36, 28), (28, 32)))
    a *= 2.0**-66
    a[5], a[:, 3], b[:, 7], b[9] = 0, 0, 0, 0
    a[:, 9] *= 2.0**60  # these numbers are multiplied by zeros alone
    b[3] *= 2.0**60
    found = fmm.matmul(a, b, plan=text)
    assert not found[5].any() and not found[:, 7].any()
    if "outside" not in text:
        assert abs(found - a @ b).max() < 100 * np.finfo(dtype).eps * 2.0**-66
    b[3, 0], a[2, 9] = np.inf, np.nan
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.isfinite(fmm.matmul(a, b, plan=text)), np.isfinite(a @ b))


def test_out_alpha_beta_strides_and_no_sizes(rng: np.random.Generator) -> None:
    a, b = graded(60, 50, 40, "float64", 9, 9, rng)
    out = np.full((120, 80), np.nan)[::2, ::2]
    assert fmm.matmul(a.T.copy().T, np.asfortranarray(b), out=out, plan=TEXTS[1]) is out
    np.testing.assert_allclose(out, a @ b, rtol=1e-9, atol=1e-9 * abs(a @ b).max())
    c = rng.standard_normal((60, 40))
    found = fmm.gemm(a, b, c.copy(), alpha=2.0, beta=-1.0, plan=TEXTS[2])
    np.testing.assert_allclose(found, 2 * (a @ b) - c, rtol=1e-9, atol=1e-9 * abs(a @ b).max())
    for m, k, n in ((0, 3, 2), (3, 0, 2), (3, 2, 0)):
        np.testing.assert_array_equal(fmm.matmul(np.ones((m, k)), np.ones((k, n)), plan=TEXTS[0]), np.zeros((m, n)))


def test_it_is_counted_and_explained() -> None:
    """Two looks at A and B each and a copy of each, C once; exact, so the bound is that of what is below."""
    plan, below = Plan.parse("scaled > strassen > vendor"), Plan.parse("strassen > vendor")
    m, k, n = 64, 32, 48
    more, less = cost(plan, m, k, n), cost(below, m, k, n)
    assert more.flops == less.flops and more.additions == less.additions
    assert more.bytes_read - less.bytes_read == 8 * (3 * (m * k + k * n) + m * n)
    written = m * k + k * n + m * n + 2 * k + m + n
    assert more.bytes_written - less.bytes_written == 8 * written
    assert error_bound(plan, m, k, n) == error_bound(below, m, k, n)
    explained = str(fmm.explain(np.ones((m, k)), np.ones((k, n)), plan=plan))
    assert "powers of two: columns of A and rows of B, rows of A and columns of B" in explained


def test_on_a_gpu_it_is_seven_launches_around_the_product() -> None:
    plan = Plan.parse("scaled > vendor")
    labels = [getattr(op, "label", "product") for op in record_operations(plan, Problem(64, 32, 48, "float32")).ops]
    assert [x.partition(" ")[0] for x in labels] == [*["exponents"] * 4, "scale", "scale", "product", "scale"]


@pytest.mark.parametrize("text", ["scaled.sideways > vendor", "scaled.inside.outside > vendor"])
def test_what_it_does_not_know_is_told(text: str) -> None:
    with pytest.raises(PlanError, match="inside, outside"):
        Plan.parse(text)


def test_whole_numbers_are_not_scaled() -> None:
    assert not Plan.parse("scaled > vendor").accepts_type("bfloat16")

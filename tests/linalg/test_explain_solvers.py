"""fmm.explain of solvers: the listed steps are the products that run, and decide nothing of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.linalg.explain_solvers import EXPLANATIONS
from fmm.linalg.solver_decision import SolverDecision
from fmm.linalg.solver_steps import VENDOR_COSTS, Step, StepConditions
from tests.support.solver_matrices import positive_matrices, random_matrix, solve_everything_by_products

pytest.importorskip("scipy.linalg")
S, B = positive_matrices(45, "float64")["normal"], random_matrix(45, 7, "float64")
TALL = random_matrix(90, 12, "float64")
LINALG = fmm.linalg
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (LINALG.cholesky, (S,), {}),
    (LINALG.cholesky, (S,), {"upper": True}),
    (LINALG.solve_triangular, (S, B), {"lower": True}),
    (LINALG.solve_triangular, (S, B.T), {"left": False}),
    (LINALG.solve_triangular, (S, B[:, 0]), {"trans": "T"}),
    (LINALG.inv, (S,), {}),
    (LINALG.inv, (S,), {"assume_a": "pos"}),
    (LINALG.qr, (TALL,), {}),
    (LINALG.qr, (TALL, "r"), {}),
]


@pytest.fixture
def by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    solve_everything_by_products(monkeypatch)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[str, tuple[int, ...]]]]:
    """Count the sizes of the products that run; the order of m and n is that of the smaller first."""
    counted: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def noting(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def multiply(a: Any, *rest: Any, **options: Any) -> Any:
            if name == "gram":
                k, n = a.shape[::-1] if options.get("rows") else a.shape
                counted[sized("gram", n, k, n)] += 1
            else:
                counted[sized("product", a.shape[0], a.shape[1], rest[0].shape[1])] += 1
            return own(a, *rest, **options)

        return multiply

    for name in ("gemm", "gram", "matmul"):
        monkeypatch.setattr(f"fmm.api.{name}", noting(name, getattr(fmm.api, name)))
    yield counted


def sized(operation: str, m: int, k: int, n: int) -> tuple[str, tuple[int, ...]]:
    """Return a product's operation and sizes; a product and its transpose have the same."""
    return operation, (min(m, n), k, max(m, n))


@pytest.mark.usefixtures("by_products")
@pytest.mark.parametrize(("function", "operands", "options"), CALLS)
def test_the_listed_products_are_those_that_run(
    function: Any, operands: Any, options: Any, sizes: Counter[tuple[str, tuple[int, ...]]], monkeypatch: Any
) -> None:
    monkeypatch.setattr("fmm.linalg.cholesky_qr.cholesky_of_stacks", lambda library, a, _: np.linalg.cholesky(a))
    monkeypatch.setattr("fmm.linalg.cholesky_qr.is_product_with_inverse_faster", lambda *_: True)
    explained = fmm.explain(function, *operands, **options)
    assert not sizes and isinstance(explained, SolverDecision) and explained.by_products
    listed = Counter(
        sized(step.operation, step.m, step.k, step.n) for step in explained.steps if step.operation not in VENDOR_COSTS
    )
    function(*operands, **options)
    assert listed == sizes


@pytest.mark.usefixtures("by_products")
def test_the_text_names_each_step_and_the_predicted_times() -> None:
    explained = fmm.explain(fmm.linalg.cholesky, S, max_error_growth=8.0)
    text = str(explained)
    assert text.startswith("fmm.linalg.cholesky of 45 x 45, float64 on cpu: products and blocks\n")
    for word in ("step", "times", "gram", "product", "solve_triangular", "vendor", "predicted: ", "at most 1.0 times"):
        assert word in text
    assert explained.conditions.limit == 8.0
    assert explained.speedup == explained.vendor_seconds / explained.predicted_seconds


def test_calls_of_the_library_alone_have_one_step() -> None:
    stack = np.stack([S, S])
    for function, operands in (
        (fmm.linalg.cholesky, (stack,)),
        (fmm.linalg.inv, (stack,)),
        (fmm.linalg.solve_triangular, (stack, B)),
        (fmm.linalg.qr, (TALL,)),
        (fmm.linalg.lstsq, (TALL, TALL[:, 0])),
    ):
        explained = fmm.explain(function, *operands)
        assert explained.steps == (explained.vendor_step,) and not explained.by_products and explained.speedup == 1
        assert "the library's own function" in str(explained) and explained.error_growth == 1


def test_wrong_calls_raise() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'unknown'"):
        fmm.explain(fmm.linalg.cholesky, S, unknown=1)
    with pytest.raises(ValueError, match="square"):
        fmm.explain(fmm.linalg.cholesky, B)
    with pytest.raises(TypeError, match=r"cholesky, inv, qr or lstsq of fmm\.linalg and its operands, not <built-in"):
        fmm.explain(len, B)
    with pytest.raises(TypeError, match=f"the function {', '.join(EXPLANATIONS)}".replace(", lstsq", " or lstsq")):
        fmm.explain(LINALG.solve, S, B)
    with pytest.raises(ValueError, match="unknown assume_a 'zzz'; valid: gen, pos"):
        fmm.explain(LINALG.inv, S, assume_a="zzz")
    with pytest.raises(ValueError, match="unknown mode 'full'; valid: reduced, r"):
        fmm.explain(LINALG.qr, S, "full")
    with pytest.raises(ValueError, match=r"a matrix or a stack of matrices, not the shape \(45,\)"):
        fmm.explain(LINALG.qr, B[:, 0])
    with pytest.raises(ValueError, match="max_error_growth must be a number above 0, not -1"):
        fmm.explain(LINALG.cholesky, S, max_error_growth=-1)


def test_types_without_products_print_one_line() -> None:
    step = Step("qr", 3, 2, 2)
    decision = SolverDecision("qr", (3, 2), StepConditions("", "cpu"), (step,), step)
    assert str(decision) == "fmm.linalg.qr of 3 x 2,  on cpu: the library's own function"


OPTIONS_OF_MATMUL: list[dict[str, Any]] = [
    {"plan": "vendor"},
    {"workspace": 0},
    {"componentwise": True},
    {"reproducible": True},
    {"device": 0},
    {"dtype": "float32"},
    {"casting": "unsafe"},
    {"order": "F"},
    {"progress": True},
]


@pytest.mark.parametrize("options", OPTIONS_OF_MATMUL, ids=str)
@pytest.mark.parametrize("function", EXPLANATIONS)
def test_options_that_a_solver_lacks_raise_the_solvers_error(function: str, options: dict[str, Any]) -> None:
    operands = (S, B) if function in ("solve_triangular", "lstsq") else (S,)
    for arguments, keywords in ((operands, options), (operands[:-1], {})):
        with pytest.raises(TypeError) as expected:
            getattr(fmm.linalg, function)(*arguments, **keywords)
        with pytest.raises(TypeError) as found:
            fmm.explain(getattr(fmm.linalg, function), *arguments, **keywords)
        assert str(found.value) == str(expected.value)

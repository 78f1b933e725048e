"""fmm.gemm of torch's tensors on the host: values, marks of conjugates, gradients of gradients."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import fmm
from fmm.kernels.plans.plan import PlanError
from tests.support.marks import quick_and_slow

torch = pytest.importorskip("torch")

OPS: dict[Any, Any] = {False: lambda x: x, True: lambda x: x.mT, "C": lambda x: x.mH}
PLANS = (None, "vendor", "winograd > vendor", "3m > vendor")
CLOSE = {"float32": 1e-4, "complex64": 1e-4, "float64": 1e-12, "complex128": 1e-12}


def draw(shape: tuple[int, ...], dtype: str) -> Any:
    return torch.randn(shape, dtype=getattr(torch, dtype), generator=torch.Generator().manual_seed(sum(shape)))


def cases(dtypes: tuple[str, ...]) -> list[tuple[str, str | None]]:
    pairs = product(dtypes, PLANS)
    return [(d, p) for d, p in pairs if p is None or fmm.Plan.parse(p).accepts_type(d)]


@pytest.mark.parametrize(
    ("dtype", "plan"), quick_and_slow(cases(("float32", "complex128")), cases(("float64", "complex64")))
)
def test_values(dtype: str, plan: str | None) -> None:
    for (op_a, turn_a), (op_b, turn_b) in product(OPS.items(), repeat=2):
        a, b = OPS[bool(op_a)](draw((17, 9), dtype)).contiguous(), OPS[bool(op_b)](draw((9, 13), dtype)).contiguous()
        c = draw((17, 13), dtype)
        expected = 2 * (turn_a(a) @ turn_b(b)) - 0.5 * c
        options: dict[str, Any] = {"alpha": 2, "beta": -0.5, "plan": plan}
        torch.testing.assert_close(
            fmm.gemm(a, b, c, transpose_a=op_a, transpose_b=op_b, **options), expected, rtol=0, atol=CLOSE[dtype]
        )
        # Marked as conjugates and transposed by torch: nothing is resolved before.
        marked = fmm.gemm(turn_a(a), turn_b(b), c, **options)
        torch.testing.assert_close(marked, expected, rtol=0, atol=CLOSE[dtype])
        again = fmm.gemm(turn_a(a).mH, turn_b(b).mT, c, transpose_a="C", transpose_b=True, **options)
        torch.testing.assert_close(again, expected, rtol=0, atol=CLOSE[dtype])
        version = c._version
        assert fmm.gemm(a, b, c, transpose_a=op_a, transpose_b=op_b, **options, out=c) is c
        torch.testing.assert_close(c, expected, rtol=0, atol=CLOSE[dtype])
        assert c._version > version  # torch is told


def test_whole_numbers_have_no_fractions() -> None:
    """torch.addmm would drop them."""
    x = torch.arange(12).reshape(3, 4)
    for alpha, beta in ((0.5, 0), (2.0, 0), (1, 0.5)):
        with pytest.raises(RuntimeError, match="must be whole numbers"):
            fmm.gemm(x, x, x.new_ones(3, 3), transpose_b=True, alpha=alpha, beta=beta)
    assert torch.equal(fmm.gemm(x, x, x.new_ones(3, 3), transpose_b=True, alpha=2, beta=3), 2 * (x @ x.mT) + 3)


def test_what_is_no_tensor_is_refused_by_torch() -> None:
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        fmm.gemm(torch.ones(2, 2), [[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("dtype", "plan"),
    quick_and_slow(
        [("float64", "winograd > vendor"), ("complex128", "3m > vendor")],
        [("float64", None), ("complex128", None), ("complex128", "winograd > vendor")],
    ),
)
def test_gradients(dtype: str, plan: str | None) -> None:
    alpha = 1.5 - 2j if dtype == "complex128" else 1.5
    for op in OPS:
        a = OPS[bool(op)](draw((2, 3), dtype)).contiguous().requires_grad_()
        b, bias = draw((3, 2), dtype).requires_grad_(), draw((2,), dtype).requires_grad_()

        def product_of(a: Any, b: Any, c: Any, op: Any = op) -> Any:
            return fmm.gemm(a, b, c, alpha=alpha, beta=0.5, transpose_a=op, plan=plan)

        assert torch.autograd.gradcheck(product_of, (a, b, bias))
        assert torch.autograd.gradgradcheck(product_of, (a, b, bias))


def test_gradients_of_stacks() -> None:
    a, b, c = (draw(shape, "float64").requires_grad_() for shape in ((2, 2, 3), (3, 2), (2, 2)))

    def product_of(a: Any, b: Any, c: Any) -> Any:
        return fmm.gemm(a, b, c, alpha=2, beta=3, plan="winograd > vendor")

    assert torch.autograd.gradcheck(product_of, (a, b, c))


def test_what_torch_itself_answers() -> None:
    a, half = draw((8, 8), "float64"), torch.ones((8, 8), dtype=torch.bfloat16)
    assert fmm.gemm(half, half, alpha=2).dtype == torch.bfloat16  # NumPy has no such type
    with pytest.raises(PlanError, match="cannot run here"):
        fmm.gemm(half, half, plan="winograd > vendor")
    with pytest.raises(RuntimeError):  # torch's own: tensors of different types
        fmm.gemm(a, a, half, beta=1)
    with pytest.raises(RuntimeError, match="out="):
        fmm.gemm(a.requires_grad_(), a, out=torch.empty(8, 8, dtype=torch.float64))
    assert fmm.explain_gemm(draw((600, 600), "float64"), draw((600, 600), "float64"), alpha=2).kernels == (
        "torch.addmm",
    )


def test_an_addend_that_beta_excludes_is_not_explained() -> None:
    a, c = draw((600, 600), "float64"), torch.ones((600, 600), dtype=torch.float32)
    expected = str(fmm.explain_gemm(a, a, plan="winograd > vendor"))
    assert str(fmm.explain_gemm(a, a, c, beta=0, plan="winograd > vendor")) == expected
    assert fmm.gemm(a, a, c, beta=0, plan="winograd > vendor").dtype == a.dtype


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_plan_runs_where_it_pays(batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """As for NumPy's arrays: the sides decide, not the class of the operands."""
    from fmm.arrays.torch_library import TORCH, TORCH_ON_HOST
    from fmm.runtime import prepare, run_host
    from fmm.runtime.decisions.decide import Decision

    plan, ran = fmm.Plan.parse("winograd > vendor"), []
    multiply = run_host.run_call

    def spy(library: Any, call: Any, *rest: Any) -> Any:
        ran.append(call.plan)
        return multiply(library, call, *rest)

    monkeypatch.setattr(prepare, "decide_plan", lambda problem, *rest: Decision(plan, problem, "for the test"))
    monkeypatch.setattr(run_host, "run_call", spy)
    for library in (TORCH, TORCH_ON_HOST):
        monkeypatch.setattr(library, "cached_calls", {})
    a, b, c = (draw((*batch, 800, 800), "float64") for _ in range(3))
    expected = 2 * a @ b - c
    torch.testing.assert_close(fmm.gemm(a, b, c, alpha=2, beta=-1), expected, rtol=0, atol=1e-9)
    assert ran == [plan]
    assert fmm.gemm(a, b, c, alpha=2, beta=-1, out=c) is c and ran == [plan, plan]
    torch.testing.assert_close(c, expected, rtol=0, atol=1e-9)
    small = draw((*batch, 8, 8), "float64")
    fmm.gemm(small, small)
    assert len(ran) == 2


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_sparse_tensors_are_multiplied_by_torch(layout: str) -> None:
    """fmm.gram of a sparse tensor is dense."""
    d = draw((8, 8), "float64")
    s = getattr(d, layout)()
    for a, b in ((s, d), (d, s), (s, s)):
        torch.testing.assert_close(fmm.gemm(a, b).to_dense(), d @ d)
        torch.testing.assert_close(fmm.gemm(a, b, alpha=2).to_dense(), 2 * d @ d)
    torch.testing.assert_close(fmm.gemm(s, d, d, alpha=2, beta=3), 2 * d @ d + 3 * d)
    torch.testing.assert_close(fmm.gemm(s, d, transpose_a=True), d.mT @ d)
    torch.testing.assert_close(fmm.gemm(s, d, out=torch.empty_like(d)), d @ d)
    for with_out, fill in product((False, True), ("full", "lower")):
        gram = fmm.gram(s, out=torch.zeros_like(d) if with_out else None, fill=fill)  # type: ignore[arg-type]
        torch.testing.assert_close(gram, fmm.gram(d, fill=fill))  # type: ignore[arg-type]

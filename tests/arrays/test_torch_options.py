"""Options that torch.matmul does not have, on tensors of the host: none is dropped, on short ways or long ones."""

from __future__ import annotations

from typing import Any

import pytest

import fmm

OPTIONS: list[dict[str, Any]] = [
    {"axes": [(0, 1)] * 3},
    {"foo": 1},
    {"subok": True},
    {"order": "F"},
    {"casting": "unsafe"},
    {"dtype": "float32"},
    {"max_eror_growth": 1},
    {"workspce": 0},
]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("side", [4, 1200])  # of which the smaller one takes the shortest way
def test_an_option_is_an_error_as_it_is_of_torch(side: int, options: dict[str, Any], gradients: bool) -> None:
    torch = pytest.importorskip("torch")
    a = torch.ones((side, side), requires_grad=gradients)
    fmm.matmul(a[:2, :2], a[:2, :2])  # from now on the type is known, and the shortest way open
    with pytest.raises(TypeError):
        torch.matmul(a, a, **options)
    for out in (None, torch.empty((side, side))):
        with pytest.raises(TypeError, match=f"torch.matmul takes no {next(iter(options))}"):
            fmm.matmul(a, a, out, **options)
    with pytest.raises(ValueError, match="workspace must be"):
        fmm.matmul(a, a, workspace=-1, **options)


def test_types_of_torch_that_have_no_plans() -> None:
    torch = pytest.importorskip("torch")
    for dtype, device, said in (
        (torch.bfloat16, "cpu", "torch multiplies: bfloat16 products have no plan"),
        (torch.float8_e4m3fn, "cpu", "torch multiplies: float8_e4m3fn products have no plan"),
        (torch.float16, "cpu", "NumPy multiplies: float16 products have no plan"),
        (torch.float8_e4m3fn, 0, "the vendor multiplies: float8_e4m3fn products have no plan"),
    ):
        assert fmm.plan(9, 9, 9, dtype=dtype, device=device).reason == said


@pytest.mark.parametrize("precision", ["none", "ieee"])
def test_a_precision_of_float32_says_nothing_of_float64(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    torch_library = pytest.importorskip("fmm.arrays.torch_library")
    monkeypatch.setattr(torch_library, "_precision_getter", lambda backend, operation: precision)
    for name, emulates in (("float32", precision == "none"), ("complex64", precision == "none"), ("float64", True)):
        x = torch.ones((2, 2), dtype=getattr(torch, name))
        assert torch_library.TorchLibrary().product_setting(x, x, None).may_emulate is emulates, name


HALF_FLOATS = "torch.ones(9, 9, dtype=torch.float16)"
DOUBLES, SINGLES = HALF_FLOATS.replace("16", "64"), HALF_FLOATS.replace("16", "32")


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("a", "b", "out", "why"),
    [
        (HALF_FLOATS, None, None, "products of float16 on the host have no plan"),
        ("torch.ones(9, 9, dtype=torch.bfloat16)", None, None, "products of bfloat16 on the host have no plan"),
        ("torch.ones(9, 9, dtype=torch.int64)", None, None, "products of int64 on the host have no plan"),
        ("torch.ones(9)", None, None, "products of vectors have no plan"),
        (DOUBLES, None, SINGLES, "torch casts no operands or results, which are float64 and float32"),
        ("torch.eye(9).to_sparse()", None, None, "this call is torch's own: a is a sparse_coo tensor on cpu"),
        (SINGLES, "torch.ones(9, 9, device='meta')", None, "this call is torch's own: b is a strided tensor on meta"),
        (SINGLES, "[[1.0] * 9] * 9", None, "this call is torch's own: b is a list, not a plain tensor"),
        (SINGLES, None, "torch.ones(1, 1).expand(9, 9)", "this call is torch's own: out requires gradients, overlaps"),
    ],
)
def test_reasons_speak_of_torch(a: str, b: str | None, out: str | None, why: str) -> None:
    """And not of NumPy, whose view of its tensors plans work on."""
    torch = pytest.importorskip("torch")
    made = [None if x is None else eval(x, {"torch": torch}) for x in (a, b or a, out)]
    found = fmm.explain(*made)
    assert found.reason.startswith(f"torch multiplies: {why}") and "NumPy" not in str(found)
    with pytest.raises((fmm.PlanError, RuntimeError, TypeError)) as caught:
        fmm.matmul(*made, plan="strassen > vendor")
    assert "NumPy" not in str(caught.value)
    if isinstance(caught.value, fmm.PlanError):
        assert why in str(caught.value)


def test_what_torch_does_to_a_call_is_named() -> None:
    torch = pytest.importorskip("torch")
    a = torch.ones(9, 9)
    single, double = a, a.double()

    def told(ask: Any) -> str:
        found: str = ask().reason
        return found.removeprefix("torch multiplies: this call is torch's own: ")

    with torch.autocast("cpu"):
        assert told(lambda: fmm.explain(a, a)) == "autocast chooses the types of products"
        assert told(lambda: fmm.explain_gram(a)) == "autocast chooses the types of products"
    torch.use_deterministic_algorithms(True)
    try:
        assert told(lambda: fmm.explain(a, a)) == "deterministic algorithms are required"
    finally:
        torch.use_deterministic_algorithms(False)
    assert told(lambda: fmm.explain_gemm(single, single, double, beta=1)) == "c is of torch.float64, a of torch.float32"
    assert told(lambda: fmm.explain_gemm(a, a, a.to_sparse(), beta=1)) == "c is a sparse_coo tensor on cpu"
    with pytest.raises(fmm.PlanError, match="own: a transform, forward gradients or a mode is active"):
        torch.vmap(lambda x: fmm.matmul(x, a, plan="strassen > vendor"))(a[None])

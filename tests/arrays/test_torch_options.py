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
        (torch.bfloat16, "cpu", "NumPy answers: bfloat16 products are NumPy's own"),
        (torch.float8_e4m3fn, 0, "the vendor answers: float8_e4m3fn products are its own"),
    ):
        assert fmm.plan(9, 9, 9, dtype=dtype, device=device).reason == said


@pytest.mark.parametrize("precision", ["none", "ieee"])
def test_a_precision_of_float32_says_nothing_of_float64(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    torch_library = pytest.importorskip("fmm.arrays.torch_library")
    monkeypatch.setattr(torch_library, "_getter", lambda backend, operation: precision)
    for name, emulates in (("float32", precision == "none"), ("complex64", precision == "none"), ("float64", True)):
        x = torch.ones((2, 2), dtype=getattr(torch, name))
        assert torch_library.TorchLibrary().setting(x, x, None).emulation is emulates, name

"""Whether torch's own product of a tensor and its transpose is symmetric bit for bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from fmm.arrays import torch_library  # noqa: E402
from fmm.arrays.torch_calls import TORCH_BMM, TORCH_MATMUL  # noqa: E402
from fmm.arrays.torch_library import TORCH, TORCH_ON_HOST, is_gram_symmetric  # noqa: E402
from fmm.runtime.decisions.early_declines import find_declined_gram_function, remember_declined_gram  # noqa: E402
from tests.support.own_calls import called_functions  # noqa: E402


def tensor(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.zeros(shape, dtype=dtype)


def ordered_product(a: Any, b: Any, reverses_upper: bool = False) -> Any:
    """Return the sums of products in ascending order; above the diagonal in descending order if `reverses_upper`."""
    wide = torch.promote_types(a.dtype, torch.float32)  # the type in which kernels add up
    terms = [a[..., i : i + 1] * b[..., i : i + 1, :].to(wide) for i in range(a.shape[-1])]
    ascending, descending = (sum(x).to(a.dtype) for x in (terms, terms[::-1]))
    return ascending.tril() + (descending if reverses_upper else ascending).triu(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_another_order_of_additions_is_found(dtype: Any) -> None:
    for shape in ((3, 24, 40), (20, 33), (2, 2, 9, 9)):
        for reverses in (False, True):
            product = partial(ordered_product, reverses_upper=reverses)
            assert is_gram_symmetric(tensor(*shape, dtype=dtype), product) is not reverses


def test_other_tensors_are_mirrored() -> None:
    """No product shows anything: complex numbers, unaligned memory, elements that share memory, no memory."""
    assert not is_gram_symmetric(tensor(4, 4, dtype=torch.complex64), ordered_product)
    assert not is_gram_symmetric(tensor(17)[1:].view(4, 4), ordered_product)
    assert not is_gram_symmetric(tensor(1, 4, 4).expand(3, 4, 4), ordered_product)
    assert not TORCH_ON_HOST.has_symmetric_gram(tensor(4, 4))

    def fails(a: Any, b: Any) -> Any:
        raise torch.OutOfMemoryError

    assert not is_gram_symmetric(tensor(4, 4), fails)


def test_a_signature_is_multiplied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def is_symmetric(a: Any, multiply: Any) -> bool:
        calls.append(a)
        return True

    monkeypatch.setattr(torch_library, "is_gram_symmetric", is_symmetric)
    monkeypatch.setattr(TORCH, "cached_calls", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    x, y = tensor(3, 5, 7), tensor(3, 7, 5).mT
    for a in (x, x, y, x):
        assert TORCH.has_symmetric_gram(a)
    assert len(calls) == 2 and TORCH.gram_signature(x) != TORCH.gram_signature(y)


def test_a_declined_product_is_found_by_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor on the host stands for one on a device; the cache has the decline for both orders of the factors."""
    monkeypatch.setattr(TORCH, "cached_calls", {})
    x, matrix = torch.randn(3, 5, 7), torch.randn(5, 7)
    assert find_declined_gram_function(TORCH, x, True) is None
    remember_declined_gram(TORCH, x)
    remember_declined_gram(TORCH, matrix)
    assert find_declined_gram_function(TORCH, x, True) is find_declined_gram_function(TORCH, x.mT, False) is TORCH_BMM
    assert find_declined_gram_function(TORCH, matrix, True) is TORCH_MATMUL
    assert (
        find_declined_gram_function(TORCH, x, False) is None and find_declined_gram_function(TORCH, x[:2], True) is None
    )
    assert len(called_functions(lambda: find_declined_gram_function(TORCH, x, True))) <= 3

    def checked(y: Any) -> Any:
        assert find_declined_gram_function(TORCH, y, True) is None  # a tensor of a transform has no address
        return y

    torch.func.vmap(checked)(x)
    assert find_declined_gram_function(TORCH, x.to_sparse(), True) is None


def test_random_numbers_of_the_program_stay() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    is_gram_symmetric(tensor(4, 4), ordered_product)
    assert torch.equal(torch.rand(3), expected)

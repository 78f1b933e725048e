"""What somebody meets who calls fmm for the first time, and not as it is meant: errors that say what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fmm

X = np.ones((4, 4))


# ---- arrays of two libraries


def _calls(t: Any, x: Any) -> dict[str, Callable[[], object]]:
    """Calls that mix a tensor with an array."""
    return {
        "matmul": lambda: fmm.matmul(t, x),
        "matmul, turned": lambda: fmm.matmul(x, t),
        "out of matmul": lambda: fmm.matmul(x, x, t),
        "out of a tensor's": lambda: fmm.matmul(t, t, x),
        "with a limit": lambda: fmm.matmul(x, t, max_error_growth=4.0),
        "explain": lambda: fmm.explain(t, x),
        "prepared": lambda: fmm.matmul(t, fmm.prepare(x)),
        "prepared tensor": lambda: fmm.matmul(x, fmm.prepare(t)),
        "gemm": lambda: fmm.gemm(x, t),
        "c of gemm": lambda: fmm.gemm(x, x, t, beta=1),
        "c of a tensor's": lambda: fmm.gemm(t, t, x, beta=1),
        "out of gemm": lambda: fmm.gemm(t, t, t, beta=1, out=x),
        "explain_gemm": lambda: fmm.explain_gemm(x, t),
        "gram": lambda: fmm.gram(t, x),
        "out of gram": lambda: fmm.gram(x, out=t),
        "out of a tensor's gram": lambda: fmm.gram(t, out=x),
        "explain_gram": lambda: fmm.explain_gram(x, t),
        "minplus": lambda: fmm.minplus(x, t),
        "out of minplus": lambda: fmm.minplus(t, t, x),
        "out of paths": lambda: fmm.shortest_paths(x, out=t),
        "out of a tensor's paths": lambda: fmm.shortest_paths(t, out=x),
    }


@pytest.mark.parametrize("name", _calls(None, None))
@pytest.mark.parametrize("side", [4, 300])
def test_tensors_among_arrays_are_an_error_that_names_both(name: str, side: int) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError) as caught:
        _calls(torch.ones(side, side, dtype=torch.float64), np.ones((side, side)))[name]()
    for words in ("a torch tensor on cpu", "a NumPy array on the host", "torch.from_numpy"):
        assert words in str(caught.value)


def test_a_mixture_calls_c_by_its_name() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="b is a NumPy array on the host, c is a torch tensor on cpu"):
        fmm.gemm(X, X, torch.ones(4, 4), beta=1)
    with pytest.raises(TypeError, match="d is a NumPy array on the host, out is a torch tensor on cpu"):
        fmm.shortest_paths(X, out=torch.ones(4, 4))


def test_lists_are_what_the_library_takes_them_for() -> None:
    torch = pytest.importorskip("torch")
    t, rows = torch.ones(4, 4), X.tolist()
    np.testing.assert_array_equal(fmm.matmul(X, rows), X @ X)
    np.testing.assert_array_equal(fmm.matmul(rows, rows), X @ X)
    for other in (rows, 2.0, np.float64(2)):
        with pytest.raises(TypeError, match="must be Tensor") as own:
            torch.matmul(t, other)
        with pytest.raises(TypeError, match="must be Tensor") as caught:
            fmm.matmul(t, other)
        assert str(caught.value) == str(own.value)


# ---- operands by name


@pytest.mark.parametrize(
    ("function", "call"),
    [
        (fmm.matmul, "matmul(a, b)"),
        (fmm.gemm, "gemm(a, b)"),
        (fmm.gram, "gram(a)"),
        (fmm.explain, "explain(a, b)"),
        (fmm.explain_gemm, "explain_gemm(a, b)"),
        (fmm.explain_gram, "explain_gram(a)"),
    ],
)
@pytest.mark.parametrize("name", ["input", "a", "x1", "mat1"])
def test_operands_by_name_are_an_error_that_says_what_to_write(function: Any, call: str, name: str) -> None:
    with pytest.raises(TypeError) as caught:
        function(**{name: X})
    assert str(caught.value).endswith(f"takes its operands by position: write fmm.{call}, without {name}=")


def test_torchs_and_numpys_names() -> None:
    with pytest.raises(TypeError, match=r"write fmm.matmul\(a, b\), without input=, other=$"):
        fmm.matmul(input=X, other=X)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"write fmm.matmul\(a, b\), without mat2=$"):
        fmm.matmul(X, mat2=X)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):  # NumPy's own: there are two already
        fmm.matmul(X, X, other=X)


def test_operands_that_are_not_there_at_all() -> None:
    """As Python has it."""
    call: Any
    for call, words in (
        (lambda: fmm.matmul(X), r"matmul\(\) missing 1 required positional argument: 'b'$"),  # type: ignore[call-arg]
        (lambda: fmm.matmul(out=X), r"matmul\(\) missing 2 required positional arguments: 'a' and 'b'$"),  # type: ignore[call-arg]
        (lambda: fmm.gemm(X, beta=1), r"gemm\(\) missing 1 required positional argument: 'b'$"),  # type: ignore[call-arg]
        (lambda: fmm.gram(rows=True), r"gram\(\) missing 1 required positional argument: 'a'$"),  # type: ignore[call-arg]
        (lambda: fmm.explain(X), "missing a required argument: 'b'$"),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match=words):
            call()

"""The operands that GPU measurements run on, with NumPy standing in for CuPy: drawn as asked, errors told truly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

MODULE = "fmm.tuner.devices.cuda"
SIZE = 37, 50, 41
EPSILON = {"float32": 2.0**-24, "tf32": 2.0**-24, "complex64": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TYPES = (*EPSILON, "float64", "complex128")


class StandIn:
    """NumPy, with CuPy's way of drawing numbers."""

    cuda = MagicMock()
    random = SimpleNamespace(standard_normal=np.random.default_rng(1).standard_normal)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    before = set(sys.modules)
    monkeypatch.setitem(sys.modules, "cupy", StandIn())
    for name in ("", ".cuda", ".cuda.api", ".cuda.libs"):
        monkeypatch.setitem(sys.modules, "cupy_backends" + name, MagicMock())
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    found = import_module(MODULE)
    monkeypatch.setattr(found, "MAX_CONVERTED_ROWS", 16)  # several at a time, and a rest
    yield found
    for name in set(sys.modules) - before:  # loaded with the stand-in: the next import takes CuPy itself
        if name.startswith("fmm"):
            del sys.modules[name]


def multiplied(module: Any, dtype: str, rows: int = 5) -> Any:
    """Operands whose first C holds their product, rounded to its type."""
    operands = module.OperandSets(SIZE, dtype, rows)
    a, b, c = operands.sets[0]
    exact = module.to_double_precision(a, operands.kind) @ module.to_double_precision(b, operands.kind)
    bits = dtype == "bfloat16"
    c[...] = module.bfloat16_bits(exact.astype(np.float32)) if bits else exact.astype(c.dtype)
    return operands


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_rounded_once_is_off_by_that(module: Any, dtype: str) -> None:
    relative, largest = multiplied(module, dtype).checked_result_errors()
    epsilon = EPSILON.get(dtype, 2.0**-53)
    assert relative < (epsilon if dtype in EPSILON else 8 * epsilon)
    assert largest < 64 * (epsilon if dtype in EPSILON else 8 * epsilon)
    if dtype in EPSILON:
        assert relative > epsilon / 16 and largest > epsilon / 16


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("row", [0, 9, 36])
def test_a_wrong_row_is_seen(module: Any, dtype: str, row: int) -> None:
    """The first, the last and those between them, equally far apart."""
    operands = multiplied(module, dtype)
    c = operands.sets[0][2]
    c[row] = c[row, ::-1].copy()
    relative, largest = operands.checked_result_errors()
    assert relative > 0.1 and largest > 1
    c[row] = 0xFFFF if dtype == "bfloat16" else np.nan
    assert not operands.checked_result_errors()[0] < 1e9


@pytest.mark.parametrize("dtype", TYPES)
def test_all_numbers_are_drawn_and_normal(module: Any, dtype: str) -> None:
    kind = "float32" if dtype == "tf32" else dtype
    x = module.random_normal_matrix((300, 400), kind)
    assert x.dtype == module.storage_dtype(kind) and x.shape == (300, 400)
    numbers = module.to_double_precision(x, kind)
    numbers = np.concatenate([numbers.real, numbers.imag]) if kind.startswith("complex") else numbers
    np.testing.assert_allclose([numbers.mean(), numbers.std()], [0, 1], atol=0.02)
    assert len(np.unique(numbers[:, 0])) > 100 and len(np.unique(numbers[0])) > 100


@pytest.mark.parametrize(("footprint", "sets"), [(1, 1), (4 * 5417 * 3, 3), (4 * 5417 * 4 - 1, 3), (1 << 30, 8)])
def test_there_are_as_many_sets_as_leave_every_cache(
    module: Any, monkeypatch: pytest.MonkeyPatch, footprint: int, sets: int
) -> None:
    assert sum(x * y for x, y in (SIZE[:2], SIZE[1:], SIZE[::2])) == 5417
    monkeypatch.setattr(module, "TOTAL_OPERAND_BYTES", footprint)
    found = module.OperandSets(SIZE, "tf32", 5).sets
    assert len(found) == sets
    assert [x.shape for x in found[-1]] == [SIZE[:2], SIZE[1:], SIZE[::2]]
    assert len({x[0, 0] for a, b, _ in found for x in (a, b)}) == 2 * sets


def test_more_rows_than_there_are_is_all_of_them(module: Any) -> None:
    operands = multiplied(module, "float64", rows=100)
    operands.sets[0][2][SIZE[0] // 2 + 1, 3] += 7
    assert abs(operands.checked_result_errors()[1] - 7) < 1e-9

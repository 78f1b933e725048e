"""Integers of CuPy's arrays and torch's tensors on a CUDA device, against Python's integers and NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.dtypes import INTEGERS
from fmm.kernels.plans.plan import VENDOR
from tests.support.integers import INTEGER_KINDS, draw_integers, python_product, with_layout

pytestmark = pytest.mark.gpu

PLAN = "residues > bytes"
TORCHS = ("int8", "int16", "int32", "int64", "uint8", "bool")


@pytest.fixture(autouse=True)
def _skip_without_kernel() -> None:
    """Skip on GPUs without matrix instructions for bytes."""
    cupy = pytest.importorskip("cupy")
    if int(cupy.cuda.Device().compute_capability) < 80:
        pytest.skip("matrix instructions for bytes need compute capability 8.0")


def on_device(x: Any, how: int = 0) -> Any:
    """In CuPy's memory, laid out as it says."""
    import cupy

    found = cupy.asarray(x)
    if how == 1:
        return cupy.asfortranarray(found)
    if how == 2:
        return cupy.repeat(cupy.repeat(found, 2, 0), 3, 1)[::2, ::3]
    return found


@pytest.mark.parametrize("kind", range(len(INTEGER_KINDS)))
@pytest.mark.parametrize("dtype", INTEGERS)
def test_numbers_of_each_kind(dtype: str, kind: int) -> None:
    import cupy

    draw = np.random.default_rng(kind)
    a, b = draw_integers(draw, dtype, (65, 203), kind), draw_integers(draw, dtype, (203, 130), kind)
    found = fmm.matmul(on_device(a), on_device(b), plan=PLAN)
    assert type(found) is cupy.ndarray and found.dtype == dtype
    np.testing.assert_array_equal(cupy.asnumpy(found), python_product(a, b))


def test_random_products() -> None:
    import cupy

    draw, choose = np.random.default_rng(11), random.Random(11)
    for _ in range(150):
        m, k, n = (choose.choice([1, 2, 3, 17, 64, 129, choose.randint(1, 300)]) for _ in range(3))
        dtype = choose.choice(INTEGERS)
        a, b = draw_integers(draw, dtype, (m, k)), draw_integers(draw, dtype, (k, n))
        x, y = (on_device(v, choose.randint(0, 2)) for v in (a, b))
        out = choose.choice([None, on_device(np.ones((m, n), dtype), choose.randint(0, 2))])
        found = fmm.matmul(x, y, out=out, plan=PLAN)
        assert found is out or out is None
        expected = python_product(a, b) if m * k * n < 50_000 else np.matmul(a, b)
        np.testing.assert_array_equal(cupy.asnumpy(found), expected, err_msg=f"{dtype} {m} {k} {n}")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_unasked(dtype: str) -> None:
    """A large product against CuPy's own, of the whole range and of extremes; int8 and bool over a long inner side."""
    import cupy

    draw = np.random.default_rng(12)
    for kind in (0, 3, 5):
        a, b = draw_integers(draw, dtype, (1100, 2500), kind), draw_integers(draw, dtype, (2500, 1201), kind)
        x, y = on_device(a), on_device(b)
        assert str(fmm.explain(x, y).plan) == PLAN
        assert bool((fmm.matmul(x, y) == cupy.matmul(x, y)).all())


def test_stacks_vectors_and_mixed_types() -> None:
    import cupy

    draw = np.random.default_rng(13)
    for left, right, one, other in (
        ((3, 40, 50), (50, 20), "int64", "int64"),
        ((3, 40, 50), (3, 50, 20), "int8", "int64"),
        ((50,), (50, 20), "int32", "int16"),
        ((40, 50), (50,), "uint8", "int8"),
    ):
        a, b = draw_integers(draw, one, left), draw_integers(draw, other, right)
        found = fmm.matmul(on_device(a), on_device(b), plan=PLAN)
        expected = np.matmul(a, b)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(cupy.asnumpy(found), expected)


def test_out_that_is_an_operand() -> None:
    import cupy

    a = draw_integers(np.random.default_rng(14), "int64", (200, 200), 0)
    x = on_device(a)
    assert fmm.matmul(x, x, out=x, plan=PLAN) is x
    np.testing.assert_array_equal(cupy.asnumpy(x), np.matmul(a, a))


def test_out_of_another_type_is_cupys() -> None:
    import cupy

    x = on_device(draw_integers(np.random.default_rng(15), "int32", (30, 30), 0))

    def outcome(multiply: Any, kind: str) -> Any:
        out = cupy.zeros((30, 30), kind)
        try:
            multiply(x, x, out=out)
        except (TypeError, ValueError) as error:
            return type(error)
        return cupy.asnumpy(out).tolist()

    for kind in ("int64", "float64", "int8"):
        assert outcome(fmm.matmul, kind) == outcome(cupy.matmul, kind)


@pytest.mark.parametrize("dtype", TORCHS)
def test_torch_has_integers_by_fmm_alone(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    draw = np.random.default_rng(16)
    for m, k, n in ((3, 5, 4), (100, 300, 50), (1500, 900, 1100)):
        a, b = draw_integers(draw, dtype, (m, k), 0), draw_integers(draw, dtype, (k, n), 0)
        x, y = (torch.from_numpy(v).cuda() for v in (a, b))
        if dtype == "int64":
            with pytest.raises(RuntimeError):
                torch.matmul(x, y)
        for out in (None, torch.empty((m, n), dtype=x.dtype, device="cuda")):
            found = fmm.matmul(x, y, out=out)
            assert found.dtype == x.dtype and (out is None or found is out)
            np.testing.assert_array_equal(found.cpu().numpy(), np.matmul(a, b))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_block_by_block_of_c(dtype: str) -> None:
    """By name, in any layout; and where the workspace is too small for the whole."""
    import cupy

    draw = np.random.default_rng(18)
    for m, k, n in ((1, 7, 1), (130, 257, 99), (511, 300, 640)):
        a, b = draw_integers(draw, dtype, (m, k), 0), draw_integers(draw, dtype, (k, n), 0)
        for how in range(3):
            for plan in ("quarters > residues > bytes", "quarters > quarters > residues > bytes"):
                found = fmm.matmul(on_device(a, how), on_device(b, 2 - how), plan=plan)
                np.testing.assert_array_equal(cupy.asnumpy(found), np.matmul(a, b))
    x, y = (on_device(draw_integers(draw, dtype, (4096, 4096), 0)) for _ in range(2))
    whole, expected = fmm.explain(x, y).workspace, cupy.matmul(x, y)
    for share in (2, 3):
        less = fmm.explain(x, y, workspace=whole // share)
        assert str(less.plan).startswith("quarters > ") and less.workspace <= whole // share
        assert bool((fmm.matmul(x, y, workspace=whole // share) == expected).all())


def test_limits_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = on_device(np.ones((1500, 1500), np.int64))
    assert fmm.explain(x, x, workspace=0).plan == VENDOR
    assert bool((fmm.matmul(x, x, workspace=0) == 1500).all())
    monkeypatch.setenv("FMM_DISABLE", "1")
    assert fmm.explain(x, x).plan == VENDOR


def test_layouts_of_both_operands() -> None:
    import cupy

    draw = np.random.default_rng(17)
    for dtype in ("int8", "int64", "uint16"):
        a, b = draw_integers(draw, dtype, (129, 257), 0), draw_integers(draw, dtype, (257, 131), 0)
        for how in range(4):
            x, y = (cupy.asarray(with_layout(v, 0)) for v in (a, b))
            x = cupy.asfortranarray(x) if how & 1 else x
            y = cupy.asfortranarray(y) if how & 2 else y
            np.testing.assert_array_equal(cupy.asnumpy(fmm.matmul(x, y, plan=PLAN)), np.matmul(a, b))

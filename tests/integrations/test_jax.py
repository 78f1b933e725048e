"""Products of JAX arrays on the host, by callbacks into fmm, under JAX's transformations."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", exc_type=ImportError)
pytest.importorskip("jax.experimental.buffer_callback", exc_type=ImportError)

import jax.numpy as jnp  # noqa: E402

import fmm.jax as fmm_jax  # noqa: E402
from fmm import api  # noqa: E402
from tests.support import ROOT  # noqa: E402

TYPES = ("float32", "float64", "complex64", "complex128")
TOLERANCE = {"float32": 2e-5, "complex64": 2e-5, "float64": 1e-12, "complex128": 1e-12}


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """The shapes of the results that fmm computed, with every product handed to fmm."""
    shapes: list[tuple[int, ...]] = []
    own = api.matmul

    def recorded(a: Any, b: Any, **options: Any) -> Any:
        shapes.append((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
        return own(a, b, **options)

    monkeypatch.setattr(api, "matmul", recorded)
    monkeypatch.setattr(fmm_jax, "MIN_HOST_MULTIPLY_ADDS", 1)
    monkeypatch.setattr(fmm_jax, "numpy_speedup_over_xla", lambda dtype: 2.0)
    jax.clear_caches()
    yield shapes
    jax.clear_caches()


def operands(dtype: str, *shapes: tuple[int, ...]) -> list[Any]:
    random = np.random.default_rng(7)
    parts = [random.standard_normal((2, *shape)) for shape in shapes]
    return [jnp.asarray((x[0] + 1j * x[1] if dtype.startswith("complex") else x[0]).astype(dtype)) for x in parts]


def assert_close(actual: Any, expected: Any, dtype: str) -> None:
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype]),
        actual,
        expected,
    )


SHAPES = [
    ((17, 13), (13, 9)),
    ((3, 17, 13), (3, 13, 9)),
    ((3, 17, 13), (13, 9)),
    ((17, 13), (3, 13, 9)),
    ((2, 1, 5, 13), (3, 13, 9)),
    ((13,), (13, 9)),
    ((17, 13), (13,)),
    ((13,), (13,)),
    ((3, 17, 13), (13,)),
    ((0, 13), (13, 9)),
    ((5, 0), (0, 9)),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul_is_jnp_matmul(shapes: Any, dtype: str, products: list[Any]) -> None:
    a, b = operands(dtype, *shapes)
    expected = np.matmul(a, b)
    for function in (fmm_jax.matmul, jax.jit(fmm_jax.matmul)):
        c = function(a, b)
        assert c.shape == expected.shape and c.dtype == a.dtype
        assert_close(c, expected, dtype)
    assert bool(products) == bool(expected.size and a.size)


def squares(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: (jnp.abs(function(*operands)) ** 2).sum()


@pytest.mark.parametrize("dtype", TYPES)
def test_derivatives_are_products_by_fmm(dtype: str, products: list[Any]) -> None:
    a, b = operands(dtype, (3, 17, 13), (3, 13, 9))
    expected = jax.grad(squares(jnp.matmul), (0, 1))(a, b)
    products.clear()
    assert_close(jax.jit(jax.grad(squares(fmm_jax.matmul), (0, 1)))(a, b), expected, dtype)
    assert sorted(products) == [(3, 13, 9), (3, 17, 9), (3, 17, 13)]
    tangents = 2 * a, b + 1
    assert_close(jax.jvp(fmm_jax.matmul, (a, b), tangents), jax.jvp(jnp.matmul, (a, b), tangents), dtype)
    second = jax.grad(lambda x: jnp.abs(jax.grad(squares(fmm_jax.matmul))(x, b)).sum())(a)
    assert_close(second, jax.grad(lambda x: jnp.abs(jax.grad(squares(jnp.matmul))(x, b)).sum())(a), dtype)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (1, 2)], ids=str)
def test_vmap_is_one_product_of_stacks(axes: Any, products: list[Any]) -> None:
    shapes = [(17, 13), (13, 9)]
    shapes = [x if at is None else (*x[:at], 4, *x[at:]) for x, at in zip(shapes, axes, strict=True)]  # type: ignore[misc]
    a, b = operands("float64", *shapes)
    assert_close(jax.vmap(fmm_jax.matmul, axes)(a, b), jax.vmap(jnp.matmul, axes)(a, b), "float64")
    assert len(products) == 1


@pytest.mark.parametrize("m_k_n", [(3, 0, 5), (0, 4, 5), (3, 4, 0)], ids=str)
def test_vmap_of_products_without_entries(m_k_n: tuple[int, int, int]) -> None:
    m, k, n = m_k_n
    a, b = jnp.ones((2, m, k)), jnp.ones((k, n))
    found = jax.vmap(fmm_jax.matmul, (0, None))(a, b)
    np.testing.assert_array_equal(found, jnp.matmul(a, b))


def test_scan_and_donated_arrays(products: list[Any]) -> None:
    (a,) = operands("float64", (8, 8))

    def powers(multiply: Callable[..., Any]) -> Any:
        return jax.lax.scan(lambda c, _: (multiply(c, a) / 4, None), a, None, length=3)[0]

    assert_close(powers(fmm_jax.matmul), powers(jnp.matmul), "float64")
    assert len(products) == 3
    expected = np.asarray(a) @ np.asarray(a)
    assert_close(jax.jit(lambda x: fmm_jax.matmul(x, x), donate_argnums=0)(a + 0), expected, "float64")


@pytest.mark.parametrize("dtype", TYPES)
def test_gram(dtype: str, products: list[Any]) -> None:
    a, stack = operands(dtype, (17, 13), (3, 17, 13))
    expected = np.asarray(a).conj().T @ np.asarray(a)
    assert_close(fmm_jax.gram(a), expected, dtype)
    assert_close(jax.vmap(fmm_jax.gram)(stack), np.matmul(np.swapaxes(stack, 1, 2).conj(), stack), dtype)
    plain = squares(lambda x: x.conj().T @ x)
    assert_close(jax.grad(squares(fmm_jax.gram))(a), jax.grad(plain)(a), dtype)


EINSUMS = ["bij,bjk->bik", "bij,bjk->ikb", "bij,bjk->bk", "bij,bkl->ikjl", "bij,bjk->", "bij,bjk"]


@pytest.mark.parametrize("text", EINSUMS)
def test_installed_computes_einsum(text: str, products: list[Any]) -> None:
    a, b = operands("complex128", (3, 17, 13), (3, 13, 9))
    with fmm_jax.installed():
        assert_close(jnp.einsum(text, a, b), np.einsum(text, a, b), "complex128")


def test_installed_holds_while_a_block_runs(products: list[Any]) -> None:
    a, b = operands("float64", (17, 13), (13, 9))
    with fmm_jax.installed():
        with fmm_jax.installed():
            assert_close(a @ b, np.matmul(a, b), "float64")
        assert_close(jnp.dot(a, b), np.matmul(a, b), "float64")
        assert len(products) == 2
        assert_close(jax.grad(squares(jnp.matmul))(a, b), jax.grad(squares(fmm_jax.matmul))(a, b), "float64")
    before = len(products)
    assert_close(a @ b, np.matmul(a, b), "float64")
    assert_close(jnp.dot(a, b), np.matmul(a, b), "float64")
    assert len(products) == before


def test_declined_products_have_no_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmm_jax, "numpy_speedup_over_xla", lambda dtype: 1.0)
    a, b = operands("float32", (600, 600), (600, 600))
    jax.clear_caches()
    for small in (a[:20, :20], a):  # too small; large, but no faster
        text = jax.jit(fmm_jax.matmul).lower(small, b[: len(small), : len(small)]).as_text()
        assert "dot_general" in text and "custom_call" not in text


def test_a_disabled_fmm_has_no_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmm_jax, "numpy_speedup_over_xla", lambda dtype: 2.0)
    a, b = operands("float32", (600, 600), (600, 600))
    for value, has_callback in (("0", True), ("1", False)):
        monkeypatch.setenv("FMM_DISABLE", value)
        jax.clear_caches()
        assert ("custom_call" in jax.jit(fmm_jax.matmul).lower(a, b).as_text()) == has_callback


def test_types_and_exceptions_are_jax_s(products: list[Any]) -> None:
    a, b = operands("float32", (17, 13), (13, 9))
    assert fmm_jax.matmul(a.astype("bfloat16"), b.astype("bfloat16")).dtype == jnp.bfloat16
    assert products == []
    assert fmm_jax.matmul(jnp.ones((2, 3), "int32"), jnp.ones((3, 2), "float32")).dtype == jnp.float32
    for arguments in ((a, a), (a, 1.0)):
        with pytest.raises((TypeError, ValueError)) as raised:
            fmm_jax.matmul(*arguments)
        with pytest.raises(type(raised.value)):
            jnp.matmul(*arguments)
    with pytest.raises(ValueError, match="takes a matrix, and the array has 1 axes"):
        fmm_jax.gram(a[0])
    with pytest.raises(ValueError, match=r"'exact'.*highest"):
        fmm_jax.matmul(a, b, precision="exact")


SHARDED = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import fmm.jax
from fmm import api

fmm.jax.MIN_HOST_MULTIPLY_ADDS, fmm.jax.numpy_speedup_over_xla = 1, lambda dtype: 2.0
calls, own = [], api.matmul
api.matmul = lambda a, b, **options: (calls.append(a.shape), own(a, b, **options))[1]
mesh = Mesh(np.array(jax.devices()), ("x",))
rows, whole = PartitionSpec("x"), PartitionSpec()
a = np.arange(16 * 12.0, dtype="float32").reshape(16, 12)
b = a[:12, :8].copy()
for check in (True, False):
    product = jax.shard_map(fmm.jax.matmul, mesh=mesh, in_specs=(rows, whole), out_specs=rows, check_vma=check)
    np.testing.assert_allclose(jax.jit(product)(a, b), a @ b)
assert calls == 4 * [(8, 12)], calls
sharded = jax.device_put(a, NamedSharding(mesh, rows))  # partitioned by XLA: its own product
np.testing.assert_allclose(jax.jit(fmm.jax.matmul)(sharded, b), a @ b)
with fmm.jax.installed():
    np.testing.assert_allclose(sharded @ b, a @ b)
assert len(calls) == 4, calls
"""


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="jax.shard_map is newer than this JAX")
def test_each_shard_is_a_product() -> None:
    flags = "--xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", SHARDED], check=True, env=environment, timeout=600)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
def test_a_gpu_s_buffers_are_multiplied_on_xla_s_stream(dtype: str) -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    a, b = operands(dtype, (4100, 4099), (4099, 4098))
    expected = jnp.matmul(a, b, precision="highest")
    text = jax.jit(fmm_jax.matmul).lower(a, b).as_text()
    assert "custom_call" in text
    for _ in range(3):
        c = jax.jit(fmm_jax.matmul)(a + 0, b)
        error = jnp.abs(c - expected).max() / jnp.abs(expected).max()
        assert error < 100 * TOLERANCE[dtype]
    with fmm_jax.installed(), jax.default_matmul_precision("highest"):
        assert jnp.abs(a @ b - c).max() / jnp.abs(expected).max() < 100 * TOLERANCE[dtype]

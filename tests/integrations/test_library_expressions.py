"""Expressions of other libraries give the same results, types and exceptions with fmm in NumPy as without."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.plans.plan import Plan

SIDE = 96  # plans run from sides of 32 on
# The modules of an expression, by the names in it, and the expressions.
EXPRESSIONS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "numpy": (
        {},
        (
            "a @ b",
            "a @ b.T",
            "a @ v",
            "v @ a",
            "a.astype('f4') @ b",
            "a.astype('>f8') @ b",
            "a @ b.astype('c8')",
            "(a * 9).astype('i4') @ (b * 9).astype('i8')",
            "(a > 0) @ (b > 0)",
            "a.astype('f2') @ b.astype('f2')",
            "a.astype(object) @ b.astype(object)[:, :2]",
            "a @ b[:5]",
            "a @ 'text'",
            "a @ 2.0",
            "a @ b.tolist()",
            "np.matmul(a, b, dtype='f4')",
            "np.matmul(a, b, out=np.empty((96, 96), 'i4'))",
            "np.matmul(a, b, out=np.empty((96, 96), 'f4'), casting='unsafe')",
            "np.matmul(a, b, where=True)",
            "np.matmul(a, b, axes=[(0, 1), (0, 1), (1, 0)])",
            "np.matmul.reduce(a)",
            "np.matmul(s, s.transpose(0, 2, 1))",
            "s @ a",
            "np.asmatrix(a) @ b",
            "np.ma.masked_less(a, 0) @ np.ma.masked_less(b, 0)",
            "np.linalg.matrix_power(a / 96, 3)",
            "np.linalg.multi_dot([a, b, a])",
            "np.tensordot(s, s, ([1, 2], [1, 2]))",
            "np.cov(a), np.corrcoef(a)",
            "np.einsum('ij,jk,kl->il', a, b, a, optimize=True)",
            "np.polynomial.chebyshev.chebfit(v, a[:, :3], 4)",
            "type(np.matmul).__name__, np.matmul.signature, np.matmul.types, repr(np.matmul)",
        ),
    ),
    "scipy": (
        {
            "sparse": "scipy.sparse",
            "linalg": "scipy.linalg",
            "aslinearoperator": "scipy.sparse.linalg:aslinearoperator",
        },
        (
            "linalg.expm(a / 96)",
            "sparse.eye(96) @ a",
            "a @ sparse.eye(96)",
            "np.matmul(sparse.eye(96), a)",
            "aslinearoperator(a) @ b",
            "a @ aslinearoperator(b)",
            "linalg.khatri_rao(a[:4], b[:4])",
        ),
    ),
    "pandas": (
        {"pandas": "pandas"},
        (
            "pandas.DataFrame(a) @ pandas.DataFrame(b)",
            "pandas.DataFrame(a) @ b",
            "a @ pandas.DataFrame(b)",
            "pandas.DataFrame(a) @ pandas.Series(v)",
            "np.matmul(pandas.DataFrame(a), pandas.DataFrame(b))",
            "np.dot(pandas.DataFrame(a), b)",
            "a @ pandas.DataFrame(b)[:5]",
            "pandas.DataFrame(a).cov()",
        ),
    ),
    "dask.array": (
        {"da": "dask.array"},
        (
            "(a @ da.from_array(b, chunks=48)).compute()",
            "(da.from_array(a, chunks=48) @ b).compute()",
            "np.matmul(a, da.from_array(b, chunks=48)).compute()",
            "np.dot(da.from_array(a, chunks=48), b).compute()",
            "np.tensordot(da.from_array(a, chunks=48), b, 1).compute()",
            "np.matmul(da.from_array(s, chunks=48), da.from_array(s, chunks=48)).compute()",
            "type(a @ da.from_array(b, chunks=48)).__name__",
            "da.einsum('ij,jk->ik', da.from_array(a, chunks=48), b).compute()",
        ),
    ),
    "torch": (
        {"torch": "torch"},
        (
            "torch.from_numpy(a) @ torch.from_numpy(b)",
            "a @ torch.from_numpy(b)",
            "torch.from_numpy(a) @ b",
            "np.matmul(torch.from_numpy(a), torch.from_numpy(b))",
        ),
    ),
    "numba": (
        {"numba": "numba"},
        ("numba.njit(lambda x, y: np.dot(x, y))(a, b)", "numba.njit(lambda x, y: x @ y)(a, b)"),
    ),
    "networkx": (
        {"nx": "networkx"},
        ("nx.to_numpy_array(nx.path_graph(96)) @ a", "nx.katz_centrality_numpy(nx.path_graph(9))"),
    ),
    "sympy": ({"sympy": "sympy"}, ("a[:3, :3] @ sympy.eye(3)", "np.array(sympy.eye(3)) @ np.array(sympy.eye(3))")),
    "sklearn": (
        {"PCA": "sklearn.decomposition:PCA", "pairwise": "sklearn.metrics.pairwise"},
        ("PCA(3, svd_solver='covariance_eigh').fit(a).explained_variance_", "pairwise.euclidean_distances(a, b)"),
    ),
    "astropy": (
        {"units": "astropy.units", "Masked": "astropy.utils.masked:Masked"},
        ("(a * units.m) @ (b * units.s)", "np.dot(a * units.m, b)", "Masked(a) @ Masked(b)", "np.matmul(Masked(a), b)"),
    ),
    "awkward": ({"ak": "awkward"}, ("ak.Array(a) @ ak.Array(b)", "np.matmul(ak.Array(a), b)", "a @ ak.Array(b)")),
    "sparse": (
        {"sparse": "sparse"},
        ("sparse.COO(a) @ b", "a @ sparse.COO(b)", "np.matmul(sparse.COO(a), sparse.COO(b)).todense()"),
    ),
    "xarray": (
        {"xarray": "xarray"},
        (
            "(xarray.DataArray(a, dims='ij') @ xarray.DataArray(b, dims='jk'))",
            "np.matmul(xarray.DataArray(a, dims='ij'), b)",
        ),
    ),
    "pint": ({"pint": "pint"}, ("(a * pint.application_registry.m) @ b", "np.dot(a * pint.application_registry.m, b)")),
    "jax": ({"jnp": "jax.numpy"}, ("jnp.asarray(a) @ b", "a @ jnp.asarray(b)", "np.matmul(jnp.asarray(a), b)")),
}
CASES = [(library, text) for library, (_, texts) in EXPRESSIONS.items() for text in texts]


@pytest.mark.quick_cases(24)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("library", "text"), CASES, ids=[f"{library}: {text}" for library, text in CASES])
def test_an_expression_gives_the_same_with_fmm_installed(library: str, text: str, host_plans: list[Plan]) -> None:
    pytest.importorskip(library)
    names = {name: imported(path) for name, path in EXPRESSIONS[library][0].items()}
    plain = outcome(text, names)
    assert not host_plans
    with fmm.installed("numpy"):
        installed = outcome(text, names)
    assert_same(installed, plain)


def imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


def outcome(text: str, names: dict[str, Any]) -> Any:
    """Return the expression's value, or the class and the text of its exception."""
    rng = np.random.default_rng(0)
    a, b, s = (rng.standard_normal(shape) for shape in ((SIDE, SIDE), (SIDE, SIDE), (3, SIDE, SIDE)))
    try:
        return eval(text, {**names, "np": np, "a": a, "b": b, "s": s, "v": a[0]})
    except Exception as error:
        return type(error), str(error)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for x, y in zip(found, expected, strict=True):
            assert_same(x, y)
    elif isinstance(expected, str | type | list | dict):
        assert found == expected or expected == pytest.approx(found)
    else:
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)
        x, y = np.asarray(found), np.asarray(expected)
        if y.dtype.kind in "fc":
            tolerance = 1e-3 if np.finfo(y.dtype).eps > 1e-10 else 1e-7
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(x, y)

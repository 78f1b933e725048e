"""fmm.einsum, fmm.tensordot and fmm.multi_dot against NumPy's."""

from __future__ import annotations

import random
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import fmm
from fmm.contractions import array_module, pairs
from fmm.contractions.array_module import multiply_matrices
from fmm.contractions.einsum import plan_contraction
from fmm.contractions.pairs import LabeledArray, contract_pair, plan_pair

opt_einsum = pytest.importorskip("opt_einsum")


@pytest.fixture(autouse=True)
def small_pairs_are_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small contractions of these tests run as products too."""
    monkeypatch.setattr(import_module("fmm.contractions.einsum"), "SMALL_HOST_MULTIPLY_ADDS", 0)


EXPRESSIONS = (
    "ij,jk->ik",
    "ij,jk",  # the output's labels in alphabetical order
    "ji,jk->ki",
    "bij,bjk->bik",
    "bik,kj->bij",
    "ikj,kl->ijl",
    "ij,kj->ki",
    "pia,pjb->iajb",
    "acik,kjcb->abij",
    "abcd,cdij->abij",
    "ij,ij->",
    "ij,ij->ij",
    "i,j->ij",
    "ij,j->i",
    "ii,ij->j",
    "iij,jk->ik",
    "ijk,j->",
    "ij->",
    "ij->ji",
    "ii->",
    "i->i",
    "bi,bj,bk->ijk",
    "ab,bc,cd,de->ae",
    "pq,prqs->rs",
    "...ij,...jk->...ik",
    "...i,i->...",
    "i...,i...->...",
    ",i->i",
)
C3 = np.ones((3, 3))
SIZES = dict(zip("abcdijklpqrs", (3, 4, 2, 5, 6, 3, 4, 5, 7, 2, 3, 4), strict=True))


def random_arrays(expression: str, seed: int = 0, dtype: str = "float64") -> list[Any]:
    rng = np.random.default_rng(seed)
    found = []
    for term in expression.partition("->")[0].split(","):
        shape = [n for x in term.replace("...", ".") for n in ((2, 3) if x == "." else (SIZES.get(x, 3),))]
        x = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if "complex" in dtype else 0)
        found.append((4 * x).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype))
    return found


@pytest.mark.parametrize(
    ("expression", "is_librarys"),
    [
        ("ij,jk,kl->il", False),
        ("bij,bjk->bik", False),
        ("ij,j->i", False),
        ("ii,ij->j", True),
        ("ij,ij->ij", True),
        ("kc,ikac->ia", True),  # both libraries copy the second operand
        ("kc,ikac,ax->ix", False),
    ],
)
def test_a_small_contraction_of_cupys_arrays_is_products_or_one_call(
    expression: str, is_librarys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("fmm.contractions.einsum")
    monkeypatch.setattr(module, "SMALL_HOST_MULTIPLY_ADDS", 1 << 15)
    monkeypatch.setattr(module, "array_kind", lambda x: "cupy")
    monkeypatch.setattr(module, "LARGE_COPY", 100)
    arrays = random_arrays(expression)
    expected, library = np.einsum(expression, *arrays), Mock(wraps=np.einsum)
    monkeypatch.setattr(np, "einsum", library)
    np.testing.assert_allclose(fmm.einsum(expression, *arrays), expected, rtol=1e-12, atol=1e-12)
    assert library.call_count == is_librarys
    assert not is_librarys or library.call_args.kwargs["optimize"][0] == "einsum_path"


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int64"])
def test_cupys_matrices_times_vectors_are_gemv(dtype: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gemv(trans: str, alpha: float, a: Any, x: Any, beta: float, y: Any) -> None:
        assert trans == "N" and a.dtype == x.dtype and a.ndim == 2
        assert x.flags.c_contiguous and (a.flags.c_contiguous or a.flags.f_contiguous)
        y[:] = alpha * (a @ x)

    library = Mock(wraps=SimpleNamespace(gemv=gemv))
    monkeypatch.setattr(array_module, "array_kind", lambda x: "cupy")
    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setitem(sys.modules, "cupy.cublas", library)
    (a, b), (x, y) = (random_arrays("pa,ia", dtype=dtype), random_arrays("a,p", dtype=dtype))
    a, expected = np.asarray(a, order=order), 2 * (dtype != "int64")
    for vector in (x[:, None], np.repeat(x, 2)[::2, None]):  # the second one is strided
        np.testing.assert_allclose(multiply_matrices(a, vector), a @ vector, rtol=1e-5)
    assert library.gemv.call_count == expected
    np.testing.assert_allclose(multiply_matrices(y[None], a), y[None] @ a, rtol=1e-5)
    assert library.gemv.call_count == 3 * (dtype != "int64")
    assert multiply_matrices(a[:, :0], x[:0, None]).shape == (len(a), 1)
    assert multiply_matrices(a, b.T).shape == (len(a), len(b))
    assert library.gemv.call_count == 3 * (dtype != "int64")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int64"])
def test_cupys_arrays_are_contracted(dtype: str) -> None:
    import cupy

    chains = ("pmn,mi,na->pia", "pmn,mn->p", "pmn,p->mn", "eqrs,qi,rj,sk->eijk", "ilab,jkcl->ijkabc")
    for expression in (*EXPRESSIONS[:-1], *chains):  # the last one has a number as an operand
        arrays = random_arrays(expression, dtype=dtype)
        expected = np.einsum(expression, *arrays)
        stored = [cupy.asarray(x) for x in arrays]
        strided = [cupy.repeat(x, 2, axis=-1)[..., ::2] for x in stored]
        for operands in (stored, [x.T.copy().T for x in stored], strided):
            found = fmm.einsum(expression, *operands)
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(cupy.asnumpy(found), expected, rtol=1e-4, atol=1e-4)


def test_a_devices_outer_product_is_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "is_on_device", lambda x: True)
    multiply = Mock(wraps=array_module.multiply_matrices)
    monkeypatch.setattr(pairs, "multiply_matrices", multiply)
    rng = np.random.default_rng(0)
    for summed, expected in ((3, 0), (pairs.MAX_OUTER_SUM + 1, 1)):
        a, b = rng.standard_normal((4, summed, 9, 5)), rng.standard_normal((8, 4, 9, summed))
        text = "ilab,jkcl->ijkabc"
        multiply.reset_mock()
        np.testing.assert_allclose(fmm.einsum(text, a, b), np.einsum(text, a, b), rtol=1e-12, atol=1e-12)
        assert multiply.call_count == expected
    multiply.reset_mock()
    a, b = rng.standard_normal((40, 8)), rng.standard_normal((8, 8))  # few terms, and a small result
    np.testing.assert_allclose(fmm.einsum("ij,jk->ik", a, b), a @ b, rtol=1e-12, atol=1e-12)
    assert multiply.call_count == 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int64", "bool"])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_einsum_equals_numpys(expression: str, dtype: str) -> None:
    arrays = random_arrays(expression, dtype=dtype)
    expected, found = np.einsum(expression, *arrays), fmm.einsum(expression, *arrays)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    out = np.full(expected.shape, 7, expected.dtype)
    assert fmm.einsum(expression, *arrays, out=out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.quick_cases(20)
@pytest.mark.parametrize("seed", range(60))
def test_random_contractions_of_strided_arrays_equal_opt_einsums(seed: int) -> None:
    from opt_einsum.testing import rand_equation

    chosen = random.Random(seed)
    expression, shapes = rand_equation(
        n=chosen.randint(2, 6), regularity=3, n_out=chosen.randint(0, 3), d_max=4, seed=seed, global_dim=seed % 2 == 1
    )
    rng = np.random.default_rng(seed)
    arrays = []
    for shape in shapes:  # dimensions stored in random order, with gaps, some of them backward
        order = rng.permutation(len(shape))
        stored = rng.standard_normal([2 * shape[i] for i in order])[tuple(slice(None, None, 2) for _ in order)]
        arrays.append(stored.transpose(np.argsort(order))[::-1] if shape else stored)
    expected = opt_einsum.contract(expression, *arrays)
    for found in (fmm.einsum(expression, *arrays), opt_einsum.contract(expression, *arrays, backend="fmm")):
        assert np.shape(found) == np.shape(expected)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_a_dimension_of_one_broadcasts_as_numpys_does() -> None:
    rng = np.random.default_rng(1)
    for expression, shapes in (
        ("ij,jk->ik", ((4, 1), (5, 6))),
        ("ij,jk->ik", ((4, 5), (1, 6))),
        ("bij,bjk->bik", ((1, 4, 5), (3, 5, 6))),
        ("ij,ij->i", ((4, 1), (4, 6))),
    ):
        arrays = [rng.standard_normal(shape) for shape in shapes]
        np.testing.assert_allclose(fmm.einsum(expression, *arrays), np.einsum(expression, *arrays))


def test_lists_of_subscripts_and_nested_lists_are_accepted() -> None:
    a, b = random_arrays("ij,jk")
    np.testing.assert_allclose(fmm.einsum(a, [0, 1], b, [1, 2], [2, 0]), (a @ b).T)
    np.testing.assert_allclose(fmm.einsum("ij,j->i", [[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0]), [3, 7])


def test_numpys_other_options_are_numpys() -> None:
    a, b = random_arrays("ij,jk", dtype="float32")
    assert fmm.einsum("ij,jk", a, b, dtype="float64").dtype == np.float64
    assert fmm.einsum("ij,jk", a, b, order="F").flags.f_contiguous
    np.testing.assert_allclose(fmm.einsum("ij,jk", a, b, optimize=False), a @ b, rtol=1e-5)


@pytest.mark.parametrize(
    ("expression", "shapes"),
    [("ij,jk->ik", ((2, 3), (4, 5))), ("ij,jk->il", ((2, 3), (3, 5))), ("ijk->i", ((2, 3),)), ("ij,jk", ((2, 3),))],
)
def test_subscripts_that_do_not_match_raise_what_numpy_raises(expression: str, shapes: Any) -> None:
    arrays = [np.ones(shape) for shape in shapes]
    with pytest.raises(ValueError):
        np.einsum(expression, *arrays)
    with pytest.raises(ValueError):
        fmm.einsum(expression, *arrays)


@pytest.mark.parametrize(
    "operands",
    [
        (),
        ("ij,jk->ik,", C3, C3),
        ("ij,jk->il", C3, C3),
        ("ij,jk->iki", C3, C3),
        ("ij-jk->ik", C3, C3),
        ("i1,1k->ik", C3, C3),
        ("i!,!k->ik", C3, C3),
        ("ij,jk->ik", C3),
        ("i...,...k->ik", C3, C3),
        (C3, [0, 1], C3, [1, 2], [0, 3]),
        (C3, [0, ...], C3, [..., 2], [0, 2]),
        ("aab,bc,cd->ad", np.ones((4, 1, 3)), C3, C3),
    ],
)
def test_malformed_subscripts_raise_value_error(operands: Any) -> None:
    with pytest.raises(ValueError):
        np.einsum(*operands)
    with pytest.raises(ValueError, match=r"fmm\.einsum|Subscripts|Output|Ellips"):
        fmm.einsum(*operands)


@pytest.mark.parametrize(
    "optimize", [("greedy", 1000), ("optimal", 5), None, ["einsum_path", (0, 1), (0, 1)], [(0, 1, 2)]]
)
def test_numpys_forms_of_optimize_are_accepted(optimize: Any) -> None:
    x = np.arange(9.0).reshape(3, 3)
    assert (fmm.einsum("ij,jk,kl->il", x, x, x, optimize=optimize) == x @ x @ x).all()
    assert (fmm.einsum(b"ij,jk->ik", x, x) == x @ x).all()


@pytest.mark.parametrize("path", [[(0, 1)], [(0, 1), (0, 1), (0,), (0, 1)], [(0, 3), (0, 1)], [(0, 0), (0, 1)], []])
def test_a_path_that_leaves_operands_raises_value_error(path: Any) -> None:
    with pytest.raises(ValueError, match=r"the path .* is invalid"):
        fmm.einsum("ij,jk,kl->il", C3, C3, C3, optimize=["einsum_path", *path])


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize(
    ("expression", "types"),
    [("ij,jk->k", ("int8", "float64")), ("ij,jk->k", ("bool", "float64")), ("ij,jk->k", ("float16", "float64"))],
)
def test_arrays_of_two_types_are_summed_in_their_common_type(expression: str, types: Any, count: int) -> None:
    a, b = np.full((count, 400), 100, types[0]), np.ones((400, 300), types[1])
    found, expected = fmm.einsum(expression, a, b), np.einsum(expression, a, b)
    assert found.dtype == expected.dtype and (found == expected).all()
    x = np.full((4, 400), 100, "int8")
    assert (fmm.einsum("ij,jk,kl->il", x, x.T.copy(), np.ones((4, 9))) == 16e6).all()


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.zeros((3, 3), int), TypeError),
        (np.zeros((3, 3), "float32"), TypeError),
        (np.zeros((5, 3, 3)), ValueError),
        (np.zeros((3, 1)), ValueError),
        (np.zeros(()), ValueError),
    ],
)
def test_an_unsuitable_out_is_left_as_it_is(out: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="out "):
        fmm.einsum("ij,kj->ik", C3, 2 * C3, out=out)
    with pytest.raises(error, match="out "):
        fmm.multi_dot([C3, C3], out=out)
    assert not out.any()
    wide = np.zeros((3, 3), complex)
    assert fmm.einsum("ij,kj->ik", C3, 2 * C3, out=wide) is wide and (wide == 6).all()


def test_objects_that_do_not_commute_are_multiplied_in_order() -> None:
    class Word(str):
        def __mul__(self, other: Any) -> Word:
            return Word(f"{self}{other} ")

        def __add__(self, other: Any) -> Word:
            return Word(str(self) + str(other))

    x = np.array([[Word("a"), Word("b")], [Word("c"), Word("d")]], object)
    assert fmm.einsum("ij,kj->ik", x, x).tolist() == [["aa bb ", "ac bd "], ["ca db ", "cc dd "]]


def test_arrays_of_other_libraries_and_subclasses_are_their_own_einsums() -> None:
    class Labeled:
        """An array that answers NumPy's functions by itself, and has no strides."""

        shape, ndim, dtype = (2, 2), 2, np.dtype("float64")

        def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> str:
            return f"own {function.__name__}"

    assert fmm.einsum("ij,jk->ik", Labeled(), Labeled()) == "own einsum"
    matrix = np.ma.masked_array(np.ones((2, 2)), [[True, False], [False, False]])
    np.testing.assert_array_equal(fmm.einsum("ij,jk->ik", matrix, matrix), np.einsum("ij,jk->ik", matrix, matrix))


def test_numpys_path_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    products = noted_products(monkeypatch)
    arrays = random_arrays("ab,bc,cd->ad")
    path, _ = np.einsum_path("ab,bc,cd->ad", *arrays)
    for given in (path, [(1, 2), (0, 1)]):
        np.testing.assert_allclose(
            fmm.einsum("ab,bc,cd->ad", *arrays, optimize=given), arrays[0] @ arrays[1] @ arrays[2]
        )
    assert products[2][0].shape == arrays[1].shape


# ---- which products run


def noted_products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Return the list to which each product of two matrices or stacks is appended."""
    found: list[tuple[Any, Any]] = []
    multiply = array_module.multiply_matrices

    def note(a: Any, b: Any) -> Any:
        found.append((a, b))
        return multiply(a, b)

    monkeypatch.setattr(pairs, "multiply_matrices", note)
    return found


@pytest.mark.parametrize(
    "expression",
    ["ij,jk->ik", "ji,kj->ik", "abcd,cdij->abij", "pia,pjb->iajb", "bij,bjk->bik", "bik,kj->bij", "abij,abkl->klij"],
)
def test_no_operand_is_copied_where_strides_suffice(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    products = noted_products(monkeypatch)
    a, b = random_arrays(expression)
    fmm.einsum(expression, a, b)
    ((left, right),) = products
    assert np.shares_memory(left, a) and np.shares_memory(right, b)


def test_dimensions_that_do_not_nest_become_a_stack_of_large_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """In A_ikj, k separates the rows i and j: i counts products, and neither array is copied."""
    products = noted_products(monkeypatch)
    a, b = np.random.default_rng(0).standard_normal((3, 130, 140)), np.random.default_rng(1).standard_normal((130, 150))
    np.testing.assert_allclose(fmm.einsum("ikj,kl->ijl", a, b), np.einsum("ikj,kl->ijl", a, b), atol=1e-10)
    ((left, right),) = products
    assert left.shape == (3, 140, 130) and np.shares_memory(left, a) and np.shares_memory(right, b)
    fmm.einsum("ikj,kl->ijl", a[:, :5], b[:5])  # one product: a copy of few elements is cheaper
    assert products[1][0].shape == (420, 5)


@pytest.mark.parametrize("smallest_stacked_side", [1, 128])
@pytest.mark.parametrize("expression", ["pmn,mi,na->pia", "mi,pmn,na->pia"])
def test_a_result_is_stored_such_that_the_next_pair_needs_no_copy(
    expression: str, smallest_stacked_side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order pni of P_pmn C_mi separates the rows p and i of the next matrix; the order pin or ipn does not."""
    results: list[Any] = []

    def recorded_product(a: Any, b: Any) -> Any:
        results.append(a @ b)
        return results[-1]

    multiply = Mock(side_effect=recorded_product)
    monkeypatch.setattr(pairs, "multiply_matrices", multiply)
    monkeypatch.setattr(pairs, "SMALLEST_STACKED_SIDE", smallest_stacked_side)
    arrays = random_arrays(expression)
    found = fmm.einsum(expression, *arrays, optimize=[(0, 1), (0, 1)])
    np.testing.assert_allclose(found, np.einsum(expression, *arrays), rtol=1e-12, atol=1e-12)
    second = multiply.call_args_list[1].args
    assert {x.ndim for x in second} == {2} and any(np.shares_memory(results[0], x) for x in second)


def test_an_array_times_itself_is_a_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    products = noted_products(monkeypatch)
    x = np.random.default_rng(0).standard_normal((5, 6, 4))
    found = fmm.einsum("kia,kjb->iajb", x, x)
    np.testing.assert_allclose(found, np.einsum("kia,kjb->iajb", x, x))
    assert not products and np.array_equal(found, found.transpose(2, 3, 0, 1))
    np.testing.assert_allclose(fmm.einsum("ik,jk->ij", x[0], x[0]), x[0] @ x[0].T)
    np.testing.assert_allclose(fmm.einsum("ik,kj->ij", x[0, :4], x[0, :4]), x[0, :4] @ x[0, :4])
    z = x[0] + 1j
    np.testing.assert_allclose(fmm.einsum("ki,kj->ij", z, z), z.T @ z)


def test_the_order_of_summed_labels_copies_the_smaller_operand() -> None:
    a, b = np.ones((3, 4, 50)), np.ones((4, 3, 2))  # labels xyi and yxj: x and y are stored in two orders
    left, right = LabeledArray(a, tuple("xyi")), LabeledArray(b, tuple("yxj"))
    plan = plan_pair(left.layout, right.layout, frozenset("ij"), False, True)
    assert plan.a.order == (2, 0, 1) and plan.b.order == (1, 0, 2)  # the larger operand, A, is not copied
    assert np.shares_memory(plan.a.matrix_from_array(a), a) and not np.shares_memory(plan.b.matrix_from_array(b), b)
    np.testing.assert_allclose(contract_pair(left, right, frozenset("ij")).array, np.full((50, 2), 12.0))


def test_an_operand_that_is_copied_becomes_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """In A_klcd, neither the rows l d nor the summed k c nest: a stack of products would not save the copy."""
    monkeypatch.setattr(pairs, "SMALLEST_STACKED_SIDE", 1)
    a, b = random_arrays("klcd,ikac")
    left, right = LabeledArray(a, tuple("klcd")), LabeledArray(b, tuple("ikac"))
    plan = plan_pair(left.layout, right.layout, frozenset("ldia"), False, True)
    assert len(plan.a.shape) == len(plan.b.shape) == 2
    found = contract_pair(left, right, frozenset("ldia"))
    expected = np.einsum(f"klcd,ikac->{''.join(found.labels)}", a, b)
    np.testing.assert_allclose(found.array, expected, rtol=1e-12, atol=1e-12)


def test_a_contraction_of_small_pairs_is_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    products = noted_products(monkeypatch)
    a, b, c = (np.ones((8, 8)) for _ in range(3))
    np.testing.assert_allclose(fmm.einsum("ij,jk,kl->il", a, b, c), np.full((8, 8), 64.0))
    assert not products
    assert plan_contraction("ij,jk,kl->il", ((8, 8),) * 3, "auto").largest_multiply_adds == 512


# ---- tensordot and multi_dot


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "axes"),
    [
        ((3, 4, 5), (4, 5, 2), 2),
        ((3, 4), (5, 2), 0),
        ((3, 4, 5), (5, 4, 2), ([1, 2], [1, 0])),
        ((3, 4, 5), (5, 2), (2, 0)),
        ((3, 4, 5), (4, 3, 2), ((-3, -2), (1, 0))),
        ((3, 4), (3, 4), 2),
        ((0, 4), (4, 2), 1),
    ],
)
def test_tensordot_equals_numpys(shape_a: Any, shape_b: Any, axes: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(shape_a), rng.standard_normal(shape_b)
    expected = np.tensordot(a, b, axes)
    found = fmm.tensordot(a, b, axes)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("axes", [np.int64(1), (np.int64(1), np.int64(0)), np.array([1, 0]), ([1], (0,)), -1])
def test_axes_may_be_any_integers(axes: Any) -> None:
    x = np.arange(9.0).reshape(3, 3)
    found, expected = fmm.tensordot(x, x, axes), np.tensordot(x, x, axes)
    assert type(found) is type(expected) and found.shape == expected.shape and (found == expected).all()


@pytest.mark.parametrize(
    ("axes", "error"), [(([1, 1], [0, 0]), ValueError), (([1.7], [0]), TypeError), (1.0, TypeError)]
)
def test_axes_that_are_none_raise_what_numpy_raises(axes: Any, error: type[Exception]) -> None:
    for function in (np.tensordot, fmm.tensordot):
        with pytest.raises(error):
            function(C3, C3, axes)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_tensordot_and_multi_dot_treat_subclasses_as_numpy_does() -> None:
    masked, matrix = np.ma.masked_array(np.ones((3, 3)), np.eye(3, dtype=bool)), np.matrix(C3)
    for x in (masked, matrix):
        for found, expected in (
            (fmm.tensordot(x, C3, 1), np.tensordot(x, C3, 1)),
            (fmm.tensordot(C3, C3, 2), np.tensordot(C3, C3, 2)),
            (fmm.multi_dot([x, C3]), np.linalg.multi_dot([x, C3])),
        ):
            assert type(found) is type(expected) and found.shape == expected.shape and (found == expected).all()


@pytest.mark.parametrize("axes", [1, ([0], [0, 1]), ([5], [0]), 3])
def test_axes_that_do_not_match_raise_value_error(axes: Any) -> None:
    with pytest.raises(ValueError, match="axes"):
        fmm.tensordot(np.ones((3, 4)), np.ones((5, 2)), axes)


@pytest.mark.parametrize(
    "shapes", [[(3, 40), (40, 5)], [(3, 40), (40, 5), (5, 7)], [(40,), (40, 5), (5, 7), (7,)], [(9, 8), (8, 2), (2,)]]
)
def test_multi_dot_equals_numpys(shapes: Any) -> None:
    rng = np.random.default_rng(0)
    chain = [rng.standard_normal(shape) for shape in shapes]
    expected = np.linalg.multi_dot(chain)
    np.testing.assert_allclose(fmm.multi_dot(chain), expected)
    if np.ndim(expected):
        out = np.zeros_like(expected)
        assert fmm.multi_dot(chain, out=out) is out
        np.testing.assert_allclose(out, expected)


def test_multi_dot_takes_the_cheapest_order(monkeypatch: pytest.MonkeyPatch) -> None:
    products = noted_products(monkeypatch)
    fmm.multi_dot([np.ones((50, 2)), np.ones((2, 60)), np.ones((60, 1))])
    assert [(a.shape, b.shape) for a, b in products] == [((2, 60), (60, 1)), ((50, 2), (2, 1))]


@pytest.mark.parametrize("shapes", [[(3, 4)], [(3, 4), (4,), (4, 2)], [(3, 4), (5, 2)]])
def test_a_chain_that_is_none_raises_value_error(shapes: Any) -> None:
    with pytest.raises(ValueError):
        fmm.multi_dot([np.ones(shape) for shape in shapes])


# ---- other libraries


def test_tensors_are_contracted_and_get_gradients() -> None:
    torch = pytest.importorskip("torch")
    for expression in EXPRESSIONS:
        if expression == ",i->i":
            continue
        arrays = [torch.from_numpy(x) for x in random_arrays(expression)]
        found = fmm.einsum(expression, *arrays)
        torch.testing.assert_close(found, torch.einsum(expression, *arrays))
        by_opt_einsum = opt_einsum.contract(expression, *arrays, backend="fmm")
        torch.testing.assert_close(by_opt_einsum, found)
    a, b = (x.requires_grad_() for x in (torch.rand(3, 4, 5), torch.rand(5, 4, 2)))
    fmm.einsum("ijk,kjl->il", a, b).square().sum().backward()
    own, a.grad, b.grad = (a.grad, b.grad), None, None
    torch.einsum("ijk,kjl->il", a, b).square().sum().backward()
    torch.testing.assert_close(own[0], a.grad)
    torch.testing.assert_close(own[1], b.grad)


def test_arrays_are_contracted_while_another_thread_imports_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))  # the module has no names yet
    a, b = np.ones((3, 4)), np.ones((4, 5))
    np.testing.assert_array_equal(fmm.einsum("ij,jk->ik", a, b), a @ b)


def test_jax_arrays_are_contracted_inside_jit() -> None:
    jax = pytest.importorskip("jax")
    for expression in EXPRESSIONS:
        arrays = [jax.numpy.asarray(x, "float32") for x in random_arrays(expression)]
        expected = jax.numpy.einsum(expression, *arrays)
        contract = jax.jit(lambda *x, e=expression: fmm.einsum(e, *x))
        np.testing.assert_allclose(contract(*arrays), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(fmm.einsum(expression, *arrays), expected, rtol=1e-4, atol=1e-4)

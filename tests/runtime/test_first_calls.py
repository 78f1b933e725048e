"""What somebody meets who calls fmm for the first time, and not as it is meant: errors that say what to write."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
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
        (fmm.minplus, "minplus(a, b)"),
        (fmm.prepare, "prepare(x)"),
        (fmm.explain, "explain(a, b)"),
        (fmm.explain_gemm, "explain_gemm(a, b)"),
        (fmm.explain_gram, "explain_gram(a)"),
    ],
)
@pytest.mark.parametrize("name", ["input", "a", "x", "x1", "mat1"])
def test_operands_by_name_are_an_error_that_says_what_to_write(function: Any, call: str, name: str) -> None:
    with pytest.raises(TypeError) as caught:
        function(**{name: X})
    assert str(caught.value).endswith(f"takes its operands by position: write fmm.{call}, without {name}=")


def test_torchs_and_numpys_names() -> None:
    with pytest.raises(TypeError, match=r"write fmm.matmul\(a, b\), without input=, other=$"):
        fmm.matmul(input=X, other=X)
    with pytest.raises(TypeError, match=r"write fmm.matmul\(a, b\), without mat2=$"):
        fmm.matmul(X, mat2=X)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):  # NumPy's own: there are two already
        fmm.matmul(X, X, other=X)


def test_operands_that_are_not_there_at_all() -> None:
    """As Python has it."""
    call: Any
    for call, words in (
        (lambda: fmm.matmul(X), r"matmul\(\) missing 1 required positional argument: 'b'$"),
        (lambda: fmm.matmul(out=X), r"matmul\(\) missing 2 required positional arguments: 'a' and 'b'$"),
        (lambda: fmm.gemm(X, beta=1), r"gemm\(\) missing 1 required positional argument: 'b'$"),
        (lambda: fmm.gram(rows=True), r"gram\(\) missing 1 required positional argument: 'a'$"),
        (lambda: fmm.minplus(X), r"minplus\(\) missing 1 required positional argument: 'b'$"),
        (lambda: fmm.prepare(), r"prepare\(\) missing 1 required positional argument: 'x'$"),
        (lambda: fmm.explain(X), r"explain\(\) missing 1 required positional argument: 'b'$"),
    ):
        with pytest.raises(TypeError, match=words):
            call()


# ---- whatever there is in place of a matrix: as NumPy has it


class Own(np.ndarray):
    pass


class ReadAsArray:
    """As xarray's and others' objects are: NumPy asks them for an array."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.values, dtype)


class Unreadable:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("there is nothing here")


class AnswersItself:
    def __array_ufunc__(self, *given: Any, **named: Any) -> str:
        return "mine"


class RefusesFunctions:
    __array_ufunc__ = None


M = np.arange(16.0).reshape(4, 4) % 7


def _odd_operands() -> dict[str, Any]:
    found: dict[str, Any] = {
        "float16": M.astype("f2"),
        "bool": M > 3,
        "uint64": M.astype("u8"),
        "long double": M.astype("g"),
        "objects": M.astype(object),
        "other byte order": M.astype(">f8"),
        "dates": np.array([["2020-01-01"] * 4] * 4, "M8[D]"),
        "durations": np.ones((4, 4), "m8[s]"),
        "structured": np.ones((4, 4), [("x", "f8")]),
        "bytes": np.array([[b"x"] * 4] * 4),
        "texts": np.array([["x"] * 4] * 4),
        "no axes": np.array(3.0),
        "a vector": M[0],
        "a stack": np.stack([M, M]),
        "another shape": M[:3, :3],
        "no rows": M[:0],
        "read-only": np.broadcast_to(M[0], (4, 4)),
        "None": None,
        "a text": "text",
        "a number": 3,
        "nan": float("nan"),
        "a dict": {},
        "an object": object(),
        "rows": M.tolist(),
        "ragged rows": [[1, 2], [3]],
        "rows of None": [[None] * 4] * 4,
        "an empty list": [],
        "a view of memory": M.copy().data,
        "masked": np.ma.masked_array(M, M > 5),
        "a subclass": M.view(Own),
        "records": np.rec.array(M),
        "read as an array": ReadAsArray(M),
        "unreadable": Unreadable(),
        "answers itself": AnswersItself(),
        "refuses": RefusesFunctions(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        found["a matrix"] = np.matrix(M)
    if find_spec("pandas"):
        pandas = import_module("pandas")
        found |= {"a frame": pandas.DataFrame(M), "a series": pandas.Series(M[0])}
    if find_spec("scipy"):
        found["sparse"] = import_module("scipy.sparse").csr_matrix(M)
    return found


ODD = _odd_operands()
PLANS = [None, "winograd > vendor"]


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call returns or raises, to be compared."""
    try:
        with np.errstate(all="ignore"):
            found = call()
    except Exception as error:
        return type(error), str(error)
    if not hasattr(found, "dtype") and not hasattr(found, "values"):
        return type(found), found
    mask = np.ma.getmaskarray(found).tolist() if isinstance(found, np.ma.MaskedArray) else None
    values = np.asarray(found)
    return type(found), values.dtype, values.shape, values.tolist(), mask


def by_fmm(plan: str | None, *operands: Any, **options: Any) -> Any:
    """By the plan, where one can be given."""
    try:
        return fmm.matmul(*operands, plan=plan, **options)
    except fmm.PlanError:
        return fmm.matmul(*operands, **options)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ODD)
def test_odd_operands_are_numpys(name: str, plan: str | None) -> None:
    odd = ODD[name]
    for a, b in ((odd, M), (M, odd), (odd, odd), (odd, ODD["rows"]), (ODD["masked"], odd), (odd, ODD["a matrix"])):
        assert outcome(lambda a=a, b=b: by_fmm(plan, a, b)) == outcome(lambda a=a, b=b: np.matmul(a, b))  # type: ignore[misc]


def _three_temporary_places() -> dict[str, Any]:
    """For a result, none of them the plain one that it wants."""
    places: dict[str, Any] = {
        name: np.zeros((4, 4), name) for name in ("f4", "i8", "D", "O", "?", ">f8", "f2", "M8[s]")
    }
    places |= {
        "by columns": np.zeros((4, 4), order="F"),
        "with gaps": np.zeros((8, 8))[::2, ::2],
        "another shape": np.zeros((4, 5)),
        "a vector": np.zeros(4),
        "no axes": np.array(0.0),
        "a stack": np.zeros((2, 4, 4)),
        "read-only": np.broadcast_to(np.zeros(4), (4, 4)),
        "rows": M.tolist(),
        "a text": "text",
        "masked": np.ma.zeros((4, 4)),
        "a subclass": np.zeros((4, 4)).view(Own),
        "a tuple": (np.zeros((4, 4)),),
        "two": (np.zeros((4, 4)),) * 2,
        "none": (),
        "overlapping itself": np.lib.stride_tricks.as_strided(np.zeros(16), (4, 4), (8, 8)),
    }
    return places


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", _three_temporary_places())
def test_odd_places_for_a_result_are_numpys(name: str, plan: str | None) -> None:
    for x in (M, M.astype("f4"), M.astype(int), M.astype("D"), ODD["masked"], ODD["rows"]):
        ours, theirs = _three_temporary_places()[name], _three_temporary_places()[name]
        found = outcome(lambda x=x, out=ours: by_fmm(plan, x, x, out=out))  # type: ignore[misc]
        assert found == outcome(lambda x=x, out=theirs: np.matmul(x, x, out=out))  # type: ignore[misc]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "options",
    [
        *({"dtype": x} for x in ("f4", "nonsense", int, complex, "S", "M8[s]", [("x", "f8")], ">f8", 3, (float,))),
        *({"casting": x} for x in ("no", "safe", "unsafe", "nonsense", None, 3)),
        *({"order": x} for x in ("C", "F", "A", "Z", None, 3, "")),
        *({"axes": x} for x in ([(0, 1)] * 3, [(0, 1)], 1)),
        {"subok": 3},
        {"axis": 0},
        {"keepdims": True},
        {"signature": "ff->f"},
        {"foo": 1},
    ],
    ids=str,
)
def test_odd_options_are_numpys(options: dict[str, Any], plan: str | None) -> None:
    for x in (M, M.astype(int), M.astype("D"), M.astype(object)):
        assert outcome(lambda x=x: by_fmm(plan, x, x, **options)) == outcome(lambda x=x: np.matmul(x, x, **options))  # type: ignore[misc]


@pytest.mark.parametrize("name", ["masked", "a subclass", "a matrix", "records"])
@pytest.mark.parametrize("plan", [None, "winograd > vendor"])
def test_what_gemm_adds_keeps_its_kind_and_its_mask(name: str, plan: str | None) -> None:
    c = ODD[name]
    for added in (c, c[:1]):
        expected = np.add(M @ M * 2, added * 3)
        found = fmm.gemm(M, M, added, alpha=2, beta=3, plan=plan)
        assert outcome(lambda found=found: found) == outcome(lambda expected=expected: expected)  # type: ignore[misc]
        assert not fmm.explain_gemm(M, M, added, beta=3).plan.levels


# ---- whatever there is in place of fmm's own arguments: errors that name them

NO_WORD = [M, M[:0], np.ones(2, [("x", "f8")]), [M], {}, object(), 2.5]


@pytest.mark.parametrize("value", NO_WORD, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("unknown device", lambda x: fmm.plan(3, 3, 3, device=x)),
        ("unknown device", lambda x: fmm.matmul(M, M, device=x)),
        ("unknown device", lambda x: fmm.explain(M, M, device=x)),
        ("unknown operation", lambda x: fmm.plan(3, 3, 3, op=x)),
        ("componentwise must be", lambda x: fmm.matmul(M, M, componentwise=x)),
        ("componentwise must be", lambda x: fmm.explain(M, M, componentwise=x)),
        ("side must be", lambda x: fmm.prepare(M, side=x)),
        ("method must be", lambda x: fmm.shortest_paths(M, method=x)),
        ("directed must be", lambda x: fmm.shortest_paths(M, directed=x)),
        ("maximum must be", lambda x: fmm.minplus(M, M, maximum=x)),
        ("rows must be", lambda x: fmm.gram(M, rows=x)),
        ("fill must be", lambda x: fmm.gram(M, fill=x)),
        ("transpose_a must be", lambda x: fmm.gemm(M, M, transpose_a=x)),
        ("a plan is a text", lambda x: fmm.matmul(M, M, plan=x)),
        ("workspace must be", lambda x: fmm.matmul(M, M, workspace=x)),
        ("fmm cannot be installed in", lambda x: fmm.installed(x)),
        ("m must be", lambda x: fmm.plan(x, 3, 3)),
    ],
)
def test_what_is_no_such_argument_is_an_error_that_names_it(said: str, call: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(ValueError, match=said):
        call(value)


def test_false_is_as_if_nothing_were_said() -> None:
    for value in (False, 0, np.False_):
        np.testing.assert_array_equal(fmm.matmul(M, M, componentwise=value), M @ M)  # type: ignore[arg-type]


def test_factors_without_axes_are_numbers() -> None:
    two: Any = np.array(2.0)
    imaginary: Any = np.array(2j)
    np.testing.assert_array_equal(fmm.gram(M, alpha=two), 2 * (M.T @ M))
    np.testing.assert_array_equal(
        fmm.gram(M, out=M.copy(), beta=two, fill="lower").diagonal(), (M.T @ M + 2 * M).diagonal()
    )
    np.testing.assert_array_equal(fmm.gemm(M, M, alpha=two), 2 * (M @ M))
    with pytest.raises(ValueError, match="alpha must be a real number"):
        fmm.gram(M, alpha=imaginary)


@pytest.mark.parametrize("name", ["dates", "durations", "structured", "bytes", "texts"])
def test_what_is_no_length_is_an_error(name: str) -> None:
    """As it is of SciPy's floyd_warshall."""
    with pytest.raises(TypeError, match="takes lengths that are numbers, not"):
        fmm.shortest_paths(ODD[name])


# ---- first imports by two threads at once

TWO_IMPORTS = """
import importlib, sys, threading, time
from _frozen_importlib import _blocking_on
from importlib.machinery import SourceFileLoader

execute, at_kernels = SourceFileLoader.exec_module, threading.Event()
second = threading.Thread(target=lambda: importlib.import_module("fmm.kernels"))

def waits(thread):
    return bool(_blocking_on.get(thread.ident)) or not thread.is_alive()

def execute_in_order(loader, module):
    # The second thread comes to fmm.kernels while the first imports fmm, and goes on once the first waits for it.
    name, thread = module.__name__, threading.current_thread()
    if thread is first and name.startswith("fmm.") and second.ident is None:
        second.start()
        while not (at_kernels.is_set() or waits(second)):
            time.sleep(0.001)
    elif thread is second and name == "fmm.kernels":
        at_kernels.set()
        while not waits(first):
            time.sleep(0.001)
    execute(loader, module)

def run():
    import fmm
    print(fmm.matmul.__name__)

first = threading.Thread(target=run)
SourceFileLoader.exec_module = execute_in_order
first.start()
first.join()
second.join()
print(sorted(sys.modules["fmm.kernels"].__all__)[:2])
"""


@pytest.mark.slow
def test_two_threads_import_fmm_and_its_kernels_at_the_same_time() -> None:
    """Neither holds the lock of a module that the other needs while it waits for the other."""
    done = subprocess.run([sys.executable, "-c", TWO_IMPORTS], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("matmul\n['Plan', 'PlanError']\n", "")

"""Operands made ready for many products, and products whose every entry is to be right, without a device."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays.library import Operand, ProductSetting
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.leaves import F16X3_LEAF, VENDOR_LEAF
from fmm.kernels.plans.leaf import plan_leaves
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import chip_target
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.stability import has_componentwise_bound
from fmm.problem import Layout, Problem
from fmm.runtime import devices, prepared_operand
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PreparedOperandLayout
from fmm.runtime.prepare import ProblemQuery, prepare_query
from fmm.runtime.prepared_operand import _preparation_launches, unwrap_operands
from tests.support.devices import H200

PLENTY = Limits(1 << 36, 16.0)


@pytest.fixture(autouse=True)
def an_h200(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "cuda_device", lambda index: H200)
    monkeypatch.setattr("fmm.runtime.prepared_operand.cuda_device", lambda index: H200)
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    yield


# ---- on the host


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64", "object"])
def test_on_the_host_a_copy_is_kept(dtype: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-9, 9, (30, 40)).astype(dtype), np.asfortranarray(rng.integers(-9, 9, (40, 20)).astype(dtype))
    p, q, expected = fmm.prepare(b), fmm.prepare(a, side="left"), a @ b
    assert (p.shape, p.dtype, p.nbytes, p.prepared_leaf) == (b.shape, dtype, b.nbytes, "")
    before = a.copy(), b.copy()
    a[...], b[...] = 0, 0
    for x, y in ((before[0], p), (q, before[1]), (q, p)):
        np.testing.assert_array_equal(fmm.matmul(x, y), expected)


class Own(np.ndarray):
    """Somebody's array."""


def test_what_numpy_makes_of_other_arrays_it_makes_of_their_copies_too() -> None:
    """Masked ones and subclasses; what is changed afterwards, if only the mask, is not the copy's."""
    a, b = np.ones((2, 2)), np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], mask=[[True, False], [False, False]])
    expected, p = np.matmul(a, b), fmm.prepare(b)
    b[1, 1] = np.ma.masked
    found = fmm.matmul(a, p)
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found.data, expected.data)
    np.testing.assert_array_equal(np.ma.getmaskarray(found), np.ma.getmaskarray(expected))
    own = a.view(Own)
    assert type(fmm.matmul(a, fmm.prepare(own))) is type(np.matmul(a, own)) is Own


def test_out_dtype_stacks_vectors_and_the_other_side() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((3, 30, 40)), rng.standard_normal((40, 20))
    p, out = fmm.prepare(b), np.empty((3, 30, 20))
    assert fmm.matmul(a, p, out=out) is out
    np.testing.assert_array_equal(out, a @ b)
    np.testing.assert_array_equal(fmm.matmul(a[0, 0], p), a[0, 0] @ b)
    assert fmm.matmul(a, p, dtype=np.float32, casting="unsafe").dtype == np.float32
    np.testing.assert_array_equal(fmm.matmul(p, b.T), b @ b.T)  # prepared for the right: read as it is
    assert "numpy" in str(fmm.explain(a, p)).lower()
    with pytest.raises(ValueError, match="mismatch"):
        fmm.matmul(a, fmm.prepare(rng.standard_normal((41, 20))))


def test_who_wants_the_array_itself_is_told() -> None:
    b = np.ones((40, 20))
    p = fmm.prepare(b)
    for call in (lambda: b.T @ p, lambda: fmm.gram(p), lambda: fmm.gemm(b.T, p), lambda: np.asarray(p)):
        with pytest.raises(TypeError, match="prepared operand"):
            call()
    with pytest.raises(ValueError, match="side"):
        fmm.prepare(b, side="top")  # type: ignore[arg-type]


def test_tensors_on_the_host() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.randn(30, 40, requires_grad=True), torch.randn(40, 20)
    p = fmm.prepare(b)
    expected = (a @ b).detach()
    b.zero_()
    c = fmm.matmul(a, p)
    assert torch.equal(c.detach(), expected)
    c.sum().backward()
    assert a.grad is not None
    with pytest.raises(ValueError, match="gradients"):
        fmm.prepare(b.requires_grad_())


# ---- what a device would do


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_what_is_kept_is_what_a_product_reads(order: Any, side: Any) -> None:
    """The same lines, planes and exponents, behind the same matrix."""
    made = _preparation_launches(F16X3_LEAF, 0, (300, 500), "float32", order, "A" if side == "left" else "B")
    assert made is not None and made.workspace == 0
    (split,) = made.steps
    base, at = ("A", 0) if side == "left" else ("B", 1)
    size = (300, 500, 200) if side == "left" else (200, 300, 500)
    problem = Problem(*size, "float32", _layouts(size, at, order), prepared_side=base)  # type: ignore[arg-type]
    assert H200.chip is not None
    found = record_launches(Plan.parse("f16x3"), problem, chip_target(H200.chip))
    other, product = found.steps
    assert {slot.base for slot in split.slots} == {base}  # type: ignore[union-attr]
    assert {slot.base for slot in other.slots} == {"B" if base == "A" else "A", "W"}  # type: ignore[union-attr]
    written = {(slot.base, slot.offset) for slot in split.slots if slot.offset}  # type: ignore[union-attr]
    read = {(slot.base, slot.offset) for slot in product.slots if slot.base == base}  # type: ignore[union-attr]
    assert read == written and F16X3_LEAF.prepared_layout is not None
    room, more = F16X3_LEAF.prepared_layout(4, 300, 500) if order == "C" else F16X3_LEAF.prepared_layout(4, 500, 300)
    assert min(offset for _, offset in read) == room and max(offset for _, offset in read) < room + more


def _layouts(size: tuple[int, int, int], at: int, order: Any) -> tuple[Layout, ...]:
    m, k, n = size
    found = [Layout("C", k), Layout("C", n), Layout("C", n)]
    rows, cols = ((m, k), (k, n))[at]
    found[at] = Layout(order, cols if order == "C" else rows)
    return tuple(found)


def test_leaves_that_keep_nothing() -> None:
    assert _preparation_launches(VENDOR_LEAF, 0, (300, 500), "float32", "C", "B") is None
    assert _preparation_launches(F16X3_LEAF, 0, (300, 500), "float64", "C", "B") is None


def question(
    kept: PreparedOperandLayout | None, limits: Limits = PLENTY, dtype: str = "float32", steps: int = 1
) -> ProblemQuery:
    a = Operand((512, 2048), (2048, 1), dtype)
    b = Operand((2048, 4096), (4096 * steps, 1), "float32")
    return ProblemQuery(a, b, None, ProductSetting(0, dtype), H200, limits, prepared_side=kept)


def test_a_product_uses_what_is_kept() -> None:
    """Only of an operand that is as it was: another type makes a copy of it, other strides are another matrix."""
    kept = PreparedOperandLayout("B", 2048, 4096, Layout("C", 4096))
    labels = [call.launches.step_labels()[0] for call in (prepare_query(question(kept)),) if call.launches]
    assert labels and "splits A in" in labels[0]
    for asked in (
        question(None),
        question(kept, steps=2),
        question(kept._replace(rows=4096)),
        question(kept, Limits(1 << 36, 16.0, componentwise=True)),
        question(kept, dtype="float64"),
    ):
        call = prepare_query(asked)
        assert call.decision.problem is None or not call.decision.problem.prepared_side
        assert not any("splits A in" in line for line in (call.launches.step_labels() if call.launches else ()))


def test_float64_is_kept_as_residues() -> None:
    """Where the problem says so; and a product of few rows is worth them sooner."""
    known = datasheet_calibration("h200")
    times = [choose(Problem(2048, 8192, 8192, prepared_side=kept), known, PLENTY) for kept in (None, "B")]
    assert times[1].best.time < 0.9 * times[0].best.time and str(times[1].best.plan) == "residues(14) > bytes"
    (leaf,) = (x for x in plan_leaves() if x.prepared_layout and "float64" in x.types)
    made = _preparation_launches(leaf, 0, (300, 500), "float64", "C", "B")
    assert made is not None and made.workspace == 8 * 500 * 300 + 8 * 500 * 300 % 256
    assert [x.label.split(":")[0] for x in made.launches] == ["residue_planes", "residue_planes"]


def test_what_is_kept_counts_in_the_choice() -> None:
    """A plan whose leaf keeps its operand is predicted to take less time, and begins to pay for fewer rows."""
    known = datasheet_calibration("h200")
    times = [
        choose(Problem(128, 8192, 8192, "float32", prepared_side=kept), known, PLENTY).best.time for kept in (None, "B")
    ]
    assert times[1] < 0.7 * times[0]


def test_gradients_are_products_of_which_nothing_is_kept() -> None:
    torch = pytest.importorskip("torch")
    p = fmm.prepare(np.ones((70, 70), np.float32))
    object.__setattr__(p, "_prepared_side", PreparedOperandLayout("B", 70, 70, Layout("C", 70)))
    assert unwrap_operands(np.ones((70, 70)), p, NO_CONSTRAINTS)[2].prepared_side is not None
    assert unwrap_operands(torch.ones(70, 70, requires_grad=True), p, NO_CONSTRAINTS)[2].prepared_side is None
    assert unwrap_operands(p, np.ones((70, 70)), NO_CONSTRAINTS)[2].prepared_side is None


# ---- componentwise


def test_componentwise_plans() -> None:
    for text, bounds in (
        ("vendor", True),
        ("f16x3", True),
        ("tile", True),
        ("aligned.batched.pad16 > vendor", True),
        ("strassen > vendor", False),
        ("strassen.batched.pad16 > f16x3", False),
        ("3m > vendor", False),
        ("vendor3m", False),
    ):
        assert has_componentwise_bound(Plan.parse(text)) == bounds, text


def test_componentwise_choices() -> None:
    known = datasheet_calibration("h200")
    for n in (2048, 16384, 32768):
        problem = Problem(n, n, n, "float32", componentwise=True)
        found = choose(problem, known, Limits(1 << 37, 16.0, componentwise=True)).best.plan
        assert found.leaf == "f16x3" and not found.levels
    strict = choose(Problem(4096, 4096, 4096), known, Limits(1 << 37, 16.0, componentwise=True))
    assert not strict.best.plan.levels


def test_componentwise_launches() -> None:
    big = Operand((4096, 4096), (4096, 1), "float32")
    call = prepare_query(
        ProblemQuery(big, big, None, ProductSetting(0, "float32"), H200, Limits(1 << 36, 16.0, componentwise=True))
    )
    assert call.launches is not None and "|A| |B|" in str(call.decision)
    lines = call.launches.step_labels()
    assert [line.split(":")[0] for line in lines[:4]] == [*["f16_spread"] * 3, "gemm_f16x3"]
    assert "recompute" in lines[-1]
    level = Plan.parse("strassen.batched.pad16 > f16x3")
    with pytest.raises(fmm.PlanError, match="each entry"):
        prepare_query(
            ProblemQuery(
                big, big, None, ProductSetting(0, "float32"), H200, Limits(1 << 36, 16.0, componentwise=True), level
            )
        )


def test_componentwise_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.zeros((1500, 1500))
    with pytest.raises(fmm.PlanError, match="each entry"):
        fmm.matmul(a, a, plan="strassen > vendor", componentwise=True)
    assert not fmm.explain(a, a, componentwise=True).plan.levels
    monkeypatch.setenv("FMM_COMPONENTWISE", "1")
    assert not fmm.explain(a, a).plan.levels
    with pytest.raises(fmm.PlanError, match="each entry"):
        fmm.matmul(a, a, plan="strassen > vendor")


# ---- the wrong side, a device, other processes


def test_who_gives_it_on_the_wrong_side_is_told_so() -> None:
    """By a note: the exception is the library's own."""
    a, b = np.ones((30, 40)), np.ones((40, 20))
    with pytest.raises(ValueError, match="mismatch") as caught:
        fmm.matmul(fmm.prepare(b), a)
    assert caught.value.__notes__ == [
        "a was prepared for the other side, fmm.matmul(x, p); for this one: fmm.prepare(..., side='left')"
    ]
    with pytest.raises(ValueError, match="mismatch") as caught:
        fmm.matmul(b, fmm.prepare(a, side="left"))
    assert "b was prepared for the other side, fmm.matmul(p, x)" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="mismatch") as caught:  # on its own side, and of another shape
        fmm.matmul(b, fmm.prepare(b))
    assert not hasattr(caught.value, "__notes__")


def test_an_explanation_tells_who_gives_it_on_the_wrong_side_where_it_fits() -> None:
    """The product is right there, and only not as fast as it could be."""
    a = np.arange(16.0).reshape(4, 4)
    p, q = fmm.prepare(a), fmm.prepare(a, side="left")
    for right, wrong, name, call in ((q, p, "a", "fmm.matmul(x, p)"), (p, q, "b", "fmm.matmul(p, x)")):
        pair = (lambda x: (x, a)) if name == "a" else (lambda x: (a, x))
        told = f"; {name} was prepared for the other side, {call}; for this one: fmm.prepare(..., side={right.side!r})"
        assert fmm.explain(*pair(wrong)).reason == fmm.explain(*pair(right)).reason + told
        np.testing.assert_array_equal(fmm.matmul(*pair(wrong)), a @ a)


def test_a_device_reads_it_as_it_reads_the_array() -> None:
    """Where there is none that is the error, not what the operand is."""
    a = np.ones((4, 4))
    np.testing.assert_array_equal(fmm.matmul(a, fmm.prepare(a), device="cpu"), a @ a)
    with pytest.raises((ImportError, ValueError), match=r"device=0|no device|cupy") as caught:
        fmm.matmul(a, fmm.prepare(a), device=0)
    assert "prepared operand" not in str(caught.value)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_are_prepared_anew(copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept stands behind the array in its memory, and does not come with it."""
    b = np.arange(12.0).reshape(3, 4)
    p = fmm.prepare(b, side="left")
    made, prepared_copy = [0], prepared_operand._read_only_copy

    def counted(*given: Any) -> Any:
        made[0] += 1
        return prepared_copy(*given)

    monkeypatch.setattr(prepared_operand, "_read_only_copy", counted)
    q = copied(p)
    assert made == [1] and (q.side, q.shape, q.dtype, q.prepared_leaf) == (p.side, p.shape, p.dtype, "")
    assert not q._array.flags.writeable and q._array is not p._array
    np.testing.assert_array_equal(fmm.matmul(q, b.T), b @ b.T)


def test_what_is_no_matrix_is_not_prepared() -> None:
    for x in (None, 3.0, "ab", object(), np.array(3.0)):
        with pytest.raises(ValueError, match=rf"fmm\.prepare takes a matrix, not {re.escape(repr(x))}$"):
            fmm.prepare(x)


def test_sparse_tensors_are_prepared() -> None:
    torch = pytest.importorskip("torch")
    a = torch.eye(6, dtype=torch.float64)
    p = fmm.prepare(a.to_sparse(), side="left")
    assert p.nbytes == 6 * 8 + 2 * 6 * 8 and torch.equal(fmm.matmul(p, 2 * a), 2 * a)

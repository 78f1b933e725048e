"""torch's own samples of its operators' arguments, multiplied with fmm below them: of all shapes, layouts and types."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from fmm.kernels.plans.plan import Plan
from tests.support.torch_plans import plans_for_all

torch: Any = pytest.importorskip("torch")
if not hasattr(torch.library, "get_kernel"):
    pytest.skip("this torch does not hand out its kernels", allow_module_level=True)
from fmm.integrations import torch_answers  # noqa: E402 - which loads torch
from fmm.integrations.torch_install import install_at_key  # noqa: E402
from fmm.integrations.torch_kernels import bypass_fmm  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NAMES = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "matmul",
    "__rmatmul__",
    "nn.functional.linear",
    "nn.functional.bilinear",
    "addbmm",
    "linalg.multi_dot",
    "linalg.matrix_power",
    "tensordot",
    "einsum",
    "inner",
)
DTYPES = ("float32", "float64", "complex128", "int64")


@pytest.fixture
def run(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """Every product of more than a few numbers by a plan."""
    monkeypatch.setattr(torch_answers, "small_enough", lambda m, k, n, itemsize: m * k * n < 8)
    with plans_for_all(monkeypatch) as plans:
        undo = install_at_key("CUDA" if device == "cuda" else "CPU", compiled=False)
        try:
            yield plans
        finally:
            undo()


def operators(name: str) -> list[Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        pytest.skip(f"this torch's samples need more: {error}")
    return [op for op in op_db if op.name == name]


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_multiplied_as_torch_does(name: str, device: str, run: list[Plan]) -> None:
    """Results and gradients; and what torch rejects is its own error."""
    count = 0
    for op in operators(name):
        for dtype in (getattr(torch, x) for x in DTYPES if getattr(torch, x) in op.supported_dtypes(device)):
            differentiable = dtype.is_floating_point or dtype.is_complex
            for sample in op.sample_inputs(device, dtype, requires_grad=differentiable):
                ours, theirs = answer(op, sample), own_answer(op, sample)
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
                count += 1
        for wrong in op.error_inputs(device) if op.error_inputs_func else ():
            sample = wrong.sample_input
            with pytest.raises(wrong.error_type) as said:
                op(sample.input, *sample.args, **sample.kwargs)
            assert own_error(op, sample) == str(said.value)
    assert count
    if name in ("mm", "bmm", "addmm", "baddbmm", "matmul", "nn.functional.linear"):
        assert run


def answer(op: Any, sample: Any) -> Any:
    """The result, and gradients of it where there are any."""
    found = op(sample.input, *sample.args, **sample.kwargs)
    leaves = [x for x in tensors(sample) if x.requires_grad]
    if not leaves or not found.requires_grad:
        return found, ()
    return found, torch.autograd.grad(found.abs().pow(2).sum(), leaves, allow_unused=True, materialize_grads=True)


def tensors(sample: Any) -> Iterator[Any]:
    for value in (sample.input, *sample.args, *sample.kwargs.values()):
        yield from (x for x in (value if isinstance(value, list | tuple) else [value]) if isinstance(x, torch.Tensor))


def own_answer(op: Any, sample: Any) -> Any:
    with bypass_fmm(), torch.autograd.set_multithreading_enabled(False):
        return answer(op, sample)


def own_error(op: Any, sample: Any) -> str:
    try:
        with bypass_fmm():
            op(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        return str(error)
    return "none"

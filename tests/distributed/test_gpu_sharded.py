"""Products of DTensors by several GPUs, through NCCL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sharded_processes import run_processes

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")


@pytest.fixture
def count() -> int:
    found = int(torch.cuda.device_count())
    if found < 2 or not torch.distributed.is_nccl_available():
        pytest.skip(f"several CUDA devices and NCCL are wanted; this torch has {found} device")
    return min(found, 4)


# Of all placements, types and uneven sizes; large ones, which run plans on each; CuPy's arrays; and a model whose
# parameters are sharded, which trains as without.
@pytest.mark.parametrize(
    "what",
    [
        "products",
        "large_products",
        "array_products",
        "shared_memory",
        "refused_arrays",
        "other_stream",
        "fully_sharded_model",
    ],
)
def test_products_of_sharded_matrices(count: int, what: str) -> None:
    for ended in run_processes(count, what, "cuda"):
        assert ended.status == 0 and "is done" in ended.output, ended.output


def test_a_lost_process_ends_the_others_when_the_time_out_passes(count: int) -> None:
    """The survivor gets fmm's error or that of NCCL's watchdog, whichever comes first."""
    first, second, *_ = run_processes(2, "lost_process", "cuda")
    assert second.status < 0  # it was killed
    assert first.status != 0 and ("LostProcessError" in first.output or "timeout" in first.output), first.output

"""CuPy arrays as parts of sharded matrices, with one NCCL process; with several in test_gpu_sharded.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sharded_processes import run_processes

pytestmark = pytest.mark.gpu
pytest.importorskip("cupy")
torch: Any = pytest.importorskip("torch")


@pytest.mark.parametrize("case", ["shared_memory", "refused_arrays", "other_stream"])
def test_cupys_arrays(case: str) -> None:
    """Run a case of tests/support/array_ranks.py."""
    if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        pytest.skip("a CUDA device and NCCL are wanted")
    (ended,) = run_processes(1, case, "cuda")
    assert ended.status == 0 and "is done" in ended.output, ended.output

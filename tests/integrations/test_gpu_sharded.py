"""Products of DTensors by several GPUs, which talk through NCCL."""

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


def test_all_placements_types_and_uneven_sizes(count: int) -> None:
    for ended in run_processes(count, "products", "cuda"):
        assert ended.status == 0 and "is done" in ended.output, ended.output


def test_large_products_run_plans_on_each(count: int) -> None:
    for ended in run_processes(count, "large", "cuda"):
        assert ended.status == 0 and "is done" in ended.output, ended.output


def test_arrays_of_cupy(count: int) -> None:
    for ended in run_processes(count, "of_cupy", "cuda"):
        assert ended.status == 0 and "is done" in ended.output, ended.output


def test_a_model_whose_parameters_are_sharded_trains_as_without(count: int) -> None:
    for ended in run_processes(count, "fully_sharded", "cuda"):
        assert ended.status == 0 and "is done" in ended.output, ended.output


def test_a_lost_process_ends_the_others_when_the_time_out_passes(count: int) -> None:
    """By fmm's error, or by that of NCCL's watchdog, whoever is first."""
    first, second, *_ = run_processes(2, "lost", "cuda")
    assert second.status < 0  # it was killed
    assert first.status != 0 and ("LostProcessError" in first.output or "timeout" in first.output), first.output

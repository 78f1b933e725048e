"""Products of DTensors by several processes, which talk through gloo; what needs no torch is in tests/kernels and
tests/perfmodel."""

from __future__ import annotations

import pytest

from tests.support.sharded_processes import run_processes

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_placements_types_and_uneven_sizes(count: int) -> None:
    for ended in run_processes(count, "products"):
        assert ended.status == 0 and "is done" in ended.output, ended.output


@pytest.mark.parametrize("case", ["explanations", "installed", "large_products", "fully_sharded_model"])
def test_of_two_processes(case: str) -> None:
    ended_well(2, case)


@pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch does not hand out its kernels")
@pytest.mark.parametrize("count", [2, 4])
def test_the_operator_multiplies_sharded_matrices(count: int) -> None:
    ended_well(count, "operator")


def test_a_row_of_processes_as_a_rectangle() -> None:
    ended_well(4, "rectangle")


HOSTILE = [
    "differing_requests",
    "refused_requests",
    "recreated_groups",
    "odd_parts",
    "all_gradients",
    "gradients_of_partial_sums",
    "autocast",
    "equal_explanations",
    "inf_and_overflow",
]


@pytest.mark.parametrize("case", HOSTILE)
def test_what_processes_and_torch_may_do(case: str) -> None:
    """Run a case of tests/support/hostile_ranks.py."""
    ended_well(2, case)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_arrays_of_which_each_process_holds_its_parts(count: int) -> None:
    ended_well(count, "array_products")


@pytest.mark.parametrize("case", ["shared_memory", "refused_arrays"])
def test_arrays_are_not_copied_and_bad_ones_refused(case: str) -> None:
    """Run a case of tests/support/array_ranks.py."""
    ended_well(2, case)


@pytest.mark.parametrize("count", [3, 4])
def test_meshes_of_a_part_of_the_processes(count: int) -> None:
    ended_well(count, "submeshes")


def test_a_process_that_does_not_come_is_waited_for_until_the_time_out() -> None:
    first, _ = run_processes(2, "timeout")
    assert first.status == 3 and "LostProcessError" in first.output, first.output


def ended_well(count: int, case: str) -> None:
    for ended in run_processes(count, case):
        assert ended.status == 0 and "is done" in ended.output, ended.output


def test_a_lost_process_ends_the_others_with_a_clear_error() -> None:
    first, second = run_processes(2, "lost_process")
    assert second.status < 0  # it was killed
    assert first.status == 3, first.output
    assert "LostProcessError" in first.output and "one of the processes 1 is lost" in first.output, first.output

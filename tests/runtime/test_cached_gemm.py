"""Cached plans of fmm.gemm and of torch's operators: the second of two equal calls runs few functions."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

MOST = {"cupy": 21, "torch": 27, "hook": 34}  # functions before the launches, without those that read an address
READS = ("data_pointer", "can_write_into_out", "may_c_share_memory", "may_overlap", "transposed_view", "broadcast_view")
LIBRARIES = ["cupy", "torch", "hook"]


@cache
def observed_calls(library: str) -> dict[str, Any]:
    if library != "cupy":
        torch: Any = pytest.importorskip("torch")
        if library == "hook" and not hasattr(torch.library, "get_kernel"):
            pytest.skip("this torch does not hand out its kernels")
    command = [sys.executable, "-m", "tests.support.planned_gemms", library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_second_of_two_equal_calls_is_not_checked_again(library: str) -> None:
    for title, found in observed_calls(library)["equal"].items():
        assert found["is_first_checked"], title
        names = [x for x in found["functions"] if not x.endswith((">", *READS))]
        assert "fmm.runtime.gemm.operands_of_cached_plan" in names, title
        assert not {"fmm.request.check_gemm", "fmm.integrations.torch_answers._compute_or_decline"} & {*names}, title
        assert len(names) <= MOST[library], (title, names)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_second_of_two_equal_calls_passes_on_what_the_first_did(library: str) -> None:
    """The prepared call, the addresses and layouts of A, B, `out` and the addend, and alpha and beta are the same."""
    for title, found in observed_calls(library)["equal"].items():
        assert found["is_same"], title


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_call_that_differs_is_checked(library: str) -> None:
    for title, is_checked in observed_calls(library)["other"].items():
        assert is_checked, title

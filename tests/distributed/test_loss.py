"""Errors that mean a lost process, and errors that pass unchanged."""

from __future__ import annotations

from importlib import import_module

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
shared_product = import_module("fmm.distributed.exchange")

PROCESSES = shared_product.MeshProcesses(None, (5, 2, 7), 0)
CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:29500"
LOST = {
    "of NCCL": torch.distributed.DistBackendError("NCCL communicator was aborted"),
    "of the store": torch.distributed.DistStoreError("wait timeout after 10000ms"),
    "of a socket": torch.distributed.DistNetworkError("Broken pipe"),
    "of gloo": RuntimeError(CLOSED),
}
OTHERS = {
    "a placement that torch does not make": RuntimeError("Can not redistribute to Partial"),
    "no memory": torch.OutOfMemoryError("CUDA out of memory"),
    "a kernel that failed": RuntimeError("CUDA error: an illegal memory access was encountered"),
    "an argument": ValueError("gloo/ is no placement"),
}


@pytest.mark.parametrize("error", LOST.values(), ids=LOST)
def test_errors_of_torch_distributed_name_the_other_processes(error: Exception) -> None:
    with (
        pytest.raises(shared_product.LostProcessError) as reported,
        shared_product.translate_lost_process_errors(PROCESSES, "step 1 of 2"),
    ):
        raise error
    assert "one of the processes 2, 7 is lost or did not answer in time (step 1 of 2)" in str(reported.value)
    assert str(error) in str(reported.value) and reported.value.__cause__ is error


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as reported, shared_product.translate_lost_process_errors(PROCESSES, "step 1 of 2"):
        raise error
    assert reported.value is error

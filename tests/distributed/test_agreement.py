"""The processes of a mesh agree on a call; one process simulates the other's messages."""

from __future__ import annotations

from hashlib import sha256
from importlib import import_module
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
agreement = import_module("fmm.distributed.exchange")
shared_product = import_module("fmm.distributed.exchange")

DEVICE = torch.device("cpu")


def heard(monkeypatch: pytest.MonkeyPatch, other: str, cached: bool) -> list[Any]:
    """Simulate a second process that makes the call `other`; return the messages sent."""
    text, sent = other.encode(), list[Any]()
    digest = sha256(text).digest()
    words = [int.from_bytes(digest[i : i + 8], "little", signed=True) for i in range(0, 32, 8)]

    def all_gather(every: list[Any], mine: Any, group: Any) -> None:
        assert mine.device == DEVICE
        sent.append(mine)
        answers = [*words, int(cached), len(text)] if len(sent) == 1 else list(text.ljust(len(mine), b"\0"))
        every[0].copy_(mine)
        every[1].copy_(torch.tensor(answers, dtype=mine.dtype))

    def of_the_current_device(*arguments: Any) -> None:
        raise AssertionError("objects are sent by way of the device that happens to be the current one")

    monkeypatch.setattr(agreement.dist, "all_gather", all_gather)
    monkeypatch.setattr(agreement.dist, "all_gather_object", of_the_current_device)
    monkeypatch.setattr(agreement.dist, "get_process_group_ranks", lambda group: [5, 2])
    return sent


PROCESSES = shared_product.MeshProcesses(None, (5, 2), 0)


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True), (False, False)])
def test_one_message_if_all_ask_the_same(monkeypatch: pytest.MonkeyPatch, first: bool, second: bool) -> None:
    sent = heard(monkeypatch, "a times b", second)
    assert agreement.is_call_cached_everywhere(PROCESSES, "a times b", first, DEVICE) is (first and second)
    assert len(sent) == 1


@pytest.mark.parametrize("other", ["a", "a times c, in float64", "ä × c", ""])
def test_different_questions_are_told_to_all_in_one_order(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    heard(monkeypatch, other, True)
    with pytest.raises(ValueError) as reported:
        agreement.is_call_cached_everywhere(PROCESSES, "a times b", True, DEVICE)
    assert str(reported.value).endswith(f"different products: process 2: {other}; process 5: a times b")

"""Cards that several processes share, and cards that are equal."""

from __future__ import annotations

from typing import Any

import pytest

from fmm.config.files import SHIPPED_CONFIG, Configs
from fmm.hardware import nvml
from fmm.runtime.decisions import limits
from fmm.runtime.devices import gpu_from_description


class Memory:
    """A library of arrays of which only the free memory is asked."""

    name, processor = "asked for its memory", "cuda"

    def free_bytes(self, number: int) -> int:
        return 64 << 30


@pytest.mark.parametrize(("processes", "gibibytes"), [(1, 32), (2, 16), (4, 8)])
def test_each_process_takes_its_part(monkeypatch: pytest.MonkeyPatch, processes: int, gibibytes: int) -> None:
    monkeypatch.setattr(limits, "count_gpu_processes", lambda number: processes)
    monkeypatch.setattr(limits, "_workspace_readings", {})
    library: Any = Memory()
    assert limits.default_workspace_bytes(library, 0) == gibibytes << 30


class Nvml:
    """NVML with so many processes on each of its devices."""

    def __init__(self, processes: dict[bytes, int]) -> None:
        self.processes = list(processes.items())

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus: bytes, handle: Any) -> int:  # noqa: N802
        places = [i for i, (name, _) in enumerate(self.processes) if name == bus]
        handle._obj.value = places[0] + 1 if places else None
        return 0 if places else 6

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, infos: None) -> int:  # noqa: N802
        count._obj.value = self.processes[handle.value - 1][1]
        return limits.NVML_INSUFFICIENT_SIZE if count._obj.value else 0


def test_processes_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML counts devices in an order of its own: they are found by the bus."""
    monkeypatch.setattr(limits, "nvml_library", lambda: Nvml({b"0000:02:00.0": 5, b"0000:01:00.0": 0}))
    monkeypatch.setattr(limits, "_pci_bus_id", lambda number: f"0000:0{number + 1}:00.0")
    limits._nvml_handle.cache_clear()
    assert [limits.count_gpu_processes(number) for number in (0, 1, 2)] == [1, 5, 1]
    limits._nvml_handle.cache_clear()


def test_without_nvml_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.nvml_library.cache_clear()
    monkeypatch.setattr(nvml, "NVML_FILE", "libnothing-of-that-name.so")
    limits._nvml_handle.cache_clear()
    assert limits.count_gpu_processes(0) == 1
    nvml.nvml_library.cache_clear()
    limits._nvml_handle.cache_clear()


def test_equal_cards_are_tuned_once() -> None:
    """What is filed under one card's identity answers for every card of its kind, whatever its number; not for one with
    fewer multiprocessors."""
    first, second = (gpu_from_description("NVIDIA H200", "9.0", 132) for _ in range(2))
    assert first == second
    configs = Configs((SHIPPED_CONFIG,), True)
    tuned = [configs.find_tuning(card.identity, "float32") for card in (first, second)]
    assert tuned[0] is not None and tuned[0] is tuned[1]
    assert configs.find_tuning(gpu_from_description("NVIDIA H200", "9.0", 114).identity, "float32") is None

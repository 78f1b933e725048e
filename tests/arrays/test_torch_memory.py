"""What of a GPU's memory torch can still give, told without one."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "numbers",
    [
        {"reserved_bytes": 9 << 30, "allocated_bytes": 2 << 30, "inactive_split_bytes": 1 << 30},
        {"reserved_bytes": 4096, "allocated_bytes": 4000, "inactive_split_bytes": 512},  # scraps beyond what is free
        {"reserved_bytes": 9 << 30, "allocated_bytes": 2 << 30},  # an allocator that splits no blocks
        {},  # torch has not used the device yet
    ],
    ids=["usual", "scraps", "no scraps", "unused"],
)
def test_free_memory_is_what_torchs_flat_statistics_come_to(
    numbers: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from fmm.arrays.torch_library import TORCH

    stats = {
        name: {pool: {"current": x, "peak": 2 * x} for pool in ("all", "large_pool")} for name, x in numbers.items()
    }
    for module in (torch.cuda, torch.cuda.memory):
        monkeypatch.setattr(module, "memory_stats_as_nested_dict", lambda device=None: stats)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (5 << 30, 80 << 30))
    kept = torch.cuda.memory_reserved(0) - torch.cuda.memory_allocated(0)
    scraps = torch.cuda.memory_stats(0).get("inactive_split_bytes.all.current", 0)
    assert kept == numbers.get("reserved_bytes", 0) - numbers.get("allocated_bytes", 0)
    assert TORCH.free_bytes(0) == (5 << 30) + max(kept - scraps, 0)

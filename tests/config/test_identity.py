"""Device keys: two cards with one chip have different keys, and neither answers for the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fmm.config import reader, store
from fmm.config.files import Configs, read_config
from fmm.config.identity import gpu_device_key, parse_gpu_device_key
from fmm.runtime.devices import Device, gpu_from_description
from tests.support import configs as tuned

H100, H200 = (gpu_from_description(name, "9.0", 132) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"))
SIZE = (6000, 6000, 6000)


def section(card: Device, plan: str = "winograd > vendor") -> dict[str, Any]:
    """The section that a tuning of this card writes; it certifies the plan."""
    conditions = {"device": card.identity.name, "memory": 80 << 30}
    return tuned.section(tuned.entry(SIZE, plan), conditions=conditions, versions={})


def write_config(path: Path, devices: dict[str, Any]) -> Path:
    path.write_text(reader.config_text(devices), encoding="utf-8")
    return path


def certified_plan(path: Path, card: Device, dtype: str = "float64") -> str | None:
    """The certified plan that the config holds for a card."""
    found = Configs((path,), True).find_tuning(card.identity, dtype)
    entry = found.find_entry(SIZE) if found else None
    return str(entry[1]) if entry else None


def test_cards_with_one_chip_have_two_keys() -> None:
    assert H100.identity.key == "cuda-9.0-132sm-nvidia-h100-80gb-hbm3"
    assert H200.identity.key == gpu_device_key("NVIDIA H200", "9.0", 132) == "cuda-9.0-132sm-nvidia-h200"
    small, large = (gpu_device_key(f"NVIDIA A100-SXM4-{memory}GB", "8.0", 108) for memory in (40, 80))
    assert small != large


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("cuda-9.0-132sm-nvidia-h200", ("9.0", 132)),
        ("cuda-9.0-132sm", ("9.0", 132)),
        ("cuda-12.0-170sm-a-9-1sm", ("12.0", 170)),
        ("cpu-intel-r-xeon-2t", None),
        ("cuda-9.0-132smh", None),
        (f"cuda-9.0-{'1' * 5000}sm", None),  # more digits than Python reads
    ],
)
def test_parts_of_a_key(key: str, parts: tuple[str, int] | None) -> None:
    assert parse_gpu_device_key(key) == parts


def test_two_cards_with_one_chip_do_not_answer_for_each_other(tmp_path: Path) -> None:
    both = {H100.identity.key: "strassen > vendor", H200.identity.key: "winograd > vendor"}
    cards = {card.identity.key: card for card in (H100, H200)}
    path = write_config(tmp_path / "both", {key: {"float64": section(cards[key], plan)} for key, plan in both.items()})
    assert {key: certified_plan(path, card) for key, card in cards.items()} == both
    alone = write_config(tmp_path / "alone", {H200.identity.key: {"float64": section(H200)}})
    assert certified_plan(alone, H200) and certified_plan(alone, H100) is None


def test_a_tuning_of_one_card_leaves_the_other_cards_section(tmp_path: Path) -> None:
    old, new = section(H200, "strassen > vendor"), section(H100, "winograd > vendor")
    path = write_config(tmp_path / "config.json", {H200.identity.key: {"float64": old}})
    before = read_config(path)[H200.identity.key]
    store.merge_section(path, H100.identity.key, "float64", {**new, "entries": []})
    found = read_config(path)
    assert found.keys() == {H100.identity.key, H200.identity.key} and found[H200.identity.key] == before
    assert certified_plan(path, H200) == "strassen > vendor" and certified_plan(path, H100) is None
    store.merge_section(path, H200.identity.key, "float64", {**old, "entries": []})  # its own entries are kept
    assert certified_plan(path, H200) == "strassen > vendor"

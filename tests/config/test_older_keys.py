"""Keys of GPUs: two cards with one chip have two, and what an earlier fmm filed under one is of the card it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fmm.config import files, reader, store
from fmm.config.files import Configs, read_config
from fmm.config.identity import gpu_key, gpu_parts
from fmm.config.older_keys import meant_key, older_key
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions.decide import decide
from fmm.runtime.devices import Device, described_gpu
from tests.support import configs as tuned

OLDER = "cuda-9.0-132sm"
H100, H200 = (described_gpu(name, "9.0", 132) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"))
SIZE = (6000, 6000, 6000)


def section(card: Device, plan: str = "winograd > vendor", **more: Any) -> dict[str, Any]:
    """What a tuning of that card wrote: this plan is certified."""
    conditions = {"device": card.identity.name, "memory": 80 << 30}
    return tuned.section(tuned.entry(SIZE, plan), conditions=conditions, versions={}, **more)


def written(path: Path, devices: dict[str, Any]) -> Path:
    path.write_text(reader.config_text(devices), encoding="utf-8")
    return path


def plan_of(path: Path, card: Device, dtype: str = "float64") -> str | None:
    """The certified plan that the config has for a card."""
    found = Configs((path,), True).tuned(card.identity, dtype)
    entry = found.entry(SIZE) if found else None
    return str(entry[1]) if entry else None


# ---- keys


def test_cards_with_one_chip_have_two_keys() -> None:
    assert H100.identity.key == "cuda-9.0-132sm-nvidia-h100-80gb-hbm3"
    assert H200.identity.key == gpu_key("NVIDIA H200", "9.0", 132) == "cuda-9.0-132sm-nvidia-h200"
    small, large = (gpu_key(f"NVIDIA A100-SXM4-{memory}GB", "8.0", 108) for memory in (40, 80))
    assert small != large and older_key(small) == older_key(large) == "cuda-8.0-108sm"


@pytest.mark.parametrize(
    ("key", "parts", "older"),
    [
        ("cuda-9.0-132sm-nvidia-h200", ("9.0", 132), OLDER),
        (OLDER, ("9.0", 132), OLDER),
        ("cuda-12.0-170sm-a-9-1sm", ("12.0", 170), "cuda-12.0-170sm"),
        ("cpu-intel-r-xeon-2t", None, "cpu-intel-r-xeon-2t"),
        ("cuda-9.0-132smh", None, "cuda-9.0-132smh"),
        (f"cuda-9.0-{'1' * 5000}sm", None, f"cuda-9.0-{'1' * 5000}sm"),  # more digits than Python reads
    ],
)
def test_what_a_key_tells(key: str, parts: tuple[str, int] | None, older: str) -> None:
    assert gpu_parts(key) == parts and older_key(key) == older


def test_an_older_key_means_the_only_card_of_its_chip() -> None:
    one, two = H100.identity.key, H200.identity.key
    assert meant_key(OLDER, [one, "cpu-a-2t"]) == one and meant_key(one, [one, two]) == one
    assert meant_key(OLDER, [one, two]) == meant_key(OLDER, [one, OLDER]) == meant_key(OLDER, []) == OLDER
    assert meant_key("cuda-9.0-114sm", [one]) == "cuda-9.0-114sm"


# ---- what is filed under them


def test_two_cards_with_one_chip_do_not_answer_for_each_other(tmp_path: Path) -> None:
    both = {H100.identity.key: "strassen > vendor", H200.identity.key: "winograd > vendor"}
    cards = {card.identity.key: card for card in (H100, H200)}
    path = written(tmp_path / "both", {key: {"float64": section(cards[key], plan)} for key, plan in both.items()})
    assert {key: plan_of(path, card) for key, card in cards.items()} == both
    alone = written(tmp_path / "alone", {H200.identity.key: {"float64": section(H200)}})
    assert plan_of(alone, H200) and plan_of(alone, H100) is None


def test_an_older_key_is_of_the_card_that_its_section_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "config.json", {OLDER: {"float64": section(H200)}})
    monkeypatch.setenv("FMM_CONFIG", str(path))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    steps = [decide(Problem(*SIZE, "float64"), Limits(1 << 40, 1e6), card).step for card in (H200, H100)]
    files.clear_config_cache()
    assert steps == ["certified entry", "datasheet model"]


def test_sections_under_one_older_key_go_to_several_cards(tmp_path: Path) -> None:
    nameless = {**section(H200), "conditions": None}
    types = {"float64": section(H200), "float32": section(H100), "bfloat16": nameless}
    path = written(tmp_path / "config.json", {"cpu-a-2t": {"float64": section(H200)}, OLDER: types})
    found = read_config(path)
    assert {key: list(sections) for key, sections in found.items()} == {
        "cpu-a-2t": ["float64"],
        H200.identity.key: ["float64"],
        H100.identity.key: ["float32"],
        OLDER: ["bfloat16"],
    }
    assert [plan_of(path, card, "bfloat16") for card in (H100, H200)] == [None, None], "it is nobody's"


@pytest.mark.parametrize("first", [OLDER, H200.identity.key])
def test_what_is_filed_under_todays_key_wins(first: str, tmp_path: Path) -> None:
    """Wherever it stands in the file."""
    devices = {
        OLDER: {"float64": section(H200, "strassen > vendor"), "float32": section(H200, "strassen > vendor")},
        H200.identity.key: {"float64": section(H200, "winograd > vendor")},
    }
    path = written(tmp_path / "config.json", dict(sorted(devices.items(), key=lambda item: item[0] != first)))
    assert list(read_config(path)) == [H200.identity.key]
    assert [plan_of(path, H200, x) for x in ("float64", "float32")] == ["winograd > vendor", "strassen > vendor"]


@pytest.mark.parametrize("damaged", [None, 3, [], {"conditions": [1]}, {"conditions": {"device": ["H200"]}}])
def test_a_damaged_section_under_an_older_key_disturbs_nobody(damaged: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    devices = {OLDER: {"float32": damaged, "float64": section(H200)}}
    path.write_text(json.dumps({"schema": 1, "devices": devices}), encoding="utf-8")
    assert plan_of(path, H200) == "winograd > vendor" and plan_of(path, H200, "float32") is None


def test_a_tuning_of_one_card_keeps_what_an_older_key_has_of_another(tmp_path: Path) -> None:
    """Entries too, which were the new section's where both cards had one key."""
    old, new = section(H200, "strassen > vendor"), section(H100, "winograd > vendor")
    path = written(tmp_path / "config.json", {OLDER: {"float64": old}})
    before = read_config(path)[H200.identity.key]
    store.merge_section(path, H100.identity.key, "float64", {**new, "entries": []})
    found = json.loads(path.read_text(encoding="utf-8"))["devices"]
    assert found.keys() == {H100.identity.key, H200.identity.key} and found[H200.identity.key] == before
    assert plan_of(path, H200) == "strassen > vendor" and plan_of(path, H100) is None
    store.merge_section(path, H200.identity.key, "float64", {**old, "entries": []})  # its own: its entries are kept
    assert plan_of(path, H200) == "strassen > vendor"

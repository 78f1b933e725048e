"""A GPU that nobody tuned decides by the shipped model of a measured relative, where the shipped config is searched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fmm.config import files
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import calibration_in_force
from fmm.runtime.devices import gpu_from_description

PROBLEM, LARGE = Problem(8192, 8192, 8192, "float32"), Limits(1 << 40)
RELATIVES = (
    ("NVIDIA H800", 132, "H800"),
    ("NVIDIA GH200 480GB", 132, "GH200"),
    ("NVIDIA GH200 144G HBM3e", 132, "GH200 144G"),
    ("NVIDIA H100 NVL", 132, "H100 NVL"),
    ("NVIDIA H100 PCIe", 114, "H100 PCIe"),
    ("NVIDIA H20", 78, "H20"),
)


@pytest.fixture
def shipped_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shipped config is searched, and no user's or site's config exists."""
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.delenv("FMM_CONFIG", raising=False)
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.setenv(variable, str(tmp_path))
    files.clear_config_cache()
    yield
    files.clear_config_cache()


@pytest.mark.parametrize(("name", "sms", "listed"), RELATIVES)
@pytest.mark.usefixtures("shipped_only")
def test_relatives_of_an_h100_decide_by_its_model(name: str, sms: int, listed: str) -> None:
    found = calibration_in_force(PROBLEM, LARGE, gpu_from_description(name, "9.0", sms))
    assert found is not None
    assert found.source == f"the model of the H100, scaled to the datasheet of the {listed}"
    assert found.rates["float32"].memory


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
@pytest.mark.usefixtures("shipped_only")
def test_measured_cards_decide_by_their_own_models(name: str) -> None:
    found = calibration_in_force(PROBLEM, LARGE, gpu_from_description(name, "9.0", 132))
    assert found is not None and "another card of this name" in found.source


@pytest.mark.usefixtures("shipped_only")
def test_types_without_a_shipped_model_decide_by_the_datasheet() -> None:
    complex_problem = Problem(8192, 8192, 8192, "complex128")
    found = calibration_in_force(complex_problem, LARGE, gpu_from_description("NVIDIA H800", "9.0", 132))
    assert found is not None and found.source == "datasheet, not measured"


def test_without_the_shipped_config_the_datasheet_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h800 = gpu_from_description("NVIDIA H800", "9.0", 132)
    off = calibration_in_force(PROBLEM, LARGE, h800)  # the tests switch tunings off
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    files.clear_config_cache()
    named = calibration_in_force(PROBLEM, LARGE, h800)
    files.clear_config_cache()
    assert off is not None and off == named and off.source == "datasheet, not measured"

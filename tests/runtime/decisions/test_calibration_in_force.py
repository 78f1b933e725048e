"""What the model knows of a device: of its tuning, of a probe, or by a guess; of integers and of complex numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from fmm.config import environment, files, reader
from fmm.kernels.leaves import F16X3_RATE, SMALL_RATE
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.default_calibration import BUILT_IN_SOURCE_TEXT, cpu_calibration, with_integer_rates
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import (
    add_unmeasured_rates,
    calibration_in_force,
    integer_calibration,
    tuned_calibration,
    untuned_calibration,
)
from fmm.runtime.decisions.decide import decide_plan
from fmm.runtime.devices import Device, cpu_device
from tests.support import configs as tuned
from tests.support.devices import H200

LARGE = Limits(1 << 40)
SIDE = 4096
FREE_SUMS = replace(cpu_calibration(2), stream=1e18, small=0.0, launch=0.0)  # plans with levels win by it
SLOW_SUMS = replace(cpu_calibration(2), stream=1.0)  # none wins
PROBED = replace(FREE_SUMS, source="a probe")


def product(dtype: str, side: int = SIDE) -> Problem:
    return Problem(side, side, side, dtype)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only config that is looked at."""
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    files.clear_config_cache()
    environment.log_once.cache_clear()
    yield tmp_path / "config.json"
    files.clear_config_cache()


def processor(guess: Calibration | None, probed: list[str] | None = None) -> Device:
    """This CPU with a guess, and with a probe that notes for which types it is asked."""

    def probe(dtype: str) -> Calibration:
        assert probed is not None
        probed.append(dtype)
        return PROBED

    return replace(cpu_device(2), guess=guess, probe=None if probed is None else probe)


# ---- a device that is not tuned


@pytest.mark.parametrize(
    ("guess", "probed"),
    [
        (FREE_SUMS, ["float32"]),  # the guess proposes a plan: that is worth a probe
        (SLOW_SUMS, []),  # it does not
        (None, []),  # nothing is known
    ],
)
def test_a_device_is_probed_only_where_the_guess_proposes_a_plan(guess: Calibration | None, probed: list[str]) -> None:
    seen: list[str] = []
    found = untuned_calibration(product("float32"), LARGE, processor(guess, seen))
    assert seen == probed and found is (PROBED if probed else guess)


@pytest.mark.parametrize(("dtype", "guess"), [("float32", SLOW_SUMS), ("float32", FREE_SUMS), ("int64", SLOW_SUMS)])
def test_a_process_that_has_measured_decides_by_the_measurement(dtype: str, guess: Calibration) -> None:
    """Also the products for which the guess proposes no plan; nothing is measured again."""
    device = replace(
        processor(guess, []), probe=lambda dtype: pytest.fail("measured again"), measured=lambda dtype: PROBED
    )
    found = decide_plan(product(dtype), LARGE, device)
    assert found.calibration is not None and found.calibration.source == PROBED.source


def test_limits_that_forbid_the_guess_name_the_measurement() -> None:
    """With more workspace the measured rates would decide, and not those that the reason compares."""
    guess = replace(FREE_SUMS, source=BUILT_IN_SOURCE_TEXT)
    found = decide_plan(product("float32"), Limits(0), processor(guess, []))
    assert found.plan == VENDOR and "than allowed" in found.reason
    assert found.reason.endswith("; with wider limits, this processor would be measured before a plan is chosen")


def test_a_device_without_a_probe_has_its_guess() -> None:
    assert untuned_calibration(product("float32"), LARGE, processor(FREE_SUMS)) is FREE_SUMS


# ---- a tuning


def section(path: Path, device: Device, doubts: Sequence[str] = (), **types: float) -> None:
    """A config with these types of the device, each with so many flops a second."""
    sections = {
        dtype: tuned.section(
            calibration={"stream": 1e12, "margin": 0.02, "rate": rate_fields(flops)}, doubts=list(doubts)
        )
        for dtype, flops in types.items()
    }
    path.write_text(reader.config_text({device.identity.key: sections}), encoding="utf-8")
    files.clear_config_cache()


def rate_fields(flops: float) -> dict[str, float]:
    return {"flops": flops, "fill": 0.0, "pipe": 0.0}


def trusted(device: Device, dtype: str) -> Calibration:
    found = files.active_configs().find_tuning(device.identity, dtype)
    assert found is not None
    calibration = tuned_calibration(found, device)
    assert calibration is not None
    return calibration


def test_a_tuning_comes_before_a_guess(path: Path) -> None:
    device = processor(FREE_SUMS)
    section(path, device, float64=3e9)
    found = calibration_in_force(product("float64"), LARGE, device)
    assert found is not None and found.rates["float64"].flops == 3e9
    assert calibration_in_force(product("float32"), LARGE, device) is FREE_SUMS


def test_no_tuning_is_looked_for_where_that_is_switched_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = processor(FREE_SUMS)
    section(path, device, float64=3e9)
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    assert calibration_in_force(product("float64"), LARGE, device) is FREE_SUMS


RESIDUES = "residues(14) > bytes"


def test_a_tuned_gpu_has_guessed_rates_of_the_leaves_that_the_tuning_did_not_measure(path: Path) -> None:
    """As much faster than the library as the guess says, whether no tuning measures them or only this one did not."""
    section(path, H200, float64=3e13)
    guess = H200.guess
    assert guess is not None
    found, slower = trusted(H200, "float64"), 3e13 / guess.rates["float64"].flops
    small = SMALL_RATE.format("float64")
    assert slower < 0.6 and found.rates["float64"].flops == 3e13
    for name in (RESIDUES, "residues(14) > strassen > bytes", small):
        assert found.rates[name].flops == pytest.approx(slower * guess.rates[name].flops)
    assert found.rates[F16X3_RATE] == guess.rates[F16X3_RATE], "nobody knows how fast it multiplies float32"
    assert found.call_of_small == guess.call_of_small > 0
    assert found.call_of_library == guess.call_of_library > 0


def test_complex_numbers_have_what_was_measured_of_real_ones_before_any_guess(path: Path) -> None:
    own, fields = rate_fields(9e13), {"stream": 1e12, "margin": 0.02}
    sections = {
        "complex128": tuned.section(calibration={**fields, "rate": rate_fields(4e13)}),
        "float64": tuned.section(calibration={**fields, "rate": rate_fields(3e13), "leaf_rates": {RESIDUES: own}}),
    }
    path.write_text(reader.config_text({H200.identity.key: sections}), encoding="utf-8")
    files.clear_config_cache()
    assert trusted(H200, "complex128").rates[RESIDUES].flops == 9e13
    assert {"float64", "complex128"} <= set(trusted(H200, "complex128").rates)


def test_a_leaf_that_failed_when_it_was_measured_is_not_taken_by_a_guess(path: Path) -> None:
    raw = tuned.section(calibration={"stream": 1e12, "margin": 0.02, "rate": rate_fields(3e13)})
    sections = {"float64": {**raw, "failed": [RESIDUES]}, "complex128": raw}
    path.write_text(reader.config_text({H200.identity.key: sections}), encoding="utf-8")
    files.clear_config_cache()
    for dtype in sections:
        assert RESIDUES not in trusted(H200, dtype).rates
        assert "residues(14) > strassen > bytes" in trusted(H200, dtype).rates


def test_what_a_tuning_measured_stands() -> None:
    guess = H200.guess
    assert guess is not None
    (name, *_) = add_unmeasured_rates(replace(guess, rates=MappingProxyType({})), guess).rates
    own = ProductRate(1.0, 2.0, 3.0)
    measured = replace(guess, rates=MappingProxyType({name: own}), call_of_small=9.0, call_of_library=8.0)
    found = add_unmeasured_rates(measured, guess)
    assert found.rates[name] is own and (found.call_of_small, found.call_of_library) == (9.0, 8.0)


def test_a_processor_has_no_such_rates(path: Path) -> None:
    device = processor(FREE_SUMS)
    section(path, device, float64=3e9)
    assert set(trusted(device, "float64").rates) == {"float64"}


def test_complex_numbers_have_the_rates_of_their_parts_if_these_are_tuned(path: Path) -> None:
    device = processor(FREE_SUMS)
    section(path, device, complex128=4e9)
    assert set(trusted(device, "complex128").rates) == {"complex128"}
    section(path, device, complex128=4e9, float64=3e9)
    rates = trusted(device, "complex128").rates
    assert {name: rate.flops for name, rate in rates.items()} == {"complex128": 4e9, "float64": 3e9}
    assert set(trusted(device, "float64").rates) == {"float64"}


# ---- integers


def test_integers_of_a_gpu_are_guessed(path: Path) -> None:
    section(path, H200, float64=3e13)
    assert integer_calibration(product("int32"), LARGE, H200) == (H200.guess, False)
    nobody = replace(H200, guess=None)
    assert integer_calibration(product("int32"), LARGE, nobody) == (None, False)


def test_integers_of_a_processor_follow_from_float64s_tuning(path: Path) -> None:
    device = processor(FREE_SUMS)
    section(path, device, float32=1e9)
    assert integer_calibration(product("int32"), LARGE, device) == (with_integer_rates(FREE_SUMS), False)
    section(path, device, float64=3e9)
    found, is_tuned = integer_calibration(product("int32"), LARGE, device)
    assert is_tuned and found == with_integer_rates(trusted(device, "float64"))
    assert calibration_in_force(product("int32"), LARGE, device) == found


@pytest.mark.parametrize(("guess", "probed"), [(FREE_SUMS, ["float64"]), (SLOW_SUMS, [])])
def test_integers_are_probed_only_where_levels_are_in_question(
    guess: Calibration, probed: list[str], path: Path
) -> None:
    seen: list[str] = []
    found = integer_calibration(product("int64"), LARGE, processor(guess, seen))
    assert seen == probed and found == (with_integer_rates(PROBED if probed else guess), False)


def test_integers_of_a_processor_of_which_nothing_is_known(path: Path) -> None:
    assert integer_calibration(product("int32"), LARGE, processor(None)) == (None, False)


# ---- a tuning that is not trusted


def test_a_tuning_that_is_doubted_says_nothing(path: Path) -> None:
    device = processor(FREE_SUMS)
    section(path, device, doubts=["the clock fell"], float64=3e9, complex128=4e9)
    found = files.active_configs().find_tuning(device.identity, "float64")
    assert found is not None and tuned_calibration(found, device) is None
    assert calibration_in_force(product("float64"), LARGE, device) is FREE_SUMS
    assert integer_calibration(product("int32"), LARGE, device) == (with_integer_rates(FREE_SUMS), False)


def test_complex_numbers_do_without_doubted_rates_of_their_parts(path: Path) -> None:
    device = processor(FREE_SUMS)
    fields = {"stream": 1e12, "margin": 0.02}
    sections = {
        "complex128": tuned.section(calibration={**fields, "rate": rate_fields(4e9)}),
        "float64": tuned.section(calibration={**fields, "rate": rate_fields(3e9)}, doubts=["the clock fell"]),
    }
    path.write_text(reader.config_text({device.identity.key: sections}), encoding="utf-8")
    files.clear_config_cache()
    assert set(trusted(device, "complex128").rates) == {"complex128"}


def test_a_tuned_gpu_of_which_nothing_else_is_known(path: Path) -> None:
    device = replace(H200, guess=None)
    section(path, device, float64=3e13)
    assert set(trusted(device, "float64").rates) <= {"float64"} | set(trusted(H200, "float64").rates)

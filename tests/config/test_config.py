"""Configs: where they are found, what is valid, what a damaged one does (nothing), and which step answers a product."""

from __future__ import annotations

import json
import logging
import os
import random
import string
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.config import environment, files, identity, reader, schema
from fmm.config.identity import Identity
from fmm.config.schema import ConfigError
from fmm.hardware.chip import BlockModelConstants
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime import devices, matmul
from fmm.runtime.decisions import decide, online
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.tuner.tune import output_path
from tests.support import configs as tuned
from tests.support.interrupts import StepInterrupts

HERE = Identity("cpu-test-2t", "a CPU of the tests", tuned.VERSIONS)
ROOM = Limits(1 << 40)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A config of this "CPU" that fmm looks at; nothing else is looked at."""
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setattr(identity, "cpu_identity", lambda threads: HERE)
    forget()
    yield tmp_path / "config.json"
    forget()


def forget() -> None:
    files.clear_config_cache()
    environment.log_once.cache_clear()
    online._trials.clear()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "fmm")
    return lambda: [record.getMessage() for record in caplog.records]


def decided(n: int = 96, limits: Limits = ROOM, dtype: str = "float64") -> decide.Decision:
    return decide.decide_plan(Problem(n, n, n, dtype), limits, devices.cpu_device(2))


# ---- which step answers


def test_a_tuned_shape_is_answered_by_its_entry_and_no_other(path: Path) -> None:
    tuned.write(path, HERE.key, found=tuned.section(tuned.entry(plan="strassen.peel > vendor")))
    found = decided()
    assert (str(found.plan), found.source) == ("strassen.peel > vendor", "certified entry")
    assert "1.100 times the vendor [1.050, 1.200] in 9 paired rounds" in str(found)
    assert decided(98).source == "calibrated model"


def test_an_entry_for_the_vendor_is_an_answer_too(path: Path) -> None:
    none = tuned.entry(plan="vendor", speedup=1.0, low=1.0, high=1.0)
    tuned.write(path, HERE.key, found=tuned.section(none))
    assert (decided().plan, decided().source) == (VENDOR, "certified entry")
    assert decided(98).plan != VENDOR


@pytest.mark.parametrize("limits", [Limits(0), Limits(1 << 40, 1.0)], ids=["workspace", "error"])
def test_an_entry_beyond_the_limits_is_passed_over(path: Path, limits: Limits) -> None:
    tuned.write(path, HERE.key)
    assert (decided(limits=limits).plan, decided(limits=limits).source) == (VENDOR, "calibrated model")


def test_other_shapes_are_answered_by_the_calibrated_model_with_its_margin(path: Path) -> None:
    """One level saves an eighth; a model that is off by more than that chooses the vendor."""
    for margin, wins in ((0.1, True), (0.4, False)):
        known = {"stream": 1e18, "margin": margin, "rate": {"flops": 1e6, "fill": 0.0, "pipe": 0.0}}
        tuned.write(path, HERE.key, found=tuned.section(calibration=known))
        os.utime(path, (margin, margin))
        forget()
        assert (decided().plan != VENDOR) is wins
        assert decided().source == "calibrated model"


def test_without_a_section_the_built_in_model_answers(path: Path, said: Callable[[], list[str]]) -> None:
    tuned.write(path, HERE.key, "float32")
    assert decided().source == "built-in model"
    tuned.write(path, "cpu-of-another-2t")
    forget()
    assert decided().source == "built-in model"
    assert said() == []  # small products: nobody needs to know


def test_a_section_without_a_calibration_has_entries_all_the_same(path: Path) -> None:
    tuned.write(path, HERE.key, found=tuned.section(tuned.entry(), calibration=None))
    assert (decided().source, decided(98).source) == ("certified entry", "built-in model")


def test_a_product_follows_the_config(
    small_by_plans: None, path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    tuned.write(path, HERE.key, found=tuned.section(tuned.entry(plan="laderman > vendor")))
    a, b = rng.standard_normal((2, 96, 96))
    assert str(fmm.explain(a, b).plan) == "laderman > vendor"
    assert np.array_equal(fmm.matmul(a, b), fmm.matmul(a, b, plan="laderman > vendor"))
    assert not np.array_equal(fmm.matmul(a, b), a @ b)
    monkeypatch.setenv("FMM_DISABLE", "1")
    assert np.array_equal(fmm.matmul(a, b), a @ b)
    assert "FMM_DISABLE" in fmm.explain(a, b).reason


def test_the_environment_is_read_at_every_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned.write(path, HERE.key)
    other = tuned.write(path.with_name("other.json"), HERE.key, found=tuned.section(tuned.entry(plan="hasa > vendor")))
    for name, value, plan, step in (
        ("FMM_TUNING_MODE", "off", "vendor", "built-in model"),
        ("FMM_TUNING_MODE", "cache", "winograd > vendor", "certified entry"),
        ("FMM_CONFIG", str(other), "hasa > vendor", "certified entry"),
        ("FMM_DISABLE", "1", "vendor", "rule"),
        ("FMM_DISABLE", "0", "hasa > vendor", "certified entry"),
    ):
        monkeypatch.setenv(name, value)
        assert (str(decided().plan), decided().source) == (plan, step), (name, value)


def test_an_unknown_mode_is_said_once_and_is_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    tuned.write(path, HERE.key)
    monkeypatch.setenv("FMM_TUNING_MODE", "sometimes")
    assert decided().source == decided().source == "certified entry"
    assert said() == ["fmm: FMM_TUNING_MODE is 'sometimes'; valid: off, cache, online, hasa; 'cache' is used"]


@pytest.mark.parametrize(
    ("name", "read", "usual"),
    [
        ("FMM_EMULATION", environment.is_emulation_allowed, True),
        ("FMM_COMPONENTWISE", environment.is_componentwise_required, False),
    ],
)
def test_a_switch_is_on_or_off_and_says_so_of_anything_else(
    name: str,
    read: Callable[[], bool],
    usual: bool,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[], list[str]],
) -> None:
    for value, expected in (("", usual), ("0", False), ("1", True), ("no", False), ("OFF", False), ("True", True)):
        monkeypatch.setenv(name, value)
        assert read() == expected, value
    assert said() == []
    for value in ("maybe", "2"):
        monkeypatch.setenv(name, value)
        assert read() == read() == usual
    valid = "valid: 0, 1, no, yes, off, on, false, true"
    assert said() == [f"fmm: {name} is {value!r}; {valid}; '{int(usual)}' is used" for value in ("maybe", "2")]


def test_anything_but_a_word_for_no_disables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("", False), ("0", False), ("no", False), ("Off", False), ("1", True), ("please", True)):
        monkeypatch.setenv("FMM_DISABLE", value)
        assert environment.is_disabled() == expected, value


def test_a_config_that_is_being_made_is_not_missed(path: Path, said: Callable[[], list[str]]) -> None:
    """The first line of a first tuning was a warning that there is no config."""
    decided()
    assert said() == [
        f"fmm: the config '{path}' is not used: it cannot be read: No such file or directory; `fmm-tune` writes it"
    ]
    other = path.with_name("soon.json")
    files.suppress_missing_config_warning(other)
    assert files.Configs((other,), True).files == {} and len(said()) == 1


def test_a_new_config_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("fmm.config.files.time.monotonic", lambda: now)
    tuned.write(path, HERE.key)
    assert decided().source == "certified entry"
    tuned.write(path, HERE.key, found=tuned.section())
    assert decided().source == "certified entry"  # files are looked at once a second
    now += 1
    assert decided().source == "calibrated model"


def test_after_an_update_entries_are_set_aside_and_the_model_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    tuned.write(path, HERE.key)
    updated = Identity(HERE.key, HERE.name, {**HERE.versions, "blas": "test 2"})
    monkeypatch.setattr(identity, "cpu_identity", lambda threads: updated)
    assert decided().source == decided(97).source == "calibrated model"
    assert said() == [
        "fmm: blas test 1 -> test 2 since the tuning: only its model is used until `fmm-tune verify --measure`"
    ]


def test_unverified_entries_are_not_used(path: Path) -> None:
    tuned.write(path, HERE.key, found=tuned.section(tuned.entry(verified=False)))
    assert decided().source == "calibrated model"


def test_a_large_product_on_an_untuned_device_says_so_once(path: Path, said: Callable[[], list[str]]) -> None:
    tuned.write(path, "cpu-of-another-2t")
    decided(2047)
    assert said() == []
    for n in (2048, 3000, 4000):
        decided(n)
    assert said() == ["fmm: a CPU of the tests is not tuned for float64; run `fmm-tune --device cpu` once"]


def test_a_config_that_was_named_must_be_there(path: Path, said: Callable[[], list[str]]) -> None:
    decided()
    (line,) = said()
    assert str(path) in line and "No such file" in line


def test_a_name_that_no_file_can_have_is_one_line(
    path: Path, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setenv("FMM_CONFIG", str(path.with_name("n" * 300)))
    a, b = rng.standard_normal((2, 96, 96))
    assert np.array_equal(fmm.matmul(a, b), a @ b) and decided().source == "built-in model"
    (line,) = said()
    assert "File name too long" in line


# ---- how long it takes


# ---- online


def test_online_measures_the_first_products_and_keeps_the_decision(
    small_by_plans: None, path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "online")
    monkeypatch.setattr(decide, "MIN_TUNED_FLOPS", 0)
    # The file is looked at again once a second: on a busy machine that may be in the midst of this.
    monkeypatch.setattr("fmm.config.files.time", SimpleNamespace(monotonic=lambda: 0.0))
    tuned.write(path, HERE.key, found=tuned.section())
    a, b = rng.standard_normal((2, 64, 64))
    ran: list[str] = []
    clock = [0.0]
    measured = matmul.run_matmul

    def slow_vendor(library: Any, a: Any, b: Any, out: Any, constraints: PlanConstraints) -> Any:
        if constraints.plan is not None:
            ran.append(str(constraints.plan))
            clock[0] += 2.0 if constraints.plan == VENDOR else 1.0
        return measured(library, a, b, out, constraints)

    monkeypatch.setattr(matmul, "run_matmul", slow_vendor)
    monkeypatch.setattr("fmm.runtime.decisions.online.time.perf_counter", lambda: clock[0])
    best = str(fmm.explain(a, b).plan)
    products = 2 + 2 * online.MEASURED_PAIRS
    for _ in range(products):
        assert fmm.explain(a, b).source == "being measured"
        assert np.allclose(fmm.matmul(a, b), a @ b)
    assert sorted(ran) == sorted(["vendor", best] * (products // 2))
    found = fmm.explain(a, b)
    assert (str(found.plan), found.source) == (best, "measured online")
    (kept,) = json.loads(path.read_text())["devices"][HERE.key]["float64"]["entries"]
    assert (kept["size"], kept["plan"], kept["origin"]) == ([64, 64, 64], best, "online")
    forget()
    assert fmm.explain(a, b).source == "online entry"


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets so many seconds pass, by the clock that a trial looks at and no other."""
    now = [0.0]
    monkeypatch.setattr("fmm.runtime.decisions.online.time", SimpleNamespace(perf_counter=lambda: now[0]))
    return lambda seconds: now.append(now.pop() + seconds)


def test_online_makes_a_section_where_there_is_none(path: Path, passing: Callable[[float], None]) -> None:
    trial = online.OnlineTrial(Problem(64, 64, 64), HERE, Plan.parse("winograd > vendor"))
    while trial.entry is None:
        passing(0.5)  # between products, which is nobody's time
        trial.run_product(lambda plan: passing(1.1e-3 if plan == VENDOR else 1e-3))
    assert trial.entry.plan == "winograd > vendor" and trial.entry.speedup == pytest.approx(1.1)
    assert decided(64).source == "online entry"


def test_online_decides_for_the_vendor_if_that_is_faster(path: Path, passing: Callable[[float], None]) -> None:
    trial = online.OnlineTrial(Problem(64, 64, 64), HERE, Plan.parse("winograd > vendor"))
    while trial.entry is None:
        trial.run_product(lambda plan: passing(1e-3 if plan == VENDOR else 1.1e-3))
    assert trial.entry.plan == "vendor"


def test_online_goes_on_after_an_interrupt_at_each_step(path: Path) -> None:
    """No lock stays shut, no turn is counted twice or half, and what was measured is concluded in the end."""
    steps, step, hit = StepInterrupts(["online.py"]), 1, True
    while hit:
        trial = online.OnlineTrial(Problem(64, 64, 64), HERE, Plan.parse("winograd > vendor"))
        multiplied: list[Plan] = []

        def twice(trial: online.OnlineTrial = trial, note: Callable[[Plan], None] = multiplied.append) -> None:
            trial.run_product(note)
            while len(trial._seconds) < len(trial._turns) - 1:
                trial._seconds.append(1e-3)
            trial.run_product(note)

        hit = steps.interrupted(twice, step)
        if trial._lock.locked():  # where only this test interrupts: not a signal's handler
            trial._lock.release()
        trial._seconds += [1e-3] * (len(trial._turns) - 1 - len(trial._seconds))
        trial.run_product(multiplied.append)
        assert trial.entry is not None and len(trial._seconds) == len(trial._turns)
        step += 3
    assert step > 100


def test_online_that_cannot_write_says_so_and_goes_on(path: Path, said: Callable[[], list[str]]) -> None:
    (path / "config.json").mkdir(parents=True)  # a folder where the file should be
    trial = online.OnlineTrial(Problem(64, 64, 64), HERE, Plan.parse("winograd > vendor"))
    while trial.entry is None:
        trial.run_product(lambda plan: time.sleep(1e-5))
    assert len(said()) == 1 and "counts for this process only" in said()[0]


def test_online_in_two_threads_returns_both_results() -> None:
    trial = online.OnlineTrial(Problem(64, 64, 64), HERE, Plan.parse("winograd > vendor"))
    inside, leave = threading.Event(), threading.Event()

    def wait(plan: Plan) -> None:
        inside.set()
        leave.wait(10)

    first = threading.Thread(target=trial.run_product, args=(wait,))
    first.start()
    inside.wait(10)
    assert trial.run_product(lambda plan: str(plan)) == "winograd > vendor"  # not measured, not kept waiting
    leave.set()
    first.join()


def test_small_products_are_not_measured_online(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "online")
    tuned.write(path, HERE.key, found=tuned.section())
    assert decided().trial is None


# ---- where configs are found


def test_the_folders_are_those_of_platformdirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    platformdirs = pytest.importorskip("platformdirs")
    for variables in ({}, {"XDG_CONFIG_HOME": str(tmp_path), "XDG_CONFIG_DIRS": f"{tmp_path / 'a'}:{tmp_path / 'b'}"}):
        for name in ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert files.user_folder() == Path(platformdirs.user_config_dir("fmm", appauthor=False))
        assert files.site_folder() == Path(platformdirs.site_config_dir("fmm", appauthor=False))


def test_the_users_config_comes_before_the_sites(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FMM_CONFIG")
    monkeypatch.setattr(files, "site_folder", lambda: tmp_path / "site")
    monkeypatch.setattr(files, "user_folder", lambda: tmp_path / "user")
    tuned.write(tmp_path / "site" / "config.json", HERE.key, found=tuned.section(tuned.entry(plan="hasa > vendor")))
    assert str(decided().plan) == "hasa > vendor"
    tuned.write(tmp_path / "user" / "config.json", HERE.key)
    forget()
    assert str(decided().plan) == "winograd > vendor"
    tuned.write(tmp_path / "user" / "config.json", "cpu-of-another-2t")
    forget()
    assert str(decided().plan) == "hasa > vendor"


@pytest.mark.parametrize(("key", "step"), [(HERE.key, "calibrated model"), ("cpu-another-2t", "built-in model")])
def test_what_ships_with_the_package_was_measured_on_another_card(
    key: str, step: str, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And says so."""
    monkeypatch.delenv("FMM_CONFIG")
    for folder in ("site_folder", "user_folder"):
        monkeypatch.setattr(files, folder, lambda: tmp_path / "empty")
    shipped = tuned.write(tmp_path / "shipped.json", key, found=tuned.section())
    monkeypatch.setattr(files, "SHIPPED_CONFIG", shipped)
    found = decided()
    assert found.source == step
    assert ("calibrated on another card of this name" in found.reason) == (step == "calibrated model")


@pytest.mark.parametrize("unfinished", ["doubted", "nothing but an entry"])
def test_a_tuning_that_cannot_be_used_takes_nothing_away(
    unfinished: str, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after Ctrl-C: its entries hold, and the model of the next file that has one."""
    monkeypatch.delenv("FMM_CONFIG")
    monkeypatch.setattr(files, "site_folder", lambda: tmp_path / "site")
    monkeypatch.setattr(files, "user_folder", lambda: tmp_path / "user")
    tuned.write(tmp_path / "site" / "config.json", HERE.key, found=tuned.section())
    entry = tuned.entry((640, 640, 640), plan="hasa > vendor")
    own = tuned.section(entry, doubts=["the noise was not measured"])
    if unfinished != "doubted":
        own = tuned.section(entry, calibration=None)
    tuned.write(tmp_path / "user" / "config.json", HERE.key, found=own)
    assert decided().source == "calibrated model" and decided().plan.levels
    found = files.active_configs().find_tuning(HERE, "float64")
    assert found is not None and found.trusted_calibration is not None and found.find_entry((640, 640, 640)) is not None
    (tmp_path / "site" / "config.json").unlink()
    forget()
    alone = files.active_configs().find_tuning(HERE, "float64")
    assert alone is not None and alone.trusted_calibration is None and alone.find_entry((640, 640, 640)) is not None


def test_the_terms_of_blocks_go_with_the_model(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of a tuning that is not used are not used either."""
    monkeypatch.delenv("FMM_CONFIG")
    monkeypatch.setattr(files, "site_folder", lambda: tmp_path / "site")
    monkeypatch.setattr(files, "user_folder", lambda: tmp_path / "user")
    for folder, wait, doubts in (("user", 2.0, ["the clock fell"]), ("site", 3.0, [])):
        terms = {**dict.fromkeys((f.name for f in fields(BlockModelConstants)), 1.0), "wait": wait}
        blocks = {"fitted": terms, "error": 0.01, "shapes": 8}
        tuned.write(tmp_path / folder / "config.json", HERE.key, found=tuned.section(blocks=blocks, doubts=doubts))
    found = files.active_configs().find_tuning(HERE, "float64")
    assert found is not None and found.fitted is not None and found.fitted.wait == 3.0


def test_what_failed_in_either_tuning_is_not_taken(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one whose model is used, and the one before it whose model is not."""
    monkeypatch.delenv("FMM_CONFIG")
    monkeypatch.setattr(files, "site_folder", lambda: tmp_path / "site")
    monkeypatch.setattr(files, "user_folder", lambda: tmp_path / "user")
    for folder, failed, doubts in (("user", ["f16x3"], ["the clock fell"]), ("site", ["residues(14)"], [])):
        found = tuned.section(failed=failed, doubts=doubts)
        tuned.write(tmp_path / folder / "config.json", HERE.key, found=found)
    known = files.active_configs().find_tuning(HERE, "float64")
    assert known is not None and known.trusted_calibration is not None and known.failed == ("f16x3", "residues(14)")


@pytest.mark.parametrize("noise", [0.0, 79.3])
def test_a_tuning_beside_much_other_work_can_be_read(noise: float, path: Path) -> None:
    """Its doubts say that it is not used; it is no damaged config."""
    found = schema.read_section(tuned.section(noise=noise, doubts=["noisy"]), "test", HERE, "float64")
    assert found.diagnostics == ("noisy",) and found.trusted_calibration is None


def test_a_tuning_with_compiled_sums_is_not_used_without_them(path: Path) -> None:
    """NumPy's sums take longer than it says. The other way round it is only too cautious."""
    for then, now, trusted in (
        ("llvmlite", "numpy", False),
        ("llvmlite", "llvmlite", True),
        ("numpy", "llvmlite", True),
    ):
        section = tuned.section(versions={**tuned.VERSIONS, "sums": then})
        here = Identity(HERE.key, HERE.name, {**HERE.versions, "sums": now})
        found = schema.read_section(section, "test", here, "float64")
        assert (found.trusted_calibration is not None) == trusted, (then, now)


def test_the_tuner_and_the_runtime_mean_the_same_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is named; of what is not there yet, the ending tells whether it is a folder."""
    folder, named = path.parent / "not-there-yet", path.parent / "named"
    named.write_text("{}", encoding="utf-8")
    for given, meant in (
        (folder, folder / "config.json"),
        (path.parent, path.parent / "config.json"),
        (path.parent / "other.json", path.parent / "other.json"),
        (named, named),
    ):
        monkeypatch.setenv("FMM_CONFIG", str(given))
        assert output_path(given) == output_path(None) == files.default_path() == meant
        assert files.search_path(str(given)) == (meant,)


def test_without_a_home_there_is_no_config_and_no_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("FMM_CONFIG")
    monkeypatch.setattr(files, "user_folder", homeless)
    assert decided().source == "built-in model"


def test_an_identity_is_of_this_machine() -> None:
    found = identity.cpu_identity(blas_threads())
    assert found.key.startswith("cpu-") and found.key.endswith(f"{blas_threads()}t")
    assert found.versions["numpy"] == np.__version__
    assert found.versions["sums"] in ("numpy", "llvmlite")
    assert identity.gpu_device_key("NVIDIA H100 80GB HBM3", "9.0", 132) == "cuda-9.0-132sm-nvidia-h100-80gb-hbm3"


# ---- damaged configs

GOOD = tuned.section(tuned.entry(), tuned.entry((50, 60, 70), "vendor", speedup=1.0, low=1.0, high=1.0))
BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("field", {"more": 1}),
    ("'noise'", {"noise": "low"}),
    ("noise", {"noise": -1}),
    ("noise", {"noise": True}),
    ("calibration", {"calibration": 5}),
    ("calibration.stream", {"calibration": {"stream": 0, "rate": {"flops": 1.0, "fill": 0, "pipe": 0}}}),
    ("stream", {"calibration": {"rate": {"flops": 1.0, "fill": 0, "pipe": 0}}}),
    ("rate", {"calibration": {"stream": 1.0}}),
    ("rate.flops", {"calibration": {"stream": 1.0, "rate": {"flops": 1e40, "fill": 0, "pipe": 0}}}),
    ("unknown field 'x'", {"calibration": {"stream": 1.0, "x": 1, "rate": {"flops": 1.0, "fill": 0, "pipe": 0}}}),
    ("sequential", {"calibration": {"stream": 1.0, "sequential": 0, "rate": {"flops": 1.0, "fill": 0, "pipe": 0}}}),
    ("entries", {"entries": {}}),
    ("entries[0]", {"entries": [3]}),
    ("low", {"entries": [{**GOOD["entries"][0], "low": 0.99}]}),
    ("size", {"entries": [{**GOOD["entries"][0], "size": [1, 2]}]}),
    ("size", {"entries": [{**GOOD["entries"][0], "size": [1, 2, 0]}]}),
    ("size", {"entries": [{**GOOD["entries"][0], "size": [1, 2, 2.5]}]}),
    ("plan", {"entries": [{**GOOD["entries"][0], "plan": "winograd"}]}),
    ("versions", {"versions": []}),
    ("versions.numpy", {"versions": {"numpy": 5}}),
]


@pytest.mark.parametrize(("named", "change"), BROKEN, ids=lambda x: str(x)[:40])
def test_a_broken_section_is_named_once_and_passed_over(
    named: str, change: dict[str, Any], path: Path, said: Callable[[], list[str]]
) -> None:
    path.write_text(json.dumps({"schema": 1, "devices": {HERE.key: {"float64": {**GOOD, **change}}}}))
    assert (decided().source, decided().source) == ("built-in model",) * 2
    (line,) = said()
    assert str(path) in line and named.strip("'") in line and "\n" not in line


def test_a_good_section_passes(path: Path, said: Callable[[], list[str]]) -> None:
    path.write_text(json.dumps({"schema": 1, "devices": {HERE.key: {"float64": GOOD}}}))
    assert decided().source == "certified entry" and said() == []


@pytest.mark.parametrize("plan", ["nonsense > vendor", "strassen^9 > vendor", "balanced(1) > vendor", "> > > vendor"])
def test_an_entry_whose_plan_is_none_is_said_and_passed_over(
    plan: str, path: Path, said: Callable[[], list[str]]
) -> None:
    tuned.write(path, HERE.key, found=tuned.section(tuned.entry(plan=plan)))
    assert decided().source == "calibrated model"
    assert len(said()) == 1 and "(96, 96, 96)" in said()[0]


DOCUMENTS = {
    "": "not JSON",
    "[]": "no devices",
    '{"devices": {}}': "schema is None",
    '{"schema": 99, "devices": {}}': "of a later fmm",
    '{"schema": "1", "devices": {}}': "schema is '1'",
    '{"schema": 1, "devices": {"x": NaN}}': "NaN",
    '{"schema": 1, "devices": {"x": 5}}': "has no types",
    "[" * 100_000: "nested too deeply",
    '{"schema": 1, "devices": {"x": ' + "9" * 5000 + "}}": "not JSON",
}


@pytest.mark.parametrize(("content", "message"), DOCUMENTS.items(), ids=lambda x: str(x)[:30])
def test_a_document_that_is_no_config(content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reader.read_document(content)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{}")
    (tmp_path / "large").write_bytes(b" " * (files.MAX_FILE_BYTES + 1))
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    for name, message in (("bytes", "UTF-8"), ("large", "larger"), ("pipe", "no file"), ("none", "No such file")):
        with pytest.raises(ConfigError, match=message):
            files.read_config(tmp_path / name)


def mutated(text: str, rng: random.Random) -> bytes:
    """One of many ways in which a file goes wrong."""
    raw = json.loads(text)
    kind = rng.randrange(6)
    if kind == 0:
        return text.encode()[: rng.randrange(len(text))]
    if kind == 1:
        damaged = bytearray(text.encode())
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        return bytes(damaged)
    if kind == 2:
        raw["schema"] = rng.choice([None, 0, 2, 10**30, "1", [1], -1, 1.5])
    if kind == 3:  # of another device
        raw["devices"] = {f"cpu-{rng.random()}": raw["devices"].pop(HERE.key)}
    for _ in range(rng.randint(1, 3)):
        _change(raw, rng)
    return json.dumps(raw).encode()


HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, -1e308, float("nan"), float("inf"), 10**40, "", "vendor", "a > " * 90 + "vendor",
    "__import__('os').system('true') > vendor", "strassen^99 > vendor", "\x00\x1b[2J", "🧨" * 100, [], [[]], {},
)  # fmt: skip


def _change(raw: Any, rng: random.Random) -> None:
    """Replace, remove or add something somewhere."""
    spots: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in list(items):
            spots.append((value, key))
            walk(inner)

    walk(raw)
    if not spots:
        return
    owner, key = rng.choice(spots)
    action = rng.randrange(4)
    if action == 0 and isinstance(owner, dict):
        del owner[key]
    elif action == 1 and isinstance(owner, dict):
        owner["".join(rng.choices(string.printable, k=5))] = rng.choice(HOSTILE)
    else:
        owner[key] = rng.choice(HOSTILE)


@pytest.mark.slow
def test_a_thousand_damaged_configs_break_no_product(
    small_by_plans: None,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every product is right, and each config is either used or passed over with one line."""
    caplog.set_level(logging.WARNING, "fmm")
    text = tuned.write(path, HERE.key, found=GOOD).read_text()
    a, b = rng.standard_normal((2, 96, 96))
    right, chance, steps, lines = a @ b, random.Random(1), set[str](), 0
    for _ in range(1000):
        path.write_bytes(mutated(text, chance))
        forget()
        caplog.clear()
        found = fmm.explain(a, b)
        assert np.allclose(fmm.matmul(a, b), right, rtol=1e-9, atol=1e-9)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) <= 1, said
        assert all("\n" not in line and line.isprintable() and len(line) < 600 for line in said), said
        steps.add(found.source)
        lines += bool(said)
    assert steps == {"certified entry", "calibrated model", "built-in model"}
    assert lines > 300

"""fmm.show_config and its facts: versions, GPUs, config files and the environment."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fmm
from fmm.config.files import SHIPPED_CONFIG, clear_config_cache
from fmm.config.identity import cpu_device_key
from fmm.hardware import nvml
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.runtime import source_commit
from fmm.runtime.show_config import OPTIONAL_PACKAGES, config_facts, config_lines
from tests.support import ROOT
from tests.support.configs import write


class Nvml:
    """NVML of a machine with these GPUs; a GPU without a name does not answer."""

    def __init__(self, *gpus: tuple[str, int, int, int]) -> None:
        self.gpus = gpus

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = number + 1
        return 0 if self.gpus[number][0] else 15

    def nvmlDeviceGetName(self, handle: Any, name: Any, length: int) -> int:  # noqa: N802
        name.value = self.gpus[handle.value - 1][0].encode()[: length - 1]
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        _, major._obj.value, minor._obj.value, _ = self.gpus[handle.value - 1]
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        assert ctypes.sizeof(memory._obj) == 24
        memory._obj.total = self.gpus[handle.value - 1][3]
        return 0

    def nvmlSystemGetDriverVersion(self, version: Any, length: int) -> int:  # noqa: N802
        version.value = b"580.95.05"
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:  # noqa: N802
        version._obj.value = 13020
        return 0


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty folders for the user's and the site's configs, and no driver."""
    monkeypatch.delenv("FMM_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "site"))
    monkeypatch.setattr(nvml, "nvml_library", lambda: None)
    clear_config_cache()
    yield
    clear_config_cache()


def test_the_facts_are_json_and_name_the_package_that_runs() -> None:
    facts = json.loads(json.dumps(config_facts()))
    assert facts["fmm"]["version"] == fmm.__version__
    assert Path(facts["fmm"]["folder"]) == Path(fmm.__file__).parent
    assert facts["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["blas"]["threads"] == blas_threads()


def test_the_lines_have_every_fact() -> None:
    """A fact that only --json prints would be missing in most bug reports."""
    lines, facts = "\n".join(config_lines()), config_facts()
    texts = [facts["system"], facts["numpy"], facts["processor"]["name"], facts["blas"]["build"], facts["tuning_mode"]]
    texts += [f"{name} {found}" for name, found in facts["packages"].items()]
    texts += [f"{name}={value}" for name, value in facts["environment"].items()]
    assert [text for text in texts if text not in lines] == []
    assert "driver: no NVIDIA driver found" in lines


def test_gpus_and_driver_are_those_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Nvml(("NVIDIA H200", 9, 0, 141 << 30), ("", 0, 0, 0), ("Tesla T4", 7, 5, 15 << 30))
    monkeypatch.setattr(nvml, "nvml_library", lambda: library)
    assert config_facts()["gpus"] == [
        {"name": "NVIDIA H200", "capability": "9.0", "memory_bytes": 141 << 30},
        {"name": "Tesla T4", "capability": "7.5", "memory_bytes": 15 << 30},
    ]
    lines = list(config_lines())
    assert "GPU: NVIDIA H200, compute capability 9.0, 141 GiB" in lines
    assert "driver: 580.95.05, up to CUDA 13.2" in lines


@pytest.mark.gpu
def test_nvml_describes_the_device_of_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy")
    monkeypatch.undo()
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    gpus, driver = nvml.installed_gpus(), nvml.installed_driver()
    names = {(gpu.name, gpu.capability) for gpu in gpus}
    assert (properties["name"].decode(), f"{properties['major']}.{properties['minor']}") in names
    assert max(gpu.memory_bytes for gpu in gpus) >= properties["totalGlobalMem"]
    version = cupy.cuda.runtime.driverGetVersion()
    assert driver is not None and driver.cuda == f"{version // 1000}.{version % 1000 // 10}"


def test_each_config_file_has_its_source_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user, site = (write(tmp_path / name / "fmm" / "config.json", f"{name}s-device") for name in ("user", "site"))
    facts = config_facts()["configs"]
    assert [(fact["source"], fact["path"]) for fact in facts] == [
        ("user", str(user)),
        ("site", str(site)),
        ("shipped", str(SHIPPED_CONFIG)),
    ]
    assert [fact["devices"] for fact in facts[:2]] == [["users-device"], ["sites-device"]]
    named = write(tmp_path / "named.json", "a-device")
    monkeypatch.setenv("FMM_CONFIG", str(named))
    assert f"config (FMM_CONFIG): {named}: a-device" in list(config_lines())


def test_a_config_that_is_not_used_has_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "user" / "fmm" / "config.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{", encoding="utf-8")
    assert any(f"config (user): {damaged}: not used: it is not JSON" in line for line in config_lines())
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "missing.json"))
    (fact,) = config_facts()["configs"]
    assert fact["error"].startswith("not used: it cannot be read") and fact["source"] == "FMM_CONFIG"


def test_the_tunings_of_this_processor_are_named(tmp_path: Path) -> None:
    assert config_facts()["processor_tunings"] == {}
    write(tmp_path / "user" / "fmm" / "config.json", cpu_device_key(blas_threads()))
    clear_config_cache()
    found = config_facts()["processor_tunings"]
    assert list(found) == ["float64"] and found["float64"].startswith("calibrated on this device")


def test_the_environment_is_that_of_fmm_and_nothing_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FMM_NEW_SETTING": "1", "OMP_NUM_THREADS": "2", "A_PASSWORD": "secret"}.items():
        monkeypatch.setenv(name, value)
    found = config_facts()["environment"]
    assert found["FMM_NEW_SETTING"] == "1" and found["OMP_NUM_THREADS"] == "2"
    assert "secret" not in str(found)


def test_no_package_is_imported_for_its_version() -> None:
    """Small threadpoolctl is, for the number of BLAS's threads."""
    names = sorted({name.partition("-")[0] for name in OPTIONAL_PACKAGES} - {"nvidia", "opt", "threadpoolctl"})
    code = f"import fmm, sys; fmm.show_config(); print(sorted(set({names}) & set(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, text=True, stdout=subprocess.PIPE)
    assert done.stdout.splitlines()[-1] == "[]"


# ---- the commit


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 10)])
def test_without_git_the_commit_is_unknown(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("FMM_COMMIT", raising=False)
    assert source_commit.source_commit() == ""


def test_the_commit_of_another_project_around_the_package_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment with the wheel often is a folder of the user's own repository."""
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(source_commit, "__file__", str(tmp_path / "env" / "fmm" / "runtime" / "source_commit.py"))
    monkeypatch.delenv("FMM_COMMIT", raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("git was called"))
    assert source_commit.source_commit() == ""


def test_the_environment_names_the_commit_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_COMMIT", "0123abc")
    assert source_commit.source_commit() == "0123abc"

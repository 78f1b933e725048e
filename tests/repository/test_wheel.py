"""The wheel, alone in a clean environment: it imports, multiplies and carries its data files."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT

LINKS = ("kernels", "perfmodel", "tuner")

# Runs with the clean environment's Python, away from the source tree, warnings as errors.
USE_THE_WHEEL = """
import sys
from importlib.metadata import distributions, version
from pathlib import Path

import numpy as np

import fmm
from fmm.kernels import scheme_names, step_table_names

assert Path(fmm.__file__).is_relative_to(sys.prefix), fmm.__file__
assert fmm.__version__ == version("fmm-tune"), (fmm.__version__, version("fmm-tune"))
rng = np.random.default_rng(0)
a, b = rng.standard_normal((257, 130)), rng.standard_normal((130, 65))
np.testing.assert_allclose(fmm.matmul(a, b), a @ b, rtol=1e-10, atol=1e-10)
assert list(scheme_names()), "the wheel carries no scheme"
assert list(step_table_names()), "the wheel carries no step table"
installed = {d.metadata["Name"].lower() for d in distributions()}
assert installed <= {"fmm-tune", "numpy", "pip", "setuptools"}, installed
"""


def run(command: list[str | Path], folder: Path) -> str:
    """The command's output; its failure fails the test with everything that it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it, so that the sdist is proved too."""
    folder = tmp_path_factory.mktemp("built")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def clean_bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment in which the wheel and what it requires are installed."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--no-compile", wheel], folder)
    return python.parent


def test_wheel_holds_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    carried = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (path.relative_to(ROOT) for path in (ROOT / "fmm").rglob("*") if path.is_file())
    source = {str(path) for path in files if not any(p[0] == "." or p == "__pycache__" for p in path.parts)}
    moved = {f"fmm/integrations/fmm_install.{kind}" for kind in ("pth", "py")}  # to where Python looks for them
    assert carried == source - moved | {Path(name).name for name in moved} | {"fmm_tune.py"}
    assert "fmm/py.typed" in carried


def test_sdist_leaves_the_links_out(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames()}
    assert "fmm" in tops
    assert tops.isdisjoint(LINKS)


@pytest.mark.slow
def test_wheel_works_alone(clean_bin: Path, tmp_path: Path) -> None:
    run([clean_bin / "python", "-W", "error", "-c", USE_THE_WHEEL], tmp_path)


@pytest.mark.slow
def test_where_the_wheel_is_installed_the_environment_installs_fmm(clean_bin: Path, tmp_path: Path) -> None:
    """In programs that do not load it; Python reads the line in fmm_install.pth as it starts."""
    (tmp_path / "program.py").write_text("import numpy as np, sys; print(type(np.dot).__name__, 'fmm' in sys.modules)")
    assert "_ArrayFunctionDispatcher False" in run([clean_bin / "python", "program.py"], tmp_path)
    assert "ReplacementFunction True" in run(["env", "FMM_INSTALL=numpy", clean_bin / "python", "program.py"], tmp_path)


@pytest.mark.slow
def test_command_starts_without_the_tuning_packages(clean_bin: Path, tmp_path: Path) -> None:
    assert "fmm-tune" in run([clean_bin / "fmm-tune", "--help"], tmp_path)


@pytest.mark.parametrize("name", LINKS)
def test_top_level_link_leads_into_the_package(name: str) -> None:
    assert (ROOT / name).readlink() == Path("fmm") / name
    assert (ROOT / name / "__init__.py").is_file()

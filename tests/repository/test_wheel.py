"""The wheel, alone in a clean environment: it imports, multiplies, has types, and carries its data files."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import fmm
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
np.testing.assert_allclose(fmm.matmul(a, b, plan="winograd > winograd > vendor"), a @ b, rtol=1e-10, atol=1e-10)
np.testing.assert_allclose(fmm.gram(a), a.T @ a, rtol=1e-10, atol=1e-10)
fmm.show_config()
assert list(scheme_names()), "the wheel carries no scheme"
assert list(step_table_names()), "the wheel carries no step table"
installed = {d.metadata["Name"].lower() for d in distributions()}
assert installed <= {"fmm-tune", "numpy", "pip", "setuptools"}, installed
"""

# A user's program for mypy --strict. Each `type: ignore` has the error that mypy must find: if fmm's types were not
# found, or were Any, then mypy would report the comment as unused.
USER_PROGRAM = """
from typing import assert_type

import numpy as np

import fmm

a = np.ones((64, 64))
fmm.matmul(a, a, max_error_growth=3, workspace=10**8, componentwise=True)
fmm.matmul(a, a, workspace="1 GB")  # type: ignore[arg-type]
fmm.gemm(a, a, a.copy(), alpha=2, beta=1, transpose_b=True)
fmm.gemm(a, a, alpha="2")  # type: ignore[arg-type]
fmm.gram(a, fill="lower")
fmm.gram(a, fill="half")  # type: ignore[arg-type]
fmm.shortest_paths(a, method="auto")
fmm.shortest_paths(a, method="dijkstra")  # type: ignore[arg-type]
fmm.minplus(a, a, argmin="yes")  # type: ignore[arg-type]
fmm.einsum("ij,jk->ik", a, a)
fmm.linalg.inv(fmm.linalg.cholesky(a))
fmm.tensordot(a, a, axes=1)
fmm.orthogonalize(a, steps=5)
fmm.orthogonalize(a, coefficients=5)  # type: ignore[arg-type]
fmm.multi_dot([a, a, a])
fmm.multi_dot(3)  # type: ignore[arg-type]
decision = assert_type(fmm.explain(a, a), fmm.Decision)
assert_type(fmm.explain_gemm(a, a), fmm.Decision)
assert_type(fmm.explain_gram(a), fmm.Decision)
assert_type(fmm.plan(512, 512, 512, dtype="float32"), fmm.Decision)
fmm.plan("512", 512, 512)  # type: ignore[arg-type]
assert_type(decision.plan, fmm.Plan)
assert_type(decision.reason, str)
assert_type(decision.kernels, tuple[str, ...])
decision.speed  # type: ignore[attr-defined]
fmm.matmul(a, a, plan=decision)
operand = assert_type(fmm.prepare(a, side="left"), fmm.PreparedOperand)
assert_type(operand.nbytes, int)
fmm.prepare(a, side="above")  # type: ignore[arg-type]
assert_type(fmm.Plan.parse("winograd > vendor"), fmm.Plan)
assert_type(fmm.install("numpy"), tuple[str, ...])
fmm.install(np)  # type: ignore[arg-type]
fmm.uninstall()
with fmm.installed("numpy"):
    pass
assert_type(fmm.report().share, float)
for product in fmm.report().products:
    assert_type(product.times, int)
fmm.release_workspace()
fmm.show_config()
assert_type(fmm.__version__, str)
errors: tuple[type[ValueError], ...] = (fmm.PlanError, fmm.NegativeCycleError)
fmm.no_such_function  # type: ignore[attr-defined]
"""


def run(command: list[str | Path], folder: Path) -> str:
    """The command's output; its failure fails the test with everything that it printed."""
    done = subprocess.run(command, cwd=folder, env=plain_environment(), text=True, capture_output=True)
    assert done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


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
    run([*pip_install(python), wheel], folder)
    return python.parent


def pip_install(python: Path) -> list[str | Path]:
    """The command that installs packages into the environment of this Python, which has no pip of its own."""
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    return [*pip, "install", "--quiet", "--no-compile"]


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


def lowest_versions(*extras: str) -> dict[str, str]:
    """The lowest version of each requirement that pyproject.toml declares, with those of these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(x for extra in extras for x in project["optional-dependencies"][extra])]
    return dict(re.sub(r"\[.*?\]", "", line).split(">=") for line in lines)


def oldest_available(name: str, lowest: str, python: Path) -> str | None:
    """The oldest version from `lowest` on with a wheel for this Python; None if pip finds none."""
    # No package has this version, so that pip lists the versions that it finds, the oldest first.
    command = [*pip_install(python), "--dry-run", "--only-binary", ":all:", f"{name}==0.0.0.dev0"]
    done = subprocess.run(command, env=plain_environment(), text=True, capture_output=True)
    found = re.search(r"from versions: ([^)]*)", done.stderr)
    versions = found[1].split(", ") if found else []
    finished = [version for version in versions if re.fullmatch(r"[\d.]+", version)]
    return next((x for x in finished if version_numbers(x) >= version_numbers(lowest)), None)


def version_numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


@pytest.mark.slow
def test_wheel_works_with_the_oldest_numpy(wheel: Path, tmp_path: Path) -> None:
    """The lowest version that pyproject.toml declares, or the oldest later one that has a wheel for this Python."""
    venv.create(tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    numpy = oldest_available("numpy", lowest_versions()["numpy"], python)
    if numpy is None:
        pytest.skip("pip finds no NumPy: the package index does not answer")
    run([*pip_install(python), "--only-binary", "numpy", wheel, f"numpy=={numpy}"], tmp_path)
    run([python, "-W", "error", "-c", USE_THE_WHEEL], tmp_path)
    assert f"NumPy {numpy}," in run([python, "-m", "fmm", "--version", "--verbose"], tmp_path)


# The optional packages that a clone's user installs without a GPU; torch and JAX have tests of their own.
OLD_EXTRAS = "compiled", "dask", "einsum", "tune"
USE_THE_EXTRAS = """
import dask.array as da
import numpy as np

import fmm
import fmm.dask

rng = np.random.default_rng(0)
a, b = rng.standard_normal((64, 128, 32)), rng.standard_normal((32, 96))
np.testing.assert_allclose(fmm.einsum("pij,jk->pik", a, b), a @ b, rtol=1e-10, atol=1e-10)
x = np.asarray(rng.standard_normal((512, 512)))
y = fmm.matmul(x, x, plan="winograd > vendor")  # sums by compiled loops
np.testing.assert_allclose(y, x @ x, rtol=1e-10, atol=1e-10)
chunks = da.from_array(x, chunks=(256, 256))
np.testing.assert_allclose(fmm.dask.matmul(chunks, chunks).compute(), x @ x, rtol=1e-10, atol=1e-10)
"""


@pytest.mark.slow
def test_wheel_works_with_the_oldest_packages(wheel: Path, tmp_path: Path) -> None:
    """The lowest declared versions, or the oldest later ones with a wheel for this Python."""
    venv.create(tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    oldest = {name: oldest_available(name, low, python) for name, low in lowest_versions(*OLD_EXTRAS).items()}
    if None in oldest.values():
        pytest.skip("the package index does not answer")
    pinned = [f"{name}=={version}" for name, version in oldest.items()]
    run([*pip_install(python), "--only-binary", ":all:", f"{wheel}[{','.join(OLD_EXTRAS)}]", *pinned], tmp_path)
    run([python, "-c", USE_THE_EXTRAS], tmp_path)
    tuning = ROOT / "results" / "nvidia-h100-80gb-hbm3" / "config.json"
    run([python.parent / "fmm-tune", "report", tuning, "--output", tmp_path / "report"], tmp_path)
    assert (tmp_path / "report" / "report.html").exists()


def test_the_users_program_has_every_public_name() -> None:
    assert [name for name in fmm.__all__ if f"fmm.{name}" not in USER_PROGRAM] == []


@pytest.mark.slow
def test_types_are_complete_in_a_users_program(clean_bin: Path, tmp_path: Path) -> None:
    """mypy finds the types in the installed wheel, away from the source tree."""
    (tmp_path / "program.py").write_text(USER_PROGRAM, encoding="utf-8")
    mypy: list[str | Path] = [sys.executable, "-m", "mypy", "--strict", "--python-executable", clean_bin / "python"]
    assert "Success" in run([*mypy, "--cache-dir", tmp_path / "cache", "program.py"], tmp_path)


@pytest.mark.slow
def test_pyright_finds_the_wrong_lines_of_a_users_program(clean_bin: Path, tmp_path: Path) -> None:
    """The lines that mypy ignores, and no others. Pyright is no requirement of the tests, since it brings Node.js."""
    pyright = shutil.which("pyright") or shutil.which("basedpyright")
    if pyright is None:
        pytest.skip("neither pyright nor basedpyright is installed")
    (tmp_path / "program.py").write_text(USER_PROGRAM, encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"enableTypeIgnoreComments": False}), encoding="utf-8")
    command = [pyright, "--outputjson", "--level", "error", "--pythonpath", str(clean_bin / "python"), "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {x["range"]["start"]["line"] for x in json.loads(done.stdout)["generalDiagnostics"]}
    assert found == {number for number, line in enumerate(USER_PROGRAM.splitlines()) if "# type: ignore" in line}


@pytest.mark.slow
def test_two_builds_of_one_commit_are_equal_byte_for_byte(tmp_path: Path) -> None:
    """Of clones in folders with other names, whose files have other times, under another umask."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the source tree is no clone")
    archives = []
    for name, umask, time in (("first", 0o022, 1_000_000_000), ("the second", 0o077, 1_500_000_000)):
        clone, built = tmp_path / name, tmp_path / f"{name} built"
        before = os.umask(umask)
        try:
            run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], tmp_path)
            for path in (clone / "fmm").rglob("*"):
                os.utime(path, (time, time))
            run([sys.executable, "-m", "build", "--no-isolation", "--outdir", built, clone], tmp_path)
        finally:
            os.umask(before)
        archives.append({path.name: path.read_bytes() for path in built.iterdir()})
    first, second = archives
    assert sorted(Path(name).suffix for name in first) == [".gz", ".whl"]
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


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

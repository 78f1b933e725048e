"""Other projects' own tests with fmm installed: `python -m benchmarks outside SUITE FOLDER --output FILE`.

FOLDER is a checkout of the project's sources, of the installed version (for numpy, scipy and sklearn, the folder in
which they are installed with their tests). The tests run twice, in two processes at the same time: without fmm, and
under `python -m fmm`. fmm is to blame for tests that fail only the second time. With --plan every product of any size
runs that plan; otherwise fmm would leave the small products of tests to the library.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from benchmarks.forced_plan import VARIABLE
from fmm.config.store import write_file
from fmm.kernels.plans.plan import Plan
from fmm.tuner.trials.environment import environment_record

ROOT = Path(__file__).resolve().parents[1]
RECORDED_PACKAGES = "torch", "cupy-cuda13x", "cupy-cuda12x", "numpy", "scipy", "scikit-learn"


class Suite(NamedTuple):
    """The tests of a project."""

    installed: str  # libraries for which fmm is installed
    start: str  # folder in which the tests run
    files: tuple[str, ...]
    select: str = ""  # as in pytest -k


PRODUCT_TESTS = "mm or matmul or linear or multi_dot or tensordot"
# Tests that tune torch's kernels for minutes, compile functions, or multiply packed integers.
OMITTED_TESTS = "tunable or compile_int or int4 or int8_mm or symmetric"
SUITES = {
    "torch": Suite(
        "torch",
        "test",
        ("test_linalg.py", "test_matmul_cuda.py"),
        f"cuda and ({PRODUCT_TESTS}) and not ({OMITTED_TESTS})",
    ),
    "torch-cpu": Suite(
        "torch-cpu", "test", ("test_linalg.py",), f"cpu and ({PRODUCT_TESTS}) and not ({OMITTED_TESTS})"
    ),
    "cupy": Suite(
        "cupy",
        "tests",
        (
            "cupy_tests/linalg_tests/test_product.py",
            "cupy_tests/linalg_tests/test_einsum.py",
            "cupy_tests/math_tests/test_matmul.py",
        ),
    ),
    "sklearn": Suite(
        "numpy",
        "sklearn",
        (
            *(f"decomposition/tests/test_{x}.py" for x in ("pca", "incremental_pca", "kernel_pca", "truncated_svd")),
            "linear_model/tests/test_ridge.py",
            "tests/test_kernel_ridge.py",
            "metrics/tests/test_pairwise.py",
            *(f"gaussian_process/tests/test_{name}.py" for name in ("gpc", "gpr", "kernels")),
            "svm/tests/test_svm.py",
        ),
    ),
    "scipy": Suite("numpy", "scipy", ("linalg/tests",)),
    "numpy": Suite(
        "numpy",
        ".",  # in NumPy's own folder, its `typing` would shadow Python's
        (
            "numpy/linalg/tests/test_linalg.py",
            "numpy/_core/tests/test_multiarray.py",
            "numpy/_core/tests/test_einsum.py",
        ),
        "test_linalg or matmul or dot or einsum",
    ),
}


def test_outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of each test by its name, from pytest's report in XML."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        ends = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = f"{case.get('classname')}::{case.get('name')}"
        worst = next((tag for tag in ("error", "failure", "skipped") if tag in ends), "passed")
        found[name] = "failed" if worst in ("error", "failure") else worst
    return found


def compared_outcomes(without: Mapping[str, str], with_fmm: Mapping[str, str]) -> dict[str, Any]:
    """Return the counts of both runs, and the tests that pass without fmm and fail, or do not run, with it."""
    worse = [name for name, end in without.items() if end == "passed" and with_fmm.get(name) != "passed"]
    return {
        "without fmm": dict(Counter(without.values())),
        "with fmm": dict(Counter(with_fmm.values())),
        "worse with fmm": sorted(worse),
    }


def pytest_command(suite: Suite, folder: Path, report: Path, fmm: bool, plan: str, more: Sequence[str]) -> list[str]:
    """Return the command that runs a suite, with fmm installed or without."""
    start = folder / suite.start
    under_fmm = ["-m", "fmm", "--install", suite.installed] if fmm else []
    forced = ["-p", "benchmarks.install_in_workers"] if fmm else []
    forced += ["-p", "benchmarks.forced_plan"] if fmm and plan else []
    selected = ["-k", suite.select] if suite.select else []
    # No settings file: this repository's would turn warnings into errors.
    options = ["-q", "-c", os.devnull, "--rootdir", str(start), "-p", "no:cacheprovider", f"--junitxml={report}"]
    options += ["-p", "no:benchmark"] if find_spec("pytest_benchmark") else []  # it warns if pytest-xdist is used
    options += [*forced, *selected, *more]
    return [sys.executable, *under_fmm, "-m", "pytest", *options, *(str(start / name) for name in suite.files)]


def run_suite(
    suite: Suite, folder: Path, fmm: bool, plan: str, more: Sequence[str], constraints: Mapping[str, str]
) -> dict[str, str]:
    """Return the outcomes of the tests under these variables; raise SystemExit if the tests did not begin."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), VARIABLE: plan if fmm else ""}
    env |= constraints if fmm else {}
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        done = subprocess.run(pytest_command(suite, folder, report, fmm, plan, more), cwd=folder / suite.start, env=env)
        if not report.exists():
            raise SystemExit(f"pytest ended with status {done.returncode} and wrote no report")
        return test_outcomes(report)


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    found = {}
    for name in RECORDED_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite with fmm and without; return 1 if tests fail only with fmm."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks outside", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--plan", default="", help="plan of every product, however small")
    parser.add_argument("--componentwise", action="store_true", help="set FMM_COMPONENTWISE where fmm is installed")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="the rest goes to pytest")
    options = parser.parse_args(arguments)
    suite = SUITES[options.suite]
    if not (options.folder / suite.start).is_dir():
        parser.error(f"{options.folder} has no folder {suite.start}")
    plan = str(Plan.parse(options.plan)) if options.plan else ""
    constraints = {"FMM_COMPONENTWISE": "1"} if options.componentwise else {}
    with ThreadPoolExecutor(2) as both:
        folder, more = options.folder.resolve(), options.pytest
        without, with_fmm = both.map(lambda fmm: run_suite(suite, folder, fmm, plan, more, constraints), (False, True))
    found = compared_outcomes(without, with_fmm)
    content = {"suite": options.suite, "plan": plan, "wishes": constraints, "versions": package_versions(), **found}
    content["environment"] = environment_record(["python -m benchmarks outside", *(arguments or sys.argv[1:])])
    write_file(options.output, json.dumps(content, indent=1) + "\n")
    print(f"without fmm {found['without fmm']}, with fmm {found['with fmm']}")
    print(*(f"only with fmm: {name}" for name in found["worse with fmm"]), sep="\n")
    if not found["without fmm"].get("passed"):  # the tests belong to another version
        print(f"no test of {options.suite} passed even without fmm")
        return 1
    return int(bool(found["worse with fmm"]))


if __name__ == "__main__":
    raise SystemExit(main())

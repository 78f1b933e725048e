"""Other projects' own tests with fmm installed: `python -m benchmarks.outside SUITE FOLDER --out FILE`.

FOLDER is a checkout of the project's sources, of the version that is installed (for numpy, scipy and sklearn, the
folder in which they are installed with their tests). They run twice, in processes side by side: as they are, and under
`python -m fmm`; what fails only the second time is fmm's doing. With --plan every product of any size runs that plan,
since products of tests are small, and would otherwise be left to the library.
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
from fmm.kernels.plans.plan import Plan
from fmm.tuner.trials.environment import environment

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = "torch", "cupy-cuda13x", "cupy-cuda12x", "numpy", "scipy", "scikit-learn"


class Suite(NamedTuple):
    """Which tests of a project."""

    installed: str  # for which libraries
    start: str  # the folder in which they are run
    files: tuple[str, ...]
    select: str = ""  # as in pytest -k


PRODUCTS = "mm or matmul or linear or multi_dot or tensordot"
# Which tune torch's kernels for minutes, compile functions, or multiply packed integers.
OTHERS = "tunable or compile_int or int4 or int8_mm or symmetric"
SUITES = {
    "torch": Suite(
        "torch", "test", ("test_linalg.py", "test_matmul_cuda.py"), f"cuda and ({PRODUCTS}) and not ({OTHERS})"
    ),
    "torch-cpu": Suite("torch-cpu", "test", ("test_linalg.py",), f"cpu and ({PRODUCTS}) and not ({OTHERS})"),
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
        ".",  # in its own folder, its `typing` would be found for Python's
        (
            "numpy/linalg/tests/test_linalg.py",
            "numpy/_core/tests/test_multiarray.py",
            "numpy/_core/tests/test_einsum.py",
        ),
        "test_linalg or matmul or dot or einsum",
    ),
}


def outcomes(report: Path) -> dict[str, str]:
    """How each test ended, by its name, from pytest's report in XML."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        ends = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = f"{case.get('classname')}::{case.get('name')}"
        worst = next((tag for tag in ("error", "failure", "skipped") if tag in ends), "passed")
        found[name] = "failed" if worst in ("error", "failure") else worst
    return found


def compared(without: Mapping[str, str], with_fmm: Mapping[str, str]) -> dict[str, Any]:
    """What fails with fmm alone; and what does not even run with it, which is as bad."""
    worse = [name for name, end in without.items() if end == "passed" and with_fmm.get(name) != "passed"]
    return {
        "without fmm": dict(Counter(without.values())),
        "with fmm": dict(Counter(with_fmm.values())),
        "worse with fmm": sorted(worse),
    }


def command(suite: Suite, folder: Path, report: Path, fmm: bool, plan: str, more: Sequence[str]) -> list[str]:
    start = folder / suite.start
    under_fmm = ["-m", "fmm", "--install", suite.installed] if fmm else []
    forced = ["-p", "benchmarks.in_workers"] if fmm else []
    forced += ["-p", "benchmarks.forced_plan"] if fmm and plan else []
    chosen = ["-k", suite.select] if suite.select else []
    # Nobody's settings, ours above the folder least of all: warnings that are errors there are none of theirs.
    options = ["-q", "-c", os.devnull, "--rootdir", str(start), "-p", "no:cacheprovider", f"--junitxml={report}"]
    options += ["-p", "no:benchmark"] if find_spec("pytest_benchmark") else []  # which warns beside pytest-xdist
    options += [*forced, *chosen, *more]
    return [sys.executable, *under_fmm, "-m", "pytest", *options, *(str(start / name) for name in suite.files)]


def run(
    suite: Suite, folder: Path, fmm: bool, plan: str, more: Sequence[str], constraints: Mapping[str, str]
) -> dict[str, str]:
    """How the tests ended; an exception if they did not even begin. `wishes`: what fmm is told in the environment."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), VARIABLE: plan if fmm else ""}
    env |= constraints if fmm else {}
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        done = subprocess.run(command(suite, folder, report, fmm, plan, more), cwd=folder / suite.start, env=env)
        if not report.exists():
            raise SystemExit(f"pytest ended with status {done.returncode} and wrote no report")
        return outcomes(report)


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plan", default="", help="run every product by this plan, however small")
    parser.add_argument("--componentwise", action="store_true", help="set FMM_COMPONENTWISE where fmm is installed")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="the rest goes to pytest")
    given = parser.parse_args(arguments)
    suite = SUITES[given.suite]
    if not (given.folder / suite.start).is_dir():
        parser.error(f"{given.folder} has no folder {suite.start}")
    plan = str(Plan.parse(given.plan)) if given.plan else ""
    constraints = {"FMM_COMPONENTWISE": "1"} if given.componentwise else {}
    with ThreadPoolExecutor(2) as both:
        without, with_fmm = both.map(
            lambda fmm: run(suite, given.folder.resolve(), fmm, plan, given.pytest, constraints), (False, True)
        )
    found = compared(without, with_fmm)
    told = {"suite": given.suite, "plan": plan, "wishes": constraints, "versions": versions(), **found}
    told["environment"] = environment(["python -m benchmarks.outside", *(arguments or sys.argv[1:])])
    given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"without fmm {found['without fmm']}, with fmm {found['with fmm']}")
    print(*(f"only with fmm: {name}" for name in found["worse with fmm"]), sep="\n")
    if not found["without fmm"].get("passed"):  # it would pass with anything: these tests are of another version
        print(f"no test of {given.suite} passed even without fmm")
        return 1
    return int(bool(found["worse with fmm"]))


if __name__ == "__main__":
    raise SystemExit(main())

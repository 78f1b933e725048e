"""A plugin of pytest for long runs that may be ended: `-p tests.support.ended_tests --ended-tests FILE`.

The outcome of each test is a line of the file, and tests that it names are not run again; but a failure in
the file makes this run fail too. After a launch that reads unmapped memory its process has no device any
more, and all later tests of the process would fail: such a process ends itself, and pytest-xdist begins
another.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

OPTION = "ended_tests"
BEGUN, HANGS = "begun", 3  # a test that has begun so often without ending has failed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ended-tests", dest=OPTION, type=Path, help="a file with the outcome of each test")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(OPTION, None) is not None:
        config.pluginmanager.register(_EndedTests(config))


def read_outcomes(path: Path) -> dict[str, str]:
    """Return the outcomes of tests, by their names."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    noted = [(name, outcome) for outcome, _, name in (line.partition(" ") for line in lines) if name]
    ended = {name: outcome for name, outcome in noted if outcome != BEGUN}
    begun = Counter(name for name, outcome in noted if outcome == BEGUN and name not in ended)
    return ended | {name: "failed" for name, times in begun.items() if times >= HANGS}


def lost_device() -> str:
    """Return the reason why this process has lost its device, or "" if it has one or never had one."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return ""
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except Exception as error:  # an error of any kind would also fail the next test
        return f"{type(error).__name__}: {error}"
    return ""


class _EndedTests:
    def __init__(self, config: pytest.Config) -> None:
        self.path: Path = config.getoption(OPTION)
        inputs: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.works_for_another = inputs is not None
        self.before: dict[str, str] = read_outcomes(self.path) if inputs is None else inputs[OPTION]
        self.now: dict[str, str] = {}
        self.in_doubt = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the same outcomes to every process, also to one that begins late: all must collect the same
        tests."""
        node.workerinput[OPTION] = self.before

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        ended = [item for item in items if item.nodeid in self.before]
        items[:] = [item for item in items if item.nodeid not in self.before]
        config.hook.pytest_deselected(items=ended)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._note(BEGUN, nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name, parts = report.nodeid, ("setup", "call", "teardown")
        self.in_doubt |= report.failed
        if report.failed or report.when == "call" or name not in self.now:
            self.now[name] = "failed" if self.now.get(name) == "failed" else report.outcome
        if report.when == "teardown" or report.when not in parts:
            self._note(self.now[name], name)

    def _note(self, outcome: str, name: str) -> None:
        if not self.works_for_another:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{outcome} {name}\n")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        if self.in_doubt and (why := lost_device()):
            if self.works_for_another:
                os._exit(1)
            pytest.exit(f"the device is lost: {why}", returncode=pytest.ExitCode.TESTS_FAILED)
        self.in_doubt = False

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        found = self.before | self.now
        if self.works_for_another or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return
        if "failed" in found.values():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif found:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        found = self.before | self.now
        if self.before:
            terminalreporter.write_line(f"with the tests of earlier runs: {outcome_text(found)}")


def outcome_text(found: dict[str, str]) -> str:
    """Return the counts of the outcomes and the names of the tests that failed, as text."""
    counts = Counter(found.values())
    failed = sorted(name for name, outcome in found.items() if outcome == "failed")
    text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped") if counts[outcome])
    return f"{text} ({', '.join(failed)})" if failed else text

"""Values do not change: every dataclass of fmm is frozen, but for those that are named here."""

from __future__ import annotations

import ast

from tests.support import ROOT

CHANGING = {
    "_Moves", "StepTimes", "Counts",  # they gather what comes
    "ChunkTasks", "Task", "Trust", "Place",  # they note what was done
    "CpuSession", "FakeDevice", "FakeSession", "Laboratory",  # a clock, a random generator or a limit goes on in them
}  # fmt: skip


def dataclasses() -> list[tuple[str, bool]]:
    """Their names, and whether they are frozen."""
    found = []
    for path in sorted((ROOT / "fmm").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                assert isinstance(node, ast.ClassDef)
                text = ast.unparse(decorator)
                if text.partition("(")[0] == "dataclass":
                    found.append((node.name, "frozen=True" in text))
    return found


def test_dataclasses_are_frozen() -> None:
    assert {name for name, frozen in dataclasses() if not frozen} == CHANGING

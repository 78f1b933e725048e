"""How the tests themselves are arranged."""

from __future__ import annotations

import ast

from tests.support import ROOT

SHARED = ("tests.support", "tests.oracles")


def test_no_test_imports_another() -> None:
    """What several tests need stands in tests/support/, the papers' closed forms in tests/oracles/."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: tests/ is no package"
                names = [str(node.module)]
            found += [(path.name, x) for x in names if x.split(".")[0] == "tests" and not x.startswith(SHARED)]
    assert not found

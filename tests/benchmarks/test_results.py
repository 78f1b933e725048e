"""results/ holds samples, and its README describes each file."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support import ROOT

RESULTS = ROOT / "results"
GENERATED = re.compile(r"^report(\.html)?$")  # fmm-tune report writes these files from the others; git ignores them
FILES = [
    path
    for path in sorted(RESULTS.rglob("*"))
    if path.is_file() and not any(GENERATED.match(part) for part in path.relative_to(RESULTS).parts)
]
MOST_BYTES = 3_500_000


def described_names() -> list[str]:
    """Return the names and patterns of files, and folders with a slash at the end, as the README has them."""
    return re.findall(r"`([^`\s]+)`", (RESULTS / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_the_readme_describes_every_file(path: Path) -> None:
    names = described_names()
    folders = {f"{part}/" for part in path.relative_to(RESULTS).parts[:-1]}
    assert path.name == "README.md" or folders & set(names) or any(fnmatch(path.name, name) for name in names)


def test_the_readme_names_only_files_that_exist() -> None:
    names = {path.name for path in FILES} | {f"{path.name}/" for path in RESULTS.rglob("*") if path.is_dir()}
    spelled = [name for name in described_names() if re.search(r"\.(json|jsonl|md)(\.gz)?$|^\w+/$", name)]
    assert spelled and not [name for name in spelled if not any(fnmatch(found, name) for found in names)]


def test_files_that_a_command_can_write_again_are_not_stored() -> None:
    assert not [path for path in FILES if path.suffix in (".html", ".png", ".svg", ".partial")]
    assert {path.parent.name for path in FILES if path.suffix == ".csv"} == {"tables"}, "long tables of the pages"
    assert sum(path.stat().st_size for path in FILES) < MOST_BYTES

"""results/ holds what was measured, and its README says of each file what it is."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support import ROOT

RESULTS = ROOT / "results"
MADE = re.compile(r"^report(\.html)?$")  # what fmm-tune report makes of the others; git ignores it
FILES = [
    path
    for path in sorted(RESULTS.rglob("*"))
    if path.is_file() and not any(MADE.match(part) for part in path.relative_to(RESULTS).parts)
]
MOST_BYTES = 3_500_000


def described() -> list[str]:
    """Names and patterns of files, and folders with a slash behind, as the README spells them."""
    return re.findall(r"`([^`\s]+)`", (RESULTS / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_the_readme_says_what_a_file_is(path: Path) -> None:
    known = described()
    folders = {f"{part}/" for part in path.relative_to(RESULTS).parts[:-1]}
    assert path.name == "README.md" or folders & set(known) or any(fnmatch(path.name, name) for name in known)


def test_the_readme_names_nothing_that_is_gone() -> None:
    names = {path.name for path in FILES} | {f"{path.name}/" for path in RESULTS.rglob("*") if path.is_dir()}
    spelled = [name for name in described() if re.search(r"\.(json|jsonl|md)(\.gz)?$|^\w+/$", name)]
    assert spelled and not [name for name in spelled if not any(fnmatch(found, name) for found in names)]


def test_nothing_is_kept_that_can_be_made_again() -> None:
    assert not [path for path in FILES if path.suffix in (".html", ".png", ".svg", ".partial")]
    assert {path.parent.name for path in FILES if path.suffix == ".csv"} == {"tables"}, "long tables of the pages"
    assert sum(path.stat().st_size for path in FILES) < MOST_BYTES

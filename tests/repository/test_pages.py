"""What the pages for people say of the code: its paths, modules and names are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module, util
from pathlib import Path

import pytest

from fmm.kernels.plans.leaf import leaf_use
from fmm.perfmodel.choose import CPU_ERROR_GROWTH, GPU_ERROR_GROWTH
from fmm.runtime.calls.answer import LEAST_MIRRORED
from fmm.runtime.decisions.decide import SMALLEST_EXACT_SIDE
from tests.support import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "results").rglob("*.md"))]
FOLDERS = "fmm", "tests", "benchmarks", "docs", "notebooks", "results"

PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")  # without a placeholder or a *, as in results/<device>/
DOTTED = re.compile(r"\b(?:fmm|benchmarks)(?:\.[a-z_]\w*)+")
MAKE = re.compile(r"`?\bmake ([a-z][a-z-]*)\b(?=`|\s+#|$)", re.MULTILINE)
TESTS = re.compile(r"\bpytest ([\w/.]+)")
NAMED_ALONE = re.compile(r"`([a-z]+(?:_[a-z0-9]+)+|[A-Z][a-z]+(?:[A-Z][a-z]+)+)`")  # functions and classes


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def resolves(name: str) -> bool:
    """Is it a module, or something in one? What needs a library that is not installed is looked up by its file."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ".".join(parts[:count])
        try:
            found = util.find_spec(module)
        except ModuleNotFoundError:
            continue
        if found is None:
            continue
        try:
            value = import_module(module)
        except ModuleNotFoundError as error:
            text = read(Path(found.origin or ""))
            return not str(error.name).startswith("fmm") and all(re.search(rf"\b{x}\b", text) for x in parts[count:])
        for attribute in parts[count:]:
            if not hasattr(value, attribute):
                return False
            value = getattr(value, attribute)
        return True
    return False


def missing(text: str) -> Iterator[str]:
    """What a page names and is not there."""
    yield from (path for path in PATH.findall(text) if not (ROOT / path).exists())
    yield from (path for path in TESTS.findall(text) if not (ROOT / path).exists())
    yield from (name for name in DOTTED.findall(text) if not (name.endswith((".py", ".md")) or resolves(name)))
    makefile = read(ROOT / "Makefile")
    yield from (f"make {target}" for target in MAKE.findall(text) if not re.search(rf"^{target}:", makefile, re.M))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_a_page_names_is_there(page: Path) -> None:
    assert not list(missing(read(page)))


CODE = (".py", ".cuh", ".txt")


@cache
def words_of_the_code() -> frozenset[str]:
    files = [p for folder in ("fmm", "benchmarks", "tests") for p in (ROOT / folder).rglob("*") if p.suffix in CODE]
    words = {word for path in files for word in re.findall(r"\w+", read(path))} | {path.stem for path in files}
    return frozenset(words | {path.stem for folder in ("notebooks", "results") for path in (ROOT / folder).iterdir()})


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name != "results"], ids=named)
def test_names_of_code_are_in_the_code(page: Path) -> None:
    """Functions and classes that stand in a page by their bare names; each is a word of some file of the code."""
    assert not [name for name in NAMED_ALONE.findall(read(page)) if name not in words_of_the_code()]


NUMBERS = [
    # (file, what it says of a number that the code has)
    ("docs/limits.md", f"vendor's own error: {CPU_ERROR_GROWTH:g} on a CPU, {GPU_ERROR_GROWTH:g} on a GPU"),
    ("fmm/api.py", f"as much as the vendor ({CPU_ERROR_GROWTH:g}; on a GPU {GPU_ERROR_GROWTH:g})"),
    ("docs/limits.md", f"less than {LEAST_MIRRORED} rows fmm leaves that to it"),
    ("docs/limits.md", f"(of integers up to {SMALLEST_EXACT_SIDE - 1})"),
    ("docs/limits.md", f"Where a side is {SMALLEST_EXACT_SIDE - 1} or less, NumPy multiplies"),
    ("docs/limits.md", f"a real half with no side beyond {leaf_use('small').leaf.candidacy.longest} is one launch"),
    ("docs/plans.md", f"compared where no side is beyond {leaf_use('small').leaf.candidacy.longest}"),
]


@pytest.mark.parametrize(("file", "said"), NUMBERS)
def test_numbers_of_the_code_in_prose(file: str, said: str) -> None:
    assert said in " ".join(read(ROOT / file).split())


def test_what_is_not_there_is_found() -> None:
    text = "`fmm/gone.py` and `fmm/api.py`, fmm.kernels.gone, fmm.api.gone, fmm.matmul, `make gone`, `make test`"
    assert list(missing(text)) == ["fmm/gone.py", "fmm.kernels.gone", "fmm.api.gone", "make gone"]

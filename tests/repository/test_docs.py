"""README.md and docs/: links resolve, plans parse, examples run, named code exists, numbers come from results/."""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from importlib import import_module, util
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from benchmarks.pages import filled_page, generated_files, marked_pages
from fmm.kernels.plans.plan import Plan
from tests.support import ROOT

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted((ROOT / "results").rglob("*.md"))]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"`((?:fmm|tests|benchmarks|docs|notebooks|results)/[\w./-]*)`")
MODULE = re.compile(r"\b(?:fmm|benchmarks)(?:\.[a-z_]\w*)+")
BENCHMARK = re.compile(r"python -m benchmarks ([a-z]\w*)")
TARGET = re.compile(r"`?\bmake ([a-z][a-z-]*)\b(?=`|\s+#|$)", re.MULTILINE)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """Return the page without its code blocks."""
    return FENCE.sub("", read(path))


# ---- numbers


@pytest.mark.parametrize("path", marked_pages(), ids=relative)
def test_measured_numbers_are_those_in_results(path: Path) -> None:
    """Fails when a page is out of date: `python -m benchmarks pages` writes the numbers anew."""
    assert filled_page(read(path), ROOT / "results") == read(path)


def test_the_long_tables_are_those_in_results() -> None:
    tables = [(path, text) for path, text in generated_files() if path.suffix == ".csv"]
    assert tables and all(read(path) == text for path, text in tables)


# ---- links and names


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, by GitHub's rule."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(path: Path) -> Iterator[str]:
    for link in LINK.findall(prose(path)):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        page = (path.parent / target).resolve() if target else path
        if not page.exists() or (anchor and anchor not in anchors(page)):
            yield link


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_relative_links_resolve(path: Path) -> None:
    assert not list(dead_links(path))


def test_dead_links_are_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One title, two\n[a](#one-title-two) [b](page.md#none) [c](gone.md) [d](https://a.b)", "utf-8")
    assert list(dead_links(page)) == ["page.md#none", "gone.md"]


def resolves(name: str) -> bool:
    """Return True if `name` is a module or its attribute. A module that needs an absent library is read as text."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ".".join(parts[:count])
        try:
            spec = util.find_spec(module)
        except ModuleNotFoundError:
            continue
        if spec is None:
            continue
        try:
            value = import_module(module)
        except ModuleNotFoundError as error:
            text = read(Path(spec.origin or ""))
            return not str(error.name).startswith("fmm") and all(re.search(rf"\b{x}\b", text) for x in parts[count:])
        for attribute in parts[count:]:
            if not hasattr(value, attribute):
                return False
            value = getattr(value, attribute)
        return True
    return False


def missing_names(text: str) -> Iterator[str]:
    """Yield the paths, modules, benchmarks and make targets that a page names and that do not exist."""
    yield from (path for path in PATH.findall(text) if not (ROOT / path).exists())
    yield from (name for name in MODULE.findall(text) if not (name.endswith((".py", ".md")) or resolves(name)))
    yield from (f"benchmark {name}" for name in BENCHMARK.findall(text) if name not in BENCHMARKS)
    makefile = read(ROOT / "Makefile")
    yield from (f"make {target}" for target in TARGET.findall(text) if not re.search(rf"^{target}:", makefile, re.M))


# Notes on experiments name the code of their day.
CURRENT_PAGES = [page for page in PAGES if not page.name.startswith("tried")]


@pytest.mark.parametrize("page", CURRENT_PAGES, ids=relative)
def test_named_code_exists(page: Path) -> None:
    assert not list(missing_names(read(page)))


def test_missing_names_are_detected() -> None:
    text = "`fmm/gone.py` and `fmm/api.py`, fmm.kernels.gone, fmm.api.gone, fmm.matmul, `make gone`, `make test`"
    found = list(missing_names(f"{text}, `python -m benchmarks gone`"))
    assert found == ["fmm/gone.py", "fmm.kernels.gone", "fmm.api.gone", "benchmark gone", "make gone"]


# ---- examples


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_plans_in_prose_parse(path: Path) -> None:
    for text in CODE.findall(prose(path)):
        if " > " in text and '"' not in text:
            Plan.parse(text)


def blocks(path: Path, language: str) -> list[str]:
    return [text for name, text in FENCE.findall(read(path)) if name == language]


@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path, "python")], ids=relative)
def test_python_examples_run(path: Path) -> None:
    """Blocks with prompts run in order in one session, with the output shown; the others must parse."""
    runner, session = doctest.DocTestRunner(verbose=False), {"__name__": "__main__"}
    for i, block in enumerate(blocks(path, "python")):
        if ">>>" not in block:
            ast.parse(block)
            continue
        test = doctest.DocTestParser().get_doctest(block, session, f"{relative(path)}, block {i + 1}", None, None)
        runner.run(test, clear_globs=False)
        session = test.globs
    assert not runner.summarize(verbose=False).failed


SOLVERS = (
    "triangular",
    "cholesky_factors",
    "lu_factors",
    "solve",
    "determinants",
    "inverse",
    "qr_factors",
    "least_squares",
)


@pytest.mark.parametrize(
    "module",
    ["fmm.api", "fmm.newton_schulz.orthogonalization", *(f"fmm.linalg.{name}" for name in SOLVERS)],
)
def test_public_docstrings_have_examples_that_run(module: str) -> None:
    if "linalg" in module:
        pytest.importorskip("scipy")
    api = import_module(module)
    results = doctest.testmod(api, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert not results.failed


def test_every_environment_variable_is_documented() -> None:
    used = {name for path in (ROOT / "fmm").rglob("*.py") for name in re.findall(r'"(FMM_[A-Z_]+)"', read(path))}
    assert {"FMM_CONFIG", "FMM_DISABLE"} <= used
    assert used <= set(re.findall(r"FMM_[A-Z_]+", read(ROOT / "docs" / "tuning.md")))

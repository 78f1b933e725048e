"""README and docs/: numbers are those of results/, links lead somewhere, examples run."""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.readme import MARK, SECTIONS, filled, pages
from benchmarks.scaling import MARK as PREDICTED
from fmm.config.certify import CONFIDENCE, GAIN
from fmm.kernels import Plan
from fmm.kernels.plans.levels.complex_3m import ThreeProducts
from fmm.kernels.plans.levels.residues import Residues
from fmm.perfmodel.stability import SHORTER_PIECES
from fmm.runtime import progress
from fmm.tuner import cli
from fmm.tuner.findings import doubts, threshold_agreement
from fmm.tuner.fit import blocks as strategies
from tests.support import ROOT

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
# Every page for people: what is written about the code and about what was measured.
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted((ROOT / "results").rglob("*.md"))]
NEAR = 1.03  # within which the composed plan of any limit is, of the best one: tests/perfmodel/test_compose.py
MOST_BYTES = 6 * 1024  # of the README

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
VARIABLE = re.compile(r"FMM_[A-Z_]+")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", read(path))


# ---- numbers


@pytest.mark.parametrize("path", pages(), ids=named)
def test_the_numbers_are_written_from_results(path: Path) -> None:
    """If this fails, run python -m benchmarks.readme."""
    assert filled(read(path), ROOT / "results") == read(path)


def test_every_measured_table_stands_on_a_page() -> None:
    assert {README, ROOT / "docs" / "benchmarks.md"} <= set(pages())
    shown = [mark[2] for path in pages() for mark in MARK.finditer(read(path))]
    assert sorted(shown) == sorted(SECTIONS)


# Figures in the prose are the code's: what was measured stands in marked places alone. Which constant each one is:
STATED = {
    "docs/everywhere.md": {"10 seconds": progress.LONG},
    "docs/glossary.md": {"1.02": GAIN},
    "docs/limits.md": {
        "1.4 times": round(2**0.5, 1),
        "2.2": round(ThreeProducts().positive_growth, 1),
        "2.7 times": SHORTER_PIECES.positive,
        "3 %": NEAR - 1,
    },
    "docs/plans.md": {"1.5": 1.5, "0.02": Residues(8).error_growth},
    "docs/tuning.md": {
        "5 %": strategies.CLOSE,
        "1 %": doubts.MARGIN,
        "95 %": CONFIDENCE,
        "1.02": GAIN,
        "2 %": GAIN - 1,
        "10 %": threshold_agreement.NEAR,
    },
}
WORD = "(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|thirty|forty|fifty|sixty|a hundred)"
PART = "(?:half|thirds?|quarters?|fifths?|sixths?|sevenths?|eighths?|tenths?|fiftieths?|hundredths?)"
FIGURE = re.compile(
    r"(?<![\d^-])\d[\d.,]* ?(?:m?s|µs|us|(?:micro)?seconds|minutes|times|points|[KMGT]i?B(?:/s)?|[GT]flop(?:/s)?)\b"
    r"|(?<![\d^])\d[\d.,]* %|\b\d+\.\d+\b"
    # and in words: times, ratios, shares of what is measured
    rf"|\b(?:(?:some|a few|about|half an?|{WORD}) )+(?:{PART} of an? )?(?:micro|milli)?(?:seconds?|minutes?)\b"
    r"|\ban? (?:micro|milli)?(?:second|minute) or two\b"
    rf"|\b(?:twice|thrice|{WORD} times) as (?:fast|slow)\b"
    rf"|\b(?:half|(?:an?|{WORD}) {PART}) of (?:cuBLAS|NumPy|the (?:rate|bound|time))|\bwithin an? {PART}\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("path", [README, *DOCS], ids=named)
def test_no_page_tells_in_prose_what_was_measured(path: Path) -> None:
    text = CODE.sub("", PREDICTED.sub("", MARK.sub("", prose(path))))
    text = re.sub(r"[Pp]ython \d\.\d+|capability \d\.\d|NumPy \d\.\d+|torch.{0,40}? \d\.\d+|\]\([^)]*\)", "", text)
    stated = STATED.get(named(path), {})
    assert not {found[0].strip() for found in FIGURE.finditer(text)} - stated.keys()


@pytest.mark.parametrize(("page", "figure"), [(page, x) for page, known in STATED.items() for x in known])
def test_figures_in_prose_are_the_codes(page: str, figure: str) -> None:
    number, value = float(figure.split()[0]), STATED[page][figure]
    assert number == pytest.approx(100 * value if figure.endswith("%") else value, rel=0.05)
    assert figure in read(ROOT / page), "it is said no more"


@pytest.mark.parametrize(
    "text",
    [
        "gains 1.12 in all", "off by 6.3 %", "four times as fast", "in 60 s", "10 GB/s", "thirty times as fast",
        "a few tenths of a microsecond", "some ten seconds", "a second or two", "half of cuBLAS's error",
        "nine tenths of the rate", "they are within a sixth",
    ],
)  # fmt: skip
def test_measured_figures_are_found(text: str) -> None:
    assert FIGURE.search(text)


@pytest.mark.parametrize("text", ["half of the free memory", "two thirds of a matrix more", "after the third time"])
def test_what_is_counted_is_no_measured_figure(text: str) -> None:
    assert not FIGURE.search(text)


# ---- the README


def test_the_first_screen_has_the_example_two_timings_and_the_two_commands() -> None:
    text = read(README)
    first = text[: text.index("## What it does")]
    assert "fmm.matmul(a, b)" in first
    assert "NumPy" in first.partition("<!-- results: example -->")[2].partition("<!-- end -->")[0]
    assert "make tune" in first
    assert "make test" in first
    assert first.index("pip install") < first.index("make tune") < first.index("When not to use it")
    assert len(first.splitlines()) < 30


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= MOST_BYTES


# ---- links


def anchors(path: Path) -> set[str]:
    """What a page's headings are called in links, by GitHub's rule."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(path: Path) -> Iterator[str]:
    for link in LINK.findall(prose(path)):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        place = (path.parent / target).resolve() if target else path
        if not place.exists() or (anchor and anchor not in anchors(place)):
            yield link


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    assert not list(dead_links(path))


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One title, two\n[a](#one-title-two) [b](page.md#none) [c](gone.md) [d](https://a.b)", "utf-8")
    assert list(dead_links(page)) == ["page.md#none", "gone.md"]


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    assert {f"docs/{path.name}" for path in DOCS} <= set(LINK.findall(read(README)))


# ---- examples


def plan_texts(path: Path) -> set[str]:
    """Every plan of at least one level that stands in a page's prose."""
    return {code for code in CODE.findall(prose(path)) if " > " in code}


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_every_plan_in_the_prose_can_be_read(path: Path) -> None:
    for text in plan_texts(path):
        Plan.parse(text)


def test_the_page_on_plans_has_examples() -> None:
    assert len(plan_texts(ROOT / "docs" / "plans.md")) >= 10


def blocks(path: Path, language: str) -> list[str]:
    return [text for name, text in FENCE.findall(read(path)) if name == language]


@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path, "python")], ids=named)
def test_python_in_a_page_gives_what_stands_there(path: Path) -> None:
    """Blocks with prompts are run, one after the other in one session; the others can at least be read."""
    runner, session = doctest.DocTestRunner(verbose=False), {"__name__": "__main__"}
    for i, block in enumerate(blocks(path, "python")):
        if ">>>" not in block:
            ast.parse(block)
            continue
        test = doctest.DocTestParser().get_doctest(block, session, f"{named(path)}, block {i + 1}", None, None)
        runner.run(test, clear_globs=False)
        session = test.globs
    assert not runner.summarize(verbose=False).failed


def test_pages_with_a_session_are_run() -> None:
    assert {"plans.md", "tuning.md"} <= {path.name for path in DOCS if ">>>" in "".join(blocks(path, "python"))}


# ---- what the pages are to tell


def test_tuning_tells_of_every_command() -> None:
    text = read(ROOT / "docs" / "tuning.md")
    (commands,) = (a.choices for a in cli._parsers()[0]._actions if a.dest == "COMMAND" or a.metavar == "COMMAND")
    assert commands
    assert not [name for name in commands if f"`fmm-tune {name}" not in text]


def test_tuning_tells_of_every_environment_variable() -> None:
    used = {name for path in (ROOT / "fmm").rglob("*.py") for name in re.findall(r'"(FMM_[A-Z_]+)"', read(path))}
    assert {"FMM_CONFIG", "FMM_DISABLE"} <= used
    assert used <= set(VARIABLE.findall(read(ROOT / "docs" / "tuning.md")))


def test_every_noun_of_the_glossary_has_one_owner() -> None:
    rows = [line for line in read(ROOT / "docs" / "glossary.md").splitlines() if line.startswith("| ")]
    nouns = [row.split("|") for row in rows if not row.startswith("| noun ")]
    assert len(nouns) > 50
    assert not [cells[1] for cells in nouns if len(cells) != 5 or len(LINK.findall(cells[3])) != 1]
    names = [name.strip() for cells in nouns for name in cells[1].split(",")]
    assert len(set(names)) == len(names)

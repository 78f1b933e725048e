"""Every fitted parameter is explained once, and docs/tuning.md says the same."""

from __future__ import annotations

import re

from fmm.tuner.findings.parameter_words import MEANINGS

from fmm.tuner.fit.parameters import PARAMETERS, TILE, meaning_of, scaled_text, unit_of
from tests.support import ROOT

ROW = re.compile(r"^\| `([a-z._]+)` \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)


def test_every_parameter_has_words_and_no_other() -> None:
    assert set(MEANINGS) == {p.name for p in (*PARAMETERS, TILE)}
    assert meaning_of("frayed") == "a term of an earlier model" and unit_of("frayed") == ""


def test_the_page_says_the_same() -> None:
    page = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    section = page[page.index("## The fitted parameters") : page.index("## Environment variables")]
    found = {name: (unit.strip(), meaning) for name, unit, meaning in ROW.findall(section)}
    assert found == {name: (unit_of(name), meaning) for name, meaning in MEANINGS.items()}


def test_numbers_are_told_in_thousands_and_thousandths() -> None:
    assert scaled_text("bytes/s", 1.736e10) == (["17.4"], "Gbytes/s")
    assert scaled_text("s", 0.0037, 0.0207) == (["3.7", "20.7"], "ms")
    assert scaled_text("s", 3e-9) == (["0.003"], "µs") and scaled_text("bytes", 0.0) == (["0"], "bytes")
    assert scaled_text("rows of C", 76.04) == (["76"], "rows of C") and scaled_text("", 0.622) == (["0.622"], "")

"""Every fitted parameter is explained once, and docs/tuning.md says the same."""

from __future__ import annotations

import re

from fmm.tuner.findings.parameter_words import MEANINGS, meaning_of, unit_of
from fmm.tuner.fit.parameters import PARAMETERS, TILE
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

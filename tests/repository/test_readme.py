"""The README's numbers are those of results/, and its first screen is what it should be."""

from __future__ import annotations

from benchmarks.readme import filled
from tests.support import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_numbers_are_written_from_results() -> None:
    """If this fails, run python -m benchmarks.readme."""
    assert filled(README, ROOT / "results") == README


def test_the_first_screen_has_the_example_two_timings_and_the_two_commands() -> None:
    first = README[: README.index("## What it does")]
    assert "fmm.matmul(a, b)" in first
    assert "NumPy" in first.partition("<!-- results: example -->")[2].partition("<!-- end -->")[0]
    assert "make tune" in first
    assert "make test" in first
    assert len(first.splitlines()) < 30

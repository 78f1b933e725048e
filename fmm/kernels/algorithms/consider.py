"""In which forms an algorithm is worth considering: what its file says in a line `consider`.

A file without the line is considered in the forms of DEFAULT; `consider nothing` leaves the algorithm to those who name
it. What each form makes of an algorithm, fmm.perfmodel.candidates says.
"""

from __future__ import annotations

import re

DEFAULT = ("nested", "one pass")
ABOVE = "above"  # above any candidate, where that one needs too much workspace
ABOVE_AS_IT_IS = "above as it is"  # the same, of a level that has no options and is no algorithm
SEARCHED = "searched"  # by the tuner alone, where it looks beyond what the model compares
FORM_NAMES = (*DEFAULT, "outer", "in place", "copied", "inside", ABOVE, SEARCHED)
_LINE = re.compile(r"^consider\s+([^#\n]*)", re.MULTILINE)


def considered_forms(text: str) -> tuple[str, ...]:
    """The forms that a file's text names; ValueError for one that there is not. Nothing else of the file is read."""
    line = _LINE.search(text)
    if line is None:
        return DEFAULT
    named = tuple(form.strip() for form in line[1].split(","))
    if named == ("nothing",):
        return ()
    if unknown := [form for form in named if form not in FORM_NAMES]:
        raise ValueError(f"cannot consider it {unknown[0]!r}; valid: nothing, or some of {', '.join(FORM_NAMES)}")
    return named

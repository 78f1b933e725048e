"""Algorithms in text form: the files of a folder, and the texts that users register.

An optional line `consider` of a text names the patterns of candidate plans that may contain the algorithm
(PlanPatterns in fmm.perfmodel.candidates, for example `nested`). Without a line `consider`, the patterns are
DEFAULT_PLAN_FORMS. An algorithm with `consider nothing` is never a candidate; it is used only if a caller writes a plan
with it.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import NamedTuple

from fmm.kernels.registry import RowRegistry

DEFAULT_PLAN_FORMS = ("nested", "one pass")
FORM_ABOVE_CANDIDATES = "above"  # the algorithm is a level above a candidate that needs too much workspace
# The algorithm is a level above a candidate that needs too much workspace, if the level's text has no options.
FORM_ABOVE_WITHOUT_OPTIONS = "above as it is"
FORM_SEARCH_ONLY = "searched"  # the algorithm is a candidate in the tuner's search, but not in the model's choice
PLAN_FORM_NAMES = (
    *DEFAULT_PLAN_FORMS,
    "outer",
    "in place",
    "copied",
    "inside",
    FORM_ABOVE_CANDIDATES,
    FORM_SEARCH_ONLY,
)
_CONSIDER_LINE = re.compile(r"^consider\s+([^#\n]*)", re.MULTILINE)


def parse_candidate_forms(text: str) -> tuple[str, ...]:
    """Return the names of PlanPatterns in the line `consider` of a text; raise ValueError for an unknown name.

    Lines other than `consider` are ignored.
    """
    line = _CONSIDER_LINE.search(text)
    if line is None:
        return DEFAULT_PLAN_FORMS
    named = tuple(form.strip() for form in line[1].split(","))
    if named == ("nothing",):
        return ()
    if unknown := [form for form in named if form not in PLAN_FORM_NAMES]:
        valid = ", ".join(PLAN_FORM_NAMES)
        raise ValueError(f"unknown form {unknown[0]!r} in the line consider; valid: nothing, or some of {valid}")
    return named


class RegisteredText(NamedTuple):
    """The name and the text of an algorithm that a user registered."""

    name: str
    text: str


class AlgorithmTexts:
    """The texts of algorithms: the .txt files of a folder, named without the suffix, and registered texts.

    The file named `except_for` is in the folder, but is no algorithm.
    """

    def __init__(self, folder: str, algorithm_kind: str, except_for: str = "") -> None:
        self.folder: resources.abc.Traversable = resources.files("fmm.kernels.algorithms") / folder
        self.except_for, self.registered = except_for, RowRegistry[RegisteredText](algorithm_kind)

    def algorithm_names(self) -> tuple[str, ...]:
        """Return the names of the files, then the names of the registered texts."""
        files = sorted(f.name[:-4] for f in self.folder.iterdir() if f.name.endswith(".txt"))
        return (*(name for name in files if name != self.except_for), *(row.name for row in self.registered))

    def read_text(self, name: str) -> str:
        """Return the text of the algorithm with this name."""
        if name in self.registered:
            return self.registered[name].text
        return (self.folder / f"{name}.txt").read_text(encoding="utf-8")

    def register_text(self, name: str, text: str) -> None:
        """Register the text of an algorithm; raise ValueError if the name is already registered."""
        self.registered.add(RegisteredText(name, text))

    def unregister_text(self, name: str) -> None:
        """Remove the registered text of this name."""
        self.registered.remove(name)

    def candidate_plan_forms(self, name: str) -> tuple[str, ...] | None:
        """Return the names of the algorithm's PlanPatterns; None if the `consider` line of its text is invalid."""
        try:
            return parse_candidate_forms(self.read_text(name))
        except ValueError:
            return None

"""Algorithms as texts: the files of a folder, the texts that users register, and the line `consider` of both.

The line `consider` says in which forms of plans the model compares an algorithm (fmm.perfmodel.candidates). A file
without the line has the forms of DEFAULT_FORMS; with `consider nothing`, only plans that name the algorithm use it.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import NamedTuple

from fmm.kernels.registry import Registry

DEFAULT_FORMS = ("nested", "one pass")
ABOVE = "above"  # above any candidate that needs too much workspace
ABOVE_AS_IT_IS = "above as it is"  # the same, for a level without options that is no algorithm
SEARCHED = "searched"  # only in the tuner's search, beyond the model's candidates
FORM_NAMES = (*DEFAULT_FORMS, "outer", "in place", "copied", "inside", ABOVE, SEARCHED)
_LINE = re.compile(r"^consider\s+([^#\n]*)", re.MULTILINE)


def candidate_forms(text: str) -> tuple[str, ...]:
    """Return the forms that a file's text names; raise ValueError for an unknown form. The rest is not read."""
    line = _LINE.search(text)
    if line is None:
        return DEFAULT_FORMS
    named = tuple(form.strip() for form in line[1].split(","))
    if named == ("nothing",):
        return ()
    if unknown := [form for form in named if form not in FORM_NAMES]:
        raise ValueError(f"cannot consider it {unknown[0]!r}; valid: nothing, or some of {', '.join(FORM_NAMES)}")
    return named


class RegisteredText(NamedTuple):
    """An algorithm that a user registered."""

    name: str
    text: str


class TextFiles:
    """The .txt files of one folder here, each by its name without the ending, and the registered texts.

    `except_for` is the file of the folder that describes no algorithm.
    """

    def __init__(self, folder: str, noun: str, except_for: str = "") -> None:
        self.folder: resources.abc.Traversable = resources.files("fmm.kernels.algorithms") / folder
        self.except_for, self.registered = except_for, Registry[RegisteredText](noun)

    def names(self) -> tuple[str, ...]:
        """Return the names of the files, then of the registered texts."""
        files = sorted(f.name[:-4] for f in self.folder.iterdir() if f.name.endswith(".txt"))
        return (*(name for name in files if name != self.except_for), *(row.name for row in self.registered))

    def text(self, name: str) -> str:
        """Return the text of the algorithm of this name."""
        if name in self.registered:
            return self.registered[name].text
        return (self.folder / f"{name}.txt").read_text(encoding="utf-8")

    def add(self, name: str, text: str) -> None:
        """Register a text; raise ValueError for a name that is registered already."""
        self.registered.add(RegisteredText(name, text))

    def remove(self, name: str) -> None:
        """Remove a registered text."""
        self.registered.remove(name)

    def forms(self, name: str) -> tuple[str, ...] | None:
        """Return the forms of plans that an algorithm is a candidate in; None if its line cannot be read."""
        try:
            return candidate_forms(self.text(name))
        except ValueError:
            return None

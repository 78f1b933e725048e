"""Algorithms as texts by name: the files of a folder, and what users register beside them."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

from fmm.kernels.registry import Registry


class AddedText(NamedTuple):
    """An algorithm that is in no file of the folder's."""

    name: str
    text: str


class TextFiles:
    """The .txt files of one folder here, each by its name without the ending, and texts that were added.

    `but` is the file of the folder that describes no algorithm.
    """

    def __init__(self, folder: str, noun: str, but: str = "") -> None:
        self.place: resources.abc.Traversable = resources.files("fmm.kernels.algorithms") / folder
        self.but, self.added = but, Registry[AddedText](noun)

    def names(self) -> tuple[str, ...]:
        """Of files, then of texts that were added."""
        files = sorted(f.name[:-4] for f in self.place.iterdir() if f.name.endswith(".txt"))
        return (*(name for name in files if name != self.but), *(row.name for row in self.added))

    def text(self, name: str) -> str:
        if name in self.added:
            return self.added[name].text
        return (self.place / f"{name}.txt").read_text(encoding="utf-8")

    def add(self, name: str, text: str) -> None:
        """ValueError for a name that was added before."""
        self.added.add(AddedText(name, text))

    def remove(self, name: str) -> None:
        self.added.remove(name)

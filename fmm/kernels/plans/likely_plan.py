"""What plan somebody may have meant by a text that is none: names that are nearly right, levels without a leaf."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches

from fmm.kernels.plans.leaf import leaf_uses
from fmm.kernels.plans.level import LEVEL_KINDS

USUAL_LEAF = "vendor"
_NAMES = re.compile(r"(^|\*\s*)([\w-]+)")  # at the beginning of a level, and behind what joins schemes
_ARROWS = re.compile(r"\s*[-=]*>\s*|\s*→\s*|(?<![*\s])\s+(?![*\s])")


def likely_plan(text: str, is_plan: Callable[[str], bool]) -> str | None:
    """The nearest text that is a plan; None where none is near."""
    return next((found for found in _candidates(text) if found != text and is_plan(found)), None)


def _candidates(text: str) -> Iterator[str]:
    parts = [part for part in _ARROWS.split(text.strip().strip("'\"").lower()) if part]
    if not parts:
        return
    above = [_with_known_names(level) for level in parts[:-1]]
    leaf = get_close_matches(parts[-1], leaf_uses(), 1)
    if leaf:
        yield " > ".join([*above, *leaf])
    yield " > ".join([*above, _with_known_names(parts[-1]), USUAL_LEAF])


def _with_known_names(level: str) -> str:
    words = [word for kind in LEVEL_KINDS for word in kind.words()]

    def nearest(found: re.Match[str]) -> str:
        return found[1] + next(iter(get_close_matches(found[2], words, 1)), found[2])

    return _NAMES.sub(nearest, level)

"""Names that endings of plans once had. Configs, results and users' programs that have them go on being read, here and
nowhere else; what is written has today's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Products by residues were leaves: `oz14x7` was modulo 14 numbers, with 7 products in the place of 8.
_BELOW = {"": "", "x7": " > strassen", "x49": " > strassen^2"}
_DOUBLE = {
    f"oz{moduli}{old}": f"residues({moduli}){new} > bytes" for moduli in (13, 14, 15, 16) for old, new in _BELOW.items()
}
_SINGLE = {f"oz{moduli}{old}": f"residues({moduli}){_BELOW[old]} > bytes" for moduli in (7, 8, 9) for old in ("", "x7")}
_WHOLE = {"residues": "residues > bytes", "residuesx7": "residues > strassen > bytes"}
OLD_ENDINGS: Final[Mapping[str, str]] = MappingProxyType({**_DOUBLE, **_SINGLE, **_WHOLE})


def todays_ending(text: str) -> str:
    """Today's name for what a plan ends in; any other text as it is."""
    return OLD_ENDINGS.get(text, text)


def todays_plan(text: str) -> str:
    """The text of a plan with today's name for what it ends in."""
    levels, arrow, ending = text.rpartition(">")
    new = OLD_ENDINGS.get(ending.strip())
    return text if new is None else f"{levels}{arrow}{' ' * bool(arrow)}{new}"

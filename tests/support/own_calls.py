"""The functions of fmm that a call runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def called_functions(call: Callable[[], object]) -> list[str]:
    """Return the functions of fmm that one call runs, with their modules."""
    names: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("fmm."):
            names.append(f"{frame.f_globals['__name__']}.{frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return names

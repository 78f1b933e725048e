"""fmm/config/environment.py."""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Any

MODES = ("off", "cache", "online")

log = logging.getLogger("fmm")


_DATA: Any = getattr(os.environ, "_data", None)  # os.environ.get takes 0.7 microseconds a name, three times a product
_NAMES = {name: os.environ.encodekey(name) if _DATA is not None else name for name in (
    "FMM_CONFIG", "FMM_DISABLE", "FMM_TUNING_MODE",
)}  # fmt: skip


def variable(name: str) -> str:
    if _DATA is None:
        return os.environ.get(name, "")
    raw = _DATA.get(_NAMES[name])
    return "" if raw is None else os.environ.decodevalue(raw)


def disabled() -> bool:
    """Is every product to be left to the vendor?"""
    return variable("FMM_DISABLE") not in ("", "0")


def mode() -> str:
    found = variable("FMM_TUNING_MODE")
    if found in MODES:
        return found
    if found:
        once(f"FMM_TUNING_MODE is {found[:40]!r}; valid: {', '.join(MODES)}; 'cache' is used")
    return "cache"


@lru_cache(maxsize=256)
def once(message: str) -> None:
    """One line in the log "fmm", which Python prints on stderr unless told otherwise, the first time it is said."""
    log.warning("fmm: %s", message)

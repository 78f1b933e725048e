"""What the environment says, read at every call: FMM_CONFIG, FMM_COMPONENTWISE, FMM_DISABLE, FMM_EMULATION
and FMM_TUNING_MODE; and the log "fmm"."""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Any

# Of tuning: use no config, use it, measure products in place too, use its alpha and pi for D'Alberto's rule.
MODES = ("off", "cache", "online", "hasa")
# What variables that are on or off may hold, in upper case too.
SWITCHES = {"0": False, "1": True, "no": False, "yes": True, "off": False, "on": True, "false": False, "true": True}

log = logging.getLogger("fmm")

# os.environ.get takes 0.7 microseconds a name, for five names at every product: the dictionary behind it is asked.
_DATA: Any = getattr(os.environ, "_data", None)
_VARIABLES = ("FMM_COMPONENTWISE", "FMM_CONFIG", "FMM_DISABLE", "FMM_EMULATION", "FMM_TUNING_MODE")
_KEYS: dict[str, Any] = {name: os.environ.encodekey(name) if _DATA is not None else name for name in _VARIABLES}
# The same of all of them at once, as it stands there: None for what is not set.
raw_value, RAW_NAMES = (os.environ if _DATA is None else _DATA).get, tuple(_KEYS.values())


def environment_value(name: str) -> str:
    """The value of one of these variables; empty if it is not set."""
    if _DATA is None:
        return os.environ.get(name, "")
    raw = _DATA.get(_KEYS[name])
    return "" if raw is None else os.environ.decodevalue(raw)


def is_disabled() -> bool:
    """Is every product to be left to the vendor? FMM_DISABLE says so, whatever it holds but a word for no."""
    found = environment_value("FMM_DISABLE")
    return bool(found) and SWITCHES.get(found.strip().casefold(), True)


def is_emulation_allowed() -> bool:
    """May products be made of products in another type, such as float32 of float16? Unless FMM_EMULATION=0."""
    return _switched("FMM_EMULATION", True)


def is_componentwise_required() -> bool:
    """Is every entry of every product to be right beside its own size? FMM_COMPONENTWISE=1 asks for it."""
    return _switched("FMM_COMPONENTWISE", False)


def _switched(name: str, usual: bool) -> bool:
    """What a variable that is on or off says; of a value that means neither, a line in the log."""
    found = environment_value(name)
    if not found:
        return usual
    known = SWITCHES.get(found.strip().casefold())
    if known is None:
        log_once(f"{name} is {found[:40]!r}; valid: {', '.join(SWITCHES)}; '{int(usual)}' is used")
        return usual
    return known


def tuning_mode() -> str:
    """One of MODES."""
    found = environment_value("FMM_TUNING_MODE")
    if found in MODES:
        return found
    if found:
        log_once(f"FMM_TUNING_MODE is {found[:40]!r}; valid: {', '.join(MODES)}; 'cache' is used")
    return "cache"


@lru_cache(maxsize=256)
def log_once(message: str) -> None:
    """One line in the log, which Python prints on stderr unless told otherwise, the first time it is said."""
    log.warning("fmm: %s", message)

"""Environment variables, read at every call, and the log "fmm".

FMM_CONFIG, FMM_COMPONENTWISE, FMM_DISABLE, FMM_EMULATION and FMM_TUNING_MODE.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Any

# Tuning modes: use no config; use it; measure products in place too; use its alpha and pi for D'Alberto's rule.
TUNING_MODES = ("off", "cache", "online", "hasa")
# Values of variables that are on or off, in any case.
SWITCH_VALUES = {
    "0": False,
    "1": True,
    "no": False,
    "yes": True,
    "off": False,
    "on": True,
    "false": False,
    "true": True,
}

log = logging.getLogger("fmm")

# os.environ.get takes 0.7 us a name, for five names at every product; the dictionary behind it is faster.
_DATA: Any = getattr(os.environ, "_data", None)
_VARIABLES = ("FMM_COMPONENTWISE", "FMM_CONFIG", "FMM_DISABLE", "FMM_EMULATION", "FMM_TUNING_MODE")
_KEYS: dict[str, Any] = {name: os.environ.encodekey(name) if _DATA is not None else name for name in _VARIABLES}
# To read all variables at once as they are stored; None for a variable that is not set.
raw_value, RAW_NAMES = (os.environ if _DATA is None else _DATA).get, tuple(_KEYS.values())


def environment_value(name: str) -> str:
    """Return the value of one of these variables; empty if it is not set."""
    if _DATA is None:
        return os.environ.get(name, "")
    raw = _DATA.get(_KEYS[name])
    return "" if raw is None else os.environ.decodevalue(raw)


def is_disabled() -> bool:
    """Return True if FMM_DISABLE leaves every product to the vendor: any value but one that means no."""
    value = environment_value("FMM_DISABLE")
    return bool(value) and SWITCH_VALUES.get(value.strip().casefold(), True)


def is_emulation_allowed() -> bool:
    """Return True if products may be made of products in another type, unless FMM_EMULATION=0."""
    return _is_on("FMM_EMULATION", True)


def is_componentwise_required() -> bool:
    """Return True if FMM_COMPONENTWISE=1 requires each entry to be accurate relative to (|A| |B|)ij."""
    return _is_on("FMM_COMPONENTWISE", False)


def _is_on(name: str, default: bool) -> bool:
    """Return the value of a switch; log a value that means neither on nor off, and return the default."""
    value = environment_value(name)
    if not value:
        return default
    switch = SWITCH_VALUES.get(value.strip().casefold())
    if switch is None:
        log_once(f"{name} is {value[:40]!r}; valid: {', '.join(SWITCH_VALUES)}; '{int(default)}' is used")
        return default
    return switch


def tuning_mode() -> str:
    """Return the tuning mode, one of MODES."""
    value = environment_value("FMM_TUNING_MODE")
    if value in TUNING_MODES:
        return value
    if value:
        log_once(f"FMM_TUNING_MODE is {value[:40]!r}; valid: {', '.join(TUNING_MODES)}; 'cache' is used")
    return "cache"


@lru_cache(maxsize=256)
def log_once(message: str) -> None:
    """Log a warning the first time it comes; Python prints it on stderr unless logging is set up otherwise."""
    log.warning("fmm: %s", message)

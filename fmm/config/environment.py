"""Read the environment variables of fmm at every call, and write warnings to the log "fmm".

The variables are FMM_CONFIG, FMM_COMPONENTWISE, FMM_DISABLE, FMM_EMULATION and FMM_TUNING_MODE.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# The values of FMM_TUNING_MODE. "off": fmm uses no config. "cache": fmm uses the configs. "online": fmm uses the
# configs, and measures large products of the running program. "hasa": fmm decides by D'Alberto and Nicolau's Equation
# 2.
TUNING_MODES = ("off", "cache", "online", "hasa")
# The valid values of an environment variable that is on or off, in lower case, with their meaning (True: on).
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

# The dictionary of undecoded values inside os.environ, which every product reads: os.environ.get would take 0.7 us for
# each of five variables.
_ENVIRONMENT_BYTES: Any = getattr(os.environ, "_data", None)
_VARIABLES = ("FMM_COMPONENTWISE", "FMM_CONFIG", "FMM_DISABLE", "FMM_EMULATION", "FMM_TUNING_MODE")
_ENVIRONMENT_KEYS: dict[str, Any] = {
    name: os.environ.encodekey(name) if _ENVIRONMENT_BYTES is not None else name for name in _VARIABLES
}
# map(raw_variable_value, RAW_VARIABLE_NAMES) yields the undecoded values of fmm's environment variables, None for an
# unset variable.
raw_variable_value, RAW_VARIABLE_NAMES = (
    (os.environ if _ENVIRONMENT_BYTES is None else _ENVIRONMENT_BYTES).get,
    tuple(_ENVIRONMENT_KEYS.values()),
)


def environment_value(name: str) -> str:
    """Return the value of one of fmm's environment variables; an empty text if the variable is not set."""
    if _ENVIRONMENT_BYTES is None:
        return os.environ.get(name, "")
    raw = _ENVIRONMENT_BYTES.get(_ENVIRONMENT_KEYS[name])
    return "" if raw is None else os.environ.decodevalue(raw)


def is_disabled() -> bool:
    """Return True if FMM_DISABLE disables fmm, so that the vendor computes every product.

    Every value of FMM_DISABLE disables fmm, except an empty text, no, 0, off and false.
    """
    value = environment_value("FMM_DISABLE")
    return bool(value) and SWITCH_VALUES.get(value.strip().casefold(), True)


def is_emulation_allowed() -> bool:
    """Return True unless FMM_EMULATION=0 forbids emulation, which computes a product with products of another type."""
    return _is_switched_on("FMM_EMULATION", True)


def is_componentwise_required() -> bool:
    """Return True if FMM_COMPONENTWISE=1 requires an error bound of each entry relative to (|A| |B|)ij."""
    return _is_switched_on("FMM_COMPONENTWISE", False)


def _is_switched_on(name: str, default: bool) -> bool:
    """Return True if an environment variable is on; for an invalid value log a warning and return `default`."""
    value = environment_value(name)
    if not value:
        return default
    switch = SWITCH_VALUES.get(value.strip().casefold())
    if switch is None:
        log_once(f"{name} is {value[:40]!r}; valid: {', '.join(SWITCH_VALUES)}; '{int(default)}' is used")
        return default
    return switch


def tuning_mode() -> str:
    """Return the tuning mode, one of TUNING_MODES."""
    value = environment_value("FMM_TUNING_MODE")
    if value in TUNING_MODES:
        return value
    if value:
        log_once(f"FMM_TUNING_MODE is {value[:40]!r}; valid: {', '.join(TUNING_MODES)}; 'cache' is used")
    return "cache"


@lru_cache(maxsize=256)
def log_once(message: str) -> None:
    """Log a warning once per process; Python prints it on stderr unless logging is configured otherwise."""
    log.warning("fmm: %s", message)


# ---- variables that change the vendor's arithmetic

# VENDOR_VARIABLES: element type -> environment variable that changes cuBLAS's arithmetic and speed -> values that leave
# cuBLAS's arithmetic unchanged.
_EMULATION_VARIABLES = {"CUBLAS_EMULATION_STRATEGY": ("default",)}
_DOUBLE_VARIABLES: dict[str, tuple[str, ...]] = {"CUBLAS_EMULATE_DOUBLE_PRECISION": ("0",)}
_SINGLE_VARIABLES: dict[str, tuple[str, ...]] = {
    "CUBLAS_EMULATE_SINGLE_PRECISION": ("0",),
    "NVIDIA_TF32_OVERRIDE": ("0",),
}
VENDOR_VARIABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "float64": _DOUBLE_VARIABLES,
    "complex128": _DOUBLE_VARIABLES,
    "float32": _SINGLE_VARIABLES,
    "complex64": _SINGLE_VARIABLES,
    "tf32": {"NVIDIA_TF32_OVERRIDE": ("1",)},
}


def vendor_variables() -> dict[str, str]:
    """Return the environment variables that are set and can change cuBLAS's arithmetic; each tuning records them."""
    names = (*_DOUBLE_VARIABLES, *_SINGLE_VARIABLES, *_EMULATION_VARIABLES)
    return {name: value for name in names if (value := os.environ.get(name, "").strip())}


def vendor_arithmetic(dtype: str, variables: Mapping[str, str]) -> str:
    """Return as text the `variables` that change cuBLAS's products of this type; empty if no variable changes them."""
    relevant = VENDOR_VARIABLES.get(dtype, {})
    found = {name: variables[name] for name, usual in relevant.items() if variables.get(name, usual[0]) not in usual}
    if any("EMULATE" in name for name in found):
        found |= {name: variables[name] for name in _EMULATION_VARIABLES if name in variables}
    return ", ".join(f"{name}={value}" for name, value in found.items())

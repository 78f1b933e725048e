"""A config as a file's text: JSON in which people find an entry a line, and what makes it one of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fmm.config.checks import ConfigError, Raw, short_text
from fmm.config.older_keys import with_todays_keys

SCHEMA = 1  # the version that is read and written


def read_document(content: str) -> dict[str, dict[str, Raw]]:
    """The devices of a config by today's keys: key -> type -> section, not yet checked."""
    try:
        raw = json.loads(content, parse_constant=_no_constant)
    except RecursionError:
        raise ConfigError("it is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"it is not JSON: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("devices"), dict):
        raise ConfigError("it is no fmm config: it has no devices")
    if isinstance(raw.get("schema"), int) and raw["schema"] > SCHEMA:
        raise ConfigError(f"its schema is {short_text(raw['schema'])}, of a later fmm; this one reads {SCHEMA}")
    if raw.get("schema") is not SCHEMA and raw.get("schema") != SCHEMA:
        raise ConfigError(f"its schema is {short_text(raw.get('schema'))}, this fmm reads {SCHEMA}")
    for key, types in raw["devices"].items():
        if not isinstance(types, dict):
            raise ConfigError(f"the device {short_text(key)} has no types")
    return with_todays_keys(raw["devices"])


def _no_constant(name: str) -> None:
    raise ConfigError(f"it holds {name}, which is no number")


def config_text(devices: Mapping[str, Mapping[str, Raw]]) -> str:
    """A config's text: readable, an entry a line."""
    return _json_lines({"schema": SCHEMA, "devices": devices}, 0) + "\n"


def _json_lines(value: Raw, depth: int) -> str:
    """JSON with objects of plain values on one line each; ValueError for NaN, with which it would be none."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if depth > 2 and not any(isinstance(x, dict) for x in inner):
        return json.dumps(value, allow_nan=False)
    gap, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict) and value:
        lines = [f"{json.dumps(str(name))}: {_json_lines(x, depth + 1)}" for name, x in value.items()]
        return "{" + gap + f",{gap}".join(lines) + end + "}"
    if isinstance(value, list | tuple) and value:
        return "[" + gap + f",{gap}".join(_json_lines(x, depth + 1) for x in value) + end + "]"
    return json.dumps(value, allow_nan=False)

"""Read and write the JSON document of a config, and check the values in the document.

A check is a function of two arguments: a value that `json` read, and the value's path, such as
"devices.x.float64.noise". The check returns the value, or raises ConfigError with the path and the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

JsonValue = Any  # a value that the module json has read, unchecked
JsonCheck = Callable[[JsonValue, str], Any]

SCHEMA_VERSION = 1  # version of the config format that this fmm reads and writes


class ConfigError(ValueError):
    """Raised for a config, or a part of a config, that cannot be used; the message has the path and the reason."""


# ---- the document


def read_document(content: str) -> dict[str, dict[str, JsonValue]]:
    """Parse the text of a config; return a dictionary: device key -> element type -> unchecked section."""
    try:
        raw = json.loads(content, parse_constant=_reject_constant)
    except RecursionError:
        raise ConfigError("it is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"it is not JSON: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("devices"), dict):
        raise ConfigError("it is no fmm config: it has no devices")
    if isinstance(raw.get("schema"), int) and raw["schema"] > SCHEMA_VERSION:
        raise ConfigError(
            f"its schema is {shortened_for_error(raw['schema'])}, of a later fmm; this one reads {SCHEMA_VERSION}"
        )
    if raw.get("schema") is not SCHEMA_VERSION and raw.get("schema") != SCHEMA_VERSION:
        raise ConfigError(f"its schema is {shortened_for_error(raw.get('schema'))}, this fmm reads {SCHEMA_VERSION}")
    for key, types in raw["devices"].items():
        if not isinstance(types, dict):
            raise ConfigError(f"the device {shortened_for_error(key)} has no types")
    return dict(raw["devices"])


def _reject_constant(name: str) -> None:
    raise ConfigError(f"it holds {name}, which is no number")


def config_text(devices: Mapping[str, Mapping[str, JsonValue]]) -> str:
    """Return the JSON text of a config, with one line for each entry."""
    return _json_lines({"schema": SCHEMA_VERSION, "devices": devices}, 0) + "\n"


def _json_lines(value: JsonValue, depth: int) -> str:
    """Return a value as JSON text; an object that contains no other object is written on one line.

    Raise ValueError for NaN, since JSON has no NaN.
    """
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


# ---- objects, by a check for each field


def read_fields(
    value: JsonValue, json_path: str, checks: Mapping[str, JsonCheck], optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the checked fields of an object; raise ConfigError for an unknown, missing or invalid field."""
    if not isinstance(value, dict):
        raise wrong_value_error(json_path, "an object", value)
    for name in value.keys() - checks.keys():
        raise ConfigError(
            f"{json_path} has an unknown field {check_text(name, json_path)!r}; it may have {', '.join(checks)}"
        )
    for name in checks.keys() - value.keys() - optional:
        raise ConfigError(f"{json_path} has no field {name!r}")
    return {name: check(value[name], f"{json_path}.{name}") for name, check in checks.items() if name in value}


def wrong_value_error(json_path: str, valid_text: str, value: JsonValue) -> ConfigError:
    """Return the ConfigError for an invalid value; `valid_text` describes a valid value."""
    return ConfigError(f"{json_path} must be {valid_text}, not {shortened_for_error(value)}")


def shortened_for_error(value: JsonValue) -> str:
    """Return any value as a short text on one line, for an error message."""
    found = ascii(value)
    return found if len(found) < 60 else found[:57] + "..."


# ---- checks of values


def number_check(low: float, high: float) -> JsonCheck:
    """Return a check that a value is a number from `low` to `high`."""

    def check_number(value: JsonValue, json_path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise wrong_value_error(json_path, f"a number from {low:g} to {high:g}", value)
        return float(value)

    return check_number


def optional_number_check(low: float, high: float) -> JsonCheck:
    """Return a check that a value is a number from `low` to `high`, or null for a number that was not measured."""
    number = number_check(low, high)

    def check_number_or_null(value: JsonValue, json_path: str) -> float | None:
        return None if value is None else float(number(value, json_path))

    return check_number_or_null


def integer_check(low: int, high: int) -> JsonCheck:
    """Return a check that a value is a whole number from `low` to `high`."""

    def check_integer(value: JsonValue, json_path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong_value_error(json_path, f"a whole number from {low} to {high}", value)
        return value

    return check_integer


def choice_check(*valid: str) -> JsonCheck:
    """Return a check that a value is one of the texts `valid`."""

    def check_choice(value: JsonValue, json_path: str) -> str:
        if value not in valid or not isinstance(value, str):
            raise wrong_value_error(json_path, " or ".join(valid), value)
        return value

    return check_choice


def parser_check(valid_text: str, parse: Callable[[JsonValue], Any]) -> JsonCheck:
    """Return a check that returns `parse(value)`; if `parse` fails, the error message says `valid_text`."""

    def check_by_parsing(value: JsonValue, json_path: str) -> Any:
        try:
            return parse(value)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise wrong_value_error(json_path, valid_text, value) from None

    return check_by_parsing


def check_text(value: JsonValue, json_path: str) -> str:
    """Return the value if it is a short text without control characters, else raise ConfigError."""
    if not isinstance(value, str) or len(value) > 400 or not value.isprintable():
        raise wrong_value_error(json_path, "a short text", value)
    return value


def check_bool(value: JsonValue, json_path: str) -> bool:
    """Return the value if it is true or false, else raise ConfigError."""
    if not isinstance(value, bool):
        raise wrong_value_error(json_path, "true or false", value)
    return value


def accept_any_value(value: JsonValue, json_path: str) -> JsonValue:
    """Return the value unchecked, for a field that the runtime does not read or that another function checks."""
    return value


def check_text_values(value: JsonValue, json_path: str) -> dict[str, str]:
    """Return the value if it is an object of short texts, else raise ConfigError."""
    if not isinstance(value, dict):
        raise wrong_value_error(json_path, "an object", value)
    return {check_text(name, json_path): check_text(found, f"{json_path}.{name}") for name, found in value.items()}


def check_text_list(value: JsonValue, json_path: str) -> list[str]:
    """Return the value if it is a list of short texts, else raise ConfigError."""
    if not isinstance(value, list):
        raise wrong_value_error(json_path, "a list", value)
    return [check_text(found, f"{json_path}[{i}]") for i, found in enumerate(value)]

"""Reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Raw = Any  # as json reads it


class ConfigError(ValueError):
    """A config, or a part of one, that cannot be used; says where and why."""


Check = Callable[[Raw, str], Any]


def wrong_value(where: str, what: str, value: Raw) -> ConfigError:
    return ConfigError(f"{where} must be {what}, not {short_text(value)}")


def short_text(value: Raw) -> str:
    """A value as an error shows it: short, and on one line whatever it holds."""
    found = ascii(value)
    return found if len(found) < 60 else found[:57] + "..."


def bounded_number(low: float, high: float) -> Check:
    """A number within these bounds."""

    def check(value: Raw, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise wrong_value(where, f"a number from {low:g} to {high:g}", value)
        return float(value)

    return check


def number_or_nothing(low: float, high: float) -> Check:
    """A number within these bounds, or null for what was not measured."""
    number = bounded_number(low, high)

    def check(value: Raw, where: str) -> float | None:
        return None if value is None else float(number(value, where))

    return check


def whole_number(low: int, high: int) -> Check:
    """A whole number within these bounds."""

    def check(value: Raw, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong_value(where, f"a whole number from {low} to {high}", value)
        return value

    return check


def one_of(*valid: str) -> Check:
    """One of these words."""

    def check(value: Raw, where: str) -> str:
        if value not in valid or not isinstance(value, str):
            raise wrong_value(where, " or ".join(valid), value)
        return value

    return check


def plain_text(value: Raw, where: str) -> str:
    """A short text without control characters."""
    if not isinstance(value, str) or len(value) > 400 or not value.isprintable():
        raise wrong_value(where, "a short text", value)
    return value


def true_or_false(value: Raw, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise wrong_value(where, "true or false", value)
    return value


def anything(value: Raw, where: str) -> Raw:
    """For what the runtime does not read."""
    return value


def read_fields(
    value: Raw, where: str, checks: Mapping[str, Check], optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Exactly these fields, each checked."""
    if not isinstance(value, dict):
        raise wrong_value(where, "an object", value)
    for name in value.keys() - checks.keys():
        raise ConfigError(f"{where} has an unknown field {plain_text(name, where)!r}; it may have {', '.join(checks)}")
    for name in checks.keys() - value.keys() - optional:
        raise ConfigError(f"{where} has no field {name!r}")
    return {name: check(value[name], f"{where}.{name}") for name, check in checks.items() if name in value}


def object_of_texts(value: Raw, where: str) -> dict[str, str]:
    """An object of short texts."""
    if not isinstance(value, dict):
        raise wrong_value(where, "an object", value)
    return {plain_text(name, where): plain_text(found, f"{where}.{name}") for name, found in value.items()}


def list_of_texts(value: Raw, where: str) -> list[str]:
    """A list of short texts."""
    if not isinstance(value, list):
        raise wrong_value(where, "a list", value)
    return [plain_text(found, f"{where}[{i}]") for i, found in enumerate(value)]


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
    return dict(raw["devices"])


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

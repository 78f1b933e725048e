"""Checks of values that were read from JSON: each returns the value, or raises ConfigError with what is wrong where."""

from __future__ import annotations

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


def checked_fields(
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

"""Check the fields of a config section that the runtime leaves unchecked.

The runtime accepts any value in these fields, so no product fails because of a damaged field. The commands of fmm-tune
check these fields before they show, draw or export a section.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from fmm.config.reader import (
    ConfigError,
    JsonCheck,
    JsonValue,
    check_bool,
    check_text,
    integer_check,
    number_check,
    optional_number_check,
    read_fields,
    wrong_value_error,
)
from fmm.config.schema import check_strategy
from fmm.hardware.chip import BlockModelConstants

check_number = number_check(-1e30, 1e30)
check_share = number_check(-1e9, 1e9)
ERROR_CHECKS: Mapping[str, JsonCheck] = {
    "count": integer_check(0, 1 << 40),
    **dict.fromkeys(("median", "p95", "bias", "upper", "above"), optional_number_check(-1e9, 1e9)),
}
# fields of a model error that are missing if no held-out product was measured
OPTIONAL_IF_UNCHECKED = frozenset({"median", "p95", "bias", "upper", "above"})
BLOCK_TERM_CHECKS: Mapping[str, JsonCheck] = {f.name: number_check(1e-12, 1e6) for f in fields(BlockModelConstants)}


def check_reported_fields(section: Mapping[str, JsonValue], json_path: str) -> Iterator[ConfigError]:
    """Check the fields that the runtime leaves unchecked; yield a ConfigError for each damaged field."""
    for name, check in REPORTED_CHECKS.items():
        if section.get(name) is not None:
            try:
                check(section[name], f"{json_path}.{name}")
            except ConfigError as error:
                yield error


def _check_object(value: JsonValue, json_path: str, check: JsonCheck) -> dict[str, Any]:
    """Return the object if every value passes `check`, else raise ConfigError."""
    if not isinstance(value, dict):
        raise wrong_value_error(json_path, "an object", value)
    return {check_text(name, json_path): check(found, f"{json_path}.{name}") for name, found in value.items()}


def _check_record(value: JsonValue, json_path: str) -> dict[str, Any]:
    """Return the object if its values are texts, numbers or null, else raise ConfigError."""
    return _check_object(value, json_path, lambda x, at: x if x is None else _check_text_or_number(x, at))


def _check_text_or_number(value: JsonValue, json_path: str) -> JsonValue:
    return check_text(value, json_path) if isinstance(value, str) else check_number(value, json_path)


def _check_errors(value: JsonValue, json_path: str) -> dict[str, Any]:
    """Check and return a section's model errors: an object for each predicted quantity (time, speedup)."""

    def check_model_error(found: JsonValue, at: str) -> dict[str, Any] | None:
        if found is None:
            return None
        unchecked = isinstance(found, dict) and found.get("count") == 0
        checked = read_fields(found, at, ERROR_CHECKS, OPTIONAL_IF_UNCHECKED if unchecked else frozenset({"above"}))
        missing = [name for name in ("median", "p95") if checked["count"] and checked[name] is None]
        if missing:
            raise wrong_value_error(f"{at}.{missing[0]}", "a number", None)
        return checked

    return _check_object(value, json_path, check_model_error)


def _check_interval(value: JsonValue, json_path: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise wrong_value_error(json_path, "two numbers, [low, high]", value)
    low, high = (check_number(x, json_path) for x in value)
    if low > high:
        raise wrong_value_error(json_path, "two numbers, [low, high]", value)
    return low, high


def _check_blocks(value: JsonValue, json_path: str) -> dict[str, Any]:
    """Check and return the block model's fit: errors, and fitted constants (null: the built-in constants are used)."""

    def check_terms(found: JsonValue, at: str) -> JsonValue:
        return found if found is None else read_fields(found, at, BLOCK_TERM_CHECKS)

    shares = dict.fromkeys(("error", "built_in_error", "held_back"), check_share)

    def check_strategies(found: JsonValue, json_path: str) -> JsonValue:
        if not isinstance(found, list):
            raise wrong_value_error(json_path, "a list", found)
        return [check_strategy(x, f"{json_path}[{i}]") for i, x in enumerate(found)]

    checks = {"fitted": check_terms, "built_in": check_bool, "strategies": check_strategies}
    counts = {"shapes": integer_check(0, 10**6), **shares}
    return read_fields(value, json_path, {**checks, **counts}, frozenset({"built_in", "strategies"}))


REPORTED_CHECKS: Mapping[str, JsonCheck] = {
    "conditions": _check_record,
    "tuned": _check_record,
    "intervals": lambda value, json_path: _check_object(value, json_path, _check_interval),
    "error": _check_errors,
    "blocks": _check_blocks,
}

"""fmm/config/schema.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from types import MappingProxyType
from typing import Any

from fmm.config.environment import once
from fmm.config.identity import Identity
from fmm.dtypes import DTYPES
from fmm.kernels.plans.leaf import leaf_uses
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.perfmodel.calibration import Calibration, Rate

SCHEMA = 1
ANY = "any"  # the layout of entries that hold for rows and columns alike
Raw = Any  # as json reads it
Size = tuple[int, int, int]
Key = tuple[Size, str, bool]


class ConfigError(ValueError):
    """A config, or a part of one, that cannot be used; says where and why."""


@dataclass(frozen=True)
class Entry:
    """One measured shape: the plan to use for exactly that, and the evidence. Seconds are medians."""

    size: Size
    plan: str
    speedup: float
    low: float  # of the 95 % interval of the paired speedup
    high: float
    rounds: int
    seconds: float
    vendor_seconds: float
    noise: float
    layout: str = ANY
    verified: bool = True
    origin: str = "certified"
    lean: bool = False  # the best of the plans without workspace, where one with workspace is better

    @property
    def key(self) -> Key:
        """A section has one entry of each."""
        return self.size, self.layout, self.lean

    @property
    def text(self) -> str:
        """The evidence in words."""
        if self.plan == "vendor":
            return f"no plan beat the vendor in {self.rounds} rounds"
        return f"{self.speedup:.3f} times the vendor [{self.low:.3f}, {self.high:.3f}] in {self.rounds} paired rounds"


@dataclass(frozen=True, eq=False)
class Tuned:
    """One element type on one device; equal only to itself, as the config that it is from."""

    identity: Identity
    dtype: str
    calibration: Calibration | None
    entries: Mapping[Key, Entry]
    changed: tuple[str, ...] = ()  # versions that differ from those of the tuning: entries are not trusted

    def entry(self, size: Size, layout: str = ANY, lean: bool = False) -> tuple[Entry, Plan] | None:
        """The certified entry of exactly this shape, with its plan; None where there is none to be trusted."""
        found = self.entries.get((size, layout, lean)) or self.entries.get((size, ANY, lean))
        if found is None or not found.verified or self.changed:
            return None
        try:
            return found, Plan.parse(found.plan)
        except (PlanError, RecursionError) as error:
            once(f"the plan of the tuned shape {size} is not used: {error}")
            return None


Check = Callable[[Raw, str], Any]


def _fail(where: str, what: str, value: Raw) -> ConfigError:
    return ConfigError(f"{where} must be {what}, not {_shown(value)}")


def _shown(value: Raw) -> str:
    """Short, and on one line whatever it holds."""
    found = ascii(value)
    return found if len(found) < 60 else found[:57] + "..."


def number(low: float, high: float) -> Check:
    def check(value: Raw, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise _fail(where, f"a number from {low:g} to {high:g}", value)
        return float(value)

    return check


def whole(low: int, high: int) -> Check:
    def check(value: Raw, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _fail(where, f"a whole number from {low} to {high}", value)
        return value

    return check


def text(value: Raw, where: str) -> str:
    if not isinstance(value, str) or len(value) > 400 or not value.isprintable():
        raise _fail(where, "a short text", value)
    return value


def flag(value: Raw, where: str) -> bool:
    if not isinstance(value, bool):
        raise _fail(where, "true or false", value)
    return value


def size(value: Raw, where: str) -> Size:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise _fail(where, "three sides, [m, k, n]", value)
    side = whole(1, 1 << 40)
    m, k, n = (side(x, where) for x in value)
    return m, k, n


def plan_text(value: Raw, where: str) -> str:
    """Only the form: schemes are proved when they are read, which takes longer than a config may."""
    if text(value, where).rpartition(">")[2].strip() not in leaf_uses():
        raise _fail(where, "a plan that ends in its leaf, such as vendor", value)
    return str(value)


def anything(value: Raw, where: str) -> Raw:
    """For what the runtime does not read."""
    return value


def record(
    value: Raw, where: str, checks: Mapping[str, Check], optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Exactly these fields, each checked."""
    if not isinstance(value, dict):
        raise _fail(where, "an object", value)
    for name in value.keys() - checks.keys():
        raise ConfigError(f"{where} has an unknown field {text(name, where)!r}; it may have {', '.join(checks)}")
    for name in checks.keys() - value.keys() - optional:
        raise ConfigError(f"{where} has no field {name!r}")
    return {name: check(value[name], f"{where}.{name}") for name, check in checks.items() if name in value}


def texts(value: Raw, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _fail(where, "an object", value)
    return {text(name, where): text(found, f"{where}.{name}") for name, found in value.items()}


POSITIVE = number(1e-30, 1e30)
ENTRY: Mapping[str, Check] = {
    "size": size,
    "plan": plan_text,
    "speedup": number(1e-6, 1e6),
    "low": number(1e-6, 1e6),
    "high": number(1e-6, 1e6),
    "rounds": whole(1, 10**6),
    "seconds": POSITIVE,
    "vendor_seconds": POSITIVE,
    "noise": number(0, 10),
    "layout": text,
    "verified": flag,
    "origin": text,
    "lean": flag,
}
SECTION: Mapping[str, Check] = {
    "versions": texts,
    "conditions": anything,
    "tuned": anything,
    "calibration": anything,  # checked by its own fields
    "intervals": anything,
    "error": anything,
    "thresholds": anything,
    "noise": number(0, 10),
    "entries": anything,  # one by one
}
# Of a calibration's numbers: those that are divided by, and shares; the others by their type.
_BY_NAME: Mapping[str, Check] = {
    **dict.fromkeys(("flops", "stream", "sequential", "ragged", "scalar", "deep", "apart"), POSITIVE),
    **dict.fromkeys(("overlap", "margin", "tiled_margin"), number(0, 1)),
}
# Terms that the model once had: configs that tell of them stay valid too.
_RETIRED: Mapping[str, Check] = dict.fromkeys(("frayed", "rough"), anything)
_BY_TYPE: Mapping[str, Check] = {"float": number(0, 1e30), "int": whole(0, 1 << 60), "bool": flag}


def _numbers(kind: type[Calibration] | type[Rate]) -> tuple[dict[str, Check], frozenset[str]]:
    """Checks of a dataclass's numbers, and which may be left out: the model can grow and old configs stay valid."""
    known = [f for f in fields(kind) if str(f.type) in _BY_TYPE]
    optional = frozenset(f.name for f in known if f.default is not MISSING)
    return {f.name: _BY_NAME.get(f.name, _BY_TYPE[str(f.type)]) for f in known}, optional


def entry(raw: Raw, where: str) -> Entry:
    found = Entry(**record(raw, where, ENTRY, frozenset({"layout", "verified", "origin", "lean"})))
    if found.plan != "vendor" and not (found.low > 1 and found.low <= found.speedup <= found.high):
        raise ConfigError(
            f"{where}: the speedup {found.speedup:g} of {found.plan!r} is not certified (low {found.low:g})"
        )
    return found


def calibration(raw: Raw, where: str, dtype: str, name: str, source: str) -> Calibration:
    checks, optional = _numbers(Calibration)
    rates, rate_optional = _numbers(Rate)
    found = record(raw, where, {**checks, **_RETIRED, "rate": anything}, optional | _RETIRED.keys())
    found = {name: value for name, value in found.items() if name not in _RETIRED}
    rate = Rate(**record(found.pop("rate"), f"{where}.rate", rates, rate_optional))
    return Calibration(name, source, MappingProxyType({dtype: rate}), **found)


def spelled(found: Calibration, dtype: str) -> dict[str, Raw]:
    """A calibration as it stands in a section: what `calibration` reads back."""
    rate = found.rate(dtype)
    own = {name: getattr(found, name) for name in _numbers(Calibration)[0]}
    return {**own, "rate": {name: getattr(rate, name) for name in _numbers(Rate)[0]}}


def section(given: Raw, where: str, identity: Identity, dtype: str) -> Tuned:
    """A section, all of it checked."""
    if dtype not in DTYPES:
        raise ConfigError(f"{where}: unknown type {dtype!r}; valid: {', '.join(DTYPES)}")
    found = record(given, where, SECTION)
    if not isinstance(found["entries"], list):
        raise _fail(f"{where}.entries", "a list", found["entries"])
    entries = [entry(x, f"{where}.entries[{i}]") for i, x in enumerate(found["entries"])]
    when = _inner(found["tuned"], "at")
    speedup = _inner(found["error"], "speedup")
    median, count = _inner(speedup, "median"), _inner(speedup, "count")
    error = f", model error {median:.1%}" if isinstance(median, float) and isfinite(median) else ""
    error = ", model not checked on other shapes" if count == 0 else error
    source = (
        f"calibrated on this device{f' {when[:10]}' if isinstance(when, str) and when.isprintable() else ''}{error}"
    )
    raw = found["calibration"]
    known = None if raw is None else calibration(raw, f"{where}.calibration", dtype, identity.name, source)
    now = identity.versions
    changed = tuple(f"{x} {was} -> {now[x]}" for x, was in found["versions"].items() if now.get(x, was) != was)
    return Tuned(identity, dtype, known, MappingProxyType({e.key: e for e in entries}), changed)


def _inner(raw: Raw, name: str) -> Raw:
    return raw.get(name) if isinstance(raw, dict) else None


def document(content: str) -> dict[str, dict[str, Raw]]:
    """The devices of a config: key -> type -> section, not yet checked."""
    try:
        raw = json.loads(content, parse_constant=_no_constant)
    except RecursionError:
        raise ConfigError("it is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"it is not JSON: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("devices"), dict):
        raise ConfigError("it is no fmm config: it has no devices")
    if isinstance(raw.get("schema"), int) and raw["schema"] > SCHEMA:
        raise ConfigError(f"its schema is {_shown(raw['schema'])}, of a later fmm; this one reads {SCHEMA}")
    if raw.get("schema") is not SCHEMA and raw.get("schema") != SCHEMA:
        raise ConfigError(f"its schema is {_shown(raw.get('schema'))}, this fmm reads {SCHEMA}")
    for key, types in raw["devices"].items():
        if not isinstance(types, dict):
            raise ConfigError(f"the device {_shown(key)} has no types")
    return dict(raw["devices"])


def _no_constant(name: str) -> None:
    raise ConfigError(f"it holds {name}, which is no number")

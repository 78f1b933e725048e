"""Schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import partial
from math import isfinite
from types import MappingProxyType
from typing import Any

from fmm.config.environment import log_once
from fmm.config.identity import COMPILED, SUMS, Identity
from fmm.config.reader import (
    Check,
    ConfigError,
    Raw,
    anything,
    bounded_number,
    list_of_texts,
    number_or_nothing,
    object_of_texts,
    one_of,
    plain_text,
    read_fields,
    true_or_false,
    whole_number,
    wrong_value,
)
from fmm.dtypes import DTYPES
from fmm.hardware.chip import BlockTerms
from fmm.kernels.plans.leaf import leaf_uses
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.perfmodel.calibration import Calibration, Rate
from fmm.perfmodel.default_calibration import datasheet_rates
from fmm.problem import OPERATIONS, Operation

__all__ = [
    "ANY",
    "ConfigError",
    "Entry",
    "Raw",
    "Size",
    "Tuned",
    "calibration_fields",
    "empty_section",
    "read_calibration",
    "read_entry",
    "read_section",
]

PRODUCT: Operation = "product"  # the operation of most entries
ORIGINS = "certified", "online"  # measured by the tuner; by the runtime, on the user's own products
ANY = "any"  # the layout of entries that hold for rows and columns alike
Size = tuple[int, int, int]  # (m, k, n)
Key = tuple[str, Size, str, bool]


# ---- what is read


@dataclass(frozen=True)
class Entry:
    """One measured shape: the plan to use for exactly that, and the evidence. Seconds are medians."""

    size: Size
    plan: str
    speedup: float  # over the vendor
    low: float  # of the 95 % interval of the paired speedup
    high: float
    rounds: int
    seconds: float
    vendor_seconds: float
    noise: float
    layout: str = ANY
    verified: bool = True
    origin: str = "certified"
    lean: bool = False  # the best of the plans without workspace, beside the entry of one with workspace
    op: Operation = PRODUCT  # written down only where it is another

    @property
    def key(self) -> Key:
        """What entries of a section differ in."""
        return self.op, self.size, self.layout, self.lean

    @property
    def fields(self) -> dict[str, Any]:
        """As it stands in a section."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("op", PRODUCT)}

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
    thresholds: Thresholds | None = None
    fitted: BlockTerms | None = None  # the block model's terms, where the built-in ones do not hold
    doubts: tuple[str, ...] = ()  # what speaks against the tuning: its model is not trusted
    failed: tuple[str, ...] = ()  # the rates of leaves that were tried, and never worked: they are not to be taken

    @property
    def trusted(self) -> Calibration | None:
        """The calibration, if it may choose plans."""
        return None if self.doubts else self.calibration

    def entry(self, size: Size, layout: str = ANY, lean: bool = False, op: str = PRODUCT) -> tuple[Entry, Plan] | None:
        """The certified entry of exactly this shape, with its plan; None where there is none to be trusted."""
        found = self.entries.get((op, size, layout, lean)) or self.entries.get((op, size, ANY, lean))
        if found is None or not found.verified or self.changed:
            return None
        try:
            return found, Plan.parse(found.plan)
        except (PlanError, RecursionError) as error:
            log_once(f"the plan of the tuned shape {size} is not used: {error}")
            return None


# ---- which fields there are, and what each may hold


def size(value: Raw, where: str) -> Size:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise wrong_value(where, "three sides, [m, k, n]", value)
    side = whole_number(1, 1 << 40)
    m, k, n = (side(x, where) for x in value)
    return m, k, n


def plan_text(value: Raw, where: str) -> str:
    """Only the form: schemes are proved when they are read, which takes longer than a config may."""
    if plain_text(value, where).rpartition(">")[2].strip() not in leaf_uses():
        raise wrong_value(where, "a plan that ends in its leaf, such as vendor", value)
    return str(value)


POSITIVE = bounded_number(1e-30, 1e30)
MOST_NOISE = 1e6  # beside others' work a product can take many times as long as its twin
ENTRY: Mapping[str, Check] = {
    "size": size,
    "plan": plan_text,
    "speedup": bounded_number(1e-6, 1e6),
    "low": bounded_number(1e-6, 1e6),
    "high": bounded_number(1e-6, 1e6),
    "rounds": whole_number(1, 10**6),
    "seconds": POSITIVE,
    "vendor_seconds": POSITIVE,
    "noise": bounded_number(0, MOST_NOISE),
    "layout": plain_text,
    "verified": true_or_false,
    "origin": one_of(*ORIGINS),
    "lean": true_or_false,
    "op": one_of(*OPERATIONS),
}
SECTION: Mapping[str, Check] = {
    "versions": object_of_texts,
    "conditions": anything,
    "tuned": anything,
    "calibration": anything,  # checked by its own fields
    "intervals": anything,
    "error": anything,
    "thresholds": anything,
    "blocks": anything,
    "noise": number_or_nothing(0, MOST_NOISE),
    "doubts": list_of_texts,
    "failed": list_of_texts,
    "entries": anything,  # one by one
}
_LATER = frozenset({"doubts", "blocks", "failed"})  # fields that older configs do not have
# Of a calibration's numbers: those that are divided by, and shares; the others by their type.
_BY_NAME: Mapping[str, Check] = {
    **dict.fromkeys(("flops", "stream", "sequential", "ragged", "scalar", "parts", "deep", "apart"), POSITIVE),
    **dict.fromkeys(("margin", "tiled_margin"), bounded_number(0, 1)),
    "overlap": bounded_number(-1, 1),
}
# Terms that the model once had: configs that tell of them stay valid too.
_RETIRED: Mapping[str, Check] = dict.fromkeys(("frayed", "rough"), anything)
_BY_TYPE: Mapping[str, Check] = {
    "float": bounded_number(0, 1e30),
    "int": whole_number(0, 1 << 60),
    "bool": true_or_false,
}


def _numbers(kind: type[Calibration] | type[Rate]) -> tuple[dict[str, Check], frozenset[str]]:
    """Checks of a dataclass's numbers, and which may be left out: the model can grow and old configs stay valid."""
    known = [f for f in fields(kind) if str(f.type) in _BY_TYPE]
    optional = frozenset(f.name for f in known if f.default is not MISSING)
    return {f.name: _BY_NAME.get(f.name, _BY_TYPE[str(f.type)]) for f in known}, optional


# ---- reading


def read_entry(raw: Raw, where: str) -> Entry:
    """An entry; a plan must be certified."""
    found = Entry(**read_fields(raw, where, ENTRY, frozenset({"layout", "verified", "origin", "lean", "op"})))
    if found.plan != "vendor" and not (found.low > 1 and found.low <= found.speedup <= found.high):
        raise ConfigError(
            f"{where}: the speedup {found.speedup:g} of {found.plan!r} is not certified (low {found.low:g})"
        )
    return found


def read_calibration(raw: Raw, where: str, dtype: str, name: str, source: str) -> Calibration:
    """The model's numbers for one type; `name` is the device's, `source` says where they are from.

    Leaves with a rate of their own have it in `leaf_rates`, or else, if `datasheet` names one, the rate that follows
    from that."""
    checks, optional = _numbers(Calibration)
    rates, rate_optional = _numbers(Rate)
    allowed = {**checks, **_RETIRED, "rate": anything, "leaf_rates": anything, "datasheet": plain_text}
    found = read_fields(raw, where, allowed, optional | _RETIRED.keys() | {"leaf_rates", "datasheet"})
    found = {name: value for name, value in found.items() if name not in _RETIRED}
    given: dict[str, tuple[str, Raw]] = {dtype: ("rate", found.pop("rate"))}
    for leaf, numbers in _object(found.pop("leaf_rates", {}), f"{where}.leaf_rates").items():
        given[leaf] = f"leaf_rates.{leaf}", numbers
    known = {
        name: Rate(**read_fields(numbers, f"{where}.{place}", rates, rate_optional))
        for name, (place, numbers) in given.items()
    }
    assumed = _assumed_rates(found.pop("datasheet", ""), dtype, where)
    return Calibration(name, source, MappingProxyType({**assumed, **known}), **found)


def _assumed_rates(sheet: str, dtype: str, where: str) -> Mapping[str, Rate]:
    try:
        return datasheet_rates(sheet, dtype) if sheet else {}
    except ValueError as error:
        raise ConfigError(f"{where}.datasheet: {error}") from None


def _object(raw: Raw, where: str) -> dict[str, Raw]:
    if not isinstance(raw, dict):
        raise wrong_value(where, "an object", raw)
    return raw


def read_section(given: Raw, where: str, identity: Identity, dtype: str) -> Tuned:
    """A section, all of it checked."""
    if dtype not in DTYPES:
        raise ConfigError(f"{where}: unknown type {dtype!r}; valid: {', '.join(DTYPES)}")
    found = read_fields(given, where, SECTION, _LATER)
    if not isinstance(found["entries"], list):
        raise wrong_value(f"{where}.entries", "a list", found["entries"])
    entries = [read_entry(x, f"{where}.entries[{i}]") for i, x in enumerate(found["entries"])]
    source = _source(found["tuned"], found["error"])
    raw = found["calibration"]
    known = None if raw is None else read_calibration(raw, f"{where}.calibration", dtype, identity.name, source)
    now = identity.versions
    changed = tuple(f"{x} {was} -> {now[x]}" for x, was in found["versions"].items() if now.get(x, was) != was)
    entries_by_key = MappingProxyType({e.key: e for e in entries})
    unchecked = _inner(_inner(found["error"], "speedup"), "count") == 0
    doubts = tuple(found.get("doubts", ["the model was not checked on other shapes"] if unchecked else ()))
    if found["versions"].get(SUMS) == COMPILED != now.get(SUMS, COMPILED):
        doubts += ("it was tuned with compiled sums, and llvmlite is installed no more",)
    terms = read_block_terms(_inner(found.get("blocks"), "fitted"))
    thresholds, failed = read_thresholds(found["thresholds"]), tuple(found.get("failed", ()))
    return Tuned(identity, dtype, known, entries_by_key, changed, thresholds, terms, doubts, failed)


def read_block_terms(raw: Raw) -> BlockTerms | None:
    """The block model's terms; None where there are none, or damaged ones: then the built-in ones hold."""
    check = bounded_number(1e-12, 1e6)
    try:
        return BlockTerms(**read_fields(raw, "terms", {f.name: check for f in fields(BlockTerms)})) if raw else None
    except ConfigError:
        return None


def _source(tuned: Raw, errors: Raw) -> str:
    """Where a calibration is from, in words: `calibrated on this device 2026-11-22, model error 1.2%`."""
    when, speedup = _inner(tuned, "at"), _inner(errors, "speedup")
    median, count = _inner(speedup, "median"), _inner(speedup, "count")
    date = f" {when[:10]}" if isinstance(when, str) and when.isprintable() else ""
    error = f", model error {median:.1%}" if isinstance(median, float) and isfinite(median) else ""
    error = ", model not checked on other shapes" if count == 0 else error
    return f"calibrated on this device{date}{error}"


def _inner(raw: Raw, name: str) -> Raw:
    return raw.get(name) if isinstance(raw, dict) else None


# ---- writing


def calibration_fields(found: Calibration, dtype: str, sheet: str = "") -> dict[str, Raw]:
    """A calibration as it stands in a section: what `calibration` reads back; without what follows from a datasheet, if
    one is named."""
    own = {name: getattr(found, name) for name in _numbers(Calibration)[0]}
    rates = {x: {name: getattr(rate, name) for name in _numbers(Rate)[0]} for x, rate in found.rates.items()}
    assumed = datasheet_rates(sheet, dtype) if sheet else {}
    # Of leaves that have their own.
    others = {x: rate for x, rate in rates.items() if x != dtype and found.rates[x] != assumed.get(x)}
    named = {"datasheet": sheet} if assumed else {}
    return {**own, "rate": rates[dtype], **({"leaf_rates": others} if others else {}), **named}


def empty_section(versions: Mapping[str, str]) -> dict[str, Raw]:
    """A section that knows nothing yet."""
    nothing: dict[str, Raw] = dict.fromkeys(("conditions", "tuned", "calibration", "intervals", "error", "thresholds"))
    return {"versions": dict(versions), **nothing, "noise": None, "entries": []}


Interval = tuple[float | None, float | None]  # None: beyond 65536, or nowhere
TAUS = ("tau1", "tau2", "tau3")
SECONDS = ("alpha", "pi")
EPSILON = "the least that must be added to alpha / pi so that D'Alberto and Nicolau's Equation 2 says what was measured"
UNDETERMINED_EPSILON = "it is not determined where all products gained by one level, or none did"


@dataclass(frozen=True)
class Spread:
    """A threshold with the range in which it may lie; None: beyond 65536, or nowhere."""

    value: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.value is None:
            return "never"
        low, high = ("never" if x is None else f"{x:.0f}" for x in (self.low, self.high))
        return f"{self.value:.0f} [{low}, {high}]"


@dataclass(frozen=True)
class Thresholds:
    """All of them; None for what was not measured."""

    alpha: float
    pi: float
    n1: float | None
    n1_measured: float | None
    epsilon: float | None
    tau1: Spread
    tau2: Spread
    tau3: Spread
    block_strategy: Mapping[str, str] = field(default_factory=dict)  # side -> name; empty where there is no such kernel
    # What older configs do not have is empty: side -> speedup; name -> 95 %; tau1 to tau3 -> value.
    one_level: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    without_emulation: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def recursion_points(self) -> tuple[float | None, ...]:
        """From which sides on one, two and three levels are taken."""
        return self.tau1.value, self.tau2.value, self.tau3.value

    @property
    def fields(self) -> dict[str, Raw]:
        """As they stand in a section."""
        return {**asdict(self), "recursion_points": list(self.recursion_points)}

    def value(self, name: str) -> float | None:
        """One of those that are a number, or a spread around one."""
        found = getattr(self, name)
        return found.value if isinstance(found, Spread) else found


def read_thresholds(raw: Raw) -> Thresholds | None:
    """The thresholds of a section; None where there are none, or those of an older fmm, which meant something else."""
    if not isinstance(raw, dict) or not raw.keys() >= REQUIRED or any(threshold_errors(raw, "")):
        return None
    found = Thresholds(**{name: read(raw.get(name)) for name, (_, read) in FIELDS.items()})
    gained = {gain > 1 for gain in found.one_level.values()}
    determined = bool(found.epsilon) or len(gained) == 2 or "epsilon" in found.intervals
    return found if determined else replace(found, epsilon=None)  # older configs have 0


def threshold_errors(raw: Raw, where: str) -> Iterator[ConfigError]:
    """What is damaged, one error a field. Where fields of today lack, they are an older fmm's: nothing is."""
    if raw is not None and not isinstance(raw, dict):
        yield wrong_value(where, "an object", raw)
    if not isinstance(raw, dict) or not raw.keys() >= REQUIRED:
        return
    for name, (what, read) in FIELDS.items():
        try:
            read(raw.get(name))
        except (KeyError, TypeError, ValueError, AttributeError):
            yield wrong_value(f"{where}.{name}", what, raw[name])


def _number_or_none(raw: Raw) -> float | None:
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not isfinite(raw):
        raise ValueError("no number")
    return float(raw)


def _positive(raw: Raw) -> float:
    found = _number_or_none(raw)
    if found is None or found <= 0:
        raise ValueError("no positive number")
    return found


def _spread(raw: Raw) -> Spread:
    value, low, high = (_number_or_none(raw[end]) for end in ("value", "low", "high"))
    return Spread(value, low, high)


def _interval(raw: Raw) -> Interval:
    low, high = map(_number_or_none, raw)
    return low, high


def _named(raw: Raw, read: Callable[[Raw], Any]) -> dict[str, Any]:
    """An object with such values; null is an empty one."""
    return {str(name): read(value) for name, value in ({} if raw is None else raw).items()}


def _gains(raw: Raw) -> dict[str, float]:
    return {str(int(side)): gain for side, gain in _named(raw, _positive).items()}


POSITIVE_NUMBER, NUMBER = ("a number above 0", _positive), ("a number or null", _number_or_none)
SPREAD = ("an object of value, low and high, each a number or null", _spread)
FIELDS: Mapping[str, tuple[str, Callable[[Raw], Any]]] = {  # what each must be, and how it is read
    **dict.fromkeys(SECONDS, POSITIVE_NUMBER),
    **dict.fromkeys(("n1", "n1_measured", "epsilon"), NUMBER),
    **dict.fromkeys(TAUS, SPREAD),
    "block_strategy": ("an object of names, by sides", partial(_named, read=str)),
    "one_level": ("an object of numbers above 0, by sides", _gains),
    "intervals": ("an object of pairs of numbers or null", partial(_named, read=_interval)),
    "without_emulation": ("an object of numbers or null", partial(_named, read=_number_or_none)),
}
REQUIRED = FIELDS.keys() - {"one_level", "intervals", "without_emulation"}  # which older configs do not have

"""The schema of a config: its dataclasses, and functions that read, check and write a section.

    {"schema": 1,
     "devices": {
      "cpu-intel-r-xeon-r-processor-2t": {             the device key (identity.py)
       "float64": {                                    one section for each element type
        "versions": {"numpy": "2.4.6", ...},           versions of libraries and driver during the tuning
        "conditions": {...}, "tuned": {...},           not checked: device, clocks, memory; time and options
        "calibration": {"stream": ..., "rate": {...}}, the fields of fmm.perfmodel.calibration; or null
        "intervals": {...}, "error": {...},            95 % intervals of the calibration; model errors on other shapes
        "thresholds": {"alpha": ..., "tau1": ...},     with the papers' names and 95 % intervals (Thresholds)
        "blocks": {"fitted": {...}, "error": ...},     the constants of the block model; null: not measured
        "noise": 0.01,                                 the noise floor as a share; null if it was not measured
        "doubts": ["..."],                             reasons to reject the model; empty if trusted
        "failed": ["..."],                             rates of leaves that failed in every trial
        "entries": [{"size": [m, k, n], "plan": ..., "speedup": ..., ...}, ...]
       }}}}

`ENTRY_CHECKS`, `SECTION_CHECKS` and `THRESHOLD_CHECKS` below have a check for every field. Only the section of the
requested device and type is checked, so a damaged section of another device or type is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import partial
from math import isfinite
from types import MappingProxyType
from typing import Any

from fmm.config.environment import log_once, vendor_arithmetic
from fmm.config.identity import Identity, model_rejection_reasons
from fmm.config.reader import (
    ConfigError,
    JsonCheck,
    JsonValue,
    accept_any_value,
    check_bool,
    check_text,
    check_text_list,
    check_text_values,
    choice_check,
    integer_check,
    number_check,
    optional_number_check,
    parser_check,
    read_fields,
    wrong_value_error,
)
from fmm.dtypes import DTYPES
from fmm.hardware.chip import BlockModelConstants
from fmm.kernels.cuda.products.kernel_sizes import ALL_STRATEGIES
from fmm.kernels.plans.leaf import leaves_by_text
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.crossovers import MeasuredCrossovers
from fmm.perfmodel.default_calibration import datasheet_rates
from fmm.problem import OPERATIONS, Operation

__all__ = [
    "ANY_LAYOUT",
    "ConfigError",
    "Entry",
    "JsonValue",
    "Size",
    "ThresholdRange",
    "Thresholds",
    "Tuning",
    "calibration_fields",
    "empty_section",
    "read_calibration",
    "read_entry",
    "read_section",
    "read_thresholds",
]

DEFAULT_OPERATION: Operation = "product"  # the operation of most entries
FIRST_PRODUCT = "first product"
# What measured an entry: the tuner ("certified"), the runtime on the user's products ("online"), or the runtime at the
# first large product of a type on an untuned GPU ("first product").
ENTRY_ORIGINS = "certified", "online", FIRST_PRODUCT
ANY_LAYOUT = "any"  # layout of an entry that holds for row-major and for column-major matrices
Size = tuple[int, int, int]  # (m, k, n)
EntryKey = tuple[str, Size, str, bool]
# the 95 % interval (low, high) of a threshold; None instead of a side above 65536
ThresholdInterval = tuple[float | None, float | None]
TAU_NAMES = ("tau1", "tau2", "tau3")
NAMES_IN_SECONDS = ("alpha", "pi")


# ---- dataclasses


@dataclass(frozen=True)
class Entry:
    """The plan for exactly one shape, with its measurements; `seconds` and `vendor_seconds` are medians of rounds."""

    size: Size
    plan: str
    speedup: float  # median paired speedup over the vendor
    low: float  # lower end of the 95 % interval of the paired speedup; `high` is the upper end
    high: float
    rounds: int
    seconds: float
    vendor_seconds: float
    noise: float
    layout: str = ANY_LAYOUT
    verified: bool = True
    origin: str = "certified"
    # True for a shape's second entry, with the best plan that needs no workspace
    lean: bool = False
    # a config's entry has the field `op` only for operations other than DEFAULT_OPERATION
    op: Operation = DEFAULT_OPERATION

    @property
    def entry_key(self) -> EntryKey:
        """The fields that distinguish the entry from all other entries of its section."""
        return self.op, self.size, self.layout, self.lean

    @property
    def json_fields(self) -> dict[str, Any]:
        """The fields of this entry that are written to the config; a plain product has no field `op`."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("op", DEFAULT_OPERATION)}

    @property
    def evidence_text(self) -> str:
        """The measurements that support the plan, as text."""
        if self.plan == "vendor":
            return f"no plan beat the vendor in {self.rounds} rounds"
        return f"{self.speedup:.3f} times the vendor [{self.low:.3f}, {self.high:.3f}] in {self.rounds} paired rounds"


@dataclass(frozen=True)
class ThresholdRange:
    """The smallest sides of squares for three predicted gains (0, 2 %, the margin); None above 65536."""

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
    """The thresholds of a tuning, with the papers' names; a threshold that was not measured is None.

    tau1, tau2 and tau3 follow from the tuned model's predicted gains for squares. From the side `low` on, the model
    predicts no loss; from `value` on, a gain of at least 2 %, the smallest certified gain; from `high` on, a gain of at
    least the margin, so that fmm.matmul chooses the plan. `intervals` has the 95 % intervals of the thresholds.
    """

    alpha: float  # seconds per element of a matrix addition: two reads and one write
    # seconds per flop of the vendor's product; alpha and pi are measured on large matrices (D'Alberto and Nicolau)
    pi: float
    # The recursion point is the smallest side of a square product for which one level is faster than no level. n1
    # follows from D'Alberto and Nicolau's Equation 3 with alpha and pi; n1_measured is measured.
    n1: float | None
    n1_measured: float | None
    # D'Alberto and Nicolau's Equation 2 adds epsilon (in flops) to alpha / pi. epsilon is the smallest number with
    # which the equation chooses the measured winner for the most shapes; None if the measurements do not determine
    # epsilon.
    epsilon: float | None
    tau1: ThresholdRange  # largest side of squares for which the tuned model chooses no level (Li, Ranka and Sahni)
    tau2: ThresholdRange  # largest side of squares for which the model chooses at most one level
    tau3: ThresholdRange  # largest side of squares for which the model chooses at most two levels
    # The tiled kernel's block strategy for each side of a square product (Huang, Yu and van de Geijn); empty if the
    # device has no tiled kernel.
    block_strategy: Mapping[str, str] = field(default_factory=dict)
    # for each measured side, the best speedup of the plans with one level
    one_level: Mapping[str, float] = field(default_factory=dict)
    # 95 % intervals of alpha, pi, n1, epsilon, tau1, tau2 and tau3. Many models are sampled from the fit
    # (fmm.tuner.fit.sampled); the interval contains the threshold's values in 95 % of these models.
    intervals: Mapping[str, ThresholdInterval] = field(default_factory=dict)
    # tau1, tau2 and tau3 if FMM_EMULATION=0 forbids emulation; empty if no candidate uses emulation
    without_emulation: Mapping[str, float | None] = field(default_factory=dict)
    # Measured crossovers, which limit the number of levels of candidates: baseline (the candidate's plan without its
    # levels, such as `vendor`) -> tau1, tau2 and tau3. Candidates for squares up to side tau1 have no level, up to tau2
    # at most one level, and up to tau3 at most two levels. A crossover of None sets no limit.
    measured_taus: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    # 95 % intervals of the crossovers in `measured_taus`; both dictionaries have the same keys
    measured_intervals: Mapping[str, Mapping[str, ThresholdInterval]] = field(default_factory=dict)

    @property
    def recursion_points(self) -> tuple[float | None, ...]:
        """The smallest sides for which the model chooses one, two and three levels."""
        return self.tau1.value, self.tau2.value, self.tau3.value

    @property
    def measured_crossovers(self) -> tuple[MeasuredCrossovers, ...]:
        """The measured crossovers, as upper bounds of the number of levels of candidates."""
        return tuple(MeasuredCrossovers(baseline, **taus) for baseline, taus in self.measured_taus.items())

    @property
    def json_fields(self) -> dict[str, JsonValue]:
        """The fields of the thresholds that are written to a section."""
        found = {**asdict(self), "recursion_points": list(self.recursion_points)}
        return {name: value for name, value in found.items() if value or name not in OPTIONAL_THRESHOLDS}

    def threshold_value(self, name: str) -> float | None:
        """Return a threshold as a number; for a ThresholdRange, return its field `value`."""
        found = getattr(self, name)
        return found.value if isinstance(found, ThresholdRange) else found


@dataclass(frozen=True, eq=False)
class Tuning:
    """The tuning of one element type on one device; instances are compared by identity."""

    identity: Identity
    dtype: str
    calibration: Calibration | None
    entries: Mapping[EntryKey, Entry]
    # the library versions that changed since the tuning; after any change, the entries of the tuning are not used
    changed: tuple[str, ...] = ()
    thresholds: Thresholds | None = None
    # the fitted constants of the block model; None for the built-in constants
    fitted: BlockModelConstants | None = None
    # the tile strategy of fmm's own float32 kernel that was fastest on each measured shape
    strategies: tuple[tuple[Size, str], ...] = ()
    diagnostics: tuple[str, ...] = ()  # reasons why the model is not trusted
    # names of the rates of leaves that failed in every trial; no plan may use these leaves
    failed: tuple[str, ...] = ()
    vendor_arithmetic: str = ""  # text of the variables that changed cuBLAS's arithmetic during the tuning

    @property
    def trusted_calibration(self) -> Calibration | None:
        """The calibration if `diagnostics` has no reason against it, else None."""
        return None if self.diagnostics else self.calibration

    def find_entry(
        self, size: Size, layout: str = ANY_LAYOUT, lean: bool = False, op: str = DEFAULT_OPERATION
    ) -> tuple[Entry, Plan] | None:
        """Return the entry for exactly this shape, and its parsed plan; None if no verified entry exists."""
        found = self.entries.get((op, size, layout, lean)) or self.entries.get((op, size, ANY_LAYOUT, lean))
        if found is None or not found.verified or self.changed:
            return None
        try:
            return found, Plan.parse(found.plan)
        except (PlanError, RecursionError) as error:
            log_once(f"the plan of the tuned shape {size} is not used: {error}")
            return None


# ---- checks of the fields


def check_size(value: JsonValue, json_path: str) -> Size:
    """Return the value as a tuple of three sides, or raise ConfigError."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise wrong_value_error(json_path, "three sides, [m, k, n]", value)
    side = integer_check(1, 1 << 40)
    m, k, n = (side(x, json_path) for x in value)
    return m, k, n


def check_plan(value: JsonValue, json_path: str) -> str:
    """Return the text of a plan if the text ends in the name of a leaf, else raise ConfigError.

    The levels are not parsed before the first use of the plan.
    """
    if check_text(value, json_path).rpartition(">")[2].strip() not in leaves_by_text():
        raise wrong_value_error(json_path, "a plan that ends in its leaf, such as vendor", value)
    return str(value)


check_positive = number_check(1e-30, 1e30)
MAX_NOISE = 1e6  # on a busy machine, two runs of the same product can differ by a large factor
ENTRY_CHECKS: Mapping[str, JsonCheck] = {
    "size": check_size,
    "plan": check_plan,
    "speedup": number_check(1e-6, 1e6),
    "low": number_check(1e-6, 1e6),
    "high": number_check(1e-6, 1e6),
    "rounds": integer_check(1, 10**6),
    "seconds": check_positive,
    "vendor_seconds": check_positive,
    "noise": number_check(0, MAX_NOISE),
    "layout": check_text,
    "verified": check_bool,
    "origin": choice_check(*ENTRY_ORIGINS),
    "lean": check_bool,
    "op": choice_check(*OPERATIONS),
}
SECTION_CHECKS: Mapping[str, JsonCheck] = {
    "versions": check_text_values,
    "conditions": accept_any_value,
    "tuned": accept_any_value,
    "calibration": accept_any_value,  # read by read_calibration
    "intervals": accept_any_value,
    "error": accept_any_value,
    "thresholds": accept_any_value,  # read by read_thresholds
    "blocks": accept_any_value,  # read by read_block_model_constants
    "noise": optional_number_check(0, MAX_NOISE),
    "doubts": check_text_list,
    "failed": check_text_list,
    "entries": accept_any_value,  # entries are read one by one
}
OPTIONAL_SECTION_FIELDS = frozenset({"doubts", "blocks", "failed"})  # fields that sections may lack
# Checks of the numbers of a calibration: _CHECKS_BY_NAME for fractions and for numbers by which the model divides,
# _CHECKS_BY_TYPE for all other numbers.
_CHECKS_BY_NAME: Mapping[str, JsonCheck] = {
    **dict.fromkeys(("flops", "stream", "sequential", "ragged", "scalar", "parts", "deep", "apart"), check_positive),
    **dict.fromkeys(("margin", "tiled_margin"), number_check(0, 1)),
    "overlap": number_check(-1, 1),
}
_CHECKS_BY_TYPE: Mapping[str, JsonCheck] = {
    "float": number_check(0, 1e30),
    "int": integer_check(0, 1 << 60),
    "bool": check_bool,
}


def _number_checks(kind: type[Calibration] | type[ProductRate]) -> tuple[dict[str, JsonCheck], frozenset[str]]:
    """Return the checks of a dataclass's numeric fields, and the names of those fields that have a default."""
    numbers = [f for f in fields(kind) if str(f.type) in _CHECKS_BY_TYPE]
    optional = frozenset(f.name for f in numbers if f.default is not MISSING)
    return {f.name: _CHECKS_BY_NAME.get(f.name, _CHECKS_BY_TYPE[str(f.type)]) for f in numbers}, optional


def _parse_finite(raw: JsonValue) -> float | None:
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not isfinite(raw):
        raise ValueError("no number")
    return float(raw)


def _parse_above_zero(raw: JsonValue) -> float:
    found = _parse_finite(raw)
    if found is None or found <= 0:
        raise ValueError("no positive number")
    return found


def _parse_object_values(raw: JsonValue, parse: Callable[[JsonValue], Any]) -> dict[str, Any]:
    """Return a JSON object with each value parsed by `parse`; an empty dictionary for null."""
    return {str(name): parse(value) for name, value in ({} if raw is None else raw).items()}


def _parse_interval(raw: JsonValue) -> ThresholdInterval:
    low, high = map(_parse_finite, raw)
    return low, high


def _parse_threshold_range(raw: JsonValue) -> ThresholdRange:
    return ThresholdRange(*(_parse_finite(raw[end]) for end in ("value", "low", "high")))


def _parse_taus(raw: JsonValue) -> dict[str, float | None]:
    return {name: _parse_finite(raw[name]) for name in TAU_NAMES}


def _parse_taus_by_baseline(raw: JsonValue) -> dict[str, Any]:
    return {str(Plan.parse(name)): taus for name, taus in _parse_object_values(raw, _parse_taus).items()}


def _parse_speedups(raw: JsonValue) -> dict[str, float]:
    return {str(int(side)): gain for side, gain in _parse_object_values(raw, _parse_above_zero).items()}


THRESHOLD_CHECKS: Mapping[str, JsonCheck] = {
    **dict.fromkeys(NAMES_IN_SECONDS, parser_check("a number above 0", _parse_above_zero)),
    **dict.fromkeys(("n1", "n1_measured", "epsilon"), parser_check("a number or null", _parse_finite)),
    **dict.fromkeys(
        TAU_NAMES, parser_check("an object of value, low and high, each a number or null", _parse_threshold_range)
    ),
    "block_strategy": parser_check("an object of names, by sides", partial(_parse_object_values, parse=str)),
    "one_level": parser_check("an object of numbers above 0, by sides", _parse_speedups),
    "intervals": parser_check(
        "an object of pairs of numbers or null", partial(_parse_object_values, parse=_parse_interval)
    ),
    "without_emulation": parser_check(
        "an object of numbers or null", partial(_parse_object_values, parse=_parse_finite)
    ),
    "measured_taus": parser_check(
        "an object of objects of tau1, tau2 and tau3, by plans without levels", _parse_taus_by_baseline
    ),
    "measured_intervals": parser_check(
        "an object of objects of pairs of numbers or null",
        partial(_parse_object_values, parse=partial(_parse_object_values, parse=_parse_interval)),
    ),
}
OPTIONAL_THRESHOLDS = frozenset({"measured_taus", "measured_intervals"})  # fields that older configs lack


# ---- reading a section


def read_section(raw: JsonValue, json_path: str, identity: Identity, dtype: str) -> Tuning:
    """Return the tuning in a section of a config; raise ConfigError if a field is invalid."""
    if dtype not in DTYPES:
        raise ConfigError(f"{json_path}: unknown type {dtype!r}; valid: {', '.join(DTYPES)}")
    found = read_fields(raw, json_path, SECTION_CHECKS, OPTIONAL_SECTION_FIELDS)
    if not isinstance(found["entries"], list):
        raise wrong_value_error(f"{json_path}.entries", "a list", found["entries"])
    entries = [read_entry(x, f"{json_path}.entries[{i}]") for i, x in enumerate(found["entries"])]
    calibration = found["calibration"]
    if calibration is not None:
        source = _source_text(found["tuned"], found["error"])
        calibration = read_calibration(calibration, f"{json_path}.calibration", dtype, identity.name, source)
    thresholds = read_thresholds(found["thresholds"])
    if calibration is not None and thresholds is not None:
        calibration = replace(calibration, measured_crossovers=thresholds.measured_crossovers)
    then, now = found["versions"], identity.versions
    diagnostics = (*found.get("doubts", ()), *model_rejection_reasons(then, now))
    return Tuning(
        identity,
        dtype,
        calibration,
        MappingProxyType({e.entry_key: e for e in entries}),
        changed=tuple(f"{x} {was} -> {now[x]}" for x, was in then.items() if now.get(x, was) != was),
        thresholds=thresholds,
        fitted=read_block_model_constants(_field_or_none(found.get("blocks"), "fitted")),
        strategies=read_strategies(_field_or_none(found.get("blocks"), "strategies")),
        diagnostics=diagnostics,
        failed=tuple(found.get("failed", ())),
        vendor_arithmetic=_vendor_arithmetic(dtype, found["conditions"]),
    )


def _vendor_arithmetic(dtype: str, conditions: JsonValue) -> str:
    """Return as text the environment variables that changed cuBLAS's arithmetic during the tuning."""
    variables = conditions.get("vendor_variables") if isinstance(conditions, dict) else None
    if not isinstance(variables, dict):
        return ""
    return vendor_arithmetic(dtype, {str(name): str(value) for name, value in variables.items()})


def read_entry(raw: JsonValue, json_path: str) -> Entry:
    """Return an entry; raise ConfigError if its plan is not certified and is not `vendor`."""
    found = Entry(
        **read_fields(raw, json_path, ENTRY_CHECKS, frozenset({"layout", "verified", "origin", "lean", "op"}))
    )
    if found.plan != "vendor" and not (found.low > 1 and found.low <= found.speedup <= found.high):
        raise ConfigError(
            f"{json_path}: the speedup {found.speedup:g} of {found.plan!r} is not certified (low {found.low:g})"
        )
    return found


def read_calibration(raw: JsonValue, json_path: str, dtype: str, name: str, source: str) -> Calibration:
    """Return the calibration of one element type on the device `name`; `source` says how the calibration was measured.

    The field `leaf_rates` has the measured rates of some leaves. The rates of leaves that were not measured follow from
    a datasheet, which the optional field `datasheet` names.
    """
    checks, optional = _number_checks(Calibration)
    rates, rate_optional = _number_checks(ProductRate)
    allowed = {**checks, "rate": accept_any_value, "leaf_rates": accept_any_value, "datasheet": check_text}
    found = read_fields(raw, json_path, allowed, optional | {"leaf_rates", "datasheet"})
    leaf_rates = found.pop("leaf_rates", {})
    if not isinstance(leaf_rates, dict):
        raise wrong_value_error(f"{json_path}.leaf_rates", "an object", leaf_rates)
    measured = {dtype: ProductRate(**read_fields(found.pop("rate"), f"{json_path}.rate", rates, rate_optional))}
    for leaf, numbers in leaf_rates.items():
        measured[leaf] = ProductRate(**read_fields(numbers, f"{json_path}.leaf_rates.{leaf}", rates, rate_optional))
    sheet = found.pop("datasheet", "")
    try:
        assumed = datasheet_rates(sheet, dtype) if sheet else {}
    except ValueError as error:
        raise ConfigError(f"{json_path}.datasheet: {error}") from None
    return Calibration(name, source, MappingProxyType({**assumed, **measured}), **found)


def read_thresholds(raw: JsonValue) -> Thresholds | None:
    """Return the thresholds of a section; None for missing, incomplete or damaged thresholds."""
    if not _is_thresholds_object(raw) or any(threshold_errors(raw, "")):
        return None
    return Thresholds(**{name: check(raw[name], name) for name, check in THRESHOLD_CHECKS.items() if name in raw})


def _is_thresholds_object(raw: JsonValue) -> bool:
    """Return True if the value is an object with all required fields of Thresholds."""
    return isinstance(raw, dict) and raw.keys() >= THRESHOLD_CHECKS.keys() - OPTIONAL_THRESHOLDS


def threshold_errors(raw: JsonValue, json_path: str) -> Iterator[ConfigError]:
    """Yield a ConfigError for each damaged field of thresholds; yield nothing if fields are missing."""
    if raw is not None and not isinstance(raw, dict):
        yield wrong_value_error(json_path, "an object", raw)
    for name, check in THRESHOLD_CHECKS.items() if _is_thresholds_object(raw) else ():
        try:
            if name in raw:
                check(raw[name], f"{json_path}.{name}")
        except ConfigError as error:
            yield error


def read_block_model_constants(raw: JsonValue) -> BlockModelConstants | None:
    """Return the block model's fitted constants; None for missing or damaged constants."""
    check = number_check(1e-12, 1e6)
    try:
        return (
            BlockModelConstants(**read_fields(raw, "terms", {f.name: check for f in fields(BlockModelConstants)}))
            if raw
            else None
        )
    except ConfigError:
        return None


def check_strategy(raw: JsonValue, json_path: str) -> tuple[Size, str]:
    """Return a shape (m, k, n) and the name of its tile strategy, or raise ConfigError."""
    found = read_fields(
        raw, json_path, {"size": check_size, "strategy": choice_check(*(s.name for s in ALL_STRATEGIES))}
    )
    return found["size"], found["strategy"]


def read_strategies(raw: JsonValue) -> tuple[tuple[Size, str], ...]:
    """Return the measured tile strategies with their shapes; an empty tuple for missing or damaged strategies."""
    try:
        return tuple(check_strategy(x, "strategies") for x in raw) if isinstance(raw, list) else ()
    except ConfigError:
        return ()


def _source_text(tuned: JsonValue, errors: JsonValue) -> str:
    """Return the source of a calibration as text, such as `calibrated on this device 2026-11-22, model error 1.2%`."""
    when, speedup = _field_or_none(tuned, "at"), _field_or_none(errors, "speedup")
    median, count = _field_or_none(speedup, "median"), _field_or_none(speedup, "count")
    date = f" {when[:10]}" if isinstance(when, str) and when.isprintable() else ""
    error = f", model error {median:.1%}" if isinstance(median, float) and isfinite(median) else ""
    error = ", model not checked on other shapes" if count == 0 else error
    return f"calibrated on this device{date}{error}"


def _field_or_none(raw: JsonValue, name: str) -> JsonValue:
    return raw.get(name) if isinstance(raw, dict) else None


# ---- writing a section


def calibration_fields(found: Calibration, dtype: str, sheet: str = "") -> dict[str, JsonValue]:
    """Return a calibration as the JSON object that read_calibration reads.

    If `sheet` is the name of a datasheet, the rates that follow from this datasheet are left out.
    """
    own = {name: getattr(found, name) for name in _number_checks(Calibration)[0]}
    rates = {
        x: {name: getattr(rate, name) for name in _number_checks(ProductRate)[0]} for x, rate in found.rates.items()
    }
    assumed = datasheet_rates(sheet, dtype) if sheet else {}
    leaf_rates = {x: rate for x, rate in rates.items() if x != dtype and found.rates[x] != assumed.get(x)}
    named = {"datasheet": sheet} if assumed else {}
    return {**own, "rate": rates[dtype], **({"leaf_rates": leaf_rates} if leaf_rates else {}), **named}


def empty_section(versions: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return a section without a model and without entries."""
    nothing: dict[str, JsonValue] = dict.fromkeys(
        ("conditions", "tuned", "calibration", "intervals", "error", "thresholds")
    )
    return {"versions": dict(versions), **nothing, "noise": None, "entries": []}

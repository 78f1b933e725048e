"""List the terms of one prediction with all their numbers, so that a reader can compute the predicted time by hand.

docs/model.md describes the formula T = P + S + L + E - H and uses the same names. `prediction_terms` counts the plan's
work again and returns the numbers that fmm.perfmodel.predict adds up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from fmm.dtypes import DTYPES
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.predict import (
    LeafTerm,
    Prediction,
    concurrent_product_count,
    hidden_sum_share,
    leaf_time_terms,
    predict_from_work,
    weighted_sum_bytes,
)
from fmm.perfmodel.work import PRODUCT_SHARE_FIELDS, estimated_work

RATE_UNITS: Mapping[str, str] = MappingProxyType(
    {"flops": "flop/s", "fill": "entries of C", "pipe": "steps of k", "rows": "rows of C", "cols": "columns of C"}
    | {"memory": "bytes/s", "tile": "rows", "width": "columns", "start": "s", "sms": "multiprocessors"}
)


@dataclass(frozen=True)
class PredictionTerms:
    """The numbers of one prediction by term: products (P), sums (S), launches (L), hidden sums (H), and ends (E)."""

    prediction: Prediction  # the prediction with its terms P, S, L, E, H and T in seconds
    products: tuple[LeafTerm, ...]
    # the leaf's rate: the fields that differ from the defaults, by their names in the config
    rate: Mapping[str, float]
    alignment: Mapping[str, float]  # shares p_unaligned, p_odd and p_copied of the leaf products, by name
    moved: float  # bytes that the sums move, t * w of docs/model.md; a byte of a slow sum counts more than once
    passes: float  # number of passes of the sums over memory
    small: float  # additional bytes for each pass, `Calibration.small`
    stream: float  # rate of the sums in bytes/s
    overlapped: float  # p_overlapped: share of S that is below an overlapped level
    overlap: float  # share of the overlapped sums that products hide
    launches: float  # number of launches of products and sums
    launch: float  # seconds of each launch on the device
    calls: float  # number of times that the host starts products
    host: float  # seconds of the host for each start of products
    lanes: int  # number of products that run at a time
    idle: float  # seconds in which threads are idle at the beginning and end of a plan
    spin: float  # largest number of seconds lost to spinning threads of BLAS

    def __str__(self) -> str:
        """Return a line for each term of T with its formula, its numbers in units, and its seconds."""
        found = self.prediction
        rate = ", ".join(f"{name} {value:.6g} {RATE_UNITS.get(name, '')}".rstrip() for name, value in self.rate.items())
        shares = ", ".join(f"p_{name} {value:.3g}" for name, value in self.alignment.items() if value)
        lines = [f"{found.plan}: T = P + S + L + E - H = {found.predicted_seconds:.6g} s on {found.device}"]
        lines += [f"  rate: {rate}" + (f"; unaligned rows: {shares}" if shares else "")]
        lines += [f"  P {found.products:.6g} s = sum of c * max(flops / rate * s, bytes / memory) + c / b * start"]
        for x in self.products:
            m, k, n = x.size
            lines += [
                f"    {m:g} x {k:g} x {n:g}: c {x.number:g}, b {x.batch:g}, {x.flops:.6g} flops / {x.rate:.6g} flop/s,"
                f" s {x.slowdown:.6g}, {x.moved:.6g} bytes / {x.memory:.6g} bytes/s, start {x.start:.3g} s:"
                f" {x.product_seconds:.6g} s"
            ]
        lines += [
            f"  S {found.sums:.6g} s = ({self.moved:.6g} bytes + small {self.small:.6g} bytes * {self.passes:g} passes)"
            f" / stream {self.stream:.6g} bytes/s",
            f"  L {found.launches:.6g} s = max(launch {self.launch:.3g} s * {self.launches:g}, "
            f"host {self.host:.3g} s * {self.calls:g} calls - (P + S - H))",
            f"  H {found.hidden:.6g} s = overlap {self.overlap:.3g} * min(P, S * {self.overlapped:.3g})",
        ]
        if self.lanes > 1:
            busy = f"(P + S + idle) * {self.lanes - 1} / {self.lanes + 1}"
            lines += [f"  E {found.ends:.6g} s = idle {self.idle:.3g} s + min(spin {self.spin:.3g} s, {busy})"]
        return "\n".join(lines)


def prediction_terms(prediction: Prediction, calibration: Calibration) -> PredictionTerms:
    """Return the terms of a prediction that was made with this calibration from estimated counts."""
    plan, problem = prediction.plan, prediction.problem
    work, lanes = estimated_work(plan, problem), concurrent_product_count(plan, problem, calibration)
    products = tuple(leaf_time_terms(plan, problem, work, calibration, lanes))
    rate = calibration.rates.get(plan.rate_name(problem.dtype))
    rate = rate or calibration.require_rate(DTYPES[plan.leaf_type(problem.dtype)].name)
    return PredictionTerms(
        prediction=predict_from_work(plan, problem, work, calibration),
        products=products,
        rate=_nondefault_rate_fields(rate),
        alignment={name: getattr(work, name) for name in PRODUCT_SHARE_FIELDS},
        moved=weighted_sum_bytes(plan, problem, work, calibration, lanes),
        passes=work.passes,
        small=calibration.small,
        stream=calibration.stream,
        overlapped=work.overlapped,
        overlap=hidden_sum_share(plan, problem.dtype, calibration),
        launches=sum(x.batch_count * x.launches for x in products) + work.passes,
        launch=calibration.launch,
        calls=sum(x.batch_count for x in products),
        host=calibration.host,
        lanes=lanes,
        idle=calibration.idle,
        spin=calibration.spin,
    )


def _nondefault_rate_fields(rate: ProductRate) -> dict[str, float]:
    """Return the fields of a rate that differ from their defaults, without the fields for triangles."""
    return {
        field.name: getattr(rate, field.name)
        for field in fields(rate)
        if getattr(rate, field.name) != field.default and not field.name.startswith("half")
    }

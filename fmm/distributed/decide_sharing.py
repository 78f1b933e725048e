"""The decision on how several devices share a product, and the text that explains the decision."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from fmm.distributed.layout import MeshLayout
from fmm.distributed.predict_sharing import (
    LocalProductConditions,
    MeshDevices,
    SharingCandidate,
    choose_sharing,
    rank_sharings,
)
from fmm.distributed.quadrants import may_choose_levels, outer_level_blocks
from fmm.dtypes import DTYPES
from fmm.hardware.links import Network
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.predict import quick_prediction
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import calibration_in_force
from fmm.runtime.decisions.decide import decide_plan
from fmm.runtime.decisions.limits import limits_without_arrays, workspace_limit_for_free_bytes
from fmm.runtime.devices import Device

MAX_PRINTED_CANDIDATES = 8  # number of candidates that str(decision) lists
UNLIMITED_BYTES = 1 << 62
# Assumed rate of sums, in bytes per second, on a device without a calibration. The rate affects only the number of
# steps of a shared product.
ASSUMED_SUM_BYTES_PER_SECOND = 1e10


@dataclass(frozen=True)
class SharedDecision:
    """The chosen way to share a product between devices, and all candidates; str(decision) explains the choice."""

    best: SharingCandidate
    candidates: tuple[SharingCandidate, ...]
    dtype: str
    network: Network
    local: Plan  # plan of the first device's products; it observes the two limits in the next two fields
    local_workspace: int  # workspace limit in bytes
    local_error_growth: float
    single_device_seconds: float  # predicted seconds of the whole product on one device
    memory_limit: float  # limit of the bytes that panels and blocks use on a device
    max_error_growth: float

    @property
    def speedup(self) -> float:
        """The predicted speedup over one device with enough memory for A, B and C."""
        return self.single_device_seconds / self.best.predicted_seconds if self.best.predicted_seconds else 0.0

    def __str__(self) -> str:
        best = self.best
        layout = best.layout
        sizes = f"{layout.m} x {layout.k} x {layout.n}"
        mesh = str(layout.process_count) if best.rectangle else " x ".join(map(str, layout.mesh))
        terms = f"products {best.products:.4g} s, waiting {best.waiting:.3g} s, sums {best.sums:.3g} s"
        lines = [
            f"product: {sizes}, {self.dtype}, on a mesh of {mesh} ({self.network})",
            f"shared: {best}",
            f"each device's products: {self.local}{self._workspace_text()}",
            f"predicted: {best.predicted_seconds:.4g} s ({terms}, redistribution {best.around:.3g} s)",
            f"one device alone: {self.single_device_seconds:.4g} s, speedup {self.speedup:.2f}",
            f"received by a device: {_gib_text(best.received)}; panels and blocks: {_gib_text(best.memory)}",
            "",
            "compared, predicted seconds:",
            *(
                f"  {x.predicted_seconds:10.4g}  {x}{self._rejection_reason(x)}"
                for x in self.candidates[:MAX_PRINTED_CANDIDATES]
            ),
        ]
        return "\n".join(lines)

    def _workspace_text(self) -> str:
        limited = self.local_workspace < UNLIMITED_BYTES
        return f" (workspace limit {_gib_text(self.local_workspace)})" if limited else ""

    def _rejection_reason(self, sharing: SharingCandidate) -> str:
        """Return a text that says why a faster candidate was not chosen; an empty text for a slower candidate."""
        if sharing.predicted_seconds >= self.best.predicted_seconds:
            return ""
        if sharing.memory > self.memory_limit:
            return " (too large)"
        too_much_error = sharing_error_growth(sharing, self.dtype) > self.max_error_growth
        return " (too much error)" if too_much_error else " (not clearly faster)"


def _gib_text(nbytes: float) -> str:
    return f"{nbytes / 2**30:.3g} GiB"


@dataclass(frozen=True)
class ShardingQuery:
    """The constraints of a decision: memory of each device in bytes, error growth, and a required outer level."""

    memory_limit: float = float("inf")  # limit of the bytes that panels and blocks use on a device
    max_error_growth: float | None = None
    outer_plan: Plan | None = None
    free_bytes: float | None = None  # free bytes of the device before panels are allocated; None means memory_limit


def decide_sharing(
    layout: MeshLayout, dtype: str, device: Device, network: Network, query: ShardingQuery
) -> SharedDecision:
    """Return the decision for the fastest way to share a product.

    `layout` has the sizes, the mesh and the cuts of A and B; its fields `work` and `pieces` are ignored.
    """
    growth = device.error_growth if query.max_error_growth is None else query.max_error_growth
    growth_limit = max(growth, 1.0)
    free_bytes = query.memory_limit if query.free_bytes is None else query.free_bytes

    def limits_for_local_products(conditions: LocalProductConditions) -> Limits:
        unlimited = free_bytes == float("inf")
        workspace = (
            UNLIMITED_BYTES if unlimited else workspace_limit_for_free_bytes(int(free_bytes - conditions.held_bytes))
        )
        local_growth = growth / _error_growth_of_piecewise_sums(conditions, dtype)
        return limits_without_arrays("product", dtype, workspace, local_growth)

    @cache
    def local_device_model(limits: Limits) -> _SingleDeviceTimeModel:
        return _SingleDeviceTimeModel(dtype, device, limits)

    single = local_device_model(limits_without_arrays("product", dtype, UNLIMITED_BYTES, growth))
    calibration = single.find_calibration(Problem(layout.m, layout.k, layout.n, dtype))
    stream = calibration.stream if calibration is not None else ASSUMED_SUM_BYTES_PER_SECOND
    itemsize = DTYPES[dtype].itemsize
    devices = MeshDevices(
        single.predict_seconds,
        stream,
        network,
        itemsize,
        lambda x: local_device_model(limits_for_local_products(x)).predict_seconds,
    )
    use_default_levels = query.outer_plan is None and may_choose_levels()
    candidates = rank_sharings(layout, devices, None if use_default_levels else (query.outer_plan or VENDOR,))
    allowed = [x for x in candidates if query.outer_plan is not None or sharing_error_growth(x, dtype) <= growth_limit]
    best = choose_sharing(allowed, query.memory_limit)
    limits = limits_for_local_products(best.local_product_conditions)
    local = local_device_model(limits).choose_plan(*first_local_product_size(best))
    whole = single.predict_seconds(layout.m, layout.k, layout.n)
    of_part = local, limits.workspace, limits.error_growth
    return SharedDecision(best, candidates, dtype, network, *of_part, whole, query.memory_limit, growth_limit)


def first_local_product_size(sharing: SharingCandidate) -> tuple[int, int, int]:
    """Return m, k and n of the first local product on the device of rank 0."""
    block = (
        sharing.layout
        if sharing.outer_plan == VENDOR
        else outer_level_blocks(sharing.layout, sharing.outer_plan).block_layout
    )
    panels = block.panels_needed(0, 0)
    return panels["A"].rows.size, panels["A"].cols.size, panels["B"].cols.size


def sharing_error_growth(sharing: SharingCandidate, dtype: str) -> float:
    """Return the error growth of the outer level, including rounded sums of partial products in a 16-bit type."""
    return _error_growth_of_piecewise_sums(sharing.local_product_conditions, dtype)


def _error_growth_of_piecewise_sums(conditions: LocalProductConditions, dtype: str) -> float:
    pieces = conditions.pieces if DTYPES[dtype].sums_wider else 1
    return float(expected_error_growth(conditions.outer_plan, dtype) * ((pieces + 1) / 2) ** 0.5)


class _SingleDeviceTimeModel:
    """Chooses plans and caches predicted seconds for products on one device, in one type and within fixed limits."""

    def __init__(self, dtype: str, device: Device, limits: Limits) -> None:
        self.dtype, self.device, self.limits = dtype, device, limits
        self._seconds: dict[tuple[int, int, int], float] = {}

    def choose_plan(self, m: int, k: int, n: int) -> Plan:
        problem = Problem(m, k, n, self.dtype)
        return VENDOR if self.find_calibration(problem) is None else decide_plan(problem, self.limits, self.device).plan

    def predict_seconds(self, m: int, k: int, n: int) -> float:
        seconds = self._seconds.get((m, k, n))
        if seconds is None:
            problem = Problem(m, k, n, self.dtype)
            calibration = self.find_calibration(problem)
            if calibration is None:
                # an assumed rate of products is enough, since only ratios of predicted seconds are compared
                seconds = problem.flops / (ASSUMED_SUM_BYTES_PER_SECOND * 10)
            else:
                seconds = quick_prediction(self.choose_plan(m, k, n), problem, calibration).predicted_seconds
            self._seconds[m, k, n] = seconds
        return seconds

    def find_calibration(self, problem: Problem) -> Calibration | None:
        """Return the device's calibration, or None if the calibration has no rate for the problem's type."""
        guess = self.device.guess
        if guess is not None and guess.find_rate(self.dtype) is None:
            return None
        calibration = calibration_in_force(problem, self.limits, self.device)
        return calibration if calibration is not None and calibration.find_rate(self.dtype) is not None else None

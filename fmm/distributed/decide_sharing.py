"""How a product is shared by several devices, and why: what fmm.distributed decides, and prints."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmm.config.environment import is_emulation_allowed
from fmm.distributed.layout import Layout
from fmm.distributed.predict_sharing import Devices, Sharing, choose_sharing, rank_sharings
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
from fmm.runtime.devices import Device

SHOWN = 8  # ways to share a product that are printed
SPARE = 0.5  # of the memory, that a device's own product may have for its plan
UNLIMITED = 1 << 62
SUMS = 1e10  # bytes a second, of a device of which nothing is known: only the pieces are chosen by it


@dataclass(frozen=True)
class SharedDecision:
    """How a product is shared, and what was compared. Printing it explains it."""

    best: Sharing
    considered: tuple[Sharing, ...]
    dtype: str
    network: Network
    local: Plan  # of the first device's products, as far as fmm can tell beforehand
    alone: float  # seconds of the whole product on one of the devices
    room: float  # bytes that panels and blocks may take
    error_growth: float  # at most

    @property
    def speedup(self) -> float:
        """Over one device, if everything fitted there."""
        return self.alone / self.best.seconds if self.best.seconds else 0.0

    def __str__(self) -> str:
        best = self.best
        layout = best.layout
        sizes = f"{layout.m} x {layout.k} x {layout.n}"
        mesh = str(layout.ranks) if best.rectangle else " x ".join(map(str, layout.mesh))
        terms = f"products {best.products:.4g} s, waiting {best.waiting:.3g} s, sums {best.sums:.3g} s"
        lines = [
            f"product: {sizes}, {self.dtype}, on a mesh of {mesh} ({self.network})",
            f"shared: {best}",
            f"each device's products: {self.local}",
            f"predicted: {best.seconds:.4g} s ({terms}, around it {best.around:.3g} s)",
            f"one device alone: {self.alone:.4g} s, so {self.speedup:.2f} times as fast as that",
            f"received by a device: {_gibibytes(best.received)}; panels and blocks: {_gibibytes(best.memory)}",
            "",
            "compared, predicted seconds:",
            *(f"  {way.seconds:10.4g}  {way}{self._why_not(way)}" for way in self.considered[:SHOWN]),
        ]
        return "\n".join(lines)

    def _why_not(self, way: Sharing) -> str:
        """Of one that is predicted to be faster than what is chosen."""
        if way.seconds >= self.best.seconds:
            return ""
        if way.memory > self.room:
            return " (too large)"
        return " (too much error)" if growth_of(way, self.dtype) > self.error_growth else " (not clearly faster)"


def _gibibytes(count: float) -> str:
    return f"{count / 2**30:.3g} GiB"


@dataclass(frozen=True)
class Asked:
    """What limits the choice: bytes on each device, expected error, and a level above, if one is asked for."""

    room: float = float("inf")
    error_growth: float | None = None
    above: Plan | None = None


def decide_sharing(layout: Layout, dtype: str, device: Device, network: Network, asked: Asked) -> SharedDecision:
    """The way that is predicted to take the least time; of `layout` the work and the pieces do not count."""
    growth = device.error_growth if asked.error_growth is None else asked.error_growth
    limits = Limits(_bytes(asked.room), growth, is_emulation_allowed())
    single = _OneDevice(dtype, device, limits)
    known = single.rates(Problem(layout.m, layout.k, layout.n, dtype))
    stream = known.stream if known is not None else SUMS
    devices = Devices(single.seconds, stream, network, DTYPES[dtype].itemsize)
    considered = rank_sharings(layout, devices, None if asked.above is None else (asked.above,))
    allowed = [way for way in considered if asked.above is not None or growth_of(way, dtype) <= max(growth, 1.0)]
    best = choose_sharing(allowed, asked.room)
    share, pieces = best.layout.share(0), best.layout.pieces
    local = single.plan(share.rows.size, -(-share.inner.size // pieces), share.cols.size)
    alone = _OneDevice(dtype, device, replace(limits, workspace=UNLIMITED)).seconds(layout.m, layout.k, layout.n)
    return SharedDecision(best, considered, dtype, network, local, alone, asked.room, max(growth, 1.0))


def growth_of(sharing: Sharing, dtype: str) -> float:
    """By how much the level above, and adding up pieces in a type of few bits, let the error grow."""
    pieces = sharing.layout.pieces if DTYPES[dtype].sums_wider else 1
    return float(expected_error_growth(sharing.above, dtype) * ((pieces + 1) / 2) ** 0.5)


def _bytes(room: float) -> int:
    return int(room * SPARE) if room != float("inf") else UNLIMITED


class _OneDevice:
    """The products of one device: by which plan, and how long they take."""

    def __init__(self, dtype: str, device: Device, limits: Limits) -> None:
        self.dtype, self.device, self.limits = dtype, device, limits
        self._known: dict[tuple[int, int, int], float] = {}

    def plan(self, m: int, k: int, n: int) -> Plan:
        problem = Problem(m, k, n, self.dtype)
        return VENDOR if self.rates(problem) is None else decide_plan(problem, self.limits, self.device).plan

    def seconds(self, m: int, k: int, n: int) -> float:
        found = self._known.get((m, k, n))
        if found is None:
            problem = Problem(m, k, n, self.dtype)
            known = self.rates(problem)
            if known is None:
                found = problem.flops / (SUMS * 10)  # nobody knows: only ratios count
            else:
                found = quick_prediction(self.plan(m, k, n), problem, known).seconds
            self._known[m, k, n] = found
        return found

    def rates(self, problem: Problem) -> Calibration | None:
        """What is known of the device, if that is known of such numbers."""
        guess = self.device.guess
        if guess is not None and guess.find_rate(self.dtype) is None:
            return None
        known = calibration_in_force(problem, self.limits, self.device)
        return known if known is not None and known.find_rate(self.dtype) is not None else None

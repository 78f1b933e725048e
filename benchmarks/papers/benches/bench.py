"""What the experiments run on: a device that multiplies by any plan, draws numbers, and calls what is to be timed.

Plans run as they are named: no choosing, no emulation, no check for overflow that would hand them to the vendor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import fmm
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.problem import Problem

Array = Any
Call = Callable[[], object]


class Bench(Protocol):
    """A device for experiments."""

    xp: Any  # the library of its arrays
    on_host: bool
    side: int  # the largest that an experiment is scaled down to unless it is told otherwise

    @property
    def folder(self) -> str:
        """Its name under results/."""

    def environment(self, command: list[str]) -> dict[str, Any]: ...

    def generator(self, seed: int) -> Any:
        """With `random` and `standard_normal`, as NumPy's."""

    def stored(self, x: Array, dtype: str) -> Array:
        """float64 or complex128 numbers, as numbers of this type lie in memory."""

    def widened(self, x: Array, dtype: str) -> Array:
        """Such numbers as float64 or complex128 again."""

    def multiply(self, plan: Plan, a: Array, b: Array, dtype: str = "") -> Array:
        """A B by this plan; PlanError if it cannot be done."""

    def prepare(self, products: Sequence[tuple[Plan, Problem]]) -> None:
        """Whatever can be made ready for all of them at once."""

    def chosen(self, problem: Problem, max_error_growth: float | None = None, emulation: bool = True) -> Plan:
        """What fmm chooses on this device."""

    @property
    def speed(self) -> float:
        """Flops a second of the vendor's float64 product, roughly."""

    def row_by_column(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Which rows, and those rows of the product, one accumulator an entry, in the order of k."""

    def call(self, plan: Plan, a: Array, b: Array) -> Call:
        """What multiplies once, everything prepared and warm."""

    def seconds(self, call: Call, repeats: int) -> float:
        """Of one of so many calls."""

    def stream(self, count: int) -> tuple[float, float]:
        """Bytes a second of an addition of so many float64 numbers, and numbers a second."""

    def shared_memory(self) -> float | None:
        """Bytes a second that threads read from memory that their block shares; None where there is none."""

    def free(self) -> None:
        """Give back memory that is held for later."""


class PlannedBench:
    """What an experiment asks of a device before it measures: a CUDA device that is not there, or a processor. Of what
    fmm itself would choose it knows nothing."""

    def __init__(self, on_host: bool) -> None:
        self.on_host = on_host

    def chosen(self, problem: Problem, max_error_growth: float | None = None, emulation: bool = True) -> Plan:
        return VENDOR


def chosen_plan(problem: Problem, device: str | int, max_error_growth: float | None, emulation: bool) -> Plan:
    """What fmm chooses for a problem, by the public function; without emulation as if FMM_EMULATION=0 were set."""
    m, k, n = problem.size
    asked = {"op": problem.op, "dtype": problem.dtype, "device": device, "max_error_growth": max_error_growth}
    with nullcontext() if emulation else _emulation_forbidden():
        return fmm.plan(m, k, n, **asked).plan  # type: ignore[arg-type]


@contextmanager
def _emulation_forbidden() -> Iterator[None]:
    before = os.environ.get("FMM_EMULATION")
    os.environ["FMM_EMULATION"] = "0"
    try:
        yield
    finally:
        del os.environ["FMM_EMULATION"]
        os.environ |= {} if before is None else {"FMM_EMULATION": before}

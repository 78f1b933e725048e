"""The decision on how a call of a solver runs: its steps, their predicted times and the errors of its products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fmm.kernels.plans.explain import format_error_growth
from fmm.linalg.solver_steps import (
    VENDOR_COSTS,
    Step,
    StepConditions,
    predicted_seconds,
    product_decision,
    step_seconds,
)


@dataclass(frozen=True)
class SolverDecision:
    """The decision for a call of fmm.linalg; `print` shows the decision as text.

    Attributes
    ----------
    function : str
        The name of the function.
    shape : tuple of int
        The shape of the matrix or stack. Steps, times and errors are those of one matrix.
    conditions : StepConditions
        The element type, the device and the limit of the error growth.
    steps : tuple of Step
        The products, and the library's functions on blocks, in the order in which they run. If the library's own
        function runs, the only step is that function.
    vendor_step : Step
        The library's own function on the whole matrix.
    """

    function: str
    shape: tuple[int, ...]
    conditions: StepConditions
    steps: tuple[Step, ...]
    vendor_step: Step

    @property
    def by_products(self) -> bool:
        """True if products compute the result, False if the library's own function does."""
        return self.steps != (self.vendor_step,)

    @property
    def predicted_seconds(self) -> float:
        """The predicted time of the steps, in seconds."""
        return predicted_seconds(self.steps, self.conditions)

    @property
    def vendor_seconds(self) -> float:
        """The predicted time of the library's own function, in seconds."""
        return predicted_seconds((self.vendor_step,), self.conditions)

    @property
    def speedup(self) -> float:
        """The predicted speedup over the library's own function; 1 if that function runs."""
        return self.vendor_seconds / self.predicted_seconds if self.by_products else 1.0

    @property
    def error_growth(self) -> float:
        """The largest expected error of a product, as a multiple of the error of the vendor's product."""
        products = {step for step in self.steps if step.operation not in VENDOR_COSTS}
        return max((product_decision(step, self.conditions).error_growth for step in products), default=1.0)

    def __str__(self) -> str:
        size = " x ".join(map(str, self.shape))
        who = "products and blocks" if self.by_products else "the library's own function"
        head = f"fmm.linalg.{self.function} of {size}, {self.conditions.dtype} on {self.conditions.device}: {who}"
        if not self.conditions.dtype:
            return head
        own = f"the library's own function {1e3 * self.vendor_seconds:.4g} ms"
        times = f"predicted: {1e3 * self.predicted_seconds:.4g} ms, {own}" if self.by_products else f"predicted: {own}"
        growth = f"expected error of the products: at most {format_error_growth(self.error_growth)} times the vendor's"
        return "\n".join([head, "", *self._table_lines(), "", times, *([growth] if self.by_products else [])])

    def _table_lines(self) -> list[str]:
        """Return the lines of a table: one line for all equal steps, in the order in which they first run."""
        lines = [("step", "size", "times", "plan", "ms"), *self._table_rows()]
        widths = [max(len(line[i]) for line in lines) for i in range(5)]
        return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]

    def _table_rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        for step, count in Counter(self.steps).items():
            is_product = step.operation not in VENDOR_COSTS
            size = f"{step.m} x {step.k} x {step.n}" if is_product else f"{step.m} x {step.n}"
            plan = str(product_decision(step, self.conditions).plan) if is_product else "the library's own"
            seconds = count * step_seconds(step, self.conditions)
            yield step.operation, size, str(count), plan, f"{1e3 * seconds:.4g}"

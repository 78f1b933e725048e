"""A report of a program's products: the plans that ran, their speedups, and the reasons why other products ran no plan.

While a report is active, products with the same function, shapes, element type and outcome are counted together.
`report`, FMM_REPORT or `python -m fmm --report` starts a report.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from fmm.config.environment import log_once
from fmm.config.store import write_file
from fmm.integrations.install_targets import INSTALL_TARGETS
from fmm.kernels.cpu.worker_threads import ForkSafeLock, after_fork_in_child
from fmm.kernels.plans.plan import VENDOR
from fmm.runtime.call_record import RECORDING_SWITCH, CallRecord, clear_record, last_record
from fmm.runtime.decisions.decide import Decision

MAX_REPORT_LINES = 30  # number of lines in the table of a report; products with the most flops come first
GENERATED_PRODUCTS_NOTE = "products for which torch.compile generates code of its own"
# For each install target: products that a report does not count if fmm is installed in this target alone, and the other
# targets in which fmm must be installed to count them.
UNCOUNTED_PRODUCTS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "numpy": (("methods (a.dot(b)) of NumPy's arrays, numpy.einsum without optimize, functions in C", ()),),
    "scipy": (("products inside of the solvers of scipy.linalg", ()),),
    "cupy": (("methods (a.dot(b)) of CuPy's arrays", ()),),
    "torch": (("torch's products on the host", ("torch-cpu",)), (GENERATED_PRODUCTS_NOTE, ())),
    "torch-cpu": (("torch's products on CUDA devices", ("torch",)), (GENERATED_PRODUCTS_NOTE, ())),
    "torch-inductor": (
        ("torch's products but for those of fmm's candidate in Inductor", ("torch", "torch-cpu")),
        (GENERATED_PRODUCTS_NOTE, ()),
    ),
}


# ---- the report


class ProductKind(NamedTuple):
    """What equal products have in common: the function that was called, the operands' shapes and the element type."""

    where: str  # name of the library's function that the program called
    left: tuple[int, ...]
    right: tuple[int, ...]
    dtype: str  # element type of the computation

    @property
    def flops(self) -> int:
        stack = max(prod(self.left[:-2]), prod(self.right[:-2]))
        return 2 * stack * prod(self.left[-2:]) * (self.right[-1] if len(self.right) > 1 else 1)

    @property
    def matrix_size(self) -> tuple[int, int, int] | None:
        """The sizes (m, k, n) of one matrix product; None if the shapes do not match.

        A stack times one matrix is a single product of all rows of the stack.
        """
        k, n = self.right[-2:] if len(self.right) > 1 else (*self.right, 1)
        m = prod(self.left[:-1] if prod(self.right[:-2]) == 1 else self.left[-2:-1])
        return (m, k, n) if self.left[-1] == k else None

    @property
    def sizes_text(self) -> str:
        return f"{' x '.join(map(str, self.left))} by {' x '.join(map(str, self.right))}"


class ProductOutcome(NamedTuple):
    """The plan that computed a product, the reason for the plan, and the predicted speedup."""

    plan: str  # text of the plan that ran; empty if the library's own product ran
    reason: str  # the expected speedup, or the reason why no plan ran
    speedup: float | None = None  # predicted speedup over the vendor; None if unknown

    def __str__(self) -> str:
        return f"{self.plan or 'no plan'}: {self.reason}"


class ProductCount(NamedTuple):
    """The number of products with one ProductKind (function, shapes, element type) and one ProductOutcome."""

    times: int
    kind: ProductKind
    outcome: ProductOutcome

    @property
    def flops(self) -> int:
        return self.times * self.kind.flops

    @property
    def report_line(self) -> str:
        return f"  {self.times:7d}  {self.kind.where}, {self.kind.dtype}, {self.kind.sizes_text}: {self.outcome}"

    @property
    def fields(self) -> dict[str, Any]:
        return {"times": self.times, **self.kind._asdict(), **self.outcome._asdict()}


@dataclass(frozen=True)
class Report:
    """The counts of products, sorted by descending flops; str(report) lists the first 30 counts.

    Attributes
    ----------
    products : tuple of ProductCount
        The counts by kind and outcome.
    unseen : str
        A description of the products that were not counted.
    calls, by_plans : int
        The number of all counted products, and the number of products that plans computed.
    share : float
        The flops of the products that plans computed, as a fraction of all flops.
    fields : dict
        The report as a dictionary that json.dumps accepts.
    """

    products: tuple[ProductCount, ...]
    unseen: str = ""

    @property
    def calls(self) -> int:
        return sum(product.times for product in self.products)

    @property
    def by_plans(self) -> int:
        return sum(product.times for product in self.products if product.outcome.plan)

    @property
    def share(self) -> float:
        planned = sum(product.flops for product in self.products if product.outcome.plan)
        return planned / max(sum(product.flops for product in self.products), 1)

    @property
    def fields(self) -> dict[str, Any]:
        totals = {"calls": self.calls, "by_plans": self.by_plans, "share": self.share, "unseen": self.unseen}
        return {**totals, "products": [product.fields for product in self.products]}

    def __str__(self) -> str:
        lines = [f"fmm: {self.by_plans} of {self.calls} products ran by plans, {self.share:.0%} of the arithmetic"]
        lines += [product.report_line for product in self.products[:MAX_REPORT_LINES]]
        if len(self.products) > MAX_REPORT_LINES:
            lines.append(f"  and {len(self.products) - MAX_REPORT_LINES} kinds of smaller products")
        return "\n".join([*lines, f"  not seen: {self.unseen}"] if self.unseen else lines)


def report() -> Report:
    """Return a report of the program's products so far: the plans that ran, and the reasons why products had no plan.

    Counting begins with the first call of this function, or earlier with FMM_REPORT or `python -m fmm --report`. A
    forked process counts only its own products.

    Returns
    -------
    Report
        The counts by kind of product and outcome.

    Examples
    --------
    >>> import fmm
    >>> fmm.report().by_plans >= 0
    True
    """
    counts = _active_counts or begin_report()
    return counts.build_report(
        uncounted_products_text([name for name, x in INSTALL_TARGETS.items() if x.was_installed])
    )


def uncounted_products_text(targets: Collection[str]) -> str:
    """Return a text that names the products that are not counted if fmm is installed in these targets."""
    if not targets:
        return "any product, since fmm was installed for no library that the program loaded"
    unseen = (each for target, products in UNCOUNTED_PRODUCTS.items() if target in targets for each in products)
    texts = list(dict.fromkeys(text for text, seen_at in unseen if not set(seen_at).intersection(targets)))
    libraries = list(dict.fromkeys(target.partition("-")[0] for target in targets))
    earlier = f"calls before fmm was installed for {' and '.join(libraries)}"
    return "; ".join([*texts, earlier, "calls of fmm's own functions, and other processes"])


# ---- counting

_counts_lock = ForkSafeLock()  # guards all counts


@dataclass
class ReportCounts:
    """The counts of an active report."""

    counts: Counter[tuple[ProductKind, ProductOutcome]] = field(default_factory=Counter)
    # For each ProductKind, the outcome of products that fmm declined without a decision.
    unrecorded: dict[ProductKind, ProductOutcome] = field(default_factory=dict)

    def add_product(self, kind: ProductKind, outcome: ProductOutcome) -> None:
        with _counts_lock.now:
            self.counts[kind, outcome] += 1

    def build_report(self, unseen: str = "") -> Report:
        with _counts_lock.now:  # a copy, since other threads may add counts during the loop
            products = [ProductCount(times, *key) for key, times in self.counts.items()]
        return Report(tuple(sorted(products, key=lambda product: -product.flops)), unseen)

    def __str__(self) -> str:
        return str(self.build_report())


_active_counts: ReportCounts | None = None
_counting_watchers: list[Callable[[], None]] = []


def begin_report() -> ReportCounts:
    """Start to count products, from zero."""
    global _active_counts
    _active_counts = ReportCounts()
    _call_counting_callbacks()
    return _active_counts


def end_report() -> None:
    """Stop counting."""
    global _active_counts
    _active_counts = None
    _call_counting_callbacks()


def is_reporting() -> bool:
    return _active_counts is not None


def register_counting_callback(callback: Callable[[], None]) -> Callable[[], None]:
    """Register a function to call each time counting begins or ends; return the function that removes it."""
    _counting_watchers.append(callback)
    return lambda: _counting_watchers.remove(callback)


def _call_counting_callbacks() -> None:
    RECORDING_SWITCH.on = is_reporting()
    for callback in tuple(_counting_watchers):
        callback()


def _restart_in_child() -> None:
    if is_reporting():
        begin_report()


after_fork_in_child(_restart_in_child)


def count_product(kind: ProductKind, product: Callable[[], Any], decide: Callable[[], Decision]) -> Any:
    """Return the product, and count its outcome.

    If the library computed the product without a decision of fmm, `decide` returns the decision that fmm would make.
    """
    clear_record()
    try:
        c = product()
    except Exception as error:  # the library has rejected the call
        count_outcome(kind, ProductOutcome("", str(error)))
        raise
    record = last_record()
    if record is None:
        count_outcome(kind, _cached_unrecorded_outcome(kind, decide))
    else:
        count_record(kind, record)
    return c


def count_outcome(kind: ProductKind, outcome: ProductOutcome) -> None:
    if (counts := _active_counts) is not None:
        counts.add_product(kind, outcome)


def count_record(kind: ProductKind, record: CallRecord) -> None:
    """Count a recorded product under the element type of its decision; for float32 operands this type can be TF32."""
    problem = record.decision.problem
    count_outcome(kind if problem is None else kind._replace(dtype=problem.dtype), outcome_of_call_record(record))


def outcome_of_call_record(record: CallRecord) -> ProductOutcome:
    """Return the outcome of a recorded product."""
    decision, plan, fallback_reason = record
    if plan is not None and plan != VENDOR:
        speedup = expected_speedup(decision) if plan == decision.plan else None
        return ProductOutcome(
            str(plan), f"{speedup:.2f} times as fast is expected" if speedup else decision.reason, speedup
        )
    return ProductOutcome("", f"{fallback_reason}; {decision.plan} was chosen" if fallback_reason else decision.reason)


def expected_speedup(decision: Decision) -> float | None:
    """Return the predicted speedup of the decided plan; None if a certified entry decided, without a prediction.

    The reason of a decision by a certified entry contains the measured speedup.
    """
    times = (candidate.time for candidate in decision.candidates if candidate.plan == decision.plan)
    return next((1 / time for time in times if time > 0), None)


def _cached_unrecorded_outcome(kind: ProductKind, decide: Callable[[], Decision]) -> ProductOutcome:
    """Return the outcome of a product that the library computed without a decision of fmm.

    `decide` is called once for each ProductKind.
    """
    cache = {} if _active_counts is None else _active_counts.unrecorded
    if kind not in cache:
        try:
            cache[kind] = library_product_outcome(decide())
        except Exception as error:  # an error of the report must not make the program's call fail
            cache[kind] = ProductOutcome("", str(error))
    return cache[kind]


def library_product_outcome(decision: Decision) -> ProductOutcome:
    """Return the outcome of a product that the library computed; `decision` is fmm's decision for its sizes now."""
    if decision.plan == VENDOR:
        return ProductOutcome("", decision.reason)
    return ProductOutcome("", "a product of these sizes was declined recently")


# ---- reports at the end of a process

REPORT_VARIABLE = "FMM_REPORT"
PROCESS_ID_MARK = "%p"  # this mark in a file name is replaced by the process id
STDERR_FILE_NAME = ""
EXIT_PRIORITY = -100  # multiprocessing runs this finalizer last

_report_files: dict[str, int] = {}  # file name -> id of the process that requested the report


def report_from_env() -> None:
    """Write a report at exit to the file that the environment variable FMM_REPORT names, if the variable is set."""
    if name := os.environ.get(REPORT_VARIABLE, ""):
        report_at_exit(name)


def report_at_exit(name: str = STDERR_FILE_NAME) -> None:
    """Start counting, and write the report when the process ends.

    The report is written after the process's threads have ended. Functions that the program registers with atexit run
    before the report is written, so that their products are counted: atexit runs the first registered function last.
    """
    with suppress(FileNotFoundError):  # the working directory does not exist any more; write_report logs the error
        name = os.path.abspath(name) if name else STDERR_FILE_NAME  # the working directory may change
    if not is_reporting():
        begin_report()
    if name not in _report_files:
        _report_files[name] = os.getpid()
        atexit.register(_write_report_at_exit, name)


def _write_report_at_exit(name: str) -> None:
    """Write the report to a file, or to stderr unless it is closed. A forked process writes no report to stderr."""
    if name:
        write_report(Path(name.replace(PROCESS_ID_MARK, str(os.getpid()))))
    elif _report_files[STDERR_FILE_NAME] == os.getpid() and sys.stderr is not None:  # print(file=None) means stdout
        print(report(), file=sys.stderr)


def write_report(path: Path) -> None:
    """Write the report as JSON if the file name ends in .json, else as text."""
    result = report()
    text = json.dumps(result.fields, indent=1) if path.suffix == ".json" else str(result)
    try:
        write_file(path, text + "\n")
    except OSError as error:
        log_once(f"the report is not written to {str(path)!r}: {error.strerror}")


# A forked process of multiprocessing writes its report in a finalizer of multiprocessing: up to Python 3.13, forked
# processes end without calling the functions of atexit.


def _write_report_files() -> None:
    for name in filter(None, _report_files):
        _write_report_at_exit(name)


def _finalize_forked_child() -> None:
    """Register a finalizer that writes the reports of a forked process of multiprocessing.

    The finalizer is registered after multiprocessing has cleared the finalizers of the parent process.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _report_files:
        util.register_after_fork(
            _write_report_files, lambda write: util.Finalize(None, write, exitpriority=EXIT_PRIORITY)
        )


after_fork_in_child(_finalize_forked_child)

"""Online measurement: the first products of a large shape are timed, to compare a plan with the vendor.

FMM_TUNING_MODE=online enables online measurement, D'Alberto and Nicolau's dynamic HASA. The model chooses the plan. Of
every two products, the plan computes one and the vendor the other, in random order. Every timed product is a call of
the user's program, which gets the result. The entry from the measurement decides later products of this shape in this
process and is written into the config.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from fmm.config import certification, environment, files, schema, store
from fmm.config.identity import Identity
from fmm.config.schema import Entry
from fmm.kernels.cpu.worker_threads import ForkSafeLock
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.problem import Problem

MEASURED_PAIRS = certification.MIN_ROUNDS
UNTIMED_PRODUCTS = 3  # products by a plan until its kernels are compiled and its graph is captured
ASSUMED_NOISE = 0.01  # assumed noise floor as a fraction, since an online measurement has no A/A pairs


class OnlineTrial:
    """The comparison of a plan with the vendor by timing the caller's products of one shape; the result is `entry`."""

    def __init__(self, problem: Problem, device: Identity, plan: Plan, origin: str = "online") -> None:
        self.problem, self.device, self.plan, self.origin = problem, device, plan, origin
        self.entry: Entry | None = None
        self._lock = threading.Lock()
        self._begun = threading.Lock()  # held from the start of `run_all_products` on
        shuffled = random.Random(0)
        pairs = [shuffled.sample([VENDOR, plan], 2) for _ in range(MEASURED_PAIRS)]
        # The first product by the plan and the first product by the vendor are not counted: they warm up the device.
        self._turns = [plan, VENDOR, *(p for pair in pairs for p in pair)]
        self._seconds: list[float] = []  # seconds of the finished products, in the order of `_turns`

    def run_product(self, multiply: Callable[[Plan], Any], wait_until_idle: Callable[[], None] = lambda: None) -> Any:
        """Return a product that the plan or the vendor computes, and time it.

        While one thread's product is timed, the plan computes the products of other threads without a timing.
        `wait_until_idle` waits until an asynchronous device is idle.
        """
        if (faster := self._faster_plan()) is not None:
            return multiply(faster)
        if not self._lock.acquire(blocking=False):
            return multiply(self.plan)
        try:
            faster = self._faster_plan()  # again: another thread may have timed the last product in between
            return self._timed_product(multiply, wait_until_idle) if faster is None else multiply(faster)
        finally:
            self._lock.release()

    def _faster_plan(self) -> Plan | None:
        """Return the plan that was found to be faster; None before the end of the trial."""
        return None if self.entry is None else Plan.parse(self.entry.plan)

    def _timed_product(self, multiply: Callable[[Plan], Any], wait_until_idle: Callable[[], None]) -> Any:
        done = len(self._seconds)
        if done == len(self._turns):  # an exception was raised after the last product and before _conclude_trial
            self._conclude_trial()
            return multiply(self.plan)
        wait_until_idle()
        start = time.perf_counter()
        result = multiply(self._turns[done])
        wait_until_idle()
        self._seconds.append(time.perf_counter() - start)
        if done + 1 == len(self._turns):
            self._conclude_trial()
        return result

    def run_all_products(
        self, multiply: Callable[[Plan], Any], wait_until_idle: Callable[[], None], max_seconds: float
    ) -> None:
        """Compute all products of the trial in the first call of this method; do nothing in later calls.

        The first products of plan and vendor are not timed, because they compile kernels and capture graphs. If the
        timed products take longer than `max_seconds` in all, or if an exception is raised, the vendor multiplies until
        this process ends.
        """
        if not self._begun.acquire(blocking=False):
            return
        try:
            for _ in range(UNTIMED_PRODUCTS):
                multiply(self.plan)
            multiply(VENDOR)
            wait_until_idle()
            start = time.perf_counter()
            while self.entry is None and time.perf_counter() - start < max_seconds:
                self.run_product(multiply, wait_until_idle)
        except Exception as error:
            environment.log_once(f"fmm's kernels could not be measured: {error}")
        if self.entry is None:
            self.end_trial_for_vendor()

    def end_trial_for_vendor(self) -> None:
        """End the trial without a measurement: the vendor multiplies until this process ends."""
        self.entry = Entry(self.problem.size, str(VENDOR), 1.0, 1.0, 1.0, 0, 1.0, 1.0, 0.0, origin=self.origin)

    def _conclude_trial(self) -> None:
        pairs = list(zip(self._turns, self._seconds, strict=True))
        vendor, candidate = ([seconds for turn, seconds in pairs if turn == p][1:] for p in (VENDOR, self.plan))
        self.entry = certification.config_entry_from_rounds(
            self.problem.size, str(self.plan), vendor, candidate, ASSUMED_NOISE, self.origin
        )
        self._save_entry(self.entry)

    def _save_entry(self, entry: Entry) -> None:
        try:
            store.add_entry(files.default_path(), self.device, self.problem.dtype, entry)
        except (OSError, RuntimeError, schema.ConfigError) as error:
            environment.log_once(f"the measurement counts for this process only; the config was not written: {error}")


_trials: dict[tuple[Problem, Identity, Plan, str], OnlineTrial] = {}
_lock = ForkSafeLock()


def trial_for_shape(problem: Problem, device: Identity, plan: Plan, origin: str = "online") -> OnlineTrial:
    """Return the trial of a shape; create the trial at the first call with these arguments.

    `problem` has row-major matrices instead of the caller's layouts, so products in all layouts share one trial.
    """
    key = problem, device, plan, origin
    with _lock.now:
        return _trials.setdefault(key, OnlineTrial(*key))


def entry_of_finished_trial(device: Identity, dtype: str, origin: str) -> Entry | None:
    """Return the entry of the first trial of this type on this device that this process finished; None without one."""
    trials = (trial for trial in tuple(_trials.values()) if trial.origin == origin and trial.entry is not None)
    return next((trial.entry for trial in trials if (trial.device, trial.problem.dtype) == (device, dtype)), None)

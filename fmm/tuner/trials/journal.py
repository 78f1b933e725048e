"""The journal of a tuning: it records each new sample, and returns recorded samples instead of measuring again.

All results of a tuning follow from its samples, so an interrupted tuning resumes from its journal. With
`is_live=False`, a journal replays a recorded tuning without a device.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np

from fmm.config import certification
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.problem import Problem
from fmm.tuner.devices.device import RunFailedError, TimedRun, TimingSession, TunableDevice
from fmm.tuner.trials.record import Trial


class TimeUpError(Exception):
    """Raised when a tuning has reached its time limit."""


class KernelsNotReadyError(TimeUpError):
    """Raised if the kernels of the next run are not compiled yet; the tuner measures another type in the meantime."""


class StageTimeUpError(Exception):
    """Raised when a stage has reached its own time limit; the tuning continues with the next stage."""


class SampleNotRecordedError(Exception):
    """Raised if a replay needs a sample that was not recorded."""


SampleKey = tuple[str, Problem, int, TimedRun]  # (stage, problem, seed of the operands, run)
SampleSeconds = dict[TimedRun, list[float]]  # run -> seconds of each sample of the run
# a function that is called after each round and returns the runs that are no longer timed
SelectDroppedRuns = Callable[[SampleSeconds], Iterable[TimedRun]]


class Journal:
    """The samples of one tuning; recorded samples are returned first, then new samples are measured and recorded.

    Parameters
    ----------
    run
        Identifier of the tuning.
    device
        The device that is tuned.
    recorded_trials
        Trials of this tuning that are already recorded; the journal replays these trials.
    save_trial
        Function that saves each new trial.
    limit
        Number of seconds after which the next measurement raises TimeUpError.
    is_live
        False for a replay: a sample that was not recorded raises SampleNotRecordedError.
    clock
        Function that returns the current time in seconds.
    compiler_wait_seconds
        Number of seconds of waiting for compilers that do not count towards `limit`.
    kernel_wait_seconds
        If the kernels of one plan are not compiled after this number of seconds, KernelsNotReadyError is raised.
    first_look
        Trials of the coarse tuning before this tuning. The fit uses these trials, but the journal does not replay them.
    """

    def __init__(
        self,
        run: str,
        device: TunableDevice,
        recorded_trials: Iterable[Trial] = (),
        save_trial: Callable[[Trial], None] = lambda trial: None,
        limit: float = float("inf"),
        is_live: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        compiler_wait_seconds: float = 0.0,
        kernel_wait_seconds: float = float("inf"),
        first_look: Iterable[Trial] = (),
    ) -> None:
        self.run, self.device, self.keep, self.limit, self.live = run, device, save_trial, limit, is_live
        self.waits, self.patience = compiler_wait_seconds, kernel_wait_seconds
        self.stage_limit = float("inf")  # elapsed seconds after which the present stage ends
        self.may_end_stage: Callable[[], bool] = lambda: True  # False while the stage may exceed its limit
        self.clock = clock
        self.on_sample: Callable[[str, float], None] = lambda stage, elapsed: None
        self.on_finding: Callable[[], None] = lambda: None  # called after the fit and after each certification
        self.recorded: list[Trial] = list(recorded_trials)
        self.first_look = tuple(first_look)
        self._past: dict[SampleKey, deque[Trial]] = {}
        for trial in self.recorded:
            self._past.setdefault(_trial_key(trial), deque()).append(trial)
        self._before = max((t.elapsed for t in self.recorded), default=0.0)
        self._replayed = 0.0
        self.sampled_seconds = 0.0  # sum of all samples so far, in seconds; a replay computes the same sum
        self.measurements_end = 0.0  # elapsed seconds when the tuner began to conclude the section
        self._began: float | None = None

    @property
    def elapsed_seconds(self) -> float:
        """Return the seconds since the tuning began, without the time between an interruption and its resumption.

        In a replay, return the seconds that the replayed trials recorded.
        """
        if self._began is None:
            return self._replayed
        return self._before + self.clock() - self._began

    def has_compiled_kernels(self, dtype: str, plan: Plan) -> bool:
        """Return True if the plan's kernels for this element type are compiled."""
        return plan == VENDOR or self.device.wait_for_kernels(dtype, plan, 0.0)

    @contextmanager
    def stage_with_time_limit(self, limit: float, may_end: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """End the context as soon as `limit` seconds have elapsed and `may_end` returns True.

        The time limit of the whole tuning still holds inside the context.
        """
        self.stage_limit, self.may_end_stage = limit, may_end
        try:
            yield
        except StageTimeUpError:
            pass
        finally:
            self.stage_limit, self.may_end_stage = float("inf"), lambda: True

    def check_time_limits(self) -> None:
        """Raise TimeUpError at the time limit of the tuning, StageTimeUpError at the time limit of the stage."""
        if self.elapsed_seconds >= self.limit:
            raise TimeUpError
        if self.elapsed_seconds >= self.stage_limit and self.may_end_stage():
            raise StageTimeUpError

    @contextmanager
    def open_timed_problem(self, stage: str, problem: Problem, seed: int = 0) -> Iterator[TimedProblem]:
        """Yield a problem on which runs can be timed; its operands are released when the context ends."""
        with ExitStack() as stack:
            timed = TimedProblem(self, stage, problem, seed, stack)
            yield timed
            timed.release_operands()

    def has_recorded_trial(self, key: SampleKey) -> bool:
        """Return True if a recorded trial with this key has not been replayed yet."""
        return bool(self._past.get(key))

    def replay_trial(self, key: SampleKey) -> Trial | None:
        """Remove and return the next recorded trial with this key; return None if no trial with this key is left."""
        queue = self._past.get(key)
        if not queue:
            return None
        self._replayed = max(self._replayed, queue[0].elapsed)
        self.sampled_seconds += queue[0].seconds or 0.0
        self.on_sample(key[0], self.elapsed_seconds)
        return queue.popleft()

    def start_clock(self) -> None:
        """Start the clock before the first new sample; raise SampleNotRecordedError if the journal only replays."""
        if not self.live:
            raise SampleNotRecordedError("the recorded tuning ends here")
        if self._began is None:
            self._began = self.clock()

    def record_trial(
        self, key: SampleKey, seconds: float | None, failed: str | None = None, proposer: str = ""
    ) -> Trial:
        """Record and return a trial: the seconds of a sample, or `failed`, the reason why the run failed."""
        stage, problem, seed, run = key
        trial = Trial(
            self.run, stage, problem.size, problem.dtype, str(run.plan), run.part, run.twin, seed,
            round(self.elapsed_seconds, 4), seconds, failed, problem.op, proposer,
        )  # fmt: skip
        self.keep(trial)
        self.recorded.append(trial)
        self.sampled_seconds += seconds or 0.0
        self.on_sample(stage, trial.elapsed)
        return trial


def _trial_key(trial: Trial) -> SampleKey:
    """Return the key by which a replay finds a trial: (stage, problem, seed, run)."""
    return trial.stage, trial.problem, trial.seed, trial.timed_run


@dataclass(frozen=True)
class RoundLimits:
    """Limits of the number of rounds of a measurement."""

    min_rounds: int  # smallest number of rounds
    max_rounds: int = 0  # largest number of rounds while the sum of all samples is below `seconds`
    seconds: float = 0.0
    max_uncertain_rounds: int = 0  # largest number of rounds if the median of a run is uncertain
    max_uncertainty: float = 0.02  # largest relative standard error of a median that is not uncertain
    # once the samples of all runs on a problem have taken this number of seconds, uncertain medians are not measured in
    # more rounds
    max_uncertain_seconds: float = float("inf")
    # A run with two samples is timed in a third round if (longer time) / (shorter time) exceeds this number.
    max_ratio_of_two: float = float("inf")

    def needs_another_round(self, done: int, samples: SampleSeconds) -> bool:
        """Return True if the measurement needs another round; `samples` are those of `done` rounds."""
        if done < max(self.min_rounds, self.max_rounds):
            spent = sum(map(sum, samples.values()))
            return done < self.min_rounds or spent < self.seconds or self._is_median_uncertain(done, samples)
        return self._is_median_uncertain(done, samples)

    def _is_median_uncertain(self, done: int, samples: SampleSeconds) -> bool:
        """Return True if the median of a run's samples is uncertain and the limits allow another round."""
        if done == 2 and any(max(s) > self.max_ratio_of_two * min(s) for s in samples.values() if s):
            return True
        if done >= self.max_uncertain_rounds or sum(map(sum, samples.values())) >= self.max_uncertain_seconds:
            return False
        return any(median_uncertainty(s) > self.max_uncertainty for s in samples.values() if s)


def median_uncertainty(samples: Sequence[float]) -> float:
    """Return the relative standard error of the median of the samples, estimated from their quartiles."""
    low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75))
    return float(0.93 * (high - low) / middle / np.sqrt(len(samples)))


class TimedProblem:
    """A problem on which runs are timed; a session on the device is opened for the first sample to measure."""

    def __init__(self, journal: Journal, stage: str, problem: Problem, seed: int, stack: ExitStack) -> None:
        self.journal, self.stage, self.problem, self.seed = journal, stage, problem, seed
        self._stack = stack
        self.proposer = ""  # who proposed the plans that are timed: Optuna, or "" for the model
        self._session: TimingSession | None = None
        self._ready: set[TimedRun] = set()

    def sample_seconds(self, run: TimedRun) -> float:
        """Return the seconds of one sample; raise RunFailedError for a failed run, TimeUpError at the time limit."""
        trial = self.journal.replay_trial(self._sample_key(run)) or self._measure_run(run)
        assert trial is not None
        if trial.seconds is None:
            raise RunFailedError(trial.failed or "no reason is recorded")
        return trial.seconds

    def _sample_key(self, run: TimedRun) -> SampleKey:
        return self.stage, self.problem, self.seed, run

    def _measure_run(self, run: TimedRun, timed: bool = True) -> Trial | None:
        """Prepare a run, and time one sample of the run; return the recorded trial.

        If `timed` is False, only prepare the run, and return None unless the preparation fails.
        """
        self.journal.start_clock()
        self.journal.check_time_limits()
        key = self._sample_key(run)
        proposer = "" if run.plan == VENDOR else self.proposer
        try:
            session = self._open_session()
            if run not in self._ready:
                self._wait_for_kernels(run)
                session.prepare_run(run)
                self._ready.add(run)
            return self.journal.record_trial(key, session.sample_seconds(run), None, proposer) if timed else None
        except RunFailedError as error:
            return self.journal.record_trial(key, None, str(error)[:300], proposer)
        except MemoryError:
            return self.journal.record_trial(key, None, "out of memory", proposer)

    def _prepare_runs(self, runs: Iterable[TimedRun]) -> list[TimedRun]:
        """Prepare all runs for timing, and return the runs without the failed ones.

        All runs are prepared before any run is timed: an idle device cools down, and would run faster at first.
        """
        return [
            run
            for run in runs
            if run in self._ready
            or self.journal.has_recorded_trial(self._sample_key(run))
            or self._measure_run(run, False) is None
        ]

    def _wait_for_kernels(self, run: TimedRun) -> None:
        """Wait until the plan's kernels are compiled; raise an error at the wait's, stage's or tuning's time limit."""
        journal = self.journal
        if run.plan == VENDOR:
            return
        before = journal.elapsed_seconds
        ends_stage = journal.stage_limit < journal.limit and journal.may_end_stage()
        limit = journal.stage_limit if ends_stage else journal.limit
        seconds = max(limit + journal.waits - before, 0.0)
        ready = journal.device.wait_for_kernels(self.problem.dtype, run.plan, min(seconds, journal.patience))
        free = min(journal.elapsed_seconds - before, journal.waits)
        journal.limit, journal.stage_limit = journal.limit + free, journal.stage_limit + free
        journal.waits -= free
        if not ready:
            if seconds > journal.patience:
                raise KernelsNotReadyError
            raise StageTimeUpError if ends_stage else TimeUpError

    def release_operands(self) -> None:
        """Release the operands and the result: the next problem needs their memory."""
        self._session = None

    def _open_session(self) -> TimingSession:
        if self._session is None:
            self._session = self._stack.enter_context(self.journal.device.open_session(self.problem, self.seed))
        return self._session

    def sample_rounds(
        self, runs: Sequence[TimedRun], limits: RoundLimits, drop: SelectDroppedRuns = lambda samples: ()
    ) -> SampleSeconds:
        """Time all runs in rounds, each round in random order; return the samples of each run.

        A failed run has no samples. The runs that `drop` returns after a round are left out of later rounds.
        """
        samples: SampleSeconds = {run: [] for run in runs}
        racing, done = self._prepare_runs(samples), 0
        shuffled = random.Random(repr((self.problem.size, self.seed, self.stage, *(str(run.plan) for run in runs))))
        while racing and limits.needs_another_round(done, samples):
            for run in shuffled.sample(racing, len(racing)):
                try:
                    samples[run].append(self.sample_seconds(run))
                except RunFailedError:
                    racing.remove(run)
                    samples[run].clear()
            out = set(drop(samples))
            racing, done = [run for run in racing if run not in out], done + 1
        return samples


def median_paired_speedup(samples: SampleSeconds, vendor: TimedRun, run: TimedRun) -> float:
    """Return the median over all rounds of (seconds of the vendor) / (seconds of the run)."""
    rounds = len(samples[run])
    return median(certification.paired_ratios(samples[vendor][:rounds], samples[run]))

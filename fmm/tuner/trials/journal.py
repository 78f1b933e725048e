"""The journal of a tuning: returns recorded samples first, then measures on the device and records.

A tuning is determined by its samples: the journal of an interrupted tuning resumes it, and a journal that is not live
replays it.
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

from fmm.config import certify
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.problem import Problem
from fmm.tuner.devices.device import Device, FailedError, Run, Session
from fmm.tuner.trials.record import Trial


class TimeUpError(Exception):
    """The tuning's time is over."""


class NotReadyError(TimeUpError):
    """The next kernels are still compiling, and another type can be measured meanwhile."""


class ReplayedError(Exception):
    """A replay needs a sample that was not recorded."""


SampleKey = tuple[str, Problem, int, Run]
Samples = dict[Run, list[float]]
Drop = Callable[[Samples], Iterable[Run]]


class Journal:
    """All measurements of one tuning."""

    def __init__(
        self,
        run: str,
        device: Device,
        past: Iterable[Trial] = (),
        keep: Callable[[Trial], None] = lambda trial: None,
        limit: float = float("inf"),
        live: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        waits: float = 0.0,
        patience: float = float("inf"),
        first_look: Iterable[Trial] = (),
    ) -> None:
        self.run, self.device, self.keep, self.limit, self.live = run, device, keep, limit, live
        self.waits = waits  # seconds for which others (a compiler) may be waited for without the limit's coming nearer
        self.patience = patience  # seconds after which it is not waited for others any more, limit or not
        self.clock = clock
        self.on_sample: Callable[[str, float], None] = lambda stage, elapsed: None
        self.on_finding: Callable[[], None] = lambda: None  # after the fit, and after each shape that was searched
        self.recorded: list[Trial] = list(past)
        self.first_look = tuple(first_look)  # trials of the first look that came before: they count, but are not asked
        self._past: dict[SampleKey, deque[Trial]] = {}
        for trial in self.recorded:
            self._past.setdefault(_key(trial), deque()).append(trial)
        self._before = max((t.elapsed for t in self.recorded), default=0.0)
        self._replayed = 0.0
        self.spent = 0.0  # seconds of all samples so far: unlike the clock, the same in a replay
        self._began: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds of the tuning, including those before an interruption; a replay uses the recorded clock."""
        if self._began is None:
            return self._replayed
        return self._before + self.clock() - self._began

    def ready(self, dtype: str, plan: Plan) -> bool:
        """Return True if the plan's kernels are compiled."""
        return plan == VENDOR or self.device.wait(dtype, plan, 0.0)

    @contextmanager
    def open(self, stage: str, problem: Problem, seed: int = 0) -> Iterator[TimedProblem]:
        with ExitStack() as stack:
            timed = TimedProblem(self, stage, problem, seed, stack)
            yield timed
            timed.leave()

    def knows(self, key: SampleKey) -> bool:
        """Return True if a recorded trial of this key is left."""
        return bool(self._past.get(key))

    def recall(self, key: SampleKey) -> Trial | None:
        """Return the next recorded trial of this key, None if none is left."""
        queue = self._past.get(key)
        if not queue:
            return None
        self._replayed = max(self._replayed, queue[0].elapsed)
        self.spent += queue[0].seconds or 0.0
        self.on_sample(key[0], self.elapsed)
        return queue.popleft()

    def begin(self) -> None:
        """Start the clock: the records end here. A replay raises ReplayedError."""
        if not self.live:
            raise ReplayedError("the recorded tuning ends here")
        if self._began is None:
            self._began = self.clock()

    def note(self, key: SampleKey, seconds: float | None, failed: str | None = None) -> Trial:
        stage, problem, seed, run = key
        trial = Trial(
            self.run, stage, problem.size, problem.dtype, str(run.plan), run.part, run.twin, seed,
            round(self.elapsed, 4), seconds, failed, problem.op,
        )  # fmt: skip
        self.keep(trial)
        self.recorded.append(trial)
        self.spent += seconds or 0.0
        self.on_sample(stage, trial.elapsed)
        return trial


def _key(trial: Trial) -> SampleKey:
    return trial.stage, trial.problem, trial.seed, trial.what


@dataclass(frozen=True)
class RoundLimits:
    """How many rounds: `least` at least; up to `most` while they have taken less than `seconds`; and up to `patient`
    while some median is uncertain by more than the share `steady` (others use the machine too) and the rounds have
    taken less than `dear` seconds. A third one if of the first two samples one is more than `unlike` times the other:
    it tells which of them was disturbed."""

    least: int
    most: int = 0
    seconds: float = 0.0
    patient: int = 0
    steady: float = 0.02
    dear: float = float("inf")
    unlike: float = float("inf")

    def go_on(self, done: int, samples: Samples) -> bool:
        if done < max(self.least, self.most):
            spent = sum(map(sum, samples.values()))
            return done < self.least or spent < self.seconds or self._patient(done, samples)
        return self._patient(done, samples)

    def _patient(self, done: int, samples: Samples) -> bool:
        if done == 2 and any(max(s) > self.unlike * min(s) for s in samples.values() if s):
            return True
        if done >= self.patient or sum(map(sum, samples.values())) >= self.dear:
            return False
        return any(median_uncertainty(s) > self.steady for s in samples.values() if s)


def median_uncertainty(samples: Sequence[float]) -> float:
    """The standard error of a median, as a share of it, from the middle half of the samples."""
    low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75))
    return float(0.93 * (high - low) / middle / np.sqrt(len(samples)))


class TimedProblem:
    """One problem being measured; the device's session opens when a sample is not recorded."""

    def __init__(self, journal: Journal, stage: str, problem: Problem, seed: int, stack: ExitStack) -> None:
        self.journal, self.stage, self.problem, self.seed = journal, stage, problem, seed
        self._stack = stack
        self._session: Session | None = None
        self._ready: set[Run] = set()

    def sample(self, run: Run) -> float:
        """Return one sample; raise FailedError if the run fails, TimeUpError if the time is up."""
        trial = self.journal.recall(self._key(run)) or self._measured(run)
        assert trial is not None
        if trial.seconds is None:
            raise FailedError(trial.failed or "no reason is recorded")
        return trial.seconds

    def _key(self, run: Run) -> SampleKey:
        return self.stage, self.problem, self.seed, run

    def _measured(self, run: Run, timed: bool = True) -> Trial | None:
        """Return the trial of a new sample or failure; None if the run was only prepared."""
        self.journal.begin()
        if self.journal.elapsed >= self.journal.limit:
            raise TimeUpError
        key = self._key(run)
        try:
            session = self._opened()
            if run not in self._ready:
                self._wait(run)
                session.prepare(run)
                self._ready.add(run)
            return self.journal.note(key, session.sample(run)) if timed else None
        except FailedError as error:
            return self.journal.note(key, None, str(error)[:300])
        except MemoryError:
            return self.journal.note(key, None, "out of memory")

    def _able(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs that work, all prepared before any is timed: a device that waits in between cools down."""
        return [
            run
            for run in runs
            if run in self._ready or self.journal.knows(self._key(run)) or self._measured(run, False) is None
        ]

    def _wait(self, run: Run) -> None:
        """Wait until the plan's kernels are compiled."""
        journal = self.journal
        if run.plan == VENDOR:
            return
        before = journal.elapsed
        seconds = journal.limit + journal.waits - before
        ready = journal.device.wait(self.problem.dtype, run.plan, min(seconds, journal.patience))
        free = min(journal.elapsed - before, journal.waits)
        journal.limit, journal.waits = journal.limit + free, journal.waits - free
        if not ready:
            raise NotReadyError if seconds > journal.patience else TimeUpError

    def leave(self) -> None:
        """Release the operands: the next problem needs the memory."""
        self._session = None

    def _opened(self) -> Session:
        if self._session is None:
            self._session = self._stack.enter_context(self.journal.device.open(self.problem, self.seed))
        return self._session

    def rounds(self, runs: Sequence[Run], limits: RoundLimits, drop: Drop = lambda samples: ()) -> Samples:
        """Return samples of all runs in shuffled rounds; runs that fail, or that `drop` returns, leave the race."""
        samples: Samples = {run: [] for run in runs}
        racing, done = self._able(samples), 0
        shuffled = random.Random(repr((self.problem.size, self.seed, self.stage, *(str(run.plan) for run in runs))))
        while racing and limits.go_on(done, samples):
            for run in shuffled.sample(racing, len(racing)):
                try:
                    samples[run].append(self.sample(run))
                except FailedError:
                    racing.remove(run)
                    samples[run].clear()
            out = set(drop(samples))
            racing, done = [run for run in racing if run not in out], done + 1
        return samples


def paired_speedup(samples: Samples, vendor: Run, run: Run) -> float:
    """Return the median paired ratio of a run over its rounds."""
    rounds = len(samples[run])
    return median(certify.paired_ratios(samples[vendor][:rounds], samples[run]))

"""Paired measurements on a clock of our own, and what is recorded of the machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fmm.config import identity
from fmm.tuner.trials import environment
from fmm.tuner.trials import paired as tuner_paired
from fmm.tuner.trials.paired import PairedRoundLimits, PairedSamples, measure_paired_rounds


class Machine:
    """A clock that only moves when something is called; remembers the order of the calls."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.calls: list[str] = []

    def call(self, name: str, *seconds: float, drift: float = 0.0) -> Callable[[], None]:
        """Takes the given seconds at its first, second, ... call, from then on the last; more as time goes by."""
        taken = 0

        def run() -> None:
            nonlocal taken
            self.calls.append(name)
            self.now += seconds[min(taken, len(seconds) - 1)] * (1 + drift * (self.now - 1000.0))
            taken += 1

        return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(tuner_paired, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


# ---- rounds


def test_a_ratio_is_the_vendors_time_over_the_candidates(machine: Machine) -> None:
    result = measure_paired_rounds(
        machine.call("vendor", 3.0), machine.call("candidate", 2.0), PairedRoundLimits(5, 5, 0.0)
    )
    assert result.vendor == pytest.approx((3.0,) * 5) and result.candidate == pytest.approx((2.0,) * 5)
    assert result.round_speedups == pytest.approx((1.5,) * 5)
    assert result.median_speedup == pytest.approx(1.5)
    assert result.speedup_interval == pytest.approx((1.5, 1.5))
    assert result.repeat == 1


def test_a_against_a_is_one(machine: Machine) -> None:
    for seconds in (0.25, 2.0**-13):  # exact in binary
        result = measure_paired_rounds(
            machine.call("a", seconds), machine.call("a", seconds), PairedRoundLimits(7, 7, 0.0)
        )
        assert set(result.round_speedups) == {1.0} and result.speedup_interval == (1.0, 1.0)


def test_the_same_function_twice_is_measured_twice(machine: Machine) -> None:
    """For the noise floor: two series of their own, not one that is compared with itself."""
    times = [1.0 + 0.01 * i for i in range(100)]
    call = machine.call("a", *times)
    result = measure_paired_rounds(call, call, PairedRoundLimits(4, 4, 0.0))
    assert len(result.vendor) == len(result.candidate) == 4
    assert len({*result.vendor, *result.candidate}) == 8
    assert all(ratio != 1 for ratio in result.round_speedups)


@pytest.mark.parametrize("seconds", [(1.0, 1.0), (1e-6, 1e-6), (1e-6, 0.5), (0.004, 0.001)])
def test_every_round_measures_both_in_shuffled_order(machine: Machine, seconds: tuple[float, float]) -> None:
    result = measure_paired_rounds(
        machine.call("v", seconds[0]), machine.call("c", seconds[1]), PairedRoundLimits(40, 40, 0.0), seed=3
    )
    warm, timed = machine.calls[:2], machine.calls[2:]
    assert sorted(warm) == ["c", "v"]
    samples = timed[:: result.repeat]
    assert len(timed) == 80 * result.repeat and len(samples) == 80
    rounds = list(zip(samples[0::2], samples[1::2], strict=True))
    assert all(sorted(pair) == ["c", "v"] for pair in rounds)
    assert 8 < rounds.count(("v", "c")) < 32, "the order within a round is not shuffled"


def test_the_shuffling_follows_the_seed(machine: Machine) -> None:
    orders = []
    for seed in (0, 0, 1):
        machine.calls.clear()
        measure_paired_rounds(machine.call("v", 1.0), machine.call("c", 1.0), PairedRoundLimits(30, 30, 0.0), seed)
        orders.append(list(machine.calls))
    assert orders[0] == orders[1] != orders[2]


REPEATS = [
    # seconds of the vendor, of the candidate, calls in one sample: about 10 ms of the slower one
    (1.0, 2.0, 1),
    (0.011, 0.001, 1),
    (0.00099, 0.00001, 10),
    (1e-6, 1e-6, 10_000),
]


@pytest.mark.parametrize(("vendor", "candidate", "repeat"), REPEATS)
def test_short_calls_are_repeated(machine: Machine, vendor: float, candidate: float, repeat: int) -> None:
    result = measure_paired_rounds(
        machine.call("v", vendor), machine.call("c", candidate), PairedRoundLimits(2, 2, 0.0)
    )
    assert result.repeat == pytest.approx(repeat, rel=0.01)
    assert result.vendor == pytest.approx((vendor,) * 2, rel=1e-6)  # seconds a call, not a sample
    assert result.candidate == pytest.approx((candidate,) * 2, rel=1e-6)


def test_a_call_too_short_for_the_clock_is_not_repeated_for_ever(machine: Machine) -> None:
    result = measure_paired_rounds(machine.call("v", 0.0), machine.call("c", 0.0), PairedRoundLimits(2, 2, 0.0))
    assert 1000 <= result.repeat <= 1_000_000


def test_the_first_calls_are_not_samples(machine: Machine) -> None:
    result = measure_paired_rounds(
        machine.call("v", 50.0, 1.0), machine.call("c", 90.0, 1.0), PairedRoundLimits(3, 3, 0.0)
    )
    assert result.vendor == result.candidate == pytest.approx((1.0,) * 3)


LENGTHS = [
    # at least, at most, seconds; how many rounds of 1 s + 1 s
    (5, 31, 0.0, 5),
    (5, 31, 20.5, 11),
    (5, 8, 20.5, 8),
    (5, 31, 1e9, 31),
    (1, 1, 0.0, 1),
    (1, 31, 0.0, 1),
]


@pytest.mark.parametrize(("least", "most", "seconds", "count"), LENGTHS)
def test_how_long_it_goes_on(machine: Machine, least: int, most: int, seconds: float, count: int) -> None:
    result = measure_paired_rounds(
        machine.call("v", 1.0), machine.call("c", 1.0), PairedRoundLimits(least, most, seconds)
    )
    assert len(result.round_speedups) == count


def test_a_machine_that_slows_down_hits_both_alike(machine: Machine) -> None:
    vendor = machine.call("v", 1.0, drift=0.01)
    result = measure_paired_rounds(vendor, machine.call("c", 1.0, drift=0.01), PairedRoundLimits(31, 31, 0.0))
    assert result.vendor[-1] > 1.5 * result.vendor[0]
    assert result.median_speedup == pytest.approx(1, abs=0.02)


def test_what_a_call_raises_leaves(machine: Machine) -> None:
    def failing() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        measure_paired_rounds(machine.call("v", 1.0), failing, PairedRoundLimits(1, 1, 0.0))


# ---- the interval

# Rounds, and which of the sorted ratios bound the median with 95 % (tables of the sign test).
RANKS = [(1, 1), (2, 1), (5, 1), (6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8), (30, 10), (50, 18)]


@pytest.mark.parametrize(("count", "rank"), RANKS)
def test_the_interval_runs_from_rank_to_rank(count: int, rank: int) -> None:
    ratios = np.random.default_rng(count).permutation(np.arange(1.0, count + 1))
    found = PairedSamples(tuple(ratios), (1.0,) * count).speedup_interval
    assert found == (float(rank), float(count + 1 - rank))


DRAWS: dict[str, tuple[Callable[[Any, int], Any], float]] = {
    # samples, and the true median
    "normal": (lambda rng, n: 1 + 0.05 * rng.standard_normal(n), 1.0),
    "skewed": (lambda rng, n: rng.exponential(1.0, n), float(np.log(2))),
    "heavy tails": (lambda rng, n: rng.standard_cauchy(n), 0.0),
    "uniform": (lambda rng, n: rng.random(n), 0.5),
}


@pytest.mark.quick_cases()
@pytest.mark.parametrize("count", [6, 9, 15, 31])
@pytest.mark.parametrize("distribution", DRAWS)
def test_the_interval_covers_the_median(distribution: str, count: int) -> None:
    """In at least 95 of 100 cases: 1500 draws, less three of their standard deviations."""
    draw, true = DRAWS[distribution]
    rng = np.random.default_rng(count)
    inside = 0
    for _ in range(1500):
        low, high = PairedSamples(tuple(draw(rng, count)), (1.0,) * count).speedup_interval
        inside += low <= true <= high
    assert inside / 1500 > 0.95 - 3 * (0.05 * 0.95 / 1500) ** 0.5


@pytest.mark.parametrize("count", range(1, 60))
def test_the_interval_holds_the_median_and_narrows(count: int) -> None:
    ratios = np.random.default_rng(count).permutation(np.linspace(0.5, 1.5, count))
    result = PairedSamples(tuple(ratios), (1.0,) * count)
    low, high = result.speedup_interval
    assert min(ratios) <= low <= result.median_speedup <= high <= max(ratios)


def test_no_rounds_of_unequal_length() -> None:
    with pytest.raises(ValueError, match="zip"):
        _ = PairedSamples((1.0, 2.0), (1.0,)).round_speedups


def test_the_record_holds_the_raw_samples() -> None:
    result = PairedSamples((3.0, 2.0, 4.0), (2.0, 2.0, 2.0), 7)
    record = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert record == {
        "speedup": 1.5,
        "low": 1.0,
        "high": 2.0,
        "rounds": 3,
        "vendor": [3.0, 2.0, 4.0],
        "candidate": [2.0, 2.0, 2.0],
        "repeat": 7,
    }


# ---- where it was measured


def test_the_environment_is_complete_and_plain() -> None:
    found = environment.environment_record(["fmm-tune", "--effort", "full"])
    assert json.loads(json.dumps(found)) == found
    assert found["command"] == "fmm-tune --effort full"
    assert found["numpy"] == np.__version__ and found["blas"] and found["processor"]
    assert found["blas_threads"] >= 1 and found["processors"] >= 1
    assert found["date"].endswith("+00:00")


NAMES = {
    "Intel(R) Xeon(R) CPU @ 2.20GHz": "cpu-intel-r-xeon-r-cpu-2-20ghz-4t",
    "AMD EPYC 7B13/../..": "cpu-amd-epyc-7b13-4t",
    "": "cpu-4t",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_device_folder_is_a_safe_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "processor_name", lambda: name)
    monkeypatch.setattr(environment, "blas_threads", lambda: 4)
    assert environment.results_folder_name() == NAMES[name]


def test_without_threadpoolctl_the_blas_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert "threadpoolctl is not installed" in environment.environment_record([])["blas"]


def test_without_proc_the_processor_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: object, *arguments: Any, **options: Any) -> Any:
        raise OSError(f"no {path}")

    monkeypatch.setattr("builtins.open", unreadable)
    assert identity.processor_name.__wrapped__()

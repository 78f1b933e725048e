"""What tests share: the skip without a CUDA device, the Hypothesis profile, a random generator, an eager device."""

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import hypothesis
import numpy as np
import pytest

from fmm.arrays.numpy_library import NUMPY
from fmm.integrations import numpy_loops
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.default_calibration import BLAS_FLOPS_PER_BYTE
from fmm.runtime import devices, run_host
from fmm.runtime.decisions import early_declines
from tests.support import ROOT
from tests.support.cuda_device import free_pooled_memory, no_device
from tests.support.marks import mark_other_cases_slow
from tests.support.torch_plans import DEVICES, plans_for_all, usable_device

# No test reads what a tuning of this machine left behind; those of configs say otherwise for themselves.
os.environ["FMM_TUNING_MODE"] = "off"
# Nor what an earlier test measured of it: a process that has probed the processor decides by the probe from then on.
vars(devices)["measured_calibration"] = lambda threads, dtype: None
# JAX takes three quarters of a GPU's memory otherwise; other processes' tests need it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Compiled kernels are kept where all processes and later runs find them.
os.environ.setdefault("CUPY_CACHE_DIR", str(ROOT / ".cupy-cache"))

# No deadline: the first multiplication of a size allocates and starts threads; that time is not the code's.
# Nor is that in which examples are drawn on a busy machine.
PATIENT: Any = {"deadline": None, "max_examples": 40, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("local", **PATIENT)
hypothesis.settings.register_profile("ci", **PATIENT, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


# The files whose single tests take longest, in that order: begun first, so that no process still works when the others
# are done.
LONGEST = (
    "faults",
    "interrupts",
    "interrupted_launches",
    "doubts",
    "tuner",
    "sum_source",
    "notebooks",
    "wheel",
    "compose",
    "integers",
    "walk",
    "tiled",
    "sum_host",
    "matmul",
    "host_memory",
    "parallel_products",
    "tma",
    "tma_races",
    "report",
    "gpu_kernels",
    "gpu_tiled",
    "gpu_tma",
    "gpu_wgmma",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come before all others, in them the slow ones first: what is left for the end is short."""
    mark_other_cases_slow(items)
    place = {f"test_{name}": i for i, name in enumerate(LONGEST)}
    slow = {item: item.get_closest_marker("slow") is not None for item in items}
    long_files = {item.path for item in items if slow[item]}

    def order(item: pytest.Item) -> tuple[bool, int, int, Path, bool]:
        where = place.get(item.path.stem, len(place))
        return item.path not in long_files, where, -levels_at_once(item), item.path, not slow[item]

    items.sort(key=order)


def pytest_collection_finish() -> None:
    """Exempt all objects that exist before the first test from garbage collection: each full collection would visit
    17,000 tests, their modules and the imported packages."""
    gc.collect()
    gc.freeze()


def levels_at_once(item: pytest.Item) -> int:
    """Of a test for a device, the most levels in one pass that its name tells of: their kernels take the longest to
    compile."""
    told = re.findall(r"\^(\d)", item.name) if item.get_closest_marker("gpu") else []
    return max(map(int, told), default=1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := no_device()):
        pytest.skip(reason)


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers in every test, whatever ran before it."""
    return np.random.default_rng(20260101)


# A device whose sums cost nothing but their start, as much as a flop: fast plans are chosen for small arrays.
RATES = {dtype: ProductRate(1.0, 0.0, 0.0) for dtype in BLAS_FLOPS_PER_BYTE}
FREE_SUMS = Calibration("for tests", "for tests", MappingProxyType(RATES), stream=1e30, launch=1.0)


@pytest.fixture
def small_by_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """No product is so small that nobody looks for a plan."""
    monkeypatch.setattr(early_declines, "MIN_PLAN_SIDE", 1)
    monkeypatch.setattr(early_declines, "MIN_PLAN_ENTRIES", 0)
    monkeypatch.setattr(numpy_loops, "FIRST_PRODUCT_WORK", 0)
    monkeypatch.setattr(numpy_loops, "FIRST_INTEGER_PRODUCT_WORK", 0)


@pytest.fixture
def eager(small_by_plans: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "built_in_calibration", lambda threads: FREE_SUMS)


@pytest.fixture
def host_plans(eager: None, monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that have run on the host, where products from a side of 32 on run by plans."""
    plans: list[Plan] = []
    own = run_host.run_call

    def run_call(library: Any, call: Any, *rest: Any) -> Any:
        plans.append(call.plan)
        return own(library, call, *rest)

    monkeypatch.setattr(run_host, "run_call", run_call)
    monkeypatch.setattr(early_declines, "MIN_PLAN_SIDE", 32)
    return plans


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Where torch's tensors lie."""
    return usable_device(request.param)


@pytest.fixture
def plans_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """The plans that products of torch's tensors ran by: all run by plans."""
    with plans_for_all(monkeypatch) as run:
        yield run


@pytest.fixture(autouse=True)
def no_call_is_known() -> None:
    """Calls are kept by what they look like: no test finds one of another's, decided under other circumstances."""
    NUMPY.cached_calls.clear()


@pytest.fixture(autouse=True)
def pooled_memory_is_freed() -> Iterator[None]:
    """Many processes run tests on one GPU: none keeps the memory that a test's large arrays took."""
    yield
    free_pooled_memory()

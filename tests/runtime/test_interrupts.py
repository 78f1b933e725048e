"""Interrupts, forks, threads and faults at any moment: nothing hangs, `out` is complete or untouched, nothing is lost.

All in processes of their own, which a watchdog ends, with the tracebacks of all threads, should something hang.
"""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.support.interrupts import interpreter_output

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")


@pytest.mark.slow
@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_at_each_step_of_the_callers_code(every: int) -> None:
    """On the caller's thread, on ours, and with two products at a time; into an `out`, and into a new array."""
    here, new, *apart = map(
        int, interpreter_output("-m", "tests.support.interrupted_host", str(every), seconds=1500).split()
    )
    assert min(here, new) > 500 and min(apart) > 150, "as many steps as there were when this was written"


@pytest.mark.slow
@pytest.mark.parametrize("every", [97, pytest.param(3, marks=pytest.mark.slow)])
def test_an_interrupt_at_each_step_of_an_exact_product(every: int) -> None:
    interpreter_output("-m", "tests.support.interrupted_host", str(every), "digits", "int64", seconds=1500)


@pytest.mark.slow
def test_interrupts_forks_threads_and_faults_at_random() -> None:
    assert int(interpreter_output("-m", "tests.support.hostile_use", "--seconds", "1", "--seed", "1").split()[0]) > 0


@pytest.mark.slow
def test_most_of_a_minute_of_hostile_use(capsys: pytest.CaptureFixture[str]) -> None:
    seed = str(os.getpid())
    counts = interpreter_output("-m", "tests.support.hostile_use", "--seconds", "45", "--seed", seed)
    with capsys.disabled():
        print(f"\nhostile use, seed {seed}: {counts}")
    assert int(counts.split()[0]) > 200


AFTER_THE_END = """
import signal, time
import numpy as np
import fmm
from fmm.kernels.cpu import numpy_backend
from fmm.runtime import run_host
run_host.SMALL_ARRAY_BYTES = 0
a = np.ones((300, 300))
out = np.full((300, 300), 7.0)
multiply = np.matmul
def slow(*given, **more):
    global begun
    if not begun:
        begun = True
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(0.05)
    return multiply(*given, **more)
begun = False
class Alarm(Exception):
    pass
def ring(*_):
    raise Alarm
signal.signal(signal.SIGALRM, ring)
numpy_backend.matmul = slow
try:
    fmm.matmul(a, a, out=out, plan="winograd > vendor")
except Alarm:
    print((out == 300).all())
"""


NO_ROOM = """
import os, resource, signal, time, warnings
import numpy as np
import fmm
from fmm.runtime import run_host
warnings.simplefilter("ignore")
run_host.SMALL_ARRAY_BYTES = 0
a = np.ones((300, 300))
right = a @ a
fmm.matmul(a, a, plan="winograd > vendor")
child = os.fork()
if not child:
    signal.alarm(20)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 4096 * {pages}, resource.RLIM_INFINITY))
    start = time.monotonic()
    c = fmm.matmul(a, a, out=np.empty((300, 300)), plan="winograd > vendor")
    os._exit(0 if (c == right).all() and time.monotonic() - start < 5 else 1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="address spaces are limited on Linux alone")
@pytest.mark.parametrize("pages", [400, 2200])
def test_a_child_without_address_space_multiplies(pages: int) -> None:
    """It has none of its parent's threads, and a new one may not be had, or not begin."""
    assert interpreter_output("-c", NO_ROOM.replace("{pages}", str(pages))) == "0\n"

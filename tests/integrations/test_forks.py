"""A process that forks while another of its threads holds one of the locks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import ROOT

FORK = """
import os, signal, sys, threading
import fmm
from fmm.integrations import install_targets, on_import, report
lock = {lock}
held, done = threading.Event(), threading.Event()
def hold():
    with lock.now:
        held.set()
        done.wait(20)
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(5)  # ends it, should it wait
    report.begin_report()
    fmm.install("numpy")
    on_import.call_after_import("wave", print)
    import numpy as np
    np.matmul(np.ones((2, 2)), np.ones((2, 2)))
    fmm.uninstall()
    os._exit(report.report().calls)
print(os.waitpid(child, 0)[1])
done.set()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("lock", ["install_targets._targets_lock", "on_import._callbacks_lock", "report._counts_lock"])
def test_a_forked_process_finds_open_what_another_thread_holds(lock: str) -> None:
    """The first one is held for minutes where a hook is compiled."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FMM_INSTALL": "", "FMM_TUNING_MODE": "off"}
    command = [sys.executable, "-W", "ignore", "-c", FORK.format(lock=lock)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == f"{1 << 8}\n", done.stdout + done.stderr

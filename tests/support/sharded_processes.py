"""Starts several processes that multiply together: each runs a case of tests/support/sharded_ranks.py."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import NamedTuple

from tests.support import ROOT

LIMIT = 600  # seconds; a watchdog that only ends a hang, longer than the groups' time-out


class Ended(NamedTuple):
    status: int
    output: str


def run_processes(count: int, case: str, device: str = "cpu") -> list[Ended]:
    """Run the processes, and return the exit status and output of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    command = [sys.executable, str(ROOT / "tests/support/sharded_ranks.py"), case, device]
    started = [
        subprocess.Popen(
            command,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        return [Ended(process.wait(LIMIT), process.communicate()[0]) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()

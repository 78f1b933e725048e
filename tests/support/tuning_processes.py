"""Starts many processes that tune a fake device, and kills them: `python -m tests.support.tuning_processes
kill FOLDER KILLS`, or `together FOLDER`. The tests of faults start it in a new interpreter, which loads
everything once and then forks.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import scipy.optimize
import scipy.stats

from fmm.config import files
from fmm.tuner import cli
from fmm.tuner import tune as commands_tune
from fmm.tuner import tune_type as tune_module
from fmm.tuner.commands.config_file import check_section, read_config_sections
from fmm.tuner.devices.device import CPU_EFFORTS
from fmm.tuner.devices.simulated import SIMULATED_IDENTITY, SimulatedDevice
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import TrialFile
from fmm.tuner.tune_type import tune_type
from tests.support.configs import SMALL

# Tunings are started until CONFIGS different configs were seen, but at most MOST times the kills.
CONFIGS = 5
MOST = 4
WRITERS = 8


def forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def tuned(arguments: Sequence[str], seed: int) -> int:
    vars(commands_tune)["select_devices"] = lambda name: [SimulatedDevice(seed=seed)]
    return cli.main(["--effort", "quick", "--quiet", *arguments])


def checked_text(path: Path) -> str:
    """Return the config's text after checking it."""
    for key, dtype, raw in read_config_sections(path):
        check_section(key, dtype, raw)
    return path.read_text(encoding="utf-8")


def kill(folder: Path, kills: int) -> None:
    """Kill tunings at random moments; each continues the last one. They are killed in turns after some
    seconds of wall time and of processor time: on a loaded machine wall time alone would kill tunings ever
    earlier, before any ends. Each tuning has more recorded trials to read than the last one, so the time
    allowed grows with the number of consecutive kills.
    """
    path, chance, states, killed, i = folder / "config.json", random.Random(5), set[str](), 0, 0
    arguments = ["--resume", "--output", str(path)]
    start = time.perf_counter()
    _, _, used = os.wait4(forked(lambda: tuned(arguments, 0)), 0)
    longest = time.perf_counter() - start
    busiest = used.ru_utime + used.ru_stime
    patience = 1.1
    while i < kills or (len(states) < min(CONFIGS, kills // 5) and i < MOST * kills):
        work = partial(tuned, arguments, i)
        if i % 2:
            child = forked(partial(ended, work, chance.uniform(0, patience * busiest)))
        else:
            child = forked(work)
            time.sleep(chance.uniform(0, patience * longest))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        patience *= 1.03 if os.WIFSIGNALED(status) else 0.8
        states.add(checked_text(path))
        i += 1
    os.waitpid(forked(lambda: tuned(arguments, i)), 0)
    left = [p.name for p in folder.iterdir() if p.name.endswith(".partial")]
    found = {"killed": killed, "states": len(states), "left": left, "replayed": replayed(folder)}
    print(json.dumps(found))


def ended(work: Callable[[], object], seconds: float) -> None:
    """Run a function in this process, which the operating system ends after so many seconds of processor
    time, as abruptly as by SIGKILL."""
    signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))  # SIGPROF, which no handler catches
    work()


def replayed(folder: Path) -> int:
    """Return how many finished tunings use all their trials in a replay, so that none was measured twice. The
    replay ends when everything is measured: the later steps need no samples and would take as long again.
    """
    vars(tune_module)["conclude_section"] = lambda journal, dtype: None
    count = 0
    for recorded in TrialFile(folder / "trials.jsonl").read_tunings():
        if recorded.finished:
            journal = Journal(recorded.header.run, SimulatedDevice(), recorded.trials, is_live=False)
            tune_type(journal, recorded.header.settings["dtype"], SMALL)
            assert not any(journal._past.values()), "a trial was recorded that the replay did not use"
            count += 1
    return count


def together(folder: Path) -> None:
    """Run tunings of different shapes and types that write one config at the same time."""
    path, children = folder / "config.json", []
    for i in range(WRITERS):
        shapes = folder / f"shapes{i}"
        shapes.write_text("".join(f"{4000 + i} 4000 {4000 + j}\n" for j in range(3)))
        arguments = ["--dtype", ("float32", "float64")[i % 2], "--shapes", str(shapes), "--output", str(path)]
        children.append(forked(lambda a=arguments, i=i: tuned(a, i)))  # type: ignore[misc]
    for child in children:
        os.waitpid(child, 0)
    checked_text(path)
    sizes = sorted(
        [dtype, *entry["size"]]
        for dtype, raw in files.read_config(path)[SIMULATED_IDENTITY.key].items()
        for entry in raw["entries"]
    )
    print(json.dumps({"entries": sizes, "tunings": len(TrialFile(folder / "trials.jsonl").read_tunings())}))


if __name__ == "__main__":
    assert scipy.optimize and scipy.stats  # imported before the forks
    CPU_EFFORTS.update(dict.fromkeys(CPU_EFFORTS, SMALL))
    if sys.argv[1] == "kill":
        kill(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        together(Path(sys.argv[2]))

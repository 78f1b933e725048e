"""Run a program of this folder step by step: `python served.py PROGRAM DTYPE [small]`, without fmm.

The process reads commands from its standard input, one a line, and answers each with one line of JSON: "prepare" builds
the program, "result FILE" writes its result as a NumPy file, "step" answers with the seconds of a step, and "profile"
with the seconds of each kernel that a step runs on a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np


def step_seconds(step: Callable[[], object]) -> float:
    """Return the seconds of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def kernel_seconds(step: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of each kernel of a step by its name; {} without torch or a GPU."""
    try:
        import torch
    except ModuleNotFoundError:
        return {}
    if not torch.cuda.is_available():
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return {event.key: event.self_device_time_total / 1e6 for event in profile.key_averages()}


def answer_commands(program: Any, dtype: str, is_small: bool, answer: Callable[[Any], None]) -> None:
    """Answer the commands of the standard input until it ends."""
    step: Callable[[], object]
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "prepare":
            step, result = program.prepare(dtype, is_small)
            answer(True)
        elif command == "result":
            np.save(argument, result())
            answer(True)
        elif command == "step":
            answer(step_seconds(step))
        else:
            answer(kernel_seconds(step))


def main(name: str, dtype: str, size: str = "") -> None:
    """Import the program, say so, and answer commands. What libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    program = import_module(name)
    answer(True)
    answer_commands(program, dtype, size == "small", answer)


if __name__ == "__main__":
    main(*sys.argv[1:])

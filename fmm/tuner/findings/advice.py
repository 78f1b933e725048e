"""What to type so that a tuning is used: in the same words wherever it is told, by `fmm-tune`, show and the report."""

from __future__ import annotations

from collections.abc import Sequence

RESUMES = "--resume goes on"
TO_ITS_END = f"to its end, when nothing else runs (if it is interrupted, the same with {RESUMES})"


def tuning_command(key: str, dtypes: Sequence[str]) -> str:
    """The command that tunes these types of a device."""
    device = "0" if key.startswith("cuda") else "cpu"
    return f"fmm-tune --device {device} --dtype {','.join(dtypes)}"


def tuning_advice(key: str, dtypes: Sequence[str]) -> str:
    """The sentence that says how what is not used of a tuning is tuned so that it is."""
    return f"To change that: `{tuning_command(key, dtypes)}` {TO_ITS_END}."

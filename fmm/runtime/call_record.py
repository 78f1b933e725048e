"""Record of this thread's latest product: the decision, and the plan that ran. Written only while products are counted.

The plan that ran can differ from the decided one: memory ran out, numbers may overflow, or a stream is captured.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.runtime.decisions.decide import Decision


class CallRecord(NamedTuple):
    """A product's decision, the plan that ran (None: the library's own product), and the reason if they differ."""

    decision: Decision
    plan: Plan | None
    why: str = ""


class _RecordingSwitch:
    on = False


class _ThreadRecord(threading.local):
    record: CallRecord | None = None
    why = ""


RECORDING_SWITCH = (
    _RecordingSwitch()
)  # on while any thread counts products; every product reads it, so it is a plain attribute
_thread_record = _ThreadRecord()


def clear_record() -> None:
    """Clear this thread's record before a product."""
    _thread_record.record, _thread_record.why = None, ""


def last_record() -> CallRecord | None:
    """Return this thread's record; None if the library was called without a decision, as for small products."""
    return _thread_record.record


def record_call(decision: Decision, plan: Plan | None) -> None:
    """Record that the plan ran, unless `record_fallback` was called meanwhile."""
    _thread_record.record = CallRecord(decision, None if _thread_record.why else plan, _thread_record.why)


def record_measured_call(decision: Decision) -> None:
    """Record a product that took part in a measurement, where plan and vendor run in turn."""
    record = _thread_record.record
    if record is not None:
        turn = "it was the library's turn to be measured" if record.plan in (None, VENDOR) else ""
        _thread_record.record = CallRecord(decision, record.plan, record.why or turn)


def record_fallback(why: str) -> None:
    """Record why the library computes a product although a plan was decided."""
    if RECORDING_SWITCH.on:
        _thread_record.why = why

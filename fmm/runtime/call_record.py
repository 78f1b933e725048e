"""The record of the calling thread's latest product: the decision, and the plan that ran.

Products are recorded only while RECORDING_SWITCH is on. The plan that ran differs from the decided plan if memory ran
out, if numbers may overflow, or if a stream is being captured.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.runtime.decisions.decide import Decision


class CallRecord(NamedTuple):
    """A product's decision, the plan that ran, and the reason if this plan is not the decided plan.

    The plan is None if the library computed the product.
    """

    decision: Decision
    plan: Plan | None
    why: str = ""


class _CallRecordingSwitch:
    on = False


class _ThreadRecord(threading.local):
    record: CallRecord | None = None
    fallback_reason = ""


# `RECORDING_SWITCH.on` is True while any thread records its products. No lock protects `RECORDING_SWITCH.on`, since
# every product reads this attribute and a lock would take time.
RECORDING_SWITCH = _CallRecordingSwitch()
_thread_record = _ThreadRecord()


def clear_record() -> None:
    """Clear this thread's record before a product."""
    _thread_record.record, _thread_record.fallback_reason = None, ""


def last_record() -> CallRecord | None:
    """Return this thread's record; None if fmm declined the product early, without a decision."""
    return _thread_record.record


def record_call(decision: Decision, plan: Plan | None) -> None:
    """Record that `plan` computed the product.

    If `record_fallback` was called for the same product, record that the library computed the product.
    """
    reason = _thread_record.fallback_reason
    _thread_record.record = CallRecord(decision, None if reason else plan, reason)


def record_measured_call(decision: Decision) -> None:
    """Record a product that was timed, and computed by the plan or by the vendor, to compare the two."""
    record = _thread_record.record
    if record is not None:
        turn = "the online measurement timed the library's product" if record.plan in (None, VENDOR) else ""
        _thread_record.record = CallRecord(decision, record.plan, record.why or turn)


def record_fallback(reason: str) -> None:
    """Record the reason why the library computes a product although a plan was decided."""
    if RECORDING_SWITCH.on:
        _thread_record.fallback_reason = reason

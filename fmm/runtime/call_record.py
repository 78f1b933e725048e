"""What answered this thread's latest product, a plan or the library: noted only while somebody counts products.

A decision says what is to answer. What does can be another plan, where memory runs out, or the library after all: where
numbers may overflow, say, or while a stream is captured.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.runtime.decisions.decide import Decision


class CallRecord(NamedTuple):
    """The decision in force; the plan that ran, None if the library's own product did; if that was not decided, why."""

    decision: Decision
    plan: Plan | None
    why: str = ""


class _Switch:
    on = False


class _Notes(threading.local):
    answer: CallRecord | None = None
    why = ""


RECORDING = _Switch()  # does anybody count products, in whatever thread? Asked by products: as cheap as can be
_notes = _Notes()


def clear_record() -> None:
    """Before a product."""
    _notes.answer, _notes.why = None, ""


def last_record() -> CallRecord | None:
    """After it; None where nothing was noted: the library was asked at once, as it is for small products."""
    return _notes.answer


def record_call(decision: Decision, plan: Plan | None) -> None:
    """The plan ran, unless somebody has said meanwhile why it was left to the library."""
    _notes.answer = CallRecord(decision, None if _notes.why else plan, _notes.why)


def record_measured_call(decision: Decision) -> None:
    """Of a product that took part in a measurement, in which plan and library take turns."""
    answer = _notes.answer
    if answer is not None:
        turn = "it was the library's turn to be measured" if answer.plan in (None, VENDOR) else ""
        _notes.answer = CallRecord(decision, answer.plan, answer.why or turn)


def record_fallback(why: str) -> None:
    """Said by who leaves a product to the library although a plan was chosen."""
    if RECORDING.on:
        _notes.why = why

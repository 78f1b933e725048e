"""What is asked of one product, as a library says it of its arrays; and the call, made ready, that answers it."""

from __future__ import annotations

from dataclasses import dataclass

from fmm.arrays.library import Operand, Setting, Span
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import PLAIN, Asked
from fmm.perfmodel.choose import Limits
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.limits import PreparedSide
from fmm.runtime.devices import Device
from fmm.runtime.operands import Offsets, spans_meet

NO_LIMITS = Limits(0)


@dataclass(frozen=True)
class Call:
    """A call made ready. If no plan runs it is the library's own product.

    It holds nothing that changes, so threads and streams share it; the result and the workspace come from the library's
    own memory at each call.
    """

    decision: Decision
    setting: Setting
    limits: Limits = NO_LIMITS
    device: Device | None = None
    plan: Plan | None = None  # what runs; None: the library's own product
    launches: LaunchList | None = None  # on a device
    shape: tuple[int, ...] = ()
    dtype: str = ""
    result: Operand | None = None  # what the product is like, if it is a new array
    packs: tuple[bool, bool] = (False, False)  # are A, B copied, because BLAS cannot read them as they are?
    direct: bool = False  # the plan may write into `out`, unless that overlaps an operand
    flattens_stack: bool = False  # is a stack multiplied by one matrix, all rows at once?
    offsets: tuple[Offsets, ...] = ()  # of A, B and C in bytes, one product each; on a device
    addend_offsets: tuple[int, ...] = ()  # the same of what is added, where C does not hold it
    spans: tuple[Span | None, Span | None, Span | None] = (None, None, None)
    copies: bool = False  # is anything packed?
    workspace: int = 0  # bytes
    uses_graph: bool = False  # worth capturing as a graph, once it has come again and again
    plan_refusal: str = ""  # why a plan that was given cannot run, if the library seems to reject the call itself

    def overlap(self, a: int, b: int, c: int) -> bool:
        """With these pointers, may C share memory with an operand?"""
        return spans_meet(a, self.spans[0], c, self.spans[2]) or spans_meet(b, self.spans[1], c, self.spans[2])


@dataclass(frozen=True)
class Question:
    """What is asked: the product of two arrays, a place for it, and what the caller allows."""

    a: Operand
    b: Operand
    out: Operand | None
    setting: Setting
    device: Device
    limits: Limits
    plan: Plan | None = None
    result: Operand | None = None  # the product as a new array; None: without gaps, its last axis contiguous
    asked: Asked = PLAIN
    kept: PreparedSide | None = None
    added: tuple[int, ...] | None = None  # strides of what is added, in elements, where that is not what C holds

"""Exchange messages between processes that share a product, with torch.distributed: panels, parts of C, and calls.

`ProductInProgress` computes one process's block of C in steps. The panels of A and B for the next step arrive while the
panels of the current step are multiplied. The layout (fmm.distributed.layout) determines which process sends which
rectangle in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fmm.distributed.layout import K_AXIS, M_AXIS, BlocksHeld, MeshLayout, OperandName, Rectangle

# A function of (left panel, right panel, C, adds) that multiplies two panels; `adds` is True to add the product to C.
MultiplyPanels = Callable[[Any, Any, Any, bool], object]


class LostProcessError(RuntimeError):
    """Raised if a process that shares a product has ended, or did not answer within the time-out."""


class MeshProcesses(NamedTuple):
    """The processes of a mesh: torch's process group, the global ranks, and this process's index in the ranks."""

    group: Any
    numbers: tuple[int, ...]
    place: int


# ---- the panels of a product


class ProductInProgress:
    """The computation of this process's block of C in a shared product.

    All processes of the mesh must start the same product. The constructor starts the exchange of the first panels,
    which arrive while the caller does other work.
    """

    def __init__(self, processes: MeshProcesses, layout: MeshLayout, a: Any, b: Any) -> None:
        self.place, self.layout, self.like = processes.place, layout, a
        self.panels = PanelExchange(processes, layout, {"A": a, "B": b})
        self.first = self.panels.start_exchange_step(0)

    def finish_product(self, multiply: MultiplyPanels) -> Any:
        """Multiply each step's panels with the function `multiply`, and return this process's block of C."""
        layout, share = self.layout, self.layout.process_share(self.place)
        c = self.like.new_empty((share.rows.size, share.cols.size))
        written, next_panels = False, self.first
        for step in range(layout.pieces):
            panels = next_panels
            # the exchange for the next step starts before this step's product, so that both run at the same time
            if step + 1 < layout.pieces:
                next_panels = self.panels.start_exchange_step(step + 1)
            left, right = self.panels.finish_exchange_step(panels, step)
            rows, _, cols = layout.process_share_in_step(self.place, step)
            dest = submatrix(c, Rectangle(rows, cols).relative_to(Rectangle(share.rows, share.cols)))
            if 0 not in (*left.shape, *right.shape):
                multiply(left, right, dest, written and layout.along == K_AXIS)
                written = True
        return c if written else c.zero_()


class PanelsInTransit(NamedTuple):
    """The panels of one step in transit: the messages, the sent buffers, and the copies to make after arrival."""

    panels: dict[OperandName, Any]
    copies: list[tuple[Any, Any]]  # pairs: a submatrix of a panel, and the contiguous buffer that receives its entries
    works: list[Any]
    sent: list[Any]


class PanelExchange:
    """The exchange of the panels of A and B that this process multiplies in each step."""

    def __init__(self, processes: MeshProcesses, layout: MeshLayout, operands: dict[OperandName, Any]) -> None:
        self.processes, self.layout, self.held = processes, layout, operands
        self.latest: dict[OperandName, Any] = {}
        self.transfers = layout.transfers_of_rank(processes.place)
        self.boxes = {operand: layout.blocks_held[operand].block_of_rank(processes.place) for operand in operands}

    def start_exchange_step(self, step: int) -> PanelsInTransit:
        """Start to send the rectangles that other processes need in this step, and to receive this process's panels."""
        me, numbers, group = self.processes.place, self.processes.numbers, self.processes.group
        panels_in_transit = PanelsInTransit({}, [], [], [])
        messages: list[Any] = []
        for operand, box in self.layout.panels_needed(me, step).items():
            if step and self.layout.reuses_panel_in_all_steps(operand):
                panels_in_transit.panels[operand] = self.latest[operand]
                continue
            panels_in_transit.panels[operand], sources = self._create_panel(operand, box, step)
            for source, part in sources:
                place = submatrix(panels_in_transit.panels[operand], part.relative_to(box))
                if not place.is_contiguous():
                    panels_in_transit.copies.append(
                        (place, torch.empty_like(place, memory_format=torch.contiguous_format))
                    )
                    place = panels_in_transit.copies[-1][1]
                messages.append(dist.P2POp(dist.irecv, as_real_tensor(place), numbers[source], group))
            self.latest[operand] = panels_in_transit.panels[operand]
        for transfer in self.transfers[step]:
            if transfer.source == me:
                box = self.boxes[transfer.operand]
                part = submatrix(self.held[transfer.operand], transfer.box.relative_to(box))
                panels_in_transit.sent.append(as_real_tensor(part.resolve_conj().contiguous()))
                messages.append(dist.P2POp(dist.isend, panels_in_transit.sent[-1], numbers[transfer.dest], group))
        if messages:
            with translate_lost_process_errors(self.processes, f"step {step + 1} of {self.layout.pieces}"):
                panels_in_transit.works.extend(dist.batch_isend_irecv(messages))
        return panels_in_transit

    def finish_exchange_step(self, panels_in_transit: PanelsInTransit, step: int) -> tuple[Any, Any]:
        """Wait for the step's messages and return the complete panels of A and B."""
        with translate_lost_process_errors(self.processes, f"step {step + 1} of {self.layout.pieces}"):
            for work in panels_in_transit.works:
                work.wait()
        for place, value in panels_in_transit.copies:
            place.copy_(value)
        return panels_in_transit.panels["A"], panels_in_transit.panels["B"]

    def _create_panel(self, operand: OperandName, box: Rectangle, step: int) -> tuple[Any, list[tuple[int, Rectangle]]]:
        """Return a panel that contains this process's own part, and a list of (source process, missing rectangle).

        If this process holds the whole panel, the panel is a view of the operand, not a copy.
        """
        me, held = self.processes.place, self.held[operand]
        own = self.boxes[operand].intersection(box)
        if own == box or not box.size:
            return submatrix(held, box.relative_to(self.boxes[operand])) if box.size else _empty_panel(held, box), []
        panel = _empty_panel(held, box)
        if own.size:
            submatrix(panel, own.relative_to(box)).copy_(submatrix(held, own.relative_to(self.boxes[operand])))
        incoming = [t for t in self.transfers[step] if (t.dest, t.operand) == (me, operand)]
        return panel, [(t.source, t.box) for t in incoming]


def submatrix(matrix: Any, box: Rectangle) -> Any:
    return matrix[box.rows.start : box.rows.stop, box.cols.start : box.cols.stop]


def as_real_tensor(x: Any) -> Any:
    """Return x as a type that NCCL can send: a complex number becomes a pair of real numbers."""
    return torch.view_as_real(x) if x.is_complex() else x


def _empty_panel(like: Any, box: Rectangle) -> Any:
    return like.new_empty((box.rows.size, box.cols.size))


# ---- the blocks of C


def redistribute_result_to_row(c: Any, layout: MeshLayout, processes: MeshProcesses) -> Any:
    """Redistribute C from two-dimensional blocks to parts along one axis; return this process's part.

    A one-dimensional mesh may compute two-dimensional blocks of C. The new parts are ranges of rows if the first
    dimension of the two-dimensional mesh cuts rows, else ranges of columns. The process of rank i receives part i.
    """
    me, axis = processes.place, 0 if layout.work[0] == M_AXIS else 1
    target = BlocksHeld((layout.m, layout.n), layout.mesh, (axis, axis))
    blocks = [Rectangle(share.rows, share.cols) for share in map(layout.process_share, range(layout.process_count))]
    local_values, copies, messages = target.block_of_rank(me), list[tuple[Any, Any]](), list[Any]()
    result = c.new_empty((local_values.rows.size, local_values.cols.size))
    for other, block in enumerate(blocks):
        incoming, outgoing = block.intersection(local_values), blocks[me].intersection(target.block_of_rank(other))
        place = submatrix(result, incoming.relative_to(local_values))
        part = submatrix(c, outgoing.relative_to(blocks[me]))
        if other == me:
            place.copy_(part)
            continue
        if incoming.size:
            copies.append((place, c.new_empty(place.shape)))
            messages.append(
                dist.P2POp(dist.irecv, as_real_tensor(copies[-1][1]), processes.numbers[other], processes.group)
            )
        if outgoing.size:
            sent = as_real_tensor(part.contiguous())
            messages.append(dist.P2POp(dist.isend, sent, processes.numbers[other], processes.group))
    with translate_lost_process_errors(processes, "the product's blocks are redistributed to a row"):
        for work in dist.batch_isend_irecv(messages):
            work.wait()
    for place, value in copies:
        place.copy_(value)
    return result


def is_finite_everywhere(c: Any, processes: MeshProcesses) -> bool:
    """Return True if C has neither inf nor NaN on any process; all processes return the same value."""
    has_nonfinite = (~torch.isfinite(c).all()).to(torch.int32)
    with translate_lost_process_errors(processes, "all report whether they have inf or NaN"):
        dist.all_reduce(has_nonfinite, dist.ReduceOp.MAX, processes.group)
    return not has_nonfinite.item()


# ---- agreement: all processes of a mesh make the same call
#
# If the processes made different calls, a process would wait for messages that never arrive, or would receive the
# messages of a different product. The processes therefore compare digests (hashes) of their calls.
#
# With NCCL, the processes compare digests only at the first of several equal calls, and cache the decision for the
# later calls. If a process later makes a cached call that differs from the calls of the other processes, the processes
# wait until the time-out. NCCL sends a digest after all work that was launched before the digest. A comparison in each
# call would therefore make each host wait for its GPU. A digest sent by gloo, between hosts, arrives only when the last
# host has reached the call, so a comparison in each call would make each host wait for all other hosts. A comparison of
# two calls' digests at the next call would be too late: if the calls differ, a host that reads the result of the
# product hangs before its next call.

DIGEST_WORDS = 4  # number of 64-bit words of the digest (SHA-256) of a call's description


def is_call_cached_everywhere(processes: MeshProcesses, description: str, is_cached: bool, device: Any) -> bool:
    """Return True if every process has cached the decision for this call; raise ValueError if the calls differ.

    The messages are tensors on `device`, which need not be the current device.
    """
    text = description.encode()
    digest = sha256(text).digest()
    words = [int.from_bytes(digest[8 * i : 8 * i + 8], "little", signed=True) for i in range(DIGEST_WORDS)]
    local_values = torch.tensor([*words, int(is_cached), len(text)], dtype=torch.int64, device=device)
    rows = _all_gather(processes, local_values, "whether all make the same call")
    if any(row[:DIGEST_WORDS] != words for row in rows):
        raise ValueError(_different_calls_message(processes, text.ljust(max(row[-1] for row in rows), b"\0"), device))
    return all(row[DIGEST_WORDS] for row in rows)


def _different_calls_message(processes: MeshProcesses, text: bytes, device: Any) -> str:
    """Return an error message with the call of each process; `text` must have the same length on all processes."""
    local_values = torch.tensor(list(text), dtype=torch.uint8, device=device)
    rows = _all_gather(processes, local_values, "the call of each process")
    texts = [bytes(row).rstrip(b"\0").decode() for row in rows]
    numbers = dist.get_process_group_ranks(processes.group)
    calls = "; ".join(f"process {number}: {text}" for number, text in sorted(zip(numbers, texts, strict=True)))
    return f"the processes of a mesh ask for different products: {calls}"


def _all_gather(processes: MeshProcesses, local_values: Any, phase: str) -> list[list[int]]:
    """Return for each process, in the group's order, the list of integers in its tensor `local_values`."""
    parts = [torch.empty_like(local_values) for _ in processes.numbers]
    with translate_lost_process_errors(processes, phase):
        dist.all_gather(parts, local_values, processes.group)
    rows: list[list[int]] = torch.stack(parts).tolist()
    return rows


# ---- lost processes


@contextmanager
def translate_lost_process_errors(processes: MeshProcesses, phase: str) -> Iterator[None]:
    """Convert torch.distributed's errors about a lost process to LostProcessError; other errors pass unchanged."""
    try:
        yield
    except RuntimeError as error:
        # gloo's errors have no exception class of their own, but their texts contain the path of a source file of gloo.
        if not isinstance(error, dist.DistError) and "gloo/" not in str(error):
            raise
        others = ", ".join(str(number) for place, number in enumerate(processes.numbers) if place != processes.place)
        raise LostProcessError(
            f"fmm.distributed.matmul, process {processes.numbers[processes.place]}: one of the processes {others} is "
            f"lost or did not answer in time ({phase}); torch.distributed says: {error}"
        ) from error

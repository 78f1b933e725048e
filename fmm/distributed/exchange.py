"""Messages between the processes of a shared product, through torch.distributed: panels, blocks of C, agreement.

`ProductInProgress` computes one process's block of C; the panels of A and B for the next step arrive while the present
step is multiplied. The layout (fmm.distributed.layout) says what is sent in which step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fmm.distributed.layout import Box, Holdings, K, Layout, M, Operand

Multiply = Callable[[Any, Any, Any, bool], object]  # left, right, C, whether the product is added to C


class LostProcessError(RuntimeError):
    """A process that takes part in a product is gone, or did not answer in time."""


class Processes(NamedTuple):
    """The processes of a mesh: their group, their global ranks, and the place of this process among them."""

    group: Any
    numbers: tuple[int, ...]
    place: int


# ---- the panels of a product


class ProductInProgress:
    """This process's block of C; all processes of the mesh must make the same product.

    The constructor starts the exchange of the first panels, which arrive during the caller's other work.
    """

    def __init__(self, processes: Processes, layout: Layout, a: Any, b: Any) -> None:
        self.place, self.layout, self.like = processes.place, layout, a
        self.panels = PanelExchange(processes, layout, {"A": a, "B": b})
        self.first = self.panels.start(0)

    def finish(self, multiply: Multiply) -> Any:
        """Multiply step by step and return the block."""
        layout, share = self.layout, self.layout.share(self.place)
        c = self.like.new_empty((share.rows.size, share.cols.size))
        written, next_panels = False, self.first
        for step in range(layout.pieces):
            panels = next_panels
            if step + 1 < layout.pieces:  # before the product is launched, so that they arrive during it
                next_panels = self.panels.start(step + 1)
            left, right = self.panels.finish(panels, step)
            rows, _, cols = layout.portion(self.place, step)
            dest = submatrix(c, Box(rows, cols).within(Box(share.rows, share.cols)))
            if 0 not in (*left.shape, *right.shape):
                multiply(left, right, dest, written and layout.along == K)
                written = True
        return c if written else c.zero_()


class PanelsInTransit(NamedTuple):
    """The panels of a step, the copies to make on arrival, and the messages with their buffers."""

    panels: dict[Operand, Any]
    copies: list[tuple[Any, Any]]  # a part of a panel, and the received numbers
    works: list[Any]
    sent: list[Any]


class PanelExchange:
    """The panels of A and B that this process multiplies, step by step."""

    def __init__(self, processes: Processes, layout: Layout, held: dict[Operand, Any]) -> None:
        self.processes, self.layout, self.held = processes, layout, held
        self.latest: dict[Operand, Any] = {}
        self.boxes = {operand: layout.holdings[operand].box(processes.place) for operand in held}

    def start(self, step: int) -> PanelsInTransit:
        """Send what other processes need in this step, and start to receive this process's panels."""
        me, numbers, group = self.processes.place, self.processes.numbers, self.processes.group
        transit = PanelsInTransit({}, [], [], [])
        messages: list[Any] = []
        for operand, box in self.layout.needs(me, step).items():
            if step and self.layout.stays(operand):
                transit.panels[operand] = self.latest[operand]
                continue
            transit.panels[operand], sources = self._new_panel(operand, box, step)
            for source, part in sources:
                place = submatrix(transit.panels[operand], part.within(box))
                if not place.is_contiguous():
                    transit.copies.append((place, torch.empty_like(place, memory_format=torch.contiguous_format)))
                    place = transit.copies[-1][1]
                messages.append(dist.P2POp(dist.irecv, as_real(place), numbers[source], group))
            self.latest[operand] = transit.panels[operand]
        for transfer in self.layout.steps[step]:
            if transfer.source == me:
                box = self.boxes[transfer.operand]
                part = submatrix(self.held[transfer.operand], transfer.box.within(box))
                transit.sent.append(as_real(part.resolve_conj().contiguous()))
                messages.append(dist.P2POp(dist.isend, transit.sent[-1], numbers[transfer.dest], group))
        if messages:
            with reports_loss(self.processes, f"step {step + 1} of {self.layout.pieces}"):
                transit.works.extend(dist.batch_isend_irecv(messages))
        return transit

    def finish(self, transit: PanelsInTransit, step: int) -> tuple[Any, Any]:
        """Wait for the messages and return the complete panels of A and B."""
        with reports_loss(self.processes, f"step {step + 1} of {self.layout.pieces}"):
            for work in transit.works:
                work.wait()
        for place, value in transit.copies:
            place.copy_(value)
        return transit.panels["A"], transit.panels["B"]

    def _new_panel(self, operand: Operand, box: Box, step: int) -> tuple[Any, list[tuple[int, Box]]]:
        """Return a panel that contains this process's own part, and the sources of the other parts.

        A panel that this process holds completely is a view, not a copy.
        """
        me, held = self.processes.place, self.held[operand]
        own = self.boxes[operand].shared(box)
        if own == box or not box.size:
            return submatrix(held, box.within(self.boxes[operand])) if box.size else _empty(held, box), []
        panel = _empty(held, box)
        if own.size:
            submatrix(panel, own.within(box)).copy_(submatrix(held, own.within(self.boxes[operand])))
        incoming = [t for t in self.layout.steps[step] if (t.dest, t.operand) == (me, operand)]
        return panel, [(t.source, t.box) for t in incoming]


def submatrix(matrix: Any, box: Box) -> Any:
    return matrix[box.rows.start : box.rows.stop, box.cols.start : box.cols.stop]


def as_real(x: Any) -> Any:
    """Return x in a type that NCCL sends: complex numbers as pairs of real ones."""
    return torch.view_as_real(x) if x.is_complex() else x


def _empty(like: Any, box: Box) -> Any:
    return like.new_empty((box.rows.size, box.cols.size))


# ---- the blocks of C


def redistribute_to_row(c: Any, layout: Layout, processes: Processes) -> Any:
    """Return this process's part of C after a product on a rectangle of processes.

    The result is cut along the axis of the rectangle's first side alone, over all processes in a row.
    """
    me, axis = processes.place, 0 if layout.work[0] == M else 1
    target = Holdings((layout.m, layout.n), layout.mesh, (axis, axis))
    blocks = [Box(share.rows, share.cols) for share in map(layout.share, range(layout.ranks))]
    mine, copies, messages = target.box(me), list[tuple[Any, Any]](), list[Any]()
    result = c.new_empty((mine.rows.size, mine.cols.size))
    for other, block in enumerate(blocks):
        incoming, outgoing = block.shared(mine), blocks[me].shared(target.box(other))
        place = submatrix(result, incoming.within(mine))
        part = submatrix(c, outgoing.within(blocks[me]))
        if other == me:
            place.copy_(part)
            continue
        if incoming.size:
            copies.append((place, c.new_empty(place.shape)))
            messages.append(dist.P2POp(dist.irecv, as_real(copies[-1][1]), processes.numbers[other], processes.group))
        if outgoing.size:
            sent = as_real(part.contiguous())
            messages.append(dist.P2POp(dist.isend, sent, processes.numbers[other], processes.group))
    with reports_loss(processes, "the product's blocks are redistributed to a row"):
        for work in dist.batch_isend_irecv(messages):
            work.wait()
    for place, value in copies:
        place.copy_(value)
    return result


def is_finite_everywhere(c: Any, processes: Processes) -> bool:
    """Return True if no process has inf or NaN in its part; the same on all processes."""
    has_nonfinite = (~torch.isfinite(c).all()).to(torch.int32)
    with reports_loss(processes, "all report whether they have inf or NaN"):
        dist.all_reduce(has_nonfinite, dist.ReduceOp.MAX, processes.group)
    return not has_nonfinite.item()


# ---- agreement: all processes of a mesh make the same call
#
# A process that makes another call would wait for messages that never come, or take other messages for its own.
#
# With NCCL, a call that is cached is not compared again; a process that then makes another call waits for the time-out.
# The alternatives are worse. A digest sent on the GPUs arrives after all work launched before; until then messages are
# launched that do not match, unless the host waits for its device in each call. A digest sent from host to host by gloo
# arrives when the last host has come to the call, so each host would wait for all others, while hosts should run ahead
# of their devices. Inspecting the digest in the next call is too late: the host that reads the result first hangs.

DIGEST_WORDS = 4  # 64-bit words of a description's digest


def all_have_cached(processes: Processes, description: str, is_cached: bool, device: Any) -> bool:
    """Return True if every process has cached the answer to this call; raise ValueError everywhere if calls differ.

    The messages are tensors on `device`, whichever device is current.
    """
    text = description.encode()
    digest = sha256(text).digest()
    words = [int.from_bytes(digest[8 * i : 8 * i + 8], "little", signed=True) for i in range(DIGEST_WORDS)]
    mine = torch.tensor([*words, int(is_cached), len(text)], dtype=torch.int64, device=device)
    rows = _all_gather(processes, mine, "whether all make the same call")
    if any(row[:DIGEST_WORDS] != words for row in rows):
        raise ValueError(_different_calls(processes, text.ljust(max(row[-1] for row in rows), b"\0"), device))
    return all(row[DIGEST_WORDS] for row in rows)


def _different_calls(processes: Processes, text: bytes, device: Any) -> str:
    """Return the message with the call of each process; `text` is padded to one length everywhere."""
    mine = torch.tensor(list(text), dtype=torch.uint8, device=device)
    rows = _all_gather(processes, mine, "the call of each process")
    texts = [bytes(row).rstrip(b"\0").decode() for row in rows]
    numbers = dist.get_process_group_ranks(processes.group)
    calls = "; ".join(f"process {number}: {text}" for number, text in sorted(zip(numbers, texts, strict=True)))
    return f"the processes of a mesh ask for different products: {calls}"


def _all_gather(processes: Processes, mine: Any, when: str) -> list[list[int]]:
    """Return the numbers of each process, in the group's order."""
    parts = [torch.empty_like(mine) for _ in processes.numbers]
    with reports_loss(processes, when):
        dist.all_gather(parts, mine, processes.group)
    rows: list[list[int]] = torch.stack(parts).tolist()
    return rows


# ---- lost processes


@contextmanager
def reports_loss(processes: Processes, when: str) -> Iterator[None]:
    """Raise torch.distributed's errors about a lost process as LostProcessError; other errors pass unchanged."""
    try:
        yield
    except RuntimeError as error:
        # Errors of gloo have no class of their own, but begin with the name of one of its files.
        if not isinstance(error, dist.DistError) and "gloo/" not in str(error):
            raise
        others = ", ".join(str(number) for place, number in enumerate(processes.numbers) if place != processes.place)
        raise LostProcessError(
            f"fmm.distributed.matmul, process {processes.numbers[processes.place]}: one of the processes {others} is "
            f"lost or did not answer in time ({when}); torch.distributed says: {error}"
        ) from error

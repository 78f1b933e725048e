"""One process's part of a product that several share: panels of A and B arrive while the ones before are multiplied.

What is sent when, the layout says (fmm.distributed.layout); who sends it is torch.distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fmm.distributed.layout import Box, Holdings, K, Layout, M, Operand

Multiply = Callable[[Any, Any, Any, bool], object]  # left, right, C; is the product added to what C holds?


class LostProcessError(RuntimeError):
    """A process that takes part in a product is gone, or did not answer in time."""


class Processes(NamedTuple):
    """Those of a mesh: the group in which they talk, their numbers in the world, and where this one is among them."""

    group: Any
    numbers: tuple[int, ...]
    place: int


class BegunProduct:
    """This process's block of C, from what it holds of A and B; all processes of the mesh must make it alike.

    When it is made, its first panels are sent for; they arrive beside whatever is done until it is finished.
    """

    def __init__(self, processes: Processes, layout: Layout, a: Any, b: Any) -> None:
        self.place, self.layout, self.like = processes.place, layout, a
        self.panels = Panels(processes, layout, {"A": a, "B": b})
        self.first = self.panels.ask(0)

    def finish(self, multiply: Multiply) -> Any:
        """The block, product by product."""
        layout, share = self.layout, self.layout.share(self.place)
        c = self.like.new_empty((share.rows.size, share.cols.size))
        begun, arriving = False, self.first
        for step in range(layout.pieces):
            ready = arriving
            if step + 1 < layout.pieces:  # before the product is launched, so that they arrive beside it
                arriving = self.panels.ask(step + 1)
            left, right = self.panels.arrived(ready, step)
            rows, _, cols = layout.portion(self.place, step)
            dest = part_of(c, Box(rows, cols).within(Box(share.rows, share.cols)))
            if 0 not in (*left.shape, *right.shape):
                multiply(left, right, dest, begun and layout.along == K)
                begun = True
        return c if begun else c.zero_()


class Arriving(NamedTuple):
    """What was asked for: the panels, what is copied into them when it is there, and whatever must live until then."""

    panels: dict[Operand, Any]
    late: list[tuple[Any, Any]]  # a place in a panel, and what comes there
    works: list[Any]
    sent: list[Any]


class Panels:
    """The panels of A and B that this process multiplies, step by step."""

    def __init__(self, processes: Processes, layout: Layout, held: dict[Operand, Any]) -> None:
        self.processes, self.layout, self.held = processes, layout, held
        self.kept: dict[Operand, Any] = {}
        self.boxes = {operand: layout.holdings[operand].box(processes.place) for operand in held}

    def ask(self, step: int) -> Arriving:
        """Send what others need in this step, and begin to receive what this process needs."""
        me, numbers, group = self.processes.place, self.processes.numbers, self.processes.group
        found = Arriving({}, [], [], [])
        asked: list[Any] = []
        for operand, box in self.layout.needs(me, step).items():
            if step and self.layout.stays(operand):
                found.panels[operand] = self.kept[operand]
                continue
            found.panels[operand], places = self._panel(operand, box, step)
            for source, part in places:
                place = part_of(found.panels[operand], part.within(box))
                if not place.is_contiguous():
                    found.late.append((place, torch.empty_like(place, memory_format=torch.contiguous_format)))
                    place = found.late[-1][1]
                asked.append(dist.P2POp(dist.irecv, numbers_of(place), numbers[source], group))
            self.kept[operand] = found.panels[operand]
        for transfer in self.layout.steps[step]:
            if transfer.source == me:
                box = self.boxes[transfer.operand]
                part = part_of(self.held[transfer.operand], transfer.box.within(box))
                found.sent.append(numbers_of(part.resolve_conj().contiguous()))
                asked.append(dist.P2POp(dist.isend, found.sent[-1], numbers[transfer.dest], group))
        if asked:
            with told_of_loss(self.processes, f"step {step + 1} of {self.layout.pieces}"):
                found.works.extend(dist.batch_isend_irecv(asked))
        return found

    def arrived(self, asked: Arriving, step: int) -> tuple[Any, Any]:
        """The panels of A and B, complete."""
        with told_of_loss(self.processes, f"step {step + 1} of {self.layout.pieces}"):
            for work in asked.works:
                work.wait()
        for place, value in asked.late:
            place.copy_(value)
        return asked.panels["A"], asked.panels["B"]

    def _panel(self, operand: Operand, box: Box, step: int) -> tuple[Any, list[tuple[int, Box]]]:
        """Where a panel is put together, with this process's own part in it, and what comes from whom. A panel that
        this process holds is no copy."""
        me, held = self.processes.place, self.held[operand]
        own = self.boxes[operand].shared(box)
        if own == box or not box.size:
            return part_of(held, box.within(self.boxes[operand])) if box.size else _empty(held, box), []
        panel = _empty(held, box)
        if own.size:
            part_of(panel, own.within(box)).copy_(part_of(held, own.within(self.boxes[operand])))
        coming = [t for t in self.layout.steps[step] if (t.dest, t.operand) == (me, operand)]
        return panel, [(t.source, t.box) for t in coming]


def part_of(matrix: Any, box: Box) -> Any:
    return matrix[box.rows.start : box.rows.stop, box.cols.start : box.cols.stop]


def numbers_of(x: Any) -> Any:
    """As NCCL knows them: of complex ones the parts."""
    return torch.view_as_real(x) if x.is_complex() else x


def _empty(like: Any, box: Box) -> Any:
    return like.new_empty((box.rows.size, box.cols.size))


def finite_everywhere(c: Any, processes: Processes) -> bool:
    """Has no process inf or NaN in its part? All hear the same."""
    found = (~torch.isfinite(c).all()).to(torch.int32)
    with told_of_loss(processes, "all say whether they have inf or NaN"):
        dist.all_reduce(found, dist.ReduceOp.MAX, processes.group)
    return not found.item()


@contextmanager
def told_of_loss(processes: Processes, when: str) -> Iterator[None]:
    """What torch.distributed raises where a process is gone, as an error that says so; all else as it is."""
    try:
        yield
    except RuntimeError as error:
        if not _tells_of_loss(error):
            raise
        others = ", ".join(str(number) for place, number in enumerate(processes.numbers) if place != processes.place)
        raise LostProcessError(
            f"fmm.distributed.matmul, process {processes.numbers[processes.place]}: one of the processes {others} is "
            f"lost or did not answer in time ({when}); torch.distributed says: {error}"
        ) from error


def _tells_of_loss(error: RuntimeError) -> bool:
    """Is it one of torch.distributed's own? Those of gloo have no type, but begin with one of its files."""
    return isinstance(error, dist.DistError) or "gloo/" in str(error)


def block_of_a_row(c: Any, layout: Layout, processes: Processes) -> Any:
    """This process's part of C, cut along the axis that the rectangle's first side cuts, of its block by the layout."""
    me, axis = processes.place, 0 if layout.work[0] == M else 1
    kept = Holdings((layout.m, layout.n), layout.mesh, (axis, axis))
    blocks = [Box(share.rows, share.cols) for share in map(layout.share, range(layout.ranks))]
    mine, late, asked = kept.box(me), list[tuple[Any, Any]](), list[Any]()
    found = c.new_empty((mine.rows.size, mine.cols.size))
    for other, block in enumerate(blocks):
        coming, going = block.shared(mine), blocks[me].shared(kept.box(other))
        place, part = (part_of(x, box.within(y)) for x, box, y in ((found, coming, mine), (c, going, blocks[me])))
        if other == me:
            place.copy_(part)
            continue
        if coming.size:
            late.append((place, c.new_empty(place.shape)))
            asked.append(dist.P2POp(dist.irecv, numbers_of(late[-1][1]), processes.numbers[other], processes.group))
        if going.size:
            sent = numbers_of(part.contiguous())
            asked.append(dist.P2POp(dist.isend, sent, processes.numbers[other], processes.group))
    with told_of_loss(processes, "the product's blocks are brought to a row"):
        for work in dist.batch_isend_irecv(asked):
            work.wait()
    for place, value in late:
        place.copy_(value)
    return found


WORDS = 4  # of 64 bits, that a question's digest has


def everybody_knows(processes: Processes, question: str, known: bool, device: Any) -> bool:
    """Has each process an answer to this question already? ValueError on all of them if they do not all ask it.

    What they tell each other lies on `device`, whichever is the current one.
    """
    text = question.encode()
    digest = sha256(text).digest()
    words = [int.from_bytes(digest[8 * i : 8 * i + 8], "little", signed=True) for i in range(WORDS)]
    mine = torch.tensor([*words, int(known), len(text)], dtype=torch.int64, device=device)
    told = _gathered(processes, mine, "whether all ask for the same product")
    if any(row[:WORDS] != words for row in told):
        raise ValueError(_difference(processes, text.ljust(max(row[-1] for row in told), b"\0"), device))
    return all(row[WORDS] for row in told)


def _difference(processes: Processes, text: bytes, device: Any) -> str:
    """What each process asks for, in words; the texts are equally long here."""
    mine = torch.tensor(list(text), dtype=torch.uint8, device=device)
    told = _gathered(processes, mine, "what each of them asks for")
    texts = [bytes(row).rstrip(b"\0").decode() for row in told]
    numbers = dist.get_process_group_ranks(processes.group)
    asked = "; ".join(f"process {number}: {text}" for number, text in sorted(zip(numbers, texts, strict=True)))
    return f"the processes of a mesh ask for different products: {asked}"


def _gathered(processes: Processes, mine: Any, when: str) -> list[list[int]]:
    """What each process of the group tells, in the group's order."""
    every = [torch.empty_like(mine) for _ in processes.numbers]
    with told_of_loss(processes, when):
        dist.all_gather(every, mine, processes.group)
    rows: list[list[int]] = torch.stack(every).tolist()
    return rows

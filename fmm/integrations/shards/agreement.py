"""That all processes of a mesh ask for the same, before they send each other anything.

Who asks for something else would wait for messages that never come, or take the others' for his own.

With NCCL, what a process knows already is not compared again, and who then asks for something else waits for the
time-out. A digest sent along on the GPUs arrives when they have done all that was launched before; by then messages
are launched that do not fit each other, unless the host waits for its device in each call. Sent beside NCCL from host
to host, by gloo, it arrives when the last host has come to the call: each would wait for all others in each call,
while hosts are to run ahead of their devices. Looked at in the next call, it is too late: whoever waits for the result
first hangs.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist

from fmm.integrations.shards.shared_product import Processes, told_of_loss

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

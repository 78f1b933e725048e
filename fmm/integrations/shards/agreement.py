"""That all processes of a mesh ask for the same, before they send each other anything.

Who asks for something else would wait for messages that never come, or take the others' for his own.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist

from fmm.integrations.shards.shared_product import Processes, told_of_loss

WORDS = 4  # of 64 bits, that a question's digest has


def everybody_knows(processes: Processes, question: str, known: bool, device: Any) -> bool:
    """Has each process an answer to this question already? ValueError on all of them if they do not all ask it."""
    digest = sha256(question.encode()).digest()
    words = [int.from_bytes(digest[8 * i : 8 * i + 8], "little", signed=True) for i in range(WORDS)]
    mine = torch.tensor([*words, int(known)], dtype=torch.int64, device=device)
    every = [torch.empty_like(mine) for _ in processes.numbers]
    with told_of_loss(processes, "whether all ask for the same product"):
        dist.all_gather(every, mine, processes.group)
    told = torch.stack(every).tolist()
    if any(row[:WORDS] != words for row in told):
        raise ValueError(_difference(processes, question))
    return all(row[WORDS] for row in told)


def _difference(processes: Processes, question: str) -> str:
    """What each process asks for, in words."""
    texts: list[Any] = [None for _ in processes.numbers]
    with told_of_loss(processes, "what each of them asks for"):
        dist.all_gather_object(texts, question, processes.group)
    numbers = dist.get_process_group_ranks(processes.group)
    asked = "; ".join(f"process {number}: {text}" for number, text in sorted(zip(numbers, texts, strict=True)))
    return f"the processes of a mesh ask for different products: {asked}"

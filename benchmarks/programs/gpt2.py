"""A training step of GPT-2 by transformers: 124 million parameters with random values, AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def prepare(dtype: str, is_small: bool) -> tuple[Callable[[], object], Callable[[], Any]]:
    """Return the step, and the function for the gradient of one weight."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Dropout would draw other numbers in each type.
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512} if is_small else {}
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes)
    model = GPT2LMHeadModel(config).to(device, getattr(torch, dtype))
    words = torch.randint(config.vocab_size, (2, 16) if is_small else (8, 1024)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def gradients() -> None:
        optimizer.zero_grad()
        model(input_ids=words, labels=words).loss.backward()

    def step() -> float:
        gradients()
        optimizer.step()
        return float(next(model.parameters()).flatten()[0])  # waits for the device

    def result() -> Any:
        gradients()
        return model.transformer.h[0].mlp.c_fc.weight.grad.double().cpu().numpy()

    return step, result

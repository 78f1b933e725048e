"""Muon, the optimizer, with fmm.orthogonalize: all parameters of one shape are orthogonalized as one stack.

    python examples/muon.py [--steps 40 --width 64]

Trains a small transformer with this Muon and with torch.optim.Muon, and prints both losses. The matrices of the blocks
are Muon's; embeddings and norms are AdamW's. Needs torch.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from typing import Any

import fmm

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("examples/muon.py needs torch: pip install torch") from None


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """Muon for matrices, with the steps of torch.optim.Muon; stacks of matrices are parameters too.

    The learning rate is multiplied by sqrt(max(1, rows / columns)), as in Keller Jordan's original.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        coefficients: Any = "muon",
        ns_steps: int = 5,
    ) -> None:
        options = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        super().__init__(params, options | {"coefficients": coefficients, "ns_steps": ns_steps})
        shapes = [tuple(p.shape) for group in self.param_groups for p in group["params"] if p.ndim < 2]
        if shapes:
            raise ValueError(f"Muon updates matrices and stacks of matrices, not the shape {shapes[0]}")

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have gradients; return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape, p.dtype, p.device].append(p)
            for params in by_shape.values():
                self._update(params, group)
        return loss

    def _update(self, params: list[Any], group: dict[str, Any]) -> None:
        """Update parameters of one shape."""
        grads, momentum = [p.grad for p in params], group["momentum"]
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p.grad)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_lerp_(buffers, grads, 1 - momentum)
        updates = torch._foreach_lerp(grads, buffers, momentum) if group["nesterov"] else buffers
        stack = torch.stack(updates).bfloat16()
        fmm.orthogonalize(stack, group["ns_steps"], group["coefficients"], out=stack)
        rows, cols = params[0].shape[-2:]
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, stack.to(params[0].dtype).unbind(), alpha=-group["lr"] * max(1, rows / cols) ** 0.5)


# ---- a small transformer, trained with either optimizer


class Transformer(torch.nn.Module):  # type: ignore[misc]
    """Two blocks that predict the next of 64 tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        nn = torch.nn
        self.embedding, self.head = nn.Embedding(64, width), nn.Linear(width, 64, bias=False)
        block = {"nhead": 4, "dim_feedforward": 4 * width, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(width, **block) for _ in range(2)])

    def forward(self, tokens: Any) -> Any:
        """Return the logits of the next token at each position."""
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def train(make_muon: Any, steps: int, width: int, device: str) -> list[float]:
    """Return the loss of each step; each token determines the next one."""
    torch.manual_seed(0)
    model = Transformer(width).to(device)
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not q for q in matrices)]
    optimizers = make_muon(matrices), torch.optim.AdamW(others, lr=3e-3)
    successor, losses = torch.randperm(64, device=device), []
    for _ in range(steps):
        tokens = torch.randint(64, (8, 1), device=device)
        for _ in range(16):
            tokens = torch.cat((tokens, successor[tokens[:, -1:]]), 1)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = {"fmm": Muon, "torch": getattr(torch.optim, "Muon", None)}
    for name, optimizer in names.items():
        if optimizer is None:
            print("this torch has no Muon: none to compare with")
            continue
        losses = train(lambda p, make=optimizer: make(p, lr=0.02), options.steps, options.width, device)
        print(f"{name}: loss {losses[0]:.3f} at the first step, {sum(losses[-5:]) / len(losses[-5:]):.3f} at the last")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

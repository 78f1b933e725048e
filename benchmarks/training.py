"""A small transformer, trained with torch's products and with fmm's: `python -m benchmarks.training --out FILE`.

The same data and the same start for all runs but the second, whose start differs by what rounding might do: how far its
losses are from the first one's is the noise within which those of fmm are to be. Seconds of each run stand beside.

The file is written after each run. With --seconds, all runs together are to take no longer: steps are left out, as many
of each run, by what a few of torch's took.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fmm
from benchmarks.forced_plan import force
from fmm.integrations.report import begin_report, end_report
from fmm.tuner.trials.environment import environment

WARM_UP = 5  # steps that are not timed
RUNS = "torch", "torch, nearby", "fmm"
JITTER = {"float32": 2.0**-20, "bfloat16": 2.0**-8}  # relative, of the second start


class Block(nn.Module):  # type: ignore[misc]
    """Attention and two products, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        parts = self.joint(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.wide(self.between(x))


class Transformer(nn.Module):  # type: ignore[misc]
    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self.embedded = nn.Embedding(given.words, given.width)
        self.blocks = nn.Sequential(*(Block(given.width, given.width // 64) for _ in range(given.layers)))
        self.head = nn.Linear(given.width, given.words)

    def forward(self, words: Any) -> Any:
        return self.head(self.blocks(self.embedded(words)))


def trained(given: argparse.Namespace, dtype: str, steps: int, jitter: float = 0.0) -> tuple[list[float], float]:
    """The loss at each step, and the seconds of the steps after the first few."""
    torch.manual_seed(1)
    model = Transformer(given).to(given.device, getattr(torch, dtype))
    if jitter:
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + jitter * torch.randn_like(weight))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(2)
    text = torch.randint(given.words, (16, given.batch, given.length + 1), device=given.device)
    losses, began = [], 0.0
    for step in range(steps):
        if step == min(WARM_UP, steps - 1):
            settle(given.device)
            began = time.perf_counter()
        words = text[step % len(text)]
        found = model(words[:, :-1])
        loss = nn.functional.cross_entropy(found.flatten(0, 1).float(), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    settle(given.device)
    return [float(x) for x in losses], time.perf_counter() - began


def steps_within(given: argparse.Namespace, dtype: str, seconds: float) -> int:
    """So many steps of each run as take no longer, by a few of torch's; all that are wanted without a limit."""
    if not seconds:
        return int(given.steps)
    began = time.perf_counter()
    few = WARM_UP + 2
    _, timed = trained(given, dtype, few)
    left = seconds - (time.perf_counter() - began)
    return max(min(int(given.steps), int(left / len(RUNS) / (timed / (few - WARM_UP)))), few)


def settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measured(given: argparse.Namespace, dtype: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Three runs, one after the other: what is known after each; at last the farthest that losses are apart."""
    place = "torch" if given.device == "cuda" else "torch-cpu"
    steps = steps_within(given, dtype, seconds)
    runs: dict[str, tuple[list[float], float]] = {}
    for name in RUNS:
        with fmm.installed(place) if name == "fmm" else nullcontext():
            runs[name] = trained(given, dtype, steps, JITTER[dtype] if name == "torch, nearby" else 0.0)
        told: dict[str, Any] = {
            "losses": {name: losses for name, (losses, _) in runs.items()},
            "seconds": {name: timed for name, (_, timed) in runs.items()},
        }
        yield told
    first, nearby, ours = (runs[name][0] for name in RUNS)
    apart = [max(abs(x - y) for x, y in zip(first, losses, strict=True)) for losses in (nearby, ours)]
    yield told | {"noise": apart[0], "apart": apart[1], "products": products_of_a_step(given, dtype, place)}


def products_of_a_step(given: argparse.Namespace, dtype: str, place: str) -> list[str]:
    """Which run plans; counted in a run of its own, since counting takes time."""
    report = begin_report()
    try:
        with fmm.installed(place):
            trained(given, dtype, 1)
    finally:
        end_report()
    return str(report).splitlines()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--seconds", type=float, default=0.0, help="for all runs together; 0: as long as it takes")
    for name, usual in (
        ("steps", 200),
        ("layers", 2),
        ("width", 2048),
        ("batch", 8),
        ("length", 512),
        ("words", 8192),
    ):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--plan", default="", help="by which fmm multiplies, however small the product")
    given = parser.parse_args(arguments)
    if given.plan:
        force(given.plan)
    dtypes, runs = given.dtypes.split(","), dict[str, dict[str, Any]]()
    end = time.perf_counter() + given.seconds
    for i, dtype in enumerate(dtypes):
        left = max(end - time.perf_counter(), 1.0) / (len(dtypes) - i) if given.seconds else 0.0
        for run in measured(given, dtype, left):
            runs[dtype] = run
            told = {"runs": runs, "torch": torch.__version__}
            device = {"device": torch.cuda.get_device_name()} if given.device == "cuda" else {}
            command = ["python -m benchmarks.training", *(arguments or sys.argv[1:])]
            told["environment"] = {**device, **environment(command)}
            given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        run = runs[dtype]
        seconds = ", ".join(f"{name} {value:.2f} s" for name, value in run["seconds"].items())
        print(f"{dtype}: {seconds}; losses apart by {run['apart']:.2e}, noise {run['noise']:.2e}")
        print(*run["products"], sep="\n", flush=True)
    return int(any(run["apart"] > 2 * run["noise"] for run in runs.values()))


if __name__ == "__main__":
    raise SystemExit(main())

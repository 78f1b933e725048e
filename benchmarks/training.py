"""A small transformer, trained with torch's products and with fmm's: `python -m benchmarks training [--device cuda]`.

All runs have the same data and the same start, except for the second one: its start differs by about a rounding. The
distance between its losses and the first one's is the noise; fmm's losses must stay within twice the noise. With
--seconds, each run has fewer steps, so that all runs together take no longer. Samples go to
results/<device>/training.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

import fmm
from benchmarks.forced_plan import force_plan
from benchmarks.harness import Machine, Row, benchmark_parser, machine_of, run_cases
from fmm.integrations.report import begin_report, end_report

WARM_UP = 5  # steps that are not timed
RUN_NAMES = "torch", "torch, nearby", "fmm"
START_JITTER = {"float32": 2.0**-20, "bfloat16": 2.0**-8}  # relative change of the second run's start
# Options of the model and the data, with their defaults.
DEFAULT_SIZES = {"steps": 200, "layers": 2, "width": 2048, "batch": 8, "length": 512, "words": 8192}


class Block(nn.Module):  # type: ignore[misc]
    """A layer: attention and a perceptron, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        qkv = self.qkv(self.first_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.perceptron(self.second_norm(x))


class Transformer(nn.Module):  # type: ignore[misc]
    """Embedding, layers and a head."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.embedded = nn.Embedding(options.words, options.width)
        self.blocks = nn.Sequential(*(Block(options.width, options.width // 64) for _ in range(options.layers)))
        self.head = nn.Linear(options.width, options.words)

    def forward(self, words: Any) -> Any:
        return self.head(self.blocks(self.embedded(words)))


def train(options: argparse.Namespace, dtype: str, steps: int, jitter: float = 0.0) -> tuple[list[float], float]:
    """Return the loss of each step, and the seconds of the steps after the first few."""
    torch.manual_seed(1)
    model = Transformer(options).to(options.device, getattr(torch, dtype))
    if jitter:
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + jitter * torch.randn_like(weight))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(2)
    text = torch.randint(options.words, (16, options.batch, options.length + 1), device=options.device)
    losses, began = [], 0.0
    for step in range(steps):
        if step == min(WARM_UP, steps - 1):
            synchronize(options.device)
            began = time.perf_counter()
        words = text[step % len(text)]
        found = model(words[:, :-1])
        loss = nn.functional.cross_entropy(found.flatten(0, 1).float(), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    synchronize(options.device)
    return [float(x) for x in losses], time.perf_counter() - began


def steps_within(options: argparse.Namespace, dtype: str, seconds: float) -> int:
    """Return the steps of each run that fit into `seconds`, by the time of a few steps of torch; 0: all steps."""
    if not seconds:
        return int(options.steps)
    began = time.perf_counter()
    few = WARM_UP + 2
    _, timed = train(options, dtype, few)
    left = seconds - (time.perf_counter() - began)
    return max(min(int(options.steps), int(left / len(RUN_NAMES) / (timed / (few - WARM_UP)))), few)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure_case(options: argparse.Namespace, dtype: str, seconds: float) -> Row:
    """Train three times; return the losses and the seconds of each run, and the distances of the losses."""
    target = "torch" if options.device == "cuda" else "torch-cpu"
    steps = steps_within(options, dtype, seconds)
    runs: dict[str, tuple[list[float], float]] = {}
    for name in RUN_NAMES:
        with fmm.installed(target) if name == "fmm" else nullcontext():
            runs[name] = train(options, dtype, steps, START_JITTER[dtype] if name == "torch, nearby" else 0.0)
    first, nearby, ours = (runs[name][0] for name in RUN_NAMES)
    noise, apart = (max(abs(x - y) for x, y in zip(first, losses, strict=True)) for losses in (nearby, ours))
    return {
        "dtype": dtype,
        "losses": {name: losses for name, (losses, _) in runs.items()},
        "seconds": {name: timed for name, (_, timed) in runs.items()},
        "noise": noise,
        "apart": apart,
        "products": products_of_a_step(options, dtype, target),
    }


def products_of_a_step(options: argparse.Namespace, dtype: str, target: str) -> list[str]:
    """Return the report of the products of one step, from a separate run, since counting takes time."""
    report = begin_report()
    try:
        with fmm.installed(target):
            train(options, dtype, 1)
    finally:
        end_report()
    return str(report).splitlines()


def text_lines(row: Row) -> str:
    """Return the lines that a terminal shows for a type."""
    seconds = ", ".join(f"{name} {value:.2f} s" for name, value in row["seconds"].items())
    losses = f"largest difference of losses {row['apart']:.2e}, noise {row['noise']:.2e}"
    return "\n".join([f"{row['dtype']}: {seconds}; {losses}", *row["products"]])


def machine_named(device: str) -> Machine:
    """Return torch's current GPU ("cuda") or this CPU."""
    return machine_of("cpu" if device == "cpu" else str(torch.cuda.current_device()))


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if fmm's losses leave the noise."""
    parser = benchmark_parser("training", __doc__)
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--dtypes", default="float32,bfloat16", help="separated by commas")
    add("--seconds", type=float, default=0.0, help="for all runs together; 0: no limit")
    add("--plan", default="", help="plan of every product of fmm, however small")
    for name, default in DEFAULT_SIZES.items():
        add(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    if options.plan:
        force_plan(options.plan)
    dtypes, end = options.dtypes.split(","), time.perf_counter() + options.seconds

    def measure(dtype: str) -> Row:
        left = max(end - time.perf_counter(), 1.0) / (len(dtypes) - dtypes.index(dtype)) if options.seconds else 0.0
        return measure_case(options, dtype, left)

    machine, file = machine_named(options.device), "training.json"
    rows = run_cases(options, machine, file, dtypes, measure, text_lines, key="runs", torch=torch.__version__)
    return int(any(row["apart"] > 2 * row["noise"] for row in rows))

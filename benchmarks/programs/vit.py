"""Inference of ViT-L/16 by timm: 304 million parameters with random values, 64 images of 224 x 224."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm
import torch


def prepare(dtype: str, is_small: bool) -> tuple[Callable[[], object], Callable[[], Any]]:
    """Return the step, and the function for the logits."""
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # the rounding of the convolution would hide the errors of the products
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = "vit_tiny_patch16_224" if is_small else "vit_large_patch16_224"
    model = timm.create_model(name).to(device, getattr(torch, dtype)).eval()
    images = torch.randn(1 if is_small else 64, 3, 224, 224).to(device, getattr(torch, dtype))

    def logits() -> Any:
        with torch.inference_mode():
            return model(images)

    def step() -> float:
        return float(logits()[0, 0])  # waits for the device

    return step, lambda: logits().double().cpu().numpy()

"""Ridge regression by scikit-learn on the host: 40000 samples of 4000 features, 8 targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge


def prepare(dtype: str, is_small: bool) -> tuple[Callable[[], object], Callable[[], Any]]:
    """Return the step, and the function for the coefficients."""
    samples, features = (500, 64) if is_small else (40000, 4000)
    random = np.random.default_rng(0)
    data = random.standard_normal((samples, features)).astype(dtype)
    targets = (data[:, :8] + random.standard_normal((samples, 8))).astype(dtype)

    def step() -> Any:
        return Ridge().fit(data, targets)

    return step, lambda: step().coef_

"""Principal components by scikit-learn on the host: 50000 samples of 1000 features, 100 components."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.decomposition import PCA


def prepare(dtype: str, is_small: bool) -> tuple[Callable[[], object], Callable[[], Any]]:
    """Return the step, and the function for the singular values."""
    samples, features, rank = (2000, 64, 8) if is_small else (50000, 1000, 100)
    random = np.random.default_rng(0)
    factors = random.standard_normal((samples, rank)), random.standard_normal((rank, features))
    data = (factors[0] @ factors[1] + random.standard_normal((samples, features))).astype(dtype)

    def step() -> Any:
        return PCA(rank).fit(data)

    return step, lambda: step().singular_values_

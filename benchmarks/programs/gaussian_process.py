"""The marginal likelihood of an exact Gaussian process by GPyTorch, and its gradient: 16000 points of 8 numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import torch


class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
    """A process with a constant mean and a scaled RBF kernel."""

    def __init__(self, points: Any, values: Any, likelihood: Any) -> None:
        super().__init__(points, values, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, points: Any) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(points), self.covar_module(points))


def prepare(dtype: str, is_small: bool) -> tuple[Callable[[], object], Callable[[], Any]]:
    """Return the step, and the function for the gradients of all parameters."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    points = torch.rand(200 if is_small else 16000, 8)
    values = torch.sin(6 * points.sum(1)) + 0.1 * torch.randn(len(points))
    points, values = (x.to(device, getattr(torch, dtype)) for x in (points, values))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(points, values, likelihood).to(device, getattr(torch, dtype)).train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def step() -> float:
        model.zero_grad()
        with gpytorch.settings.fast_computations(False, False, False):  # Cholesky factors: an exact gradient
            loss = -marginal(model(points), values)
            loss.backward()
        return float(loss)

    def result() -> Any:
        step()
        return torch.stack([x.grad.double().flatten().sum() for x in model.parameters()]).cpu().numpy()

    return step, result

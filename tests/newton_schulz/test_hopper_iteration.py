"""The arrays of the iteration on a device, with launches that the host computes: addresses, padding, `out`."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from fmm.arrays.select_library import library_of
from fmm.newton_schulz.coefficients import StepCoefficients, step_coefficients
from fmm.newton_schulz.hopper_iteration import PreparedIteration
from fmm.newton_schulz.hopper_launches import Stack, group_steps_into_pairs, iteration_launches
from tests.support.newton_schulz import expected_result

torch = pytest.importorskip("torch")


class HostLaunches:
    """Computes the steps of a float16 stack in host memory at the addresses of the launches."""

    def __init__(self, stack: Stack, coefficients: tuple[StepCoefficients, ...]) -> None:
        self.units = group_steps_into_pairs(stack, coefficients, 132)
        launches = iteration_launches(stack, self.units, 132)
        assert launches is not None
        self.workspace, self.stack = launches.workspace, stack

    def launch_all(self, addresses: Any, stream: int) -> None:
        shape = self.stack.count, self.stack.rows, self.stack.cols
        x, y = (self._memory(address, shape) for address in (addresses[0], addresses[2]))
        self._memory(addresses[3], (self.workspace // 2,))[:] = np.nan  # the complete workspace is writable
        for unit in self.units:
            wide = x.astype(np.float32)
            for a, b, c in unit:
                gram = wide @ wide.swapaxes(1, 2)
                wide = a * wide + b * (gram @ wide) + c * (gram @ (gram @ wide))
            y[:] = wide
            x, y = y, x

    def _memory(self, address: int, shape: tuple[int, ...]) -> Any:
        numbers = (ctypes.c_uint16 * int(np.prod(shape))).from_address(address)
        return np.ctypeslib.as_array(numbers).view(np.float16).reshape(shape)


@pytest.mark.parametrize("steps", [4, 5])
@pytest.mark.parametrize("shape", [(16, 24), (24, 16), (3, 8, 16), (2, 2, 16, 8), (13, 21), (3, 21, 13)])
def test_results_and_out(shape: tuple[int, ...], steps: int) -> None:
    coefficients = step_coefficients("polar-express", steps)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).half()
    rows, cols = (-(-side // 8) * 8 for side in shape[-2:])
    stack = Stack(x[..., 0, 0].numel(), rows, cols, "float16")
    launches = HostLaunches(stack, coefficients)
    iteration = PreparedIteration(stack, len(launches.units), launches)
    library: Any = library_of(x, x)
    expected = expected_result(x.numpy(), steps, "polar-express")

    def check(found: Any) -> None:
        assert found.shape == x.shape and found.dtype == x.dtype
        assert np.abs(found.numpy() - expected).max() < 0.02

    check(iteration.run(library, x, None, None, 0))
    strided = torch.full((*shape[:-1], 2 * shape[-1]), np.nan).half()[..., ::2]
    for out in (torch.full_like(x, np.nan), strided, x.clone()):
        version = out._version
        assert iteration.run(library, x, None, out, 0) is out
        check(out)
        assert out._version > version
    kept = x.clone()
    assert iteration.run(library, kept, None, kept, 0) is kept
    check(kept)
    check(iteration.run(library, x.mT.contiguous().mT, None, None, 0))
    norm = float(torch.linalg.vector_norm(x.float(), dim=(-2, -1)).max())
    found = iteration.run(library, x, norm, None, 0)
    scaled = x.double() / norm
    assert np.abs(found.numpy() - bounded_result(scaled.numpy(), coefficients)).max() < 0.02


def bounded_result(y: Any, coefficients: tuple[StepCoefficients, ...]) -> Any:
    for a, b, c in coefficients:
        gram = y @ y.swapaxes(-1, -2)
        y = a * y + b * gram @ y + c * gram @ gram @ y
    return y

"""Products by cached plans without a device: which functions the second of two equal calls runs.

`python -m tests.support.planned_gemms cupy` prints one line of JSON for fmm.gemm of CuPy arrays, `torch` for fmm.gemm
of tensors, and `hook` for torch's operators while fmm is installed. CuPy is made of NumPy, the tensors are
on the host, and launches are only counted. Each call runs twice: the first one is checked, prepared and cached, and
the second one must pass the same addresses to the same prepared call.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from tests.support import short_ways  # replaces CuPy before fmm is loaded
from tests.support.numpy_cupy import allocated

import fmm  # isort: skip
from fmm.arrays.cupy_library import CUPY
from fmm.arrays.library import Library
from fmm.runtime import gemm, matmul, run_device
from fmm.runtime.decisions import limits
from tests.support.own_calls import called_functions

SIDE = 1000
# Only calls that are not cached run these functions.
FULL_PATHS = {"fmm.request.check_gemm", "fmm.integrations.torch_answers._compute_or_decline"}
EMULATION = "FMM_EMULATION"
Call = Callable[..., object]
NamedCalls = Callable[[Callable[..., Any]], Iterator[tuple[str, Call]]]


def torch_on_device() -> tuple[Library, Call]:
    """Let the adapter for CUDA tensors multiply tensors on the host; return the adapter, and torch.from_numpy."""
    import torch

    from fmm.arrays import select_library, torch_library
    from fmm.runtime.torch_autograd import functions

    library = torch_library.TORCH
    own = torch_library.TorchLibrary.allocate_arrays

    def allocate_arrays(self: Any, *arguments: Any) -> Any:
        p, q, r, workspace, *rest = own(self, *arguments)
        return p, q, r & -512, workspace & -512, *rest  # aligned as torch aligns memory on a device

    for owner, name, value in (
        (functions, "torch_library_of", lambda x: library),
        (torch_library, "_missing_cupy_reason", lambda: ""),
        (torch_library.TorchLibrary, "current_stream", lambda self, device: (0, None)),
        (torch_library.TorchLibrary, "free_bytes", lambda self, number: 1 << 36),
        (torch_library.TorchLibrary, "allocate_arrays", allocate_arrays),
    ):
        setattr(owner, name, value)
    select_library._load_torch_library()
    return library, torch.from_numpy


# ---- the calls


def equal_calls(wrap: Call) -> Iterator[tuple[str, Call]]:
    """Calls whose plans are cached."""
    a, b, c, out = square_arrays(wrap)
    row: Any = wrap(allocated(SIDE, np.float32))
    yield "a product", lambda: fmm.gemm(a, b)
    yield "a factor", lambda: fmm.gemm(a, b, alpha=2.5)
    yield "a place", lambda: fmm.gemm(a, b, out=out)
    yield "an addend", lambda: fmm.gemm(a, b, c, beta=1)
    yield "an addend as a row", lambda: fmm.gemm(a, b, row, beta=1)
    yield "an addend and a place", lambda: fmm.gemm(a, b, c, alpha=-1, beta=0.5, out=out)
    yield "its addend as place", lambda: fmm.gemm(a, b, c, beta=1, out=c)
    yield "a transpose", lambda: fmm.gemm(a, b, transpose_a="T")
    yield "two transposes", lambda: fmm.gemm(a, b, transpose_a="C", transpose_b=True)
    yield "one array twice", lambda: fmm.gemm(a, a)


def other_calls(wrap: Call) -> Iterator[tuple[str, Call]]:
    """Calls that differ from a cached call in one property."""
    a, b, c, out = square_arrays(wrap)
    fmm.gemm(a, b)
    cached: list[dict[str, Any]] = [{}, {"out": c}]
    for options in cached * 2:
        fmm.gemm(a, b, alpha=2, **options)
        fmm.gemm(a, b, c, alpha=2, beta=1, **options)
    yield "another factor", lambda: fmm.gemm(a, b, alpha=3)
    yield "a factor of another type", lambda: fmm.gemm(a, b, alpha=2.0)
    yield "another memory order", lambda: fmm.gemm(a, b.T, alpha=2)
    yield "one array twice", lambda: fmm.gemm(a, a, alpha=2)
    yield "an operand as place", lambda: fmm.gemm(a, b, alpha=2, out=a)
    yield "another addend than the place", lambda: fmm.gemm(a, b, out, alpha=2, beta=1, out=c)
    moved: Any = wrap(allocated(SIDE * SIDE + 1, np.float32)[1:].reshape(SIDE, SIDE))
    yield "an unaligned addend", lambda: fmm.gemm(a, b, moved, alpha=2, beta=1)
    if type(a).__module__ == "torch":
        yield from torch_calls(a, b)
    yield "another setting", lambda: with_variable(lambda: fmm.gemm(a, b))


def torch_calls(a: Any, b: Any) -> Iterator[tuple[str, Call]]:
    """Calls for which torch computes or records more than the product."""
    import torch

    x = a.clone().requires_grad_()
    yield "gradients", lambda: fmm.gemm(x, b, alpha=2)
    yield "gradients of the addend", lambda: fmm.gemm(a, b, x, alpha=2, beta=1)
    yield "a negative view", lambda: fmm.gemm(torch._neg_view(a), b, alpha=2)
    yield "deterministic", lambda: with_determinism(torch, lambda: fmm.gemm(a, b, alpha=2))


def square_arrays(wrap: Call) -> list[Any]:
    return [wrap(allocated((SIDE, SIDE), np.float32)) for _ in range(4)]


def with_variable(call: Call) -> None:
    os.environ[EMULATION] = "0"
    try:
        call()
    finally:
        del os.environ[EMULATION]


def with_determinism(torch: ModuleType, call: Call) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        call()
    finally:
        torch.use_deterministic_algorithms(False)


# ---- torch's operators


def hook_on_device() -> tuple[Library, Call]:
    """Install fmm below torch's operators, with the adapter for CUDA tensors for tensors on the host."""
    from fmm.integrations import torch_install
    from fmm.integrations.torch_kernels import HookedDeviceLibrary

    library, wrap = torch_on_device()
    vars(torch_install)["HookedHostLibrary"] = HookedDeviceLibrary
    torch_install.install_at_key("CPU", compiled=False)
    return library, wrap


def equal_operators(wrap: Call) -> Iterator[tuple[str, Call]]:
    import torch

    a, b, c, out = square_arrays(wrap)
    row: Any = wrap(allocated(SIDE, np.float32))
    yield "mm", lambda: torch.mm(a, b)
    yield "@", lambda: a.T @ b
    yield "mm into a place", lambda: torch.mm(a, b, out=out)
    yield "bmm", lambda: torch.bmm(a[None], b[None])
    yield "addmm", lambda: torch.addmm(c, a, b)
    yield "addmm of a row", lambda: torch.addmm(row, a, b, beta=0.5, alpha=2)
    yield "addmm into a place", lambda: torch.addmm(c, a, b, out=out)
    yield "addmm in place", lambda: c.addmm_(a, b)


def other_operators(wrap: Call) -> Iterator[tuple[str, Call]]:
    import torch

    from fmm.integrations.report import begin_report, end_report

    a, b, c, out = square_arrays(wrap)
    for _ in range(2):
        torch.mm(a, b)
        torch.addmm(c, a, b)
        torch.mm(a, b, out=out)

    def reported() -> None:
        begin_report()
        try:
            torch.mm(a, b)
        finally:
            end_report()

    moved: Any = wrap(allocated(SIDE * SIDE + 1, np.float32)[1:].reshape(SIDE, SIDE))
    yield "another factor", lambda: torch.addmm(c, a, b, alpha=3)
    yield "an unaligned addend", lambda: torch.addmm(moved, a, b)
    yield "an operand as place", lambda: torch.mm(a, b, out=a)
    yield "deterministic", lambda: with_determinism(torch, lambda: torch.mm(a, b))
    yield "a report", reported
    yield "another setting", lambda: with_variable(lambda: torch.mm(a, b))


CALLS: dict[str, tuple[Callable[[], tuple[Library, Call]], NamedCalls, NamedCalls]] = {
    "cupy": (lambda: (CUPY, short_ways.cupy.ndarray), equal_calls, other_calls),
    "torch": (torch_on_device, equal_calls, other_calls),
    "hook": (hook_on_device, equal_operators, other_operators),
}


# ---- what they pass on


@contextmanager
def passed_arguments(library: Any) -> Iterator[list[Any]]:
    """Yield a list of the arguments of each plan that runs, with arrays as addresses and shapes."""
    found: list[Any] = []
    own = matmul.run_with_fallback

    def described(x: Any) -> Any:
        return None if x is None else (library.data_pointer(x), *library.describe_operand(x))

    def run(adapter: Any, call: Any, a: Any, b: Any, out: Any, constraints: Any, addend: Any = None) -> Any:
        found.append((id(call), *map(described, (a, b, out, addend)), constraints))
        return own(adapter, call, a, b, out, constraints, addend)

    vars(gemm)["run_with_fallback"] = vars(matmul)["run_with_fallback"] = run
    try:
        yield found
    finally:
        vars(gemm)["run_with_fallback"] = vars(matmul)["run_with_fallback"] = own


def count_launch(*arguments: Any, **options: Any) -> None:
    """Replace the launches of a call: only the functions before the launches are counted."""


def main(name: str) -> int:
    short_ways.patch()
    vars(run_device)["StreamCall"].run_at_addresses = count_launch
    vars(limits)["FREE_MEMORY_SECONDS"] = 1e9  # no cached call expires, however busy the machine is
    prepare, equal, other = CALLS[name]
    library, wrap = prepare()
    found: dict[str, Any] = {"equal": {}, "other": {}}
    for title, call in equal(wrap):
        with passed_arguments(library) as passed:
            is_first_checked = not FULL_PATHS.isdisjoint(called_functions(call))
            call()
        found["equal"][title] = {
            "is_first_checked": is_first_checked,
            "functions": called_functions(call),
            "is_same": len(passed) == 2 and passed[0] == passed[1],
        }
    for title, call in other(wrap):
        found["other"][title] = not FULL_PATHS.isdisjoint(called_functions(call))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

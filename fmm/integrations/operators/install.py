"""torch's products below autograd, on CUDA devices or on the host, by fmm: what installs that, and what undoes it.

A kernel of ours stands at the dispatcher's key of the device, and torch's own is kept: it answers whatever no plan
makes faster. Gradients, nn.Linear, mixed precision, checkpoints, sharded tensors and the like come down to these
operators, and so need nothing of fmm. In front stands a hook in C++ (compiled_hook.cpp), which declines small products
without asking Python; where it cannot be compiled, one in Python does the same in some microseconds.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from fmm.integrations.operators import compiled_hook
from fmm.integrations.operators.answers import Answers
from fmm.integrations.operators.dispatcher import install_compiled, install_python
from fmm.integrations.operators.own_kernels import HookedDevice, HookedHost, own_kernels, with_vendor_passing
from fmm.integrations.places import CannotInstallError, Undo


def install_on_cuda() -> Undo:
    """Nothing of this touches a device: processes that only start others are not to have contexts there, nor are those
    that fork."""
    if torch.cuda.device_count() == 0:
        raise CannotInstallError("this torch finds no CUDA device (its products on the host: 'torch-cpu')")
    if find_spec("cupy") is None:
        raise CannotInstallError("fmm's kernels need CuPy: pip install 'fmm-tune[cuda13]' (or cuda12)")
    return install_at("CUDA")


def install_on_host() -> Undo:
    return install_at("CPU")


def install_at(key: str, compiled: bool = True) -> Undo:
    """At this key of the dispatcher, with the hook in C++ if it can be had; CannotInstallError, and nothing changed."""
    kernels = own_kernels(key)
    hook = compiled_hook.loaded_hook() if compiled else None
    answers = Answers(HookedDevice(kernels) if key == "CUDA" else HookedHost(kernels), hook)
    return with_vendor_passing(install_compiled(answers, key) if hook else install_python(answers, key))

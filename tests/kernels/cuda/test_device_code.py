"""The CUDA headers: each is complete by itself."""

from __future__ import annotations

from importlib import resources

import pytest

from fmm.kernels.cuda.device_code.entry_source import inline_headers
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import ARCHITECTURES, CPP17, compile_cuda

FROM_AMPERE_ON = tuple(x for x in ARCHITECTURES if x != "sm_75")  # asynchronous copies, and reductions of a warp

# Those that need more than the oldest architecture: what a copy engine and warpgroups that multiply are asked.
NEEDS = {
    "cluster_mail.cuh": ("sm_90", "sm_100"),
    "lu_panel.cuh": ("sm_90", "sm_100"),
    "gemm_tma.cuh": ("sm_90", "sm_100"),
    "ptx_tma.cuh": ("sm_90", "sm_100"),
    "gemm_wgmma.cuh": ("sm_90a",),
    "gemm_f16x3.cuh": ("sm_90a",),
    "gemm_f16x3_mma.cuh": FROM_AMPERE_ON,
    "f16x3_result.cuh": FROM_AMPERE_ON,
    "f16_planes.cuh": ("sm_90", "sm_100"),
    "f16_spread.cuh": ("sm_90", "sm_100"),
}
NOBODY_USES_IT = "--diag-suppress=177"  # of a constant: no kernel stands behind the header
HEADERS = sorted(x.name for x in resources.files("fmm.kernels.cuda.device_code").iterdir() if x.name.endswith(".cuh"))


HOPPER_FIRST = {name: sorted(NEEDS.get(name, ARCHITECTURES), key="sm_90".__ne__) for name in HEADERS}


@pytest.mark.parametrize(
    ("name", "architecture"),
    quick_and_slow(
        [(name, known[0]) for name, known in HOPPER_FIRST.items()],
        [(name, a) for name, known in HOPPER_FIRST.items() for a in known[1:]],
    ),
)
def test_a_header_compiles_alone(name: str, architecture: str) -> None:
    """A header includes all that it uses, so that an editor can parse it and it needs no other include."""
    log, _ = compile_cuda(inline_headers(f'#include "{name}"\n'), architecture, *CPP17, NOBODY_USES_IT)
    assert not log


def test_a_header_is_put_in_place_once() -> None:
    """A header that several others include appears once."""
    text = inline_headers("".join(f'#include "{name}"\n' for name in HEADERS))
    assert "#include" not in text and "#pragma once" not in text
    for name in HEADERS:
        first = inline_headers(f'#include "{name}"\n').splitlines()[0]
        assert text.count(first) == 1, name

"""Kernels by a warp's matrix instructions compiled for the host: copies and instructions are emulated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, header_text
from fmm.kernels.cuda.launch_list import Launch
from tests.support.host_compiler import header, required_compiler, shared_library
from tests.support.host_launch import launch_words, parameter_words
from tests.support.tiled_on_host import DRIVER, scheduler
from tests.support.warpgroups_on_host import FLAGS, FMA

Array = np.ndarray[Any, Any]
NO_CLUSTERS = (
    "namespace fmm { int cluster_rank(); void cluster_sync(); template <class T> T load_remote(const T*, int); }"
)
MEMORY = r"extern __shared__ __align__\(128\) char memory\[\];"


def for_the_host(source: str) -> str:
    """Return a kernel's source with host functions in place of GPU instructions."""
    text, found = re.subn(MEMORY, "char* const memory = fmm::shared_begin();", source)
    assert found == 1
    before = header("sum_host.h").replace("static Dim block", "extern Dim block")
    before = before.replace("#define __shared__ static", "#define __shared__") + "\n#define __align__(x)\n"
    hosts = ("f16_host.h", "emulated_block.h", "warp_collectives.h", "mma_ptx.h")
    text = _replaced(text, "ptx_mma.cuh", "")
    text = _replaced(text, "cluster.cuh", NO_CLUSTERS) if "cluster_rank" in text else text
    text = _replaced(text, "whole_bytes.cuh", FMA + header("whole_bytes.h")) if "dot_bytes" in text else text
    return before + "".join(map(header, hosts)) + text


def _replaced(text: str, name: str, by: str) -> str:
    own = header_text(name).replace("#pragma once\n", "", 1)
    assert text.count(own) == 1, name
    return text.replace(own, by)


@cache
def compiled(source: str, threads: int) -> Any:
    required_compiler()
    scheduler()
    params = re.search(r"const __grid_constant__ ([\w:<>, ]+) p\)", source)
    assert params is not None
    driver = DRIVER.format(params=params[1], threads=threads, entry=ENTRY_NAME)
    return shared_library(for_the_host(source) + driver, FLAGS)


def play(launch: Launch, memory: Mapping[str, Array]) -> None:
    """Run one launch on these arrays."""
    words = parameter_words(launch.parameters, launch.slots, memory)
    launch_words(compiled(launch.kernel.cuda_source, launch.kernel.threads).launch, words, launch.grid[0], 1)

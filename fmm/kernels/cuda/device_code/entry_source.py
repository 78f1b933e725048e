"""Generate the CUDA source of a kernel: headers of this folder, and a short entry point that calls their functions.

The compiler gets one text that contains all headers. The cache of compiled kernels on disk uses the complete text as
the key, so kernels are compiled again after a header has changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib import resources

ENTRY_NAME = "fmm_tile"  # entry point of product kernels, and of kernels that convert a product's operands or result
EntryBody = str | Sequence[str]  # body of an entry point: a statement (written on one line), or a list of lines
_INCLUDE_PATTERN = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)


def entry_source(
    parameters: str,
    body: EntryBody,
    header: str,
    bounds: Sequence[object],
    *,
    clusters: int = 0,
    before: Iterable[str] = (),
    entry: str = ENTRY_NAME,
) -> str:
    """Return the complete CUDA source of a kernel with one parameter `p`, a struct of type `parameters`.

    `body` is the body of the entry point. `before` holds the lines between the header and the entry point. `bounds`
    holds the arguments of `__launch_bounds__`: the number of threads of a thread block, and optionally the smallest
    number of thread blocks on a multiprocessor. `clusters` is the number of thread blocks in a cluster; with 0, the
    kernel uses no clusters.
    """
    return source_with_headers(
        header, [*before, *entry_point_lines(parameters, body, bounds, clusters=clusters, entry=entry)]
    )


def entry_point_lines(
    parameters: str, body: EntryBody, bounds: Sequence[object], *, clusters: int = 0, entry: str = ENTRY_NAME
) -> tuple[str, ...]:
    """Return the lines of one entry point; the arguments mean the same as in `entry_source`."""
    cluster = f"__cluster_dims__({clusters}, 1, 1) " if clusters else ""
    attributes = f'extern "C" __global__ void {cluster}__launch_bounds__({", ".join(map(str, bounds))})'
    signature = f"{entry}(const __grid_constant__ {parameters} p) {{"
    if isinstance(body, str):
        return attributes, f"{signature} {body} }}"
    return attributes, signature, *(line if line.startswith("#") else f"    {line}" for line in body), "}"


def source_with_headers(header: str, lines: Iterable[str]) -> str:
    """Return the text of a header and of its included headers, followed by the source lines `lines`."""
    return inline_headers("\n".join([f'#include "{header}"', "", *lines]) + "\n")


@lru_cache(maxsize=512)
def inline_headers(text: str) -> str:
    """Return the source with each header's text in place of its first `#include`, and no later includes."""
    seen: set[str] = set()

    def header_text_once(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        return _INCLUDE_PATTERN.sub(header_text_once, header_text(name).replace("#pragma once\n", "", 1))

    return _INCLUDE_PATTERN.sub(header_text_once, text)


@cache
def header_text(name: str) -> str:
    """Return the text of one header of this folder."""
    return (resources.files("fmm.kernels.cuda.device_code") / name).read_text(encoding="utf-8")

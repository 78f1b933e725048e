"""CUDA source of a kernel: a header of this folder, and an entry point of a few lines that calls the header.

The compiler gets one text with all headers in place. The key of CuPy's disk cache is the text of the source, so that an
edited header is compiled again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib import resources

ENTRY_NAME = "fmm_tile"  # name of the entry point of products, and of the kernels that run before and after them
EntryBody = str | Sequence[str]  # code of an entry point: one call, written on the entry point's line, or several lines
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
    """Return the whole CUDA source of a kernel with one parameter `p`, a struct of type `parameters`.

    `body` is the body of the entry point, and `before` the lines in front of it. `bounds` are the arguments of
    `__launch_bounds__`: threads of a thread block, then optionally the least number of thread blocks on a
    multiprocessor. `clusters` is the number of thread blocks in a cluster, 0 for none.
    """
    return source_with_headers(
        header, [*before, *entry_point_lines(parameters, body, bounds, clusters=clusters, entry=entry)]
    )


def entry_point_lines(
    parameters: str, body: EntryBody, bounds: Sequence[object], *, clusters: int = 0, entry: str = ENTRY_NAME
) -> tuple[str, ...]:
    """Return the lines of one entry point; the arguments are those of `entry_source`."""
    cluster = f"__cluster_dims__({clusters}, 1, 1) " if clusters else ""
    attributes = f'extern "C" __global__ void {cluster}__launch_bounds__({", ".join(map(str, bounds))})'
    signature = f"{entry}(const __grid_constant__ {parameters} p) {{"
    if isinstance(body, str):
        return attributes, f"{signature} {body} }}"
    return attributes, signature, *(line if line.startswith("#") else f"    {line}" for line in body), "}"


def source_with_headers(header: str, lines: Iterable[str]) -> str:
    """Return the text of a header and of all headers that it includes, followed by these lines."""
    return inline_headers("\n".join([f'#include "{header}"', "", *lines]) + "\n")


@lru_cache(maxsize=512)
def inline_headers(text: str) -> str:
    """Return a source in which the text of each header replaces the first `#include` of that header."""
    seen: set[str] = set()

    def header_once(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        return _INCLUDE_PATTERN.sub(header_once, header_text(name).replace("#pragma once\n", "", 1))

    return _INCLUDE_PATTERN.sub(header_once, text)


@cache
def header_text(name: str) -> str:
    """Return the text of one header of this folder."""
    return (resources.files("fmm.kernels.cuda.device_code") / name).read_text(encoding="utf-8")

"""The CUDA source of a kernel: a header of this folder, and the entry point that calls what the header has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fmm.kernels.cuda.device_code.read import with_headers

ENTRY = "fmm_tile"  # the entry point of products, and of what is done before and after them
Body = str | Sequence[str]  # one call, which stands in the line of its entry point, or lines


def entry_source(
    parameters: str,
    body: Body,
    header: str,
    bounds: Sequence[object],
    *,
    clusters: int = 0,
    before: Iterable[str] = (),
    entry: str = ENTRY,
) -> str:
    """The whole CUDA source of a kernel that is given a struct `p` of the type `parameters`, and calls a header.

    `bounds`: threads of a thread block, and then how many such a multiprocessor must have room for; `clusters`: thread
    blocks of a cluster, 0 for none; `before`: lines in front of the kernel.
    """
    return whole_source(header, [*before, *entry_lines(parameters, body, bounds, clusters=clusters, entry=entry)])


def entry_lines(
    parameters: str, body: Body, bounds: Sequence[object], *, clusters: int = 0, entry: str = ENTRY
) -> tuple[str, ...]:
    """The lines of one entry point."""
    cluster = f"__cluster_dims__({clusters}, 1, 1) " if clusters else ""
    attributes = f'extern "C" __global__ void {cluster}__launch_bounds__({", ".join(map(str, bounds))})'
    signature = f"{entry}(const __grid_constant__ {parameters} p) {{"
    if isinstance(body, str):
        return attributes, f"{signature} {body} }}"
    return attributes, signature, *(line if line.startswith("#") else f"    {line}" for line in body), "}"


def whole_source(header: str, lines: Iterable[str]) -> str:
    """These lines behind a header, which stands in the place of its name, and so do those that it includes."""
    return with_headers("\n".join([f'#include "{header}"', "", *lines]) + "\n")

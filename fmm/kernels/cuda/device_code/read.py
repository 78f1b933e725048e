"""The CUDA headers of this folder, and the text of a source with its headers in place."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib import resources

_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)


@cache
def header_text(name: str) -> str:
    """The text of one header."""
    return (resources.files("fmm.kernels.cuda.device_code") / name).read_text(encoding="utf-8")


@lru_cache(maxsize=512)
def with_headers(text: str) -> str:
    """A source with each of our headers in the place where it is included first.

    The compiler is given one text: what CuPy keeps on disk is known by that text, so an edited header is compiled anew.
    """
    seen: set[str] = set()

    def put_in_place(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        return _INCLUDE.sub(put_in_place, header_text(name).replace("#pragma once\n", "", 1))

    return _INCLUDE.sub(put_in_place, text)

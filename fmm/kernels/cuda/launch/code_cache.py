"""Machine code that NVRTC was asked for past CuPy: kept on disk, in the folder where CuPy keeps what it compiles."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

DIGEST = hashlib.sha256().digest_size  # bytes in front of the code, by which a damaged file is known


def cache_folder() -> Path:
    """The folder where CuPy keeps its own, wherever the user told it to be."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache"))


def cached_code(inputs: tuple[str, ...], compile_code: Callable[[], bytes]) -> bytes:
    """The machine code that `compile_code` makes, or that it once made: `inputs` say all that it depends on.

    A damaged file is as good as none, and a folder that cannot be written to is no error: then it is compiled anew.
    """
    path = cache_folder() / f"fmm-{hashlib.sha256(chr(0).join(inputs).encode()).hexdigest()}.cubin"
    with suppress(OSError):
        content = path.read_bytes()
        digest, code = content[:DIGEST], content[DIGEST:]
        if hashlib.sha256(code).digest() == digest:
            return code
    code = compile_code()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix="fmm-", delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        Path(file.name).replace(path)  # at once: another process finds a whole file, or none
    return code

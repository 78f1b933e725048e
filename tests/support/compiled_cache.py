"""A folder of compiled files, under a hash of everything that they were made from: each source is compiled
once. Tests in several processes share it, and so does the next run; `make clean` empties it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support import ROOT

FOLDER = Path(os.environ.get("FMM_TEST_CACHE") or ROOT / ".test-cache")


def cached_file(name: str, inputs: tuple[str, ...], make: Callable[[Path], None]) -> Path:
    """Return the path of a file that `make` writes, once for the same `inputs`: everything that its content
    depends on."""
    digest = hashlib.sha256("\0".join((name, *inputs)).encode()).hexdigest()
    path = FOLDER / digest[:32] / name
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=FOLDER) as folder:
            made = Path(folder) / name
            make(made)
            path.parent.mkdir(exist_ok=True)
            made.replace(path)  # atomic: another process finds the whole file or none
    return path

"""The cache of compiled machine code on disk: a damaged or missing folder costs a compilation, never an error."""

from __future__ import annotations

import errno
import importlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

INPUTS = ("13.0", "sm_90a", "source")


COMPILE = "fmm.kernels.cuda.launch.compile"


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that compiles, imported with a mock of CuPy."""
    for name in ("cupy", "cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.api", "cupy_backends.cuda.libs"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.delitem(sys.modules, COMPILE, raising=False)
    yield importlib.import_module(COMPILE)
    sys.modules.pop(COMPILE, None)


@pytest.fixture
def cached_code(compiling: Any) -> Callable[..., bytes]:
    return compiling.cached_code  # type: ignore[no-any-return]


class Compiler:
    """Counts its work."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> bytes:
        self.times += 1
        return b"code"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_is_cupys(folder: Path, compiling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiling.cache_folder() == folder
    monkeypatch.delenv("CUPY_CACHE_DIR")
    assert compiling.cache_folder() == Path.home() / ".cupy" / "kernel_cache"


def test_code_is_compiled_once_for_what_it_depends_on(folder: Path, cached_code: Callable[..., bytes]) -> None:
    compiler = Compiler()
    assert [cached_code(INPUTS, compiler) for _ in range(3)] == [b"code"] * 3
    assert compiler.times == 1
    for other in (("13.1", *INPUTS[1:]), (*INPUTS, "--option"), INPUTS[:2]):
        cached_code(other, compiler)
    assert compiler.times == 4 and len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 32 + b"code"])
def test_a_damaged_file_is_made_anew(damage: bytes, folder: Path, cached_code: Callable[..., bytes]) -> None:
    compiler = Compiler()
    cached_code(INPUTS, compiler)
    (file,) = folder.iterdir()
    file.write_bytes(damage)
    assert cached_code(INPUTS, compiler) == b"code" and compiler.times == 2
    assert cached_code(INPUTS, compiler) == b"code" and compiler.times == 2


def test_a_failed_write_leaves_no_file(
    folder: Path, cached_code: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", fail)
    assert cached_code(INPUTS, Compiler()) == b"code" and not list(folder.iterdir())


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_users_share_a_folder_as_their_umask_permits(
    umask: int, mode: int, folder: Path, cached_code: Callable[..., bytes]
) -> None:
    before = os.umask(umask)
    try:
        cached_code(INPUTS, Compiler())
    finally:
        os.umask(before)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path, cached_code: Callable[..., bytes]) -> None:
    folder.write_text("a file, and no folder")
    compiler = Compiler()
    assert [cached_code(INPUTS, compiler) for _ in range(2)] == [b"code"] * 2
    assert compiler.times == 2

"""Machine code that is kept on disk: found again, whatever happened to the folder in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from fmm.kernels.cuda.launch.compile import cache_folder, cached_code

INPUTS = ("13.0", "sm_90a", "source")


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


def test_the_folder_is_cupys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == folder
    monkeypatch.delenv("CUPY_CACHE_DIR")
    assert cache_folder() == Path.home() / ".cupy" / "kernel_cache"


def test_code_is_compiled_once_for_what_it_depends_on(folder: Path) -> None:
    compiler = Compiler()
    assert [cached_code(INPUTS, compiler) for _ in range(3)] == [b"code"] * 3
    assert compiler.times == 1
    for other in (("13.1", *INPUTS[1:]), (*INPUTS, "--option"), INPUTS[:2]):
        cached_code(other, compiler)
    assert compiler.times == 4 and len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 32 + b"code"])
def test_a_damaged_file_is_made_anew(damage: bytes, folder: Path) -> None:
    compiler = Compiler()
    cached_code(INPUTS, compiler)
    (file,) = folder.iterdir()
    file.write_bytes(damage)
    assert cached_code(INPUTS, compiler) == b"code" and compiler.times == 2
    assert cached_code(INPUTS, compiler) == b"code" and compiler.times == 2


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    folder.write_text("a file, and no folder")
    compiler = Compiler()
    assert [cached_code(INPUTS, compiler) for _ in range(2)] == [b"code"] * 2
    assert compiler.times == 2

"""Compiled hooks: cached, and loaded only if nobody else can have written them."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fmm
from fmm.config import environment
from fmm.integrations import compiled_library, numpy_loops
from fmm.integrations.compiled_library import CannotCompileError, CLibrarySource, find_compiler
from tests.support import ROOT

needs_compiler = pytest.mark.skipif(not find_compiler()[0], reason="no C++ compiler is found")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CLibrarySource:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    return CLibrarySource("the library of a test", source, ["-shared", "-fPIC"])


def answer(loaded: ctypes.CDLL) -> int:
    return int(loaded.answer())


def cached(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "fmm").glob("*.so")
    return path


def count_compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives the compiler's path at each compilation from now on."""
    compiled: list[str] = []
    run = subprocess.run

    def counted(command: list[str], **options: object) -> object:
        compiled.append(command[0])
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counted)
    return compiled


@needs_compiler
def test_a_library_is_compiled_once(library: CLibrarySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = count_compilations(monkeypatch)
    assert answer(library.load_library()) == answer(library.load_library()) == 42 and len(compiled) == 1
    assert cached(tmp_path).stat().st_mode & 0o777 == 0o700 == cached(tmp_path).parent.stat().st_mode & 0o777
    assert not [path for path in cached(tmp_path).parent.iterdir() if path != cached(tmp_path)]


@pytest.mark.quick_cases(2)
@needs_compiler
@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign", "writable by all"])
def test_a_library_that_cannot_be_trusted_is_compiled_again(
    damage: str, library: CLibrarySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.load_library()
    path, compiled = cached(tmp_path), count_compilations(monkeypatch)
    content = path.read_bytes()
    path.unlink()  # this process has loaded the old one
    path.write_bytes({"truncated": content[:5000], "empty": b"", "foreign": b"\x7fELF"}.get(damage, content))
    path.chmod(0o777 if damage == "writable by all" else 0o700)
    assert answer(library.load_library()) == 42 and len(compiled) == 1
    assert cached(tmp_path).read_bytes() == content
    assert answer(library.load_library()) == 42 and len(compiled) == 1


@needs_compiler
def test_a_library_of_another_user_is_not_loaded(
    library: CLibrarySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.load_library()
    monkeypatch.setattr(compiled_library, "_current_user_id", lambda: 12345)
    monkeypatch.setattr(compiled_library, "_owner_of_file", lambda path: 54321)
    with pytest.raises(CannotCompileError, match="no cache folder is writable by this user alone"):
        library.load_library()
    compiled = count_compilations(monkeypatch)
    assert answer(library.load_library(needs_cache=False)) == 42 and len(compiled) == 1


@needs_compiler
def test_the_folder_is_made_private(library: CLibrarySource, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "fmm"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert answer(library.load_library()) == 42 and folder.stat().st_mode & 0o777 == 0o755


@needs_compiler
def test_a_compiler_may_have_options(library: CLibrarySource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{find_compiler()[0]} -O1 '-DX=a b'")
    assert answer(library.load_library()) == 42


def test_a_compiler_that_fails_is_an_error(library: CLibrarySource, monkeypatch: pytest.MonkeyPatch) -> None:
    for compiler, message in (("false", "compiler failed"), ("/no/such", "No such file"), ("g++ '", "CXX: No closing")):
        monkeypatch.setenv("CXX", compiler)
        with pytest.raises(OSError, match=message):
            library.load_library()
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(CannotCompileError, match="no C\\+\\+ compiler is found"):
        library.load_library()


# ---- NumPy without a compiler, or without a home


@pytest.fixture
def no_loops_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(numpy_loops, "load_compiled_loops", numpy_loops.load_compiled_loops.__wrapped__)
    environment.log_once.cache_clear()


@pytest.mark.usefixtures("no_loops_yet")
def test_without_a_compiler_matmul_stays_numpys(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    matmul, dot = np.matmul, np.dot
    with caplog.at_level(logging.WARNING, "fmm"), fmm.installed("numpy"):
        assert np.matmul is matmul and np.dot is not dot
        assert (np.ones((500, 500)) @ np.ones((500, 500)) == 500).all()
    assert np.dot is dot
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith(
        "fmm: numpy.matmul and the operator @ stay NumPy's own; fmm computes only numpy.dot and inner: "
    )


@pytest.mark.slow
@needs_compiler
def test_without_a_home_the_loops_are_compiled_for_the_process(tmp_path: Path) -> None:
    code = "import fmm, numpy; fmm.install('numpy')\n"
    code += "from fmm.integrations import numpy_loops; print(numpy_loops._installed_loops)"
    environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": "", "TMPDIR": str(tmp_path)}
    (tmp_path / "file").write_text("")
    environ["XDG_CACHE_HOME"] = str(tmp_path / "file")  # a file, in which no folder can be made
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert "CompiledLoops" in done.stdout and "stay NumPy's own" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

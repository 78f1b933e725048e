"""Shared C++ libraries with fmm's hooks for torch and NumPy; each library is compiled at its first use and cached.

A cached library is loaded only if its file has the expected digest: loading a truncated file would crash the process.
The file of a cached library must be writable by this user and root alone. A cached library with a wrong digest or with
other permissions is compiled again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fmm.kernels.long_waits import log_if_slow

COMPILE_TIMEOUT_SECONDS = 300  # time limit of a compilation in seconds
WRITABLE_BY_OTHERS_MODE = 0o022  # mode bits that let the file's group or all users write to the file


class CannotCompileError(OSError):
    """The error raised if a library can be neither loaded from the cache nor compiled."""


@dataclass(frozen=True)
class CLibrarySource:
    """A library to compile: the title in messages, the source, and the compiler options before and after the source."""

    title: str
    source: Path
    options: Sequence[str]
    libraries: Sequence[str] = ()
    version: str = ""  # version of the program that loads the library, for example torch

    def load_library(self, needs_cache: bool = True) -> ctypes.CDLL:
        """Return the cached library if its file passes all checks; else compile the library and cache it.

        If other users can write to the cache folder, no library is cached: CannotCompileError is raised, or, if
        `needs_cache` is False, the library is compiled for this process alone.
        """
        compiler = find_compiler()
        command = [*compiler, *self.options, str(self.source), *self.libraries]
        try:
            folder = private_cache_folder()
            if folder is None:
                if needs_cache:
                    raise CannotCompileError("no cache folder is writable by this user alone")
                with tempfile.TemporaryDirectory(prefix="fmm-") as temporary:
                    return self._compile_and_load(command, Path(temporary), self.source.stem)
            prefix = f"{self.source.stem}-{self._build_fingerprint(command)}"
            return self._load_cached_library(folder, prefix) or self._compile_and_load(command, folder, prefix)
        except subprocess.SubprocessError as error:
            raise CannotCompileError(str(error)) from error

    def _build_fingerprint(self, command: Sequence[str]) -> str:
        """Return a hash of the library's source, the compiler's command, the platform, and the field `version`."""
        text = "\0".join([self.version, sysconfig.get_platform(), *command]).encode() + self.source.read_bytes()
        return hashlib.sha256(text).hexdigest()[:16]

    def _load_cached_library(self, folder: Path, prefix: str) -> ctypes.CDLL | None:
        """Load the cached library if its digest is the digest in its file name; return None without such a file."""
        for path in sorted(folder.glob(f"{prefix}-*.so")):
            with suppress(OSError):
                if is_private_path(path) and path.name == f"{prefix}-{_library_digest(path)}.so":
                    return ctypes.CDLL(str(path))
                path.unlink()
        return None

    def _compile_and_load(self, command: Sequence[str], folder: Path, prefix: str) -> ctypes.CDLL:
        """Compile the library, move the complete file into the folder, and load it.

        Several processes may compile the same library at once.
        """
        if not command[0]:
            raise CannotCompileError("no C++ compiler is found")
        with (
            log_if_slow(f"{self.title} is being compiled, once for this version"),
            tempfile.TemporaryDirectory(dir=folder) as temporary,
        ):
            output = Path(temporary) / "library.so"
            done = subprocess.run(
                [*command, "-o", str(output)],
                capture_output=True,
                text=True,
                check=False,
                timeout=COMPILE_TIMEOUT_SECONDS,
            )
            if done.returncode:
                lines = done.stderr.strip().splitlines()
                raise CannotCompileError(lines[-1] if lines else "the compiler failed")
            output.chmod(0o700)
            path = folder / f"{prefix}-{_library_digest(output)}.so"
            os.replace(output, path)
        return ctypes.CDLL(str(path))


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler, from the variable CXX or the system; [""] if there is no compiler."""
    try:
        return shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or shutil.which("c++") or ""]
    except ValueError as error:
        raise CannotCompileError(f"CXX: {error}") from error


def private_cache_folder() -> Path | None:
    """Return the folder of cached libraries; None if users other than this user and root can write to the folder."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "fmm"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _owner_of_file(folder) == _current_user_id():
            folder.chmod(folder.stat().st_mode & 0o7777 & ~WRITABLE_BY_OTHERS_MODE)
        return folder if is_private_path(folder) and os.access(folder, os.W_OK) else None
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        return None


def is_private_path(path: Path) -> bool:
    """Return True if only this user and root can write the file, or create files in the folder."""
    return _owner_of_file(path) in (0, _current_user_id()) and not path.stat().st_mode & WRITABLE_BY_OTHERS_MODE


def _owner_of_file(path: Path) -> int:
    return path.stat().st_uid


def _current_user_id() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0  # Windows has no user ids


def _library_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""Replace files as a whole, and stop writing to a stdout that is closed."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path

EXIT_BROKEN_PIPE = 128 + 13  # the exit code that a shell reports for a process killed by SIGPIPE


def replace_file(path: Path, content: bytes, sync: bool = True) -> None:
    """Write a file's whole content; after any failure the file has either its old or its new content.

    Another process never reads a partial file, and a failure leaves no partial file. A new file has the permissions of
    the umask, because users may share a folder. With `sync`, the content survives a power cut.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # the system applies the umask
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if path.exists():
            os.chmod(partial, path.stat().st_mode & 0o777)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise
    if sync:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Write the folder to disk, if the system supports this, so that the new file name survives a power cut."""
    with suppress(OSError, AttributeError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def redirect_stdout_to_null() -> None:
    """Redirect stdout to os.devnull: otherwise Python writes the buffered text again when the interpreter exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

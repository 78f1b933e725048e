"""Write configs: one writer at a time replaces a file as a whole or not at all, and preserves the entries."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from fmm.config.files import read_config
from fmm.config.identity import Identity
from fmm.config.reader import ConfigError, Raw, config_text
from fmm.config.schema import Entry, empty_section, read_entry


def merge_section(path: Path, device: str, dtype: str, section: dict[str, Raw]) -> None:
    """Write a section; its entries are merged with the old section's, all other fields replace the old ones."""
    with writer_lock(path):
        _remove_leftovers(path)
        devices = _devices_in(path)
        types = devices.setdefault(device, {})
        types[dtype] = join_sections(types.get(dtype), section)
        replace_file(path, config_text(devices))


def add_entry(path: Path, identity: Identity, dtype: str, found: Entry) -> None:
    """Write one entry into a section; a missing section is created without a calibration."""
    with writer_lock(path):
        types = _devices_in(path).get(identity.key, {})
        old = types.get(dtype)
    new = old if isinstance(old, dict) else empty_section(identity.versions)
    merge_section(path, identity.key, dtype, {**new, "entries": [found.fields]})


def join_sections(old: Raw, new: dict[str, Raw]) -> dict[str, Raw]:
    """Return the new section with the old entries of other shapes, which are unverified if a version changed."""
    others: list[Entry] = []
    with suppress(ConfigError, TypeError, KeyError):
        others = [read_entry(raw, "entries") for raw in old["entries"]]
    fresh = [read_entry(raw, "entries") for raw in new["entries"]]
    replaced = {e.key for e in fresh}
    same = isinstance(old, dict) and old.get("versions") == new["versions"]
    others = [replace(e, verified=e.verified and same) for e in others if e.key not in replaced]
    joined = {**new, "entries": [e.fields for e in sorted([*others, *fresh], key=lambda e: e.key)]}
    if same and not new.get("blocks") and old.get("blocks"):  # a quick tuning does not time the block strategies
        joined["blocks"] = old["blocks"]
    return joined


def _devices_in(path: Path) -> dict[str, dict[str, Raw]]:
    """Return the devices of the file; rename a damaged file, refuse the file of a later fmm."""
    if not path.exists():
        return {}
    try:
        return read_config(path)
    except ConfigError as error:
        if "later fmm" in str(error) or not path.is_file():
            raise ConfigError(f"{path}: {error}; name another file") from None
        backup = path.with_name(path.name + ".damaged")
        os.replace(path, backup)
        print(f"fmm: {path} was damaged ({error}); it is kept as {backup.name}", file=sys.stderr)
        return {}


def replace_file(path: Path, content: str) -> None:
    """Replace a file's content as a whole: whatever fails, the file has its old content or the new one."""
    handle, name = tempfile.mkstemp(".partial", f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    _sync_folder(path.parent)


def _remove_leftovers(path: Path) -> None:
    """Remove the partial files of a killed writer; the caller has the lock, so that no other writer is at work."""
    for partial in path.parent.glob(f".{path.name}.*.partial"):
        partial.unlink(missing_ok=True)


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


def _sync_folder(folder: Path) -> None:
    """Write the folder to disk, where the system can, so that the new name survives a power cut."""
    with suppress(OSError, AttributeError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the lock that admits one writer at a time; the system releases it if the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "a+b") as file:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Writing configs: whole or not at all, one writer at a time, and nothing is lost of what others wrote."""

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
from fmm.config.reader import config_text
from fmm.config.schema import ConfigError, Entry, Raw, empty_section, read_entry


def merge_section(path: Path, device: str, dtype: str, section: dict[str, Raw]) -> None:
    """Put a section into the config: its entries beside those that are there, all else in their place."""
    with writer_lock(path):
        _remove_leftovers(path)
        devices = _devices_in(path)
        types = devices.setdefault(device, {})
        types[dtype] = joined_sections(types.get(dtype), section)
        replace_file(path, config_text(devices))


def add_entry(path: Path, identity: Identity, dtype: str, found: Entry) -> None:
    """Put one entry into a section; where there is no section, into a new one without a calibration."""
    with writer_lock(path):
        types = _devices_in(path).get(identity.key, {})
        old = types.get(dtype)
    new = old if isinstance(old, dict) else empty_section(identity.versions)
    merge_section(path, identity.key, dtype, {**new, "entries": [found.fields]})


def joined_sections(old: Raw, new: dict[str, Raw]) -> dict[str, Raw]:
    """The new section with the old one's entries for other shapes; unverified if library or driver have changed."""
    kept: list[Entry] = []
    with suppress(ConfigError, TypeError, KeyError):
        kept = [read_entry(raw, "entries") for raw in old["entries"]]
    fresh = [read_entry(raw, "entries") for raw in new["entries"]]
    known = {e.key for e in fresh}
    same = isinstance(old, dict) and old.get("versions") == new["versions"]
    kept = [replace(e, verified=e.verified and same) for e in kept if e.key not in known]
    joined = {**new, "entries": [e.fields for e in sorted([*kept, *fresh], key=lambda e: e.key)]}
    if same and not new.get("blocks") and old.get("blocks"):  # a quick tuning does not time the strategies
        joined["blocks"] = old["blocks"]
    return joined


def _devices_in(path: Path) -> dict[str, dict[str, Raw]]:
    """The devices of the file; a damaged one is put aside, one of a later fmm is not touched."""
    if not path.exists():
        return {}
    try:
        return read_config(path)
    except ConfigError as error:
        if "later fmm" in str(error) or not path.is_file():
            raise ConfigError(f"{path}: {error}; name another file") from None
        aside = path.with_name(path.name + ".damaged")
        os.replace(path, aside)
        print(f"fmm: {path} was damaged ({error}); it is kept as {aside.name}", file=sys.stderr)
        return {}


def replace_file(path: Path, content: str) -> None:
    """The old content or the new, whatever happens."""
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
    """Remove what a writer left that was killed. Nobody else's: the lock is held."""
    for partial in path.parent.glob(f".{path.name}.*.partial"):
        partial.unlink(missing_ok=True)


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


def _sync_folder(folder: Path) -> None:
    """So that the new name survives a power cut; not every system can."""
    with suppress(OSError, AttributeError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """One writer at a time; the lock goes with the process that holds it, however that ends."""
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

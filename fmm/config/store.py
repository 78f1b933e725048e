"""Write configs: a lock admits one writer at a time, and the writer replaces the whole file.

If the config already has a section for the device and type, its entries of other shapes remain in the new section.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from fmm.config.files import read_config
from fmm.config.identity import Identity, model_rejection_reasons
from fmm.config.reader import ConfigError, JsonValue, config_text
from fmm.config.schema import Entry, empty_section, read_entry
from fmm.output import replace_file

STREAM_PATHS = tuple(("/", "dev", name) for name in ("stdin", "stdout", "stderr", "fd"))


def check_writable(path: Path) -> None:
    """Raise ConfigError or OSError if no section can be written into this config; leave the config unchanged."""
    path = _link_target(path)
    with writer_lock(path), tempfile.TemporaryFile(dir=path.parent):
        _read_undamaged_devices(path)


def merge_section(path: Path, device: str, dtype: str, section: dict[str, JsonValue]) -> None:
    """Write a section into a config; keep the old section's entries of other shapes, and replace its other fields."""
    merge_sections(path, [(device, dtype, section)])


def merge_sections(path: Path, sections: Iterable[tuple[str, str, dict[str, JsonValue]]]) -> None:
    """Write all sections (device key, element type, section) into a config, as `merge_section`, or none of them."""
    with _devices_to_write(path) as devices:
        for device, dtype, section in sections:
            types = devices.setdefault(device, {})
            types[dtype] = keep_old_section_entries(types.get(dtype), section)


def add_entry(path: Path, identity: Identity, dtype: str, found: Entry) -> None:
    """Write one entry into the section of a device and type; a missing section is created without a calibration."""
    with _devices_to_write(path) as devices:
        types = devices.setdefault(identity.key, {})
        old = types.get(dtype)
        new = old if isinstance(old, dict) else empty_section(identity.versions)
        then = new.get("versions")
        if isinstance(then, dict) and not any(model_rejection_reasons(then, identity.versions)):
            new = {**new, "versions": dict(identity.versions)}  # otherwise the new entry would count as an old one
        types[dtype] = keep_old_section_entries(old, {**new, "entries": [found.json_fields]})


@contextmanager
def _devices_to_write(path: Path) -> Iterator[dict[str, dict[str, JsonValue]]]:
    """Yield the devices of a config, and write them at the end of the block; another writer waits for both."""
    path = _link_target(path)  # a symbolic link stays, and its target is written
    with writer_lock(path):
        _remove_partial_files(path)
        devices = _read_devices(path)
        yield devices
        write_file(path, config_text(devices))


def keep_old_section_entries(old: JsonValue, new: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the new section, with the old section's entries of other shapes added.

    If the version of a library or driver has changed, the added entries are marked as unverified.
    """
    others: list[Entry] = []
    with suppress(ConfigError, TypeError, KeyError):
        others = [read_entry(raw, "entries") for raw in old["entries"]]
    fresh = [read_entry(raw, "entries") for raw in new["entries"]]
    replaced = {e.entry_key for e in fresh}
    same = isinstance(old, dict) and old.get("versions") == new["versions"]
    others = [replace(e, verified=e.verified and same) for e in others if e.entry_key not in replaced]
    joined = {**new, "entries": [e.json_fields for e in sorted([*others, *fresh], key=lambda e: e.entry_key)]}
    # a quick tuning does not time the block strategies, so the old fit of the block model remains
    if same and not new.get("blocks") and old.get("blocks"):
        joined["blocks"] = old["blocks"]
    return joined


def _read_devices(path: Path) -> dict[str, dict[str, JsonValue]]:
    """Return the devices in a config file; an empty dictionary for a missing file.

    A damaged config file is renamed to *.damaged, and is then treated as missing. ConfigError is raised for the file of
    a later version of fmm.
    """
    devices, damage = _read_undamaged_devices(path)
    if damage:
        backup = path.with_name(path.name + ".damaged")
        os.replace(path, backup)
        print(f"fmm: {path} was damaged ({damage}); it is kept as {backup.name}", file=sys.stderr)
    return devices


def _read_undamaged_devices(path: Path) -> tuple[dict[str, dict[str, JsonValue]], str]:
    """Return the devices in a config file, and the damage of the file as text; both are empty for a missing file.

    ConfigError is raised for the file of a later version of fmm.
    """
    if not path.exists():
        return {}, ""
    try:
        return read_config(path), ""
    except ConfigError as error:
        if "later fmm" in str(error):
            raise ConfigError(f"{path}: {error}; name another file") from None
        return {}, str(error)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file's whole content; after any failure a regular file has either its old or its new content.

    If `path` is a symbolic link, the file that the link points to is written. A device or a pipe, such as /dev/stderr,
    is written to; only a regular file is replaced by a new file.
    """
    data = content.encode() if isinstance(content, str) else content
    if _is_device_or_pipe(path):
        with open(path, "ab") as file:
            file.write(data)
        return
    try:
        replace_file(_link_target(path), data)
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)  # the error of a full disk has no file name: add the name for the message
        raise


def _link_target(path: Path) -> Path:
    """Return the path of the file to which a symbolic link points; raise OSError for a link that points to itself."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def _is_device_or_pipe(path: Path) -> bool:
    """Return True if the path is a device, a pipe or a socket, or an open stream such as /dev/stdout.

    The result is True for an open stream even if the stream is redirected to a regular file.
    """
    with suppress(OSError):
        mode = path.stat().st_mode
        is_plain = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        return not is_plain or path.is_relative_to("/proc") or path.parts[:3] in STREAM_PATHS
    return False


def _remove_partial_files(path: Path) -> None:
    """Remove the partial files of a killed writer; the caller holds the lock, so no other writer runs."""
    for partial in path.parent.glob(f".{path.name}.*.partial"):
        partial.unlink(missing_ok=True)


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the lock that admits one writer at a time; the system releases the lock if the process ends.

    ConfigError is raised for a folder, a device or a pipe, which no config can replace.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: it is no file; name another file")
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

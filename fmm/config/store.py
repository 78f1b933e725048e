"""Writing configs: whole or not at all, one writer at a time, nothing of the others lost."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from fmm.config.files import read
from fmm.config.identity import Identity
from fmm.config.schema import SCHEMA, ConfigError, Entry, Raw, entry


def merge(path: Path, device: str, dtype: str, section: dict[str, Raw]) -> None:
    """Put a section into the config: its entries beside those that are there, all else in their place."""
    with locked(path):
        _sweep(path)
        devices = _present(path)
        types = devices.setdefault(device, {})
        types[dtype] = joined(types.get(dtype), section)
        replace_file(path, written(devices))


def add_entry(path: Path, identity: Identity, dtype: str, found: Entry) -> None:
    """Put one entry into a section; where there is none, into a new one without a calibration."""
    with locked(path):
        types = _present(path).get(identity.key, {})
        old = types.get(dtype)
    new = old if isinstance(old, dict) else empty_section(identity.versions)
    merge(path, identity.key, dtype, {**new, "entries": [asdict(found)]})


def empty_section(versions: Mapping[str, str]) -> dict[str, Raw]:
    """A section that knows nothing yet."""
    nothing: dict[str, Raw] = dict.fromkeys(("conditions", "tuned", "calibration", "intervals", "error", "thresholds"))
    return {"versions": dict(versions), **nothing, "noise": 0.0, "entries": []}


def joined(old: Raw, new: dict[str, Raw]) -> dict[str, Raw]:
    """The new section with the old one's entries for other shapes; unverified if library or driver have changed."""
    kept: list[Entry] = []
    with suppress(ConfigError, TypeError, KeyError):
        kept = [entry(raw, "entries") for raw in old["entries"]]
    fresh = [entry(raw, "entries") for raw in new["entries"]]
    known = {e.key for e in fresh}
    same = isinstance(old, dict) and old.get("versions") == new["versions"]
    kept = [replace(e, verified=e.verified and same) for e in kept if e.key not in known]
    return {**new, "entries": [asdict(e) for e in sorted([*kept, *fresh], key=lambda e: e.key)]}


def written(devices: dict[str, dict[str, Raw]]) -> str:
    """A config's text: readable, an entry a line."""
    return _spelled({"schema": SCHEMA, "devices": devices}, 0) + "\n"


def _spelled(value: Raw, depth: int) -> str:
    """JSON with objects of plain values on one line; allow_nan: a config with NaN is none."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if depth > 2 and not any(isinstance(x, dict) for x in inner):
        return json.dumps(value, allow_nan=False)
    gap, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict) and value:
        lines = [f"{json.dumps(str(name))}: {_spelled(x, depth + 1)}" for name, x in value.items()]
        return "{" + gap + f",{gap}".join(lines) + end + "}"
    if isinstance(value, list | tuple) and value:
        return "[" + gap + f",{gap}".join(_spelled(x, depth + 1) for x in value) + end + "]"
    return json.dumps(value, allow_nan=False)


def _present(path: Path) -> dict[str, dict[str, Raw]]:
    """What is there; a damaged file is put aside, one of a later fmm is not touched."""
    if not path.exists():
        return {}
    try:
        return read(path)
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


def _sweep(path: Path) -> None:
    """Remove what a killed writer left; with the lock held it is nobody's."""
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
def locked(path: Path) -> Iterator[None]:
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

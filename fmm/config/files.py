"""Files."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fmm.config.environment import RAW_NAMES, environment_value, log_once, raw_value
from fmm.config.identity import Identity
from fmm.config.reader import read_document
from fmm.config.schema import ConfigError, Raw, Tuned, read_section
from fmm.perfmodel.calibration import Calibration

LARGEST_FILE = 16 << 20


def read_config(path: Path) -> dict[str, dict[str, Raw]]:
    """The devices of a config file."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError("it is no file")
        if found.st_size > LARGEST_FILE:
            raise ConfigError(f"it is larger than {LARGEST_FILE >> 20} MiB")
        return read_document(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigError("it is not UTF-8 text") from None
    except OSError as error:
        unless = "; `fmm-tune` writes it" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"it cannot be read: {error.strerror}{unless}") from None


def current_settings() -> tuple[tuple[object, ...], Configs]:
    """What decisions depend on besides the product and the device; equal as long as they would be made alike."""
    return _circumstances_at(tuple(map(raw_value, RAW_NAMES)), int(time.monotonic()))


@lru_cache(maxsize=2)
def _circumstances_at(variables: tuple[object, ...], second: int) -> tuple[tuple[object, ...], Configs]:
    return variables, active_configs()


# ---- the configs in force


_to_be_written: set[Path] = set()


def expect_config(path: Path) -> None:
    """This process is about to write this file: until then nobody is told that it is missing or damaged."""
    _to_be_written.add(path)


class Configs:
    """The config files as they were read. Decisions are kept by this object: it is equal to no other one."""

    def __init__(self, paths: tuple[Path, ...], required: bool) -> None:
        self.files: dict[Path, dict[str, dict[str, Raw]]] = {}
        self._tuned: dict[tuple[str, str, str], Tuned | None] = {}
        for path in paths:
            try:
                if required or path.exists():
                    self.files[path] = read_config(path)
            except (ConfigError, OSError) as error:
                if path not in _to_be_written:
                    log_once(f"the config {str(path)!r} is not used: {error}")

    def tuned(self, identity: Identity, dtype: str) -> Tuned | None:
        """What the first file that knows this type on this device says."""
        key = identity.key, identity.name, dtype  # by which identities are equal: strings are looked up at once
        if key not in self._tuned:
            self._tuned[key] = self._find(identity, dtype)
        return self._tuned[key]

    def _find(self, identity: Identity, dtype: str) -> Tuned | None:
        """What the first file that knows the type says. If its model is not trusted, the model comes from the next file
        whose model is: an interrupted tuning is not to be worse than none."""
        first: Tuned | None = None
        for found in self._sections(identity, dtype):
            if first is None:
                first = found
            elif found.trusted is not None:
                for doubt in first.doubts[:1]:
                    log_once(f"the tuning of {identity.name} for {dtype} is not used: {doubt}")
                own = replace(first, calibration=found.calibration, thresholds=found.thresholds)
                failed = tuple(dict.fromkeys((*first.failed, *found.failed)))
                return replace(own, fitted=found.fitted, failed=failed, doubts=())
            if first.trusted is not None:
                return first
        return first

    def _sections(self, identity: Identity, dtype: str) -> Iterator[Tuned]:
        """What each file says of a type, where it can be read."""
        for path, devices in self.files.items():
            raw = devices.get(identity.key, {}).get(dtype)
            if raw is None:
                continue
            try:
                found = read_section(raw, f"{identity.key}.{dtype}", identity, dtype)
            except ConfigError as error:
                log_once(f"the config {str(path)!r} is not used: {error}")
                continue
            if found.changed and found.entries:
                log_once(f"{', '.join(found.changed)} since the tuning: only its model is used until `fmm-tune canary`")
            yield from_another_card(found) if path == SHIPPED else found


def from_another_card(found: Tuned) -> Tuned:
    """What ships with the package was measured on another card of that name, and says so."""
    known = found.calibration
    if known is None:
        return found
    return replace(found, calibration=replace(known, source=known.source.replace("on this device", OTHER_CARD)))


OTHER_CARD = "on another card of this name"


def shipped_model(identity: Identity, dtype: str) -> Calibration | None:
    """What ships with the package for cards of this name; None if nothing does."""
    found = Configs((SHIPPED,), False).tuned(identity, dtype)
    return None if found is None else found.trusted


def active_configs() -> Configs:
    """The configs in force; files are looked at again once a second."""
    return _configs_at(environment_value("FMM_CONFIG"), int(time.monotonic()))


def clear_config_cache() -> None:
    """Look at the files again now."""
    _circumstances_at.cache_clear()
    _configs_at.cache_clear()
    _configs_of.cache_clear()


@lru_cache(maxsize=2)
def _configs_at(given: str, second: int) -> Configs:
    paths = search_path(given)
    return _configs_of(paths, tuple(map(_file_stamp, paths)), bool(given))


@lru_cache(maxsize=2)
def _configs_of(paths: tuple[Path, ...], stamps: tuple[object, ...], required: bool) -> Configs:
    return Configs(paths, required)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file is written anew: its time, size and number. None if there is no file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


FILE = "config.json"
SHIPPED = Path(__file__).parent / FILE  # what comes with the package


def user_folder() -> Path:
    """The user's folder for fmm's configs, by the system's rules (platformdirs' too)."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "fmm"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "fmm"
    return _xdg_folder("XDG_CONFIG_HOME", Path.home() / ".config") / "fmm"


def site_folder() -> Path:
    """The folder for all users of this machine."""
    if sys.platform == "darwin":
        return Path("/Library/Application Support/fmm")
    if sys.platform == "win32":
        return Path(os.environ.get("PROGRAMDATA") or "C:/ProgramData") / "fmm"
    return _xdg_folder("XDG_CONFIG_DIRS", Path("/etc/xdg")) / "fmm"


def _xdg_folder(variable: str, default: Path) -> Path:
    found = os.environ.get(variable, "").split(os.pathsep)[0].strip()
    return Path(found) if found else default


def default_path() -> Path:
    """Where the tuner writes unless told otherwise: where the runtime looks first."""
    given = os.environ.get("FMM_CONFIG")
    return config_file(Path(given)) if given else user_folder() / FILE


def config_file(path: Path) -> Path:
    """A folder stands for the config in it; of a name that is nothing yet, its ending tells."""
    return path / FILE if path.is_dir() or not (path.suffix == ".json" or path.exists()) else path


def search_path(given: str) -> tuple[Path, ...]:
    """Where configs are looked for: in the one given alone, else the user's, the site's, the package's."""
    if given:
        return (config_file(Path(given)),)
    try:
        return user_folder() / FILE, site_folder() / FILE, SHIPPED
    except RuntimeError:  # no home
        return site_folder() / FILE, SHIPPED

"""Find and read the config files; a changed file is read again within a second.

If FMM_CONFIG names a config, no other config is read. Without FMM_CONFIG, fmm searches the user's config, the site's
config and the shipped config, in this order. No product fails because of a config: a damaged file or section is
skipped, with one line in the log.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fmm.config.environment import RAW_VARIABLE_NAMES, environment_value, log_once, raw_variable_value
from fmm.config.identity import Identity
from fmm.config.reader import ConfigError, JsonValue, read_document
from fmm.config.schema import Tuning, read_section
from fmm.perfmodel.calibration import Calibration

CONFIG_FILE_NAME = "config.json"
SHIPPED_CONFIG = Path(__file__).parent / CONFIG_FILE_NAME  # the shipped config is part of the package
MAX_FILE_BYTES = 16 << 20


# ---- paths


def default_path() -> Path:
    """Return the config file that the tuner writes by default; the runtime searches this file first."""
    named = os.environ.get("FMM_CONFIG")
    return config_file(Path(named)) if named else user_folder() / CONFIG_FILE_NAME


def search_path(named: str) -> tuple[Path, ...]:
    """Return the config files to search: the named file alone, or the user's, the site's and the shipped file."""
    if named:
        return (config_file(Path(named)),)
    try:
        return user_folder() / CONFIG_FILE_NAME, site_folder() / CONFIG_FILE_NAME, SHIPPED_CONFIG
    except RuntimeError:  # the user has no home folder
        return site_folder() / CONFIG_FILE_NAME, SHIPPED_CONFIG


def config_file(path: Path) -> Path:
    """Return the config file in the folder `path`, or `path` itself if it is a file or a new name ending in .json."""
    is_file = path.suffix == ".json" or os.path.exists(path)  # Path.exists raises an error for a path of 300 letters
    return path / CONFIG_FILE_NAME if os.path.isdir(path) or not is_file else path


def user_folder() -> Path:
    """Return the user's folder for fmm's configs, by the same rules as the package platformdirs."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "fmm"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "fmm"
    return _xdg_folder("XDG_CONFIG_HOME", Path.home() / ".config") / "fmm"


def site_folder() -> Path:
    """Return the folder of the config for all users of this machine."""
    if sys.platform == "darwin":
        return Path("/Library/Application Support/fmm")
    if sys.platform == "win32":
        return Path(os.environ.get("PROGRAMDATA") or "C:/ProgramData") / "fmm"
    return _xdg_folder("XDG_CONFIG_DIRS", Path("/etc/xdg")) / "fmm"


def _xdg_folder(variable: str, default: Path) -> Path:
    first = os.environ.get(variable, "").split(os.pathsep)[0].strip()
    return Path(first) if first else default


# ---- reading a file


def read_config(path: Path) -> dict[str, dict[str, JsonValue]]:
    """Return the devices of a config file: device key -> type -> section; ConfigError if the file cannot be read."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError("it is no file")
        if found.st_size > MAX_FILE_BYTES:
            raise ConfigError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
        return read_document(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigError("it is not UTF-8 text") from None
    except OSError as error:
        hint = "; `fmm-tune` writes it" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"it cannot be read: {error.strerror}{hint}") from None


class Configs:
    """The contents of the config files in search order; instances are compared by identity, as keys of caches."""

    def __init__(self, paths: tuple[Path, ...], required: bool) -> None:
        self.files: dict[Path, dict[str, dict[str, JsonValue]]] = {}
        self._tuned: dict[tuple[str, str, str], Tuning | None] = {}
        for path in paths:
            try:
                if required or path.exists():
                    self.files[path] = read_config(path)
            except (ConfigError, OSError) as error:
                if path not in _expected_files:
                    log_once(f"the config {str(path)!r} is not used: {error}")

    def find_tuning(self, identity: Identity, dtype: str) -> Tuning | None:
        """Return the tuning of an element type on a device from the config files; None if no file has this tuning."""
        key = identity.key, identity.name, dtype  # hashing a tuple of texts is faster than hashing an Identity
        if key not in self._tuned:
            self._tuned[key] = self._find_section(identity, dtype)
        return self._tuned[key]

    def _find_section(self, identity: Identity, dtype: str) -> Tuning | None:
        """Return the tuning of the first file that has a valid section for this device and type.

        If the model of this section is missing or not trusted, the first trusted model of a later file replaces it.

        For example, an interrupted tuning leaves a section without a model.
        """
        first: Tuning | None = None
        for found in self._valid_sections(identity, dtype):
            if first is None:
                first = found
            elif found.trusted_calibration is not None:
                for reason in first.diagnostics[:1]:
                    log_once(f"the tuning of {identity.name} for {dtype} is not used: {reason}")
                failed = tuple(dict.fromkeys((*first.failed, *found.failed)))
                own = replace(first, calibration=found.calibration, thresholds=found.thresholds)
                own = replace(own, fitted=found.fitted, strategies=found.strategies)
                return replace(own, failed=failed, diagnostics=())
            if first.trusted_calibration is not None:
                return first
        return first

    def _valid_sections(self, identity: Identity, dtype: str) -> Iterator[Tuning]:
        """Yield the tunings in the valid sections of this device and type, in the search order of the files."""
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
                until = "only its model is used until `fmm-tune verify --measure`"
                log_once(f"{', '.join(found.changed)} since the tuning: {until}")
            yield mark_measured_on_other_card(found) if path == SHIPPED_CONFIG else found


OTHER_CARD_NOTE = "on another card of this name"


def mark_measured_on_other_card(found: Tuning) -> Tuning:
    """Return the shipped tuning; the source of its calibration now says that another card of this name was measured."""
    calibration = found.calibration
    if calibration is None:
        return found
    source = calibration.source.replace("on this device", OTHER_CARD_NOTE)
    return replace(found, calibration=replace(calibration, source=source))


def shipped_model(identity: Identity, dtype: str) -> Calibration | None:
    """Return the shipped calibration for cards of this name; None if no trusted calibration is shipped."""
    found = Configs((SHIPPED_CONFIG,), False).find_tuning(identity, dtype)
    return None if found is None else found.trusted_calibration


# ---- the configs in force

_expected_files: set[Path] = set()


def suppress_missing_config_warning(path: Path) -> None:
    """Suppress warnings that this config file is missing or damaged, because this process will write the file."""
    _expected_files.add(path)


def current_settings() -> tuple[tuple[object, ...], Configs]:
    """Return the values of fmm's environment variables, and the configs: every decision depends on both."""
    return _cached_settings(tuple(map(raw_variable_value, RAW_VARIABLE_NAMES)), int(time.monotonic()))


@lru_cache(maxsize=2)
def _cached_settings(variables: tuple[object, ...], second: int) -> tuple[tuple[object, ...], Configs]:
    return variables, active_configs()


def active_configs() -> Configs:
    """Return the current configs; changed files are read again within a second."""
    return _cached_configs(environment_value("FMM_CONFIG"), int(time.monotonic()))


def clear_config_cache() -> None:
    """Clear the caches, so that the next call reads the config files again."""
    _cached_settings.cache_clear()
    _cached_configs.cache_clear()
    _read_configs.cache_clear()


@lru_cache(maxsize=2)
def _cached_configs(named: str, second: int) -> Configs:
    paths = search_path(named)
    return _read_configs(paths, tuple(map(_file_stamp, paths)), bool(named))


@lru_cache(maxsize=2)
def _read_configs(paths: tuple[Path, ...], stamps: tuple[object, ...], required: bool) -> Configs:
    return Configs(paths, required)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a file's modification time, size and inode number, which show a change; None if the file is missing."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

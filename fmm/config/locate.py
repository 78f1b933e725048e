"""Where configs are: the one that FMM_CONFIG names, else the user's, the site's, and what ships with the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
    return file_named(Path(given)) if given else user_folder() / FILE


def file_named(path: Path) -> Path:
    """A folder stands for the config in it; of a name that is nothing yet, its ending tells."""
    return path / FILE if path.is_dir() or not (path.suffix == ".json" or path.exists()) else path


def search_path(given: str) -> tuple[Path, ...]:
    """Where configs are looked for: in the one given alone, else the user's, the site's, the package's."""
    if given:
        return (file_named(Path(given)),)
    try:
        return user_folder() / FILE, site_folder() / FILE, SHIPPED
    except RuntimeError:  # no home
        return site_folder() / FILE, SHIPPED

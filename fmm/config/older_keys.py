"""Older keys: a GPU's without its name, so that an H100 and an H200 had the same. What is filed under them is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fmm.config.identity import gpu_key, gpu_parts, named_device
from fmm.config.reader import Raw


def older_key(key: str) -> str:
    """The key that an earlier fmm gave the same device."""
    parts = gpu_parts(key)
    return key if parts is None else gpu_key("", *parts)


def meant_key(given: str, known: Iterable[str]) -> str:
    """The one of these keys whose older form is given; what is given where it is one of them, or stands for several."""
    keys = tuple(known)
    found = [key for key in keys if older_key(key) == given]
    return found[0] if len(found) == 1 and given not in keys else given


def with_todays_keys(devices: Mapping[str, Mapping[str, Raw]]) -> dict[str, dict[str, Raw]]:
    """A config's devices: what is filed under an older key is of the card that it names, and where there is a section
    of that card already, nothing. What names no card stays, and is nobody's."""
    found: dict[str, dict[str, Raw]] = {}
    for key, types in devices.items():
        for dtype, section in types.items():
            now = _todays_key(key, section)
            if now == key or dtype not in devices.get(now, ()):
                found.setdefault(now, {})[dtype] = section
    return found


def _todays_key(key: str, section: Raw) -> str:
    parts = gpu_parts(key)
    return key if parts is None or key != older_key(key) else gpu_key(named_device(section), *parts)

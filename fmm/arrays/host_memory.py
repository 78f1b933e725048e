"""The host's memory: how much can still be had, and the block for workspaces that is kept from one call to the next.

What CuPy and torch have pools for on a device, fmm does itself for arrays on the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fmm.kernels.cpu.host_arrays import Array, aligned_block

GROUPS, PROCESS_GROUPS = "/sys/fs/cgroup", "/proc/self/cgroup"
UNLIMITED = 1 << 60  # from here on a limit means none: control groups of version 1 then say a number near 2^63
KEEP = 0.25  # of the machine's memory: a larger block is not kept for the next call

_idle: list[Array] = []  # one block or none, which whoever borrows it takes out: no lock is needed


def available_bytes() -> int:
    """Bytes that can be had without swapping, the kept block among them."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        free = total_bytes() // 2
    free = min([free, *(limit - used for limit, used in _groups())])
    return max(free, 0) + sum(memory.nbytes for memory in _idle)


def total_bytes() -> int:
    """Bytes of the machine, or of the container that this process runs in."""
    return min([_installed(), *(limit for limit, _ in _groups())])


def _groups() -> Iterator[tuple[int, int]]:
    """(limit, bytes used) of every control group around this process that limits its memory (Linux, version 1 or 2).

    Files that the system keeps in memory are not counted as used: it drops them when the memory is needed.
    """
    for folder, limit_name, used_name in _group_folders():
        try:
            limit = (folder / limit_name).read_text(encoding="ascii").strip()
            used = int((folder / used_name).read_text(encoding="ascii"))
            counters = (folder / "memory.stat").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            continue
        if limit.isdecimal() and int(limit) < UNLIMITED:
            dropped = dict(zip(counters[::2], counters[1::2], strict=False)).get("inactive_file", "0")
            yield int(limit), max(used - int(dropped), 0)


def _group_folders() -> list[tuple[Path, str, str]]:
    """The process's own group and all above it, each with the names of its limit and of what is used."""
    try:
        lines = Path(PROCESS_GROUPS).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers == "":
            root, names = Path(GROUPS), ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = Path(GROUPS) / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = root / path.strip("/")
        folders = [own, *own.parents]
        # Inside a container the path can be that of the host, of which nothing is seen: then the root is the group.
        found += [(folder, *names) for folder in folders[: folders.index(root) + 1] if folder.is_dir()]
    return found


def _installed() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 8 << 30  # not a POSIX system: a modest guess


@contextmanager
def borrowed_block(nbytes: int) -> Iterator[Array]:
    """A block of at least `nbytes`: the kept one if it is large enough, else a new one, which is then kept.

    Fresh pages cost about as much as a pass of additions, so a loop of products should pay for them once.
    """
    memory = _kept_block(nbytes)
    if memory is None:  # and what was kept is given back before more is asked for
        memory = aligned_block(nbytes)
    try:
        yield memory
    finally:
        if memory.nbytes <= KEEP * total_bytes():
            _idle[:] = [memory]


def _kept_block(nbytes: int) -> Array | None:
    """Taken out of what is kept; None if it is too small."""
    try:
        memory = _idle.pop()
    except IndexError:
        return None
    return memory if memory.nbytes >= nbytes else None


_releases: list[Callable[[], object]] = []


def also_released(release: Callable[[], object]) -> None:
    """Have release_workspace call `release` too."""
    _releases.append(release)


def release_workspace() -> int:
    """Free the block of memory that fmm keeps between calls; returns how many bytes it had.

    On devices only the graphs of calls that came again and again are kept; they go too.
    """
    freed = sum(memory.nbytes for memory in _idle)
    _idle.clear()
    for release in _releases:
        release()
    return freed

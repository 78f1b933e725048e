"""Host memory: the number of available bytes, and one cached allocation for workspaces.

On CUDA devices, the memory pools of CuPy and torch already cache workspaces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fmm.kernels.cpu.host_arrays import Array, aligned_block

CGROUP_ROOT, PROCESS_CGROUPS = "/sys/fs/cgroup", "/proc/self/cgroup"
UNLIMITED_BYTES = 1 << 60  # control groups of version 1 write a number near 2^63 for "no limit"
# largest cached allocation, as a fraction of the machine's memory; larger allocations are freed after the call
MAX_CACHED_SHARE = 0.25

_cached_blocks: list[Array] = []  # at most one cached allocation; a call pops it for its use, so no lock is needed


def available_bytes() -> int:
    """Return the number of bytes that can be allocated without swapping.

    The cached allocation's bytes count as free.
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        free = total_bytes() // 2
    free = min([free, *(limit - used for limit, used in _cgroup_limits())])
    return max(free, 0) + sum(memory.nbytes for memory in _cached_blocks)


def total_bytes() -> int:
    """Return the memory size in bytes of the machine, or of the container in which this process runs."""
    return min([_installed_bytes(), *(limit for limit, _ in _cgroup_limits())])


def _cgroup_limits() -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes used) of each control group that limits this process's memory (Linux, version 1 or 2).

    Cached files do not count as used, since the system drops cached files when a program needs memory.
    """
    for folder, limit_name, used_name in _cgroup_folders():
        try:
            limit = (folder / limit_name).read_text(encoding="ascii").strip()
            used = int((folder / used_name).read_text(encoding="ascii"))
            counters = (folder / "memory.stat").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            continue
        if limit.isdecimal() and int(limit) < UNLIMITED_BYTES:
            cached_files = dict(zip(counters[::2], counters[1::2], strict=False)).get("inactive_file", "0")
            yield int(limit), max(used - int(cached_files), 0)


def _cgroup_folders() -> list[tuple[Path, str, str]]:
    """Return the folders of the control groups of this process, each with the names of its limit and usage files."""
    try:
        lines = Path(PROCESS_CGROUPS).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers == "":
            root, names = Path(CGROUP_ROOT), ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = Path(CGROUP_ROOT) / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = root / path.strip("/")
        folders = [own, *own.parents]
        # If /proc shows a path that exists only outside this container, `_cgroup_folders` returns only the root folder.
        found += [(folder, *names) for folder in folders[: folders.index(root) + 1] if folder.is_dir()]
    return found


def _installed_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 8 << 30  # an assumed memory size for systems without POSIX's sysconf


@contextmanager
def borrow_cached_memory(nbytes: int) -> Iterator[Array]:
    """Yield an allocation of at least `nbytes`: the cached allocation if it is large enough, else a new one.

    The first write to newly allocated memory takes about as long as a matrix addition, so later calls reuse the
    allocation.
    """
    memory = None
    with suppress(IndexError):
        memory = _cached_blocks.pop()
    if memory is None or memory.nbytes < nbytes:
        memory = None  # the popped allocation is too small: it is freed before a larger one is allocated
        memory = aligned_block(nbytes)
    try:
        yield memory
    finally:
        if memory.nbytes <= MAX_CACHED_SHARE * total_bytes():
            _cached_blocks[:] = [memory]


_release_callbacks: list[Callable[[], object]] = []


def register_release_callback(callback: Callable[[], object]) -> None:
    """Register a function that release_workspace calls."""
    _release_callbacks.append(callback)


def release_workspace() -> int:
    """Free the host memory and the captured CUDA graphs that fmm caches between calls.

    Returns
    -------
    int
        The bytes of host memory that were freed.

    Examples
    --------
    >>> import fmm
    >>> freed = fmm.release_workspace()
    >>> fmm.release_workspace()
    0
    """
    freed = sum(memory.nbytes for memory in _cached_blocks)
    _cached_blocks.clear()
    for callback in _release_callbacks:
        callback()
    return freed

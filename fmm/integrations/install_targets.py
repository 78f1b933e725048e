"""Where fmm can be installed, and what is installed now: for good, for a while, or as soon as a library is loaded.

All of it is the process's: what one thread installs, all have. A place is held by `install` once, and by every
`installed` that is being executed; when the last one lets go, the very objects that were there before are put back.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fmm.config.environment import log_once
from fmm.integrations.on_import import after_import, is_loaded
from fmm.kernels.cpu.worker_threads import ForkSafeLock

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

Undo = Callable[[], None]
VARIABLE = "FMM_INSTALL"


class CannotInstallError(RuntimeError):
    """Why fmm cannot multiply for a library here; nothing was changed."""


@dataclass
class Place:
    """A library, the module of ours that knows how to get in, and who wants it to be in."""

    library: str
    module: str
    function: str = "install"  # of that module; returns what undoes it
    kept: bool = False  # by install()
    holders: int = 0  # installed() that are being executed
    undo: Undo | None = field(default=None, repr=False)  # None: nothing is installed
    was_in: bool = False  # has anything ever been installed, in this process?

    @property
    def wanted(self) -> bool:
        return self.kept or self.holders > 0


PLACES = {
    "torch": Place("torch", "fmm.integrations.torch_install", "install_on_cuda"),
    "torch-cpu": Place("torch", "fmm.integrations.torch_install", "install_on_host"),
    "torch-inductor": Place("torch", "fmm.integrations.torch_inductor"),
    "cupy": Place("cupy", "fmm.integrations.cupy_functions"),
    "numpy": Place("numpy", "fmm.integrations.numpy_functions"),
}
USUAL = "torch", "cupy", "numpy"
_lock = ForkSafeLock(threading.RLock)  # entered again by imports of what is installed


def install(*names: str) -> tuple[str, ...]:
    """From now on products of these libraries are fmm's where a plan pays; if none is named, of those of the first
    three that are here.

    "torch" (on CUDA devices), "cupy" and "numpy"; only if they are named: "torch-cpu", torch's products on the host,
    "torch-inductor", a candidate in torch.compile(mode="max-autotune-no-cudagraphs"). A library that is not loaded
    yet is changed when it is. Where fmm cannot get in, one line in the log says why, and nothing is changed.

    All that is installed now is returned, by these names: without those of libraries that are not loaded yet.
    """
    for place in _named(names):
        with _lock.now:
            place.kept = True
            _settle(place)
    return tuple(name for name, place in PLACES.items() if place.undo is not None)


def uninstall(*names: str) -> None:
    """Ends what `install` began, for these libraries or for all; the libraries have their own objects back, but not
    before every `with fmm.installed(...)` that is being executed has ended."""
    for place in _named(names or tuple(PLACES)):
        with _lock.now:
            if place.holders and not place.kept:
                log_once(f"nothing is uninstalled for {place.library} as long as fmm.installed holds it")
            place.kept = False
            _settle(place)


def installed(*names: str) -> _GeneratorContextManager[None]:
    """The same for a `with` statement, in all threads while it is executed."""
    check_names(names)  # now, not only where it is entered
    return _installed_meanwhile(*names)


@contextmanager
def _installed_meanwhile(*names: str) -> Iterator[None]:
    held: list[Place] = []
    try:
        for place in _named(names):  # which may take seconds, in which somebody may press Ctrl-C
            with _lock.now:
                place.holders += 1
                held.append(place)
                _settle(place)
        yield
    finally:
        for place in held:
            with _lock.now:
                place.holders -= 1
                _settle(place)


def install_as_told() -> None:
    """What the environment variable FMM_INSTALL names, for programs that say nothing themselves. Of what fmm does not
    know, one line in the log: a job does not end because of a wrong word, nor miss what the others name."""
    told = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    if unknown := [name for name in told if name not in PLACES]:
        log_once(f"{VARIABLE}: {_unknown_in_words(unknown)}")
    if known := [name for name in told if name in PLACES]:
        install(*known)


def check_names(names: tuple[object, ...]) -> None:
    unknown = [name for name in names if not isinstance(name, str) or name not in PLACES]
    if unknown:
        raise ValueError(_unknown_in_words(unknown))


def _unknown_in_words(names: Sequence[object]) -> str:
    told = f"fmm knows no {', '.join(map(repr, names))} to install for; valid: {', '.join(PLACES)}"
    meant = [word.strip().lower() for name in names for word in str(name).split(",")]
    if not set(meant) <= PLACES.keys():
        return told
    return f"{told}; did you mean {', '.join(map(repr, meant))}? (separate words, in lower case)"


def _named(names: tuple[str, ...]) -> list[Place]:
    check_names(names)
    return [PLACES[name] for name in dict.fromkeys(names or usual_here())]


def usual_here() -> tuple[str, ...]:
    """Those of the usual ones whose libraries are here: nobody named the others, so that nothing is said of them."""
    return tuple(name for name in USUAL if _can_be_loaded(PLACES[name].library))


def _can_be_loaded(library: str) -> bool:
    return sys.modules.get(library) is not None or importlib.util.find_spec(library) is not None


def _settle(place: Place, loaded: bool = False) -> None:
    """Gets in, or out, as is wanted now; `loaded`: it is known that the library is.

    Not where another thread is in the midst of loading it: that one comes here when it has done so. To wait for it
    while we hold the lock that it will ask for would be to wait forever.
    """
    if not place.wanted and place.undo is not None:
        undo, place.undo = place.undo, None
        undo()
    elif place.wanted and place.undo is None:
        if loaded or is_loaded(place.library):
            _get_in(place)
        elif sys.modules.get(place.library) is not None:
            if not after_import(place.library, settle_loaded):
                _get_in(place)
        elif not _can_be_loaded(place.library):
            log_once(f"nothing is installed for {place.library}: there is no such library here")
        else:
            after_import(place.library, settle_loaded)


def settle_loaded(library: str) -> None:
    """Once a library has been loaded: whoever waited for it gets in, if that is still wanted."""
    for place in PLACES.values():
        with _lock.now:
            if place.library == library:
                _settle(place, loaded=True)


def _get_in(place: Place) -> None:
    """Whatever goes wrong is said: another version of a library is no reason for a program to end."""
    try:
        place.undo = getattr(importlib.import_module(place.module), place.function)()
        place.was_in = True
    except CannotInstallError as error:
        log_once(f"nothing is installed for {place.library}: {error}")
    except Exception as error:
        log_once(f"nothing is installed for {place.library}: {type(error).__name__}: {error}")

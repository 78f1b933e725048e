"""The libraries that fmm can be installed into, and the state of each installation (`InstallTarget`).

If one thread installs fmm, fmm is installed for all threads of the process. The library's original objects are restored
when `uninstall` has undone `install` and all `with installed(...)` blocks have ended.
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
from fmm.integrations.on_import import call_after_import, is_module_loaded
from fmm.kernels.cpu.worker_threads import ForkSafeLock

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

UndoFunction = Callable[[], None]
INSTALL_VARIABLE = "FMM_INSTALL"


class CannotInstallError(RuntimeError):
    """The error raised if fmm cannot be installed into a library; the library was not changed."""


@dataclass
class InstallTarget:
    """A library, the function that installs fmm into it, and whether `install` or a `with` block requires fmm now."""

    library: str
    module: str
    # Name of the function in `module` that installs fmm and returns a function that uninstalls fmm.
    function: str = "install"
    permanent: bool = False  # True after install(), until uninstall()
    holders: int = 0  # number of the target's running `with installed(...)` blocks
    undo: UndoFunction | None = field(default=None, repr=False)  # uninstalls fmm; None if not installed
    was_installed: bool = False  # True if fmm was installed at any time in this process

    @property
    def is_target_selected(self) -> bool:
        return self.permanent or self.holders > 0


INSTALL_TARGETS = {
    "torch": InstallTarget("torch", "fmm.integrations.torch_install", "install_on_cuda"),
    "torch-cpu": InstallTarget("torch", "fmm.integrations.torch_install", "install_on_host"),
    "torch-inductor": InstallTarget("torch", "fmm.integrations.torch_inductor"),
    "cupy": InstallTarget("cupy", "fmm.integrations.cupy_functions"),
    "numpy": InstallTarget("numpy", "fmm.integrations.numpy_functions"),
    "scipy": InstallTarget("scipy.linalg", "fmm.integrations.solver_functions"),
}
DEFAULT_TARGET_NAMES = "torch", "cupy", "numpy", "scipy"
# The lock of all targets is reentrant, since an installation may import the library of another target.
_targets_lock = ForkSafeLock(threading.RLock)


# ---- the public functions


def install(*names: str) -> tuple[str, ...]:
    """Let fmm compute these libraries' products and solvers from now on, where fmm is predicted to be faster.

    Parameters
    ----------
    *names : str
        "torch" (on CUDA devices), "cupy", "numpy" or "scipy" (the solvers of scipy.linalg); by default all of the four
        that are importable. Two targets are not among the defaults: "torch-cpu", torch's products and solvers on the
        host, and "torch-inductor", a candidate in torch.compile(mode="max-autotune-no-cudagraphs").

    Returns
    -------
    tuple of str
        The names of all targets that are installed now. A library that is not loaded yet is missing from the result:
        fmm is installed when the program imports the library.

    Raises
    ------
    ValueError
        If a name is unknown.

    Notes
    -----
    If fmm cannot be installed into a library, one line in the log gives the reason, and the library is not changed.

    Examples
    --------
    >>> import fmm
    >>> "numpy" in fmm.install("numpy")
    True
    >>> fmm.uninstall("numpy")
    """
    for target in _targets_by_name(names):
        with _targets_lock.now:
            target.permanent = True
            _update_installation(target)
    return tuple(name for name, target in INSTALL_TARGETS.items() if target.undo is not None)


def uninstall(*names: str) -> None:
    """Undo `install` for these libraries, by default for all.

    If a `with fmm.installed(...)` block is running, the libraries' original objects are restored when the block ends.

    Parameters
    ----------
    *names : str
        Names as for `install`.

    Raises
    ------
    ValueError
        If a name is unknown.
    """
    for target in _targets_by_name(names or tuple(INSTALL_TARGETS)):
        with _targets_lock.now:
            if target.holders and not target.permanent:
                log_once(f"nothing is uninstalled for {target.library} while a block `with fmm.installed` runs")
            target.permanent = False
            _update_installation(target)


def installed(*names: str) -> _GeneratorContextManager[None]:
    """Return a context manager that installs fmm for all threads while its `with` block runs.

    Parameters
    ----------
    *names : str
        Names as for `install`.

    Raises
    ------
    ValueError
        If a name is unknown.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> with fmm.installed("numpy"):
    ...     np.matmul(np.eye(2), np.ones((2, 2)))
    array([[1., 1.],
           [1., 1.]])
    """
    check_target_names(names)  # an unknown name raises here, before the block is entered
    return _install_for_block(*names)


@contextmanager
def _install_for_block(*names: str) -> Iterator[None]:
    held: list[InstallTarget] = []
    try:
        for target in _targets_by_name(names):  # an installation may take seconds, and Ctrl-C may interrupt it
            with _targets_lock.now:
                target.holders += 1
                held.append(target)
                _update_installation(target)
        yield
    finally:
        for target in held:
            with _targets_lock.now:
                target.holders -= 1
                _update_installation(target)


def install_from_env() -> None:
    """Install fmm into the libraries that the environment variable FMM_INSTALL names.

    Unknown names are logged in one line: a typo must neither end a program nor prevent the installation of other names.
    """
    names = [name.strip() for name in os.environ.get(INSTALL_VARIABLE, "").split(",") if name.strip()]
    if unknown := [name for name in names if name not in INSTALL_TARGETS]:
        log_once(f"{INSTALL_VARIABLE}: {_unknown_names_message(unknown)}")
    if valid := [name for name in names if name in INSTALL_TARGETS]:
        install(*valid)


# ---- names


def check_target_names(names: tuple[object, ...]) -> None:
    """Raise ValueError unless all names are names of targets, such as "numpy"."""
    unknown = [name for name in names if not isinstance(name, str) or name not in INSTALL_TARGETS]
    if unknown:
        raise ValueError(_unknown_names_message(unknown))


def _unknown_names_message(names: Sequence[object]) -> str:
    message = f"fmm cannot be installed in {', '.join(map(repr, names))}; valid: {', '.join(INSTALL_TARGETS)}"
    meant = [word.strip().lower() for name in names for word in str(name).split(",")]
    if not set(meant) <= INSTALL_TARGETS.keys():
        return message
    return f"{message}; did you mean {', '.join(map(repr, meant))}? (separate words, in lower case)"


def _targets_by_name(names: tuple[str, ...]) -> list[InstallTarget]:
    check_target_names(names)
    return [INSTALL_TARGETS[name] for name in dict.fromkeys(names or importable_default_targets())]


def importable_default_targets() -> tuple[str, ...]:
    """Return the default targets for which the library can be imported."""
    return tuple(name for name in DEFAULT_TARGET_NAMES if _is_importable(INSTALL_TARGETS[name].library))


def _is_importable(library: str) -> bool:
    root = library.partition(".")[0]  # the search for a module in a package would import the package
    return sys.modules.get(library) is not None or importlib.util.find_spec(root) is not None


# ---- installing


def _update_installation(target: InstallTarget, loaded: bool = False) -> None:
    """Install fmm if any caller of `install` or `installed` needs it now, else uninstall; the caller holds the lock.

    `loaded` is True if the library has just been loaded. If another thread is loading the library, the loading thread
    installs fmm when the library is loaded. The caller must not wait for the loading thread, since the loading thread
    needs the lock that the caller holds.
    """
    if not target.is_target_selected and target.undo is not None:
        undo, target.undo = target.undo, None
        undo()
    elif target.is_target_selected and target.undo is None:
        if loaded or is_module_loaded(target.library):
            _install_target(target)
        elif sys.modules.get(target.library) is not None:
            if not call_after_import(target.library, install_into_loaded_library):
                _install_target(target)
        elif not _is_importable(target.library):
            log_once(f"nothing is installed for {target.library}: no library of this name can be imported")
        else:
            call_after_import(target.library, install_into_loaded_library)


def install_into_loaded_library(library: str) -> None:
    """Install fmm into a library that has just been loaded, if `install` or `installed` requires it."""
    for target in INSTALL_TARGETS.values():
        with _targets_lock.now:
            if target.library == library:
                _update_installation(target, loaded=True)


def _install_target(target: InstallTarget) -> None:
    """Install fmm into one library.

    If the installation fails, the reason is logged and no exception is raised: an unsupported version of a library must
    not end a program.
    """
    try:
        target.undo = getattr(importlib.import_module(target.module), target.function)()
        target.was_installed = True
    except CannotInstallError as error:
        log_once(f"nothing is installed for {target.library}: {error}")
    except Exception as error:
        log_once(f"nothing is installed for {target.library}: {type(error).__name__}: {error}")

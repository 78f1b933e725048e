"""Import fmm after the program has imported NumPy, torch or CuPy; Python runs this module when it starts.

fmm_install.pth imports this module if FMM_INSTALL is set; a wheel contains both files beside the package. This module
imports nothing but sys, so that programs without NumPy, torch and CuPy start as fast as without fmm. If fmm cannot be
imported, the program runs without fmm.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

DEFAULT_LIBRARIES = "numpy", "torch", "cupy"


class LibraryFinder:
    """An import finder for NumPy, torch and CuPy: it changes the loader that another finder finds.

    The changed loader first loads the library, and then imports fmm.
    """

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in DEFAULT_LIBRARIES:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not cls else None
            if spec is not None:
                import_fmm_after_module(spec.loader)
                return spec
        return None


def import_fmm_after_module(loader: object) -> None:
    """Change a module's loader; the changed loader imports fmm after the module."""
    execute = getattr(loader, "exec_module", None)
    if execute is None or not hasattr(loader, "__dict__"):
        return

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        execute(module)
        load_fmm(module.__name__)

    vars(loader)["exec_module"] = exec_module


def load_fmm(library: str) -> None:
    """Import fmm, and run fmm's callbacks for this library, which has just been loaded.

    The first import of fmm installs the targets named in FMM_INSTALL. fmm is imported already if NumPy, torch or CuPy
    was loaded before this library.
    """
    if LibraryFinder in sys.meta_path:
        sys.meta_path.remove(LibraryFinder)
    elif "fmm" not in sys.modules:  # an earlier import of fmm has failed and printed the reason
        return
    try:
        from fmm.integrations.on_import import run_import_callbacks
    except Exception as error:  # an error of fmm must not end the program
        reason = f"{type(error).__name__}: {error}"
        print(f"fmm: FMM_INSTALL is set, but fmm cannot be imported: {reason}", file=sys.stderr)
    else:
        run_import_callbacks(library)


sys.meta_path.insert(0, LibraryFinder)

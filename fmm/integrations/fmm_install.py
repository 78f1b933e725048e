"""Loads fmm once the program has loaded NumPy, torch or CuPy; Python runs this at its start where FMM_INSTALL is set.

A wheel has this module beside the package, where fmm_install.pth imports it. Until then nothing else is loaded, so that
programs without such a library start as fast as ever. If fmm cannot be imported, the program runs without it.
"""

import sys

LIBRARIES = "numpy", "torch", "cupy"


class Finder:
    """Finds these libraries by the other finders, and loads fmm after the first one."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in LIBRARIES:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not cls else None
            if spec is not None:
                load_fmm_after(spec.loader)
                return spec
        return None


def load_fmm_after(loader):  # type: ignore[no-untyped-def]
    """Let the loader of a module load fmm, too."""
    execute = getattr(loader, "exec_module", None)

    def exec_module(module):  # type: ignore[no-untyped-def]
        del loader.exec_module
        execute(module)
        load_fmm(module.__name__)

    if execute is not None and hasattr(loader, "__dict__"):
        loader.exec_module = exec_module


def load_fmm(library):  # type: ignore[no-untyped-def]
    """Import fmm, which installs what FMM_INSTALL names, and tell it that this library is loaded."""
    if Finder in sys.meta_path:
        sys.meta_path.remove(Finder)
        try:
            from fmm.integrations.on_import import run_callbacks
        except Exception as error:  # the program runs without fmm
            reason = f"{type(error).__name__}: {error}"
            print(f"fmm: FMM_INSTALL is set, but fmm cannot be imported: {reason}", file=sys.stderr)
        else:
            run_callbacks(library)


sys.meta_path.insert(0, Finder)

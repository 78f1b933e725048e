"""The entry point of fmm-tune: what must happen before fmm and NumPy are loaded.

Ctrl-C exits at once, since loading may take a second. The variables that slow OpenBLAS down are ignored, because
OpenBLAS reads them when NumPy loads it. It is a module beside the package: a package is loaded before its modules.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import MutableMapping

INTERRUPTED = 128 + signal.SIGINT
# OPENBLAS_CORETYPE forces the kernel of OpenBLAS, OPENBLAS_L2_SIZE the size of its blocks. Where they do not fit the
# processor, the vendor's products take up to twice as long, and a measurement against them says nothing.
OPENBLAS_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def main() -> int:
    """Load the command and run it; return the exit code."""
    began = time.monotonic()
    ignored = ignore_openblas_variables()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)
    try:
        from fmm.tuner import cli
    finally:
        if handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)
    return cli.main(ignored=ignored, began=began)


def ignore_openblas_variables(environment: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Remove OPENBLAS_VARIABLES from the environment of this process and its children; return them with their values.

    It has an effect on this process before NumPy is imported.
    """
    return {name: environment.pop(name) for name in OPENBLAS_VARIABLES if name in environment}


def _exit(number: int, frame: object) -> None:
    """Exit at once: an exception during an import may become another one, or be printed."""
    sys.stderr.write("fmm-tune: interrupted before it began\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())

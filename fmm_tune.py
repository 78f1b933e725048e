"""The entry point of fmm-tune: handles Ctrl-C while fmm and NumPy are loaded, which may take a second.

It is a module beside the package, because a package is loaded before its modules.
"""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def main() -> int:
    """Load the command and run it; return the exit code."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)
    try:
        from fmm.tuner import cli
    finally:
        if handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)
    return cli.main()


def _exit(number: int, frame: object) -> None:
    """Exit at once: an exception during an import may become another one, or be printed."""
    sys.stderr.write("fmm-tune: interrupted before it began\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())

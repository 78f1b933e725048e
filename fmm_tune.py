"""Where the command fmm-tune begins: before fmm and NumPy are loaded, which may take a second in which somebody presses
Ctrl-C. It stands beside the package: no module of a package is loaded before the package."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def main() -> int:
    """Load the command and run it; returns the exit code."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        from fmm.tuner import cli
    finally:
        if usual is signal.default_int_handler:
            signal.signal(signal.SIGINT, usual)
    return cli.main()


def _leave(number: int, frame: object) -> None:
    """At once: an exception in the midst of an import may become another one, or be printed on its way."""
    sys.stderr.write("fmm-tune: interrupted; nothing was begun\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())

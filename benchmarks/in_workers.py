"""For pytest, `-p benchmarks.in_workers`: fmm installed as FMM_INSTALL says, in the workers of pytest-xdist too.

What `python -m fmm` runs leaves that variable to the processes that it starts; where fmm is not installed, nobody
reads it there.
"""

from __future__ import annotations

import os

import fmm
from fmm.integrations.install_targets import VARIABLE

if names := [name for name in os.environ.get(VARIABLE, "").split(",") if name]:
    fmm.install(*names)

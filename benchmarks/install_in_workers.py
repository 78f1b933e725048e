"""Plugin of pytest, `-p benchmarks.install_in_workers`: install fmm in the workers of pytest-xdist too.

`python -m fmm` leaves FMM_INSTALL to the processes that it starts, but only an installed package reads the variable
when Python starts. From a source tree this plugin reads it.
"""

from __future__ import annotations

import os

import fmm
from fmm.integrations.install_targets import INSTALL_VARIABLE

if names := [name for name in os.environ.get(INSTALL_VARIABLE, "").split(",") if name]:
    fmm.install(*names)

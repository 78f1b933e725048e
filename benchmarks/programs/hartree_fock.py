"""A step of examples/scf.py in CuPy: Hartree-Fock with density fitting, 160 hydrogen molecules, 960 basis functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from scf import prepare_calculation


def prepare(dtype: str, is_small: bool) -> tuple[Callable[[], object], Callable[[], Any]]:
    """Return the step, and the function for the Fock matrix of the current orbitals; all in float64."""
    on_gpu = find_spec("cupy") is not None
    calculation = prepare_calculation(2 if is_small else 160, on_gpu)

    def result() -> Any:
        fock = calculation.fock_matrix()[1]
        return fock.get() if on_gpu else fock

    return calculation.step, result

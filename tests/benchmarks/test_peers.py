"""Peers on a CPU: every call gets the same product, and MKL its arguments in CBLAS's order."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import mkl, peers
from benchmarks.__main__ import main as benchmarks_main


def array_at(pointer: ctypes.c_void_p, rows: int, row_length: int, number: Any) -> Any:
    return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(number)), (rows, row_length))


class SimulatedMkl:
    """Multiplies as MKL's functions do."""

    def multiply(self, layout: int, ta: int, tb: int, m: int, n: int, k: int, alpha: Any, *operands: Any) -> None:
        assert (layout, ta, tb) == (101, 111, 111)
        a, lda, b, ldb, beta, c, ldc = operands
        number = type(alpha)
        assert alpha.value == 1 and beta.value == 0
        array_at(c, m, ldc, number)[:, :n] = array_at(a, m, lda, number)[:, :k] @ array_at(b, k, ldb, number)[:, :n]

    cblas_sgemm = cblas_dgemm = multiply

    def mkl_get_version_string(self, buffer: Any, length: int) -> None:
        buffer.value = b"oneAPI Math Kernel Library Version 2026.2 for Intel(R) 64 architecture applications"[:length]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mkl, "mkl_library", SimulatedMkl)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mkl_gets_the_operands(simulated: None, dtype: str) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((5, 7)).astype(dtype), rng.standard_normal((7, 3)).astype(dtype)
    c = np.full((5, 3), np.nan, dtype)
    call = mkl.mkl_product(a, b, c)
    assert call is not None
    call()
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    assert mkl.mkl_version() == "oneAPI Math Kernel Library Version 2026.2"


@pytest.mark.parametrize("with_mkl", [False, True])
def test_every_peer_is_measured(with_mkl: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mkl, "mkl_library", SimulatedMkl if with_mkl else lambda: None)
    monkeypatch.setattr(peers, "CASES", (peers.Case(96, "float64", True), peers.Case(64, "float32")))
    monkeypatch.setattr(peers, "SAMPLE_SECONDS", 1e-6)
    arguments = ["peers", "--quick", "--any-blas-kernel", "--output", str(tmp_path)]
    assert benchmarks_main(arguments) == 0
    found = json.loads((tmp_path / "peers.json").read_text())
    [row] = found["rows"]
    names = {"numpy", "fmm"} | ({"mkl"} if with_mkl else set())
    assert set(row["samples"]) == set(row["errors"]) == names
    assert all(len(samples) == 3 for samples in row["samples"].values())
    assert all(0.2 < error < 5 for error in row["errors"].values())
    assert bool(found["environment"]["mkl"]) == with_mkl


def test_a_gpu_gets_all_types(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[list[str]] = []

    def run(arguments: list[str]) -> int:
        received.append(arguments)
        return 0

    monkeypatch.setitem(sys.modules, "benchmarks.gpu_emulation", SimpleNamespace(main=run))
    assert benchmarks_main(["peers", "--device", "0", "--quick", "--cases", "8192"]) == 0
    assert received == [
        ["--dtype", *peers.GPU_TYPES, "--time-limit", "900", "--quick", "--cases", "8192"],
    ]

"""Arrays of CuPy and torch for tests: made from NumPy's, compared in double precision, with inf and NaN in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
EPS |= {"complex64": EPS["float32"], "complex128": EPS["float64"]}


class CupyLibrary:
    """The functions of CuPy that tests need: arrays made from NumPy's, and read back in double precision."""

    name = "cupy"

    def __init__(self) -> None:
        self.xp = pytest.importorskip("cupy")
        self.array_type = self.xp.ndarray

    def array(self, x: Any, dtype: str = "float64") -> Any:
        if dtype == "bfloat16":
            return self.xp.asarray(x.astype(pytest.importorskip("ml_dtypes").bfloat16))
        return self.xp.asarray(x.astype(dtype))

    def host(self, x: Any) -> Any:
        found = self.xp.asnumpy(x)
        return found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.array(np.full(shape, np.nan), dtype)

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        return self.xp.matmul(a, b, out=out)

    def spoil(self, nbytes: int) -> None:
        """Leave NaN in the memory that the pool returns next."""
        del_me = self.xp.full(nbytes // 8 + 1, np.nan)
        del del_me


class TorchLibrary(CupyLibrary):
    name = "torch"

    def __init__(self) -> None:
        self.xp = pytest.importorskip("torch")
        if not self.xp.cuda.is_available():
            pytest.skip("this torch has no CUDA")
        self.array_type = self.xp.Tensor

    def array(self, x: Any, dtype: str = "float64") -> Any:
        return self.xp.from_numpy(np.array(x)).to(device="cuda", dtype=getattr(self.xp, dtype))

    def host(self, x: Any) -> Any:
        wide = self.xp.complex128 if x.is_complex() else self.xp.float64
        return x.detach().to(device="cpu", dtype=wide).numpy()

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        return self.xp.matmul(a, b) if out is None else self.xp.matmul(a, b, out=out)

    def spoil(self, nbytes: int) -> None:
        del_me = self.xp.full((nbytes // 8 + 1,), np.nan, dtype=self.xp.float64, device="cuda")
        del del_me


def draw(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x


def close(library: Any, found: Any, a: Any, b: Any, dtype: str, growth: float = 1.0) -> None:
    """Check that errors are below `growth` times the error that the type's rounding allows, plus that of the
    result's own rounding."""
    x, y = library.host(a), library.host(b)
    expected = np.matmul(x, y)
    got = library.host(found)
    assert got.shape == expected.shape
    bound = allowed_error(x.shape[-1], np.abs(x).max(), np.abs(y).max(), dtype, growth)
    bound += 2 * EPS[dtype] * np.abs(expected).max(initial=0)
    worst = np.abs(got - expected).max(initial=0)
    assert worst <= bound, f"{worst:.3g} > {bound:.3g}"


def allowed_error(inner: int, left: Any, right: Any, dtype: str, growth: float) -> float:
    """Return the error allowed for sums of `inner` products of numbers up to `left` and `right`."""
    return float(growth * (inner**0.5 + 16) * 16 * EPS[dtype] * float(left) * float(right))


def close_in_parts(library: Any, found: Any, a: Any, b: Any, dtype: str, growth: float) -> None:
    """Check a large product on the device as `close` does: random rows entry by entry, and for every row a
    sum of its entries with random signs."""
    assert tuple(found.shape) == (a.shape[0], b.shape[1])
    x, y, got = (z.double() if hasattr(z, "double") else z.astype(np.float64) for z in (a, b, found))
    rng = np.random.default_rng(list(found.shape))
    rows = sorted(int(i) for i in rng.choice(a.shape[0], 32, replace=False))
    signs = library.array(rng.choice((-1.0, 1.0), b.shape[1]))
    bound = allowed_error(a.shape[1], abs(x).max(), abs(y).max(), dtype, growth)
    worst, summed = abs(got[rows] - x[rows] @ y).max(), abs(got @ signs - x @ (y @ signs)).max()
    assert worst <= bound, f"{worst:.3g} > {bound:.3g}"
    assert summed <= bound * len(signs), f"{summed:.3g} > {bound * len(signs):.3g}"


# ---- inf and NaN


def with_inf(a: Any, b: Any) -> None:
    a[3, 5] = np.inf


def with_both_infs(a: Any, b: Any) -> None:
    a[3, 5], a[3, 7], b[60, 2] = np.inf, -np.inf, np.inf


def with_nan(a: Any, b: Any) -> None:
    a[70, 5], b[100, 90] = np.nan, np.nan


def with_inf_times_zero(a: Any, b: Any) -> None:
    a[3, 5], b[5, :] = np.inf, 0


CORRUPTIONS = [with_inf, with_both_infs, with_nan, with_inf_times_zero]


def same_places(library: Any, ours: Any, theirs: Any) -> None:
    x, y = library.host(ours), library.host(theirs)
    for part in (np.real, np.imag) if np.iscomplexobj(x) else (lambda z: z,):
        for what in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(what(part(x)), what(part(y)))
    finite = np.isfinite(y)
    scale = np.abs(y[finite]).max(initial=1.0)
    assert np.abs(x[finite] - y[finite]).max(initial=0) <= 0.05 * scale


# ---- streams that are busy

SPIN_SOURCE = r"""
extern "C" __global__ void spin(const volatile int* opened, long long cycles) {
    const long long start = clock64();
    while (!*opened && clock64() - start < cycles) {}
}
"""
GATE_SECONDS = 20.0  # about so many seconds after its start a gate opens by itself, so that no test hangs


class Gate:
    """A kernel that keeps streams busy until the host opens the gate."""

    def __init__(self) -> None:
        import cupy

        self.memory = cupy.cuda.alloc_pinned_memory(4)  # host memory that the device reads
        self.opened: Any = np.frombuffer(self.memory, np.int32, 1)
        self.kernel = cupy.RawKernel(SPIN_SOURCE, "spin")
        self.open()
        self.close_current()  # compiles and loads
        cupy.cuda.get_current_stream().synchronize()

    def open(self) -> None:
        self.opened[0] = 1

    def close(self, library: Any, stream: Any) -> None:
        """Keep the stream busy until the gate is opened."""
        import cupy

        self.opened[0] = 0
        with stream if library.name == "cupy" else cupy.cuda.Stream.from_external(stream):
            self.close_current()

    def close_current(self) -> None:
        self.kernel((1,), (1,), (np.uint64(self.memory.ptr), np.int64(GATE_SECONDS * 1.5e9)))

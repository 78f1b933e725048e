"""A simulated CUDA device for semirings: NumPy in CuPy's place, and the kernels compiled for the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest

from fmm.semirings import placement, predecessors
from fmm.semirings.closure_launches import (
    ARGUMENT_BUFFER_PREFIX,
    DOUBLED_BUFFER,
    WORKSPACE_BUFFER,
    closure_launches,
    padded_leading_dimension,
)
from fmm.semirings.closure_steps import CLOSED_MATRIX_NAME
from fmm.semirings.minplus_kernel import (
    TROPICAL_RINGS,
    DeviceMatrix,
    SemiringProduct,
    candidate_tile_sizes,
    duplicate_entries_launch,
    graph_edges_launch,
    minplus_launch,
)
from fmm.semirings.path_request import EdgeRule
from tests.support.minplus_on_host import lines_of, play

Matrix = np.ndarray[Any, Any]
POISON = 77


class NumpyAsCupy:
    """NumPy's functions under another module object, which fmm takes for CuPy."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class CountedArray(np.ndarray[Any, Any]):
    """An array that records the kernels that CuPy would compile for it: one for each operation on its types.
    Operations for which CuPy needs seconds or several kernels are errors: `any`, `all`, and assignments by a
    mask or by indices.
    """

    kernels: ClassVar[set[tuple[object, ...]]] = set()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        found = [x.view(np.ndarray) if isinstance(x, CountedArray) else x for x in inputs]
        targets = {} if out is None else {"out": tuple(x.view(np.ndarray) for x in out)}
        self.kernels.add((ufunc.__name__, method, *(np.asarray(x).dtype.name for x in found)))
        result = getattr(ufunc, method)(*found, **targets, **options)
        return out[0] if out is not None else np.asarray(result).view(CountedArray)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        self.kernels.add((function.__name__,))
        return super().__array_function__(function, types, arguments, options)

    def astype(self, dtype: Any, *arguments: Any, **options: Any) -> Any:
        if np.dtype(dtype) != self.dtype:
            self.kernels.add(("astype", self.dtype.name, np.dtype(dtype).name))
        return super().astype(dtype, *arguments, **options)

    def __setitem__(self, key: Any, value: Any) -> None:
        assert not any(isinstance(x, np.ndarray) for x in (key if isinstance(key, tuple) else (key,)))
        self.kernels.add(("fill", self.dtype.name))
        super().__setitem__(key, value)

    def any(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("CuPy compiles `any` for seconds")

    all = any


def count_kernels(monkeypatch: pytest.MonkeyPatch) -> set[tuple[object, ...]]:
    """Let a simulated device's arrays record the kernels that CuPy would compile; return the set of kernels."""
    place = placement.ArrayPlacement(
        NumpyAsCupy(), lambda x: np.asarray(x).view(CountedArray), lambda x: x.view(np.ndarray)
    )

    @contextmanager
    def placed(**_: Any) -> Iterator[Any]:
        yield place

    monkeypatch.setattr(placement, "place_arrays", placed)
    monkeypatch.setattr(predecessors, "to_numpy", lambda x: x.view(np.ndarray))
    monkeypatch.setattr(CountedArray, "kernels", set())
    return CountedArray.kernels


class HostDevice:
    """The functions of fmm.semirings.device, by launches that run on the host."""

    def __init__(self) -> None:
        self.rings: list[str] = []  # rings of the calls so far

    def device_product(self, name: str, a: Matrix, b: Matrix, with_arguments: bool) -> tuple[Matrix, Matrix | None]:
        self.rings.append(name)
        ring, (m, k), n = TROPICAL_RINGS[name], a.shape, b.shape[1]
        memory = {base: self._wide(x) for base, x in (("A", a), ("B", b))}
        memory |= {
            base: lines_of(m, padded_leading_dimension(n), POISON, kind)
            for base, kind in (("C", a.dtype), ("args", np.int32))
        }
        left, launches = DeviceMatrix("A", 0, m, k, padded_leading_dimension(k)), []
        if ring.per_word > 1:
            memory["twice"] = lines_of(m, padded_leading_dimension(k), POISON, np.uint32)
            launches.append(duplicate_entries_launch(left, left._replace(base="twice")))
            left = left._replace(base="twice")
        dest = DeviceMatrix("C", 0, m, n, padded_leading_dimension(n))
        args = dest._replace(base="args") if with_arguments else None
        product = SemiringProduct(left, DeviceMatrix("B", 0, k, n, padded_leading_dimension(n)), dest, args=args)
        play([*launches, minplus_launch(ring, candidate_tile_sizes(ring, with_arguments)[-1], [product])], memory)
        return memory["C"][:, :n].copy(), memory["args"][:, :n].copy() if with_arguments else None

    def graph_edges_on_device(self, lengths: Matrix, rule: EdgeRule) -> tuple[Matrix, Matrix | None]:
        n, item = len(lengths), lengths.itemsize
        rows, cols = (step // item for step in lengths.strides)
        memory = {"A": lengths, "C": lines_of(n, n, POISON, lengths.dtype), "P": lines_of(n, n, POISON, np.int32)}
        play([graph_edges_launch(lengths.dtype.name, n, (rows, cols), rule)], memory)
        edges, predecessors = (memory[base].copy().view(type(lengths)) for base in "CP")
        return edges, None if rule.no_predecessor is None else predecessors

    def device_diagonal(self, x: Matrix) -> Matrix:
        return np.array(np.diagonal(x))

    def device_closure(self, name: str, d: Matrix, predecessors: Matrix | None = None) -> tuple[Matrix, Any]:
        self.rings.append(name)
        n = len(d)
        found = closure_launches(TROPICAL_RINGS[name], n, predecessors is not None, 132)
        values, numbers = self._wide(d), max(found.numbers, 1)
        memory = {CLOSED_MATRIX_NAME: values, WORKSPACE_BUFFER: lines_of(1, numbers, POISON, d.dtype)}
        memory[DOUBLED_BUFFER] = lines_of(1, max(found.doubled_bytes, 4), POISON, np.uint8)
        if predecessors is not None:
            memory |= {
                ARGUMENT_BUFFER_PREFIX + CLOSED_MATRIX_NAME: self._wide(predecessors),
                ARGUMENT_BUFFER_PREFIX + WORKSPACE_BUFFER: lines_of(1, numbers, POISON, np.int32),
            }
        play(found.launches, memory)
        return values[:, :n].copy(), None if predecessors is None else memory[
            ARGUMENT_BUFFER_PREFIX + CLOSED_MATRIX_NAME
        ][:, :n].copy()

    def _wide(self, x: Matrix) -> Matrix:
        found = lines_of(x.shape[0], padded_leading_dimension(x.shape[1]), POISON, x.dtype)
        found[:, : x.shape[1]] = x
        return found


def take_the_hosts_place(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    """Let fmm.shortest_paths and fmm.minplus compute NumPy arrays on a simulated device; return the device."""
    device, place = HostDevice(), placement.ArrayPlacement(NumpyAsCupy(), np.asarray, lambda x: x)

    @contextmanager
    def placed(**_: Any) -> Iterator[Any]:
        yield place

    monkeypatch.setattr(placement, "place_arrays", placed)
    monkeypatch.setattr(placement, "load_device_module", lambda: device)
    return device

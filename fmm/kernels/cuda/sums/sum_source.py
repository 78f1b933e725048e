"""CUDA source of the sums: a straight-line program as a short stub, for the one kernel in block_sums.cuh.

The stub is all that depends on a scheme's coefficients: which block of which array each input and output is, and the
additions between them, ordered so that few values are alive at a time (a value that does not fit in a register would
go through memory, and memory is what these kernels wait for).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.sums.sum_kernel import BATCHES, HIGH, Access, BlockIndex, SumKernel
from fmm.kernels.cuda.sums.sum_order import LaunchCoefficient, Statement

OPTIONS = ("--std=c++17",)  # of the compiler
ENTRY = "fmm_sum"


# ---- text


@lru_cache(maxsize=512)
def sum_source(kernel: SumKernel, access: Access, flag: bool = False) -> str:
    """The whole CUDA source of a kernel, entry point `ENTRY`."""
    parameters = f"fmm::Parameters<{kernel.arrays}, {kernel.scalars}>"
    variant = f"fmm::Access::{access.upper()}, {str(flag).lower()}"
    body = (f"fmm::sum<Step, {DTYPES[kernel.element].cpp}, {kernel.lanes}, {variant}>(p);",)
    return entry_source(parameters, body, "block_sums.cuh", (kernel.bounds,), before=step_lines(kernel), entry=ENTRY)


def step_lines(kernel: SumKernel) -> Iterator[str]:
    """The program itself, as what block_sums.cuh calls a Step."""
    yield from (
        "struct Step {",
        f"    static constexpr bool LONG = {str(kernel.long).lower()};",
        f"    static constexpr bool APART = {str(kernel.apart).lower()};",
        f"    static constexpr bool TURNED = {str(bool(kernel.tall)).lower()};",
        f"    static constexpr int HIGH = {HIGH};",
        f"    static constexpr int SLOTS = {kernel.slots};",
        f"    __device__ static constexpr bool whole(int array) {{ return {_any_of(kernel.whole)}; }}",
        f"    __device__ static constexpr bool tall(int array) {{ return {_any_of(kernel.tall)}; }}",
        f"    __device__ static constexpr bool parts(int array) {{ return {_any_of(kernel.parts)}; }}",
        "    template <class Io>",
        "    __device__ static __forceinline__ void run(Io& io) {",
        "        using Values = typename Io::Values;",
        *(f"        {statement}" for statement in _statements(kernel)),
        "    }",
        "};",
        "",
    )


def _any_of(arrays: frozenset[int]) -> str:
    return " || ".join(f"array == {a}" for a in sorted(arrays)) or "false"


def _statements(kernel: SumKernel) -> Iterator[str]:
    loads = [event.value for event in kernel.events if event.kind == "load"]
    number = {value: i for i, value in enumerate(loads)}
    for batch in range(BATCHES if kernel.batch else 0):
        yield from _start_batch(kernel, loads, batch)
    seen: set[int] = set()  # loads and stores of parts of complex numbers, as _both_parts knows them
    for event in kernel.events:
        if event.kind in ("load", "store") and (other := _partner(kernel, event, loads)) is not None:
            yield from _both_parts(kernel, event, other, seen)
        elif event.kind == "load" and kernel.batch:
            yield from _take_value(kernel, loads, number[event.value])
        elif event.kind == "load":
            yield f"const Values v{event.value} = io.template load<{_spot_text(kernel.reads[event.value])}>();"
        elif event.kind == "store":
            if any(o == event.source for o, _ in kernel.aliases):
                yield "Io::fence();"
            yield f"io.template store<{_spot_text(kernel.writes[event.source])}>(v{event.value});"
        elif event.kind == "start":
            yield f"Values v{event.value} = {_first_term(event)};"
        else:
            yield f"v{event.value} = v{event.value} {_next_term(event)};"


def _partner(kernel: SumKernel, event: Statement, loads: Sequence[int]) -> int | None:
    """The other part of a complex number, if it is loaded or stored too."""
    other = kernel.partner(event)
    return other if event.kind == "store" or other in loads else None


def _both_parts(kernel: SumKernel, event: Statement, other: int, seen: set[int]) -> Iterator[str]:
    """Real and imaginary parts move together: both are loaded with the first of the two, and stored with the second.

    `seen`: the numbers of values loaded so far, and ~ the numbers of outputs stored so far.
    """
    loads = event.kind == "load"
    own = event.value if loads else event.source
    seen.add(own if loads else ~own)
    comes_first = (other if loads else ~other) not in seen
    if comes_first != loads:
        return
    spots = kernel.reads if loads else kernel.writes
    re, im = sorted((own, other), key=lambda x: spots[x].part)
    if loads:
        yield f"Values v{re}, v{im};"
        yield f"io.template load_parts<{_spot_text(spots[re])}>(v{re}, v{im});"
        return
    if any(o in (re, im) for o, _ in kernel.aliases):
        yield "Io::fence();"
    x, y = (kernel.program.outputs[o] for o in (re, im))
    yield f"io.template store_parts<{_spot_text(spots[re])}>(v{x}, v{y});"


def _start_batch(kernel: SumKernel, loads: Sequence[int], batch: int) -> Iterator[str]:
    """Start a batch of loads. Past the last one an empty batch is committed, so that waiting counts right."""
    for i in range(batch * kernel.batch, min((batch + 1) * kernel.batch, len(loads))):
        yield f"io.template fetch<{_spot_text(kernel.reads[loads[i]])}>({i % kernel.slots});"
    yield "Io::commit();"


def _take_value(kernel: SumKernel, loads: Sequence[int], i: int) -> Iterator[str]:
    """Take a fetched value. After the last one of a batch its slots are free, and a later batch is started."""
    batch, within = divmod(i, kernel.batch)
    if within == 0:
        yield f"Io::template wait<{BATCHES - 1}>();"
    yield f"const Values v{loads[i]} = io.template take<{_spot_text(kernel.reads[loads[i]])}>({i % kernel.slots});"
    if within == kernel.batch - 1:
        yield from _start_batch(kernel, loads, batch + BATCHES)


def _spot_text(spot: BlockIndex) -> str:
    return f"{spot.array}, {spot.i}, {spot.j}" + (f", {spot.part}" if spot.part else "")


def _first_term(event: Statement) -> str:
    if event.source < 0:
        return "io.zero()"
    if event.factor == 1:
        return f"v{event.source}"
    return f"{_factor_text(event.factor)} * v{event.source}"


def _next_term(event: Statement) -> str:
    if event.factor in (1, -1):
        return f"{'+' if event.factor == 1 else '-'} v{event.source}"
    return f"+ {_factor_text(event.factor)} * v{event.source}"


def _factor_text(c: Coefficient | LaunchCoefficient) -> str:
    if isinstance(c, LaunchCoefficient):
        return f"io.scalar({c.number})"
    return f"io.constant({float(c.real)!r})"

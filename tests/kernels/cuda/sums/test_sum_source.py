"""The sum kernels without a GPU: the order of their statements, and NVRTC's code for every architecture."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest

from fmm.hardware.datasheets import capability_limits
from fmm.hardware.occupancy import count_active_blocks
from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.cuda.recompute import recompute
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.cuda.sums.sum_kernel import SUM_THREADS, SumKernel, sum_source
from fmm.kernels.cuda.sums.sum_launch import ARRAY_STRUCT_BYTES, SumOp
from fmm.kernels.cuda.sums.sum_order import peak_live_values
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import (
    ARCHITECTURES,
    CPP17,
    EACH_ARCHITECTURE,
    Report,
    compile_cuda,
    in_parallel,
    nvrtc,
    report,
)


def launches(text: str, dtype: str, size: int, alpha: complex = 1, beta: complex = 0) -> list[SumOp]:
    tape = record_operations(
        Plan.parse(text if "vendor" in text else f"{text} > vendor"),
        Problem(size, size, size, dtype, alpha=alpha, beta=beta),
    )
    return [op for op in tape.ops if isinstance(op, SumOp)]


def kernels(text: str, dtype: str, size: int = 256) -> list[SumKernel]:
    """The different kernels of a plan."""
    return list(dict.fromkeys(op.kernel for op in launches(text, dtype, size)))


# ---- the order of the statements


@pytest.mark.parametrize(
    "name", quick_and_slow(["strassen", "winograd^2", "laderman"], ["strassen^3", "hk244", "smirnov336"])
)
def test_statements_compute_the_program(name: str) -> None:
    """Run on exact numbers: every output is stored once, with the coefficients' value."""
    for kernel in kernels(f"{name}.batched", "float64", 144):
        inputs = [(7 * i + 3) % 11 - 5 for i in range(kernel.program.inputs)]
        values: dict[int, Any] = {}
        outputs: dict[int, Any] = {}
        for event in kernel.statements:
            if event.kind == "load":
                values[event.value] = inputs[event.value]
            elif event.kind == "store":
                assert event.source not in outputs
                outputs[event.source] = values[event.value]
            else:
                term = event.factor * values[event.source] if event.source >= 0 else 0
                values[event.value] = (values[event.value] if event.kind == "add" else 0) + term
        expected = [sum(c * x for c, x in zip(row, inputs, strict=True)) for row in kernel.program.coefficient_matrix()]
        assert [outputs[o] for o in range(len(expected))] == expected


def test_few_values_are_live() -> None:
    """Live values: fewer than 90 for three levels in one pass, and 45 in joins, which read 343."""
    programs = scheme("strassen^3").addition_programs
    assert (programs.join.inputs, len(programs.left.outputs)) == (343, 343)
    found = [peak_live_values(kernel.statements) for kernel in kernels("strassen^3.batched", "float64", 512)]
    assert found == [85, 85, 43]  # a split has 64 blocks, and what an inner split needs; of a join, half are unfinished
    assert [peak_live_values(k.statements) for k in kernels("strassen.batched", "float64")] == [5, 5, 3]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("name", "most"),
    quick_and_slow([("strassen", 3), ("strassen^2", 11), ("strassen^3", 43), ("winograd", 3)], [("winograd^3", 43)]),
)
def test_a_join_takes_its_products_in_a_good_order(name: str, most: int) -> None:
    """An old value of C is loaded when its sum is complete: with beta at most one more value is live."""
    for beta, bound in ((0, most), (0.5, most + 1)):
        join = launches(f"{name}.batched.pad16", "float32", 512, 2.5, beta)[-1].kernel
        assert peak_live_values(join.statements) <= bound + (beta == 0)  # alpha's multiple of a sum beside it
        loads = [event.value for event in join.statements if event.kind == "load"]
        assert sorted(loads) == list(range(join.program.inputs))


@pytest.mark.parametrize(
    ("text", "dtype", "lanes"),
    [
        ("strassen.batched", "float32", [4, 4, 4]),  # 16 bytes
        ("strassen.batched", "float64", [2, 2, 2]),
        ("strassen.batched", "bfloat16", [8, 8, 8]),
        ("strassen^2.batched", "float32", [4, 4, 4]),
        ("strassen^2.batched", "bfloat16", [8, 8, 8]),
        ("strassen^3.batched", "float32", [2, 2, 2]),  # 4 numbers each would not fit in registers
        ("strassen^3.batched", "float64", [1, 1, 1]),
        ("strassen.batched", "complex128", [2, 2, 2]),  # real and imaginary parts as columns
        ("3m(strassen^2)", "complex64", [2, 2, 2]),
        ("3m", "complex64", [4, 4]),  # real numbers, complex ones in two accesses; one kernel splits both operands
    ],
)
def test_vector_width_fills_an_access_while_registers_last(text: str, dtype: str, lanes: list[int]) -> None:
    assert [kernel.vector_width for kernel in kernels(text, dtype, 512)] == lanes


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_parts_of_complex_numbers_move_together(dtype: str) -> None:
    """A split reads each complex number once and writes three real ones; a join does the reverse."""
    split_a, split_b, join = launches("3m", dtype, 256)
    for op, moved in ((split_a, "load"), (split_b, "load"), (join, "store")):
        text = sum_source(op.kernel, op.access)
        step = text[text.index("struct Step") :]
        assert op.access == "vector" and step.count(f"io.template {moved}_parts<") == 1
        other = "store" if moved == "load" else "load"
        assert step.count(f"io.template {other}<") == 3 and f"io.template {moved}<" not in step
    (update,) = [op for op in launches("3m", dtype, 256, 1, 1) if op.label == "join"]
    step = sum_source(update.kernel, update.access).partition("struct Step")[2]
    assert update.access == "vector" and "load_parts<" in step and "store_parts<" in step


# ---- NVRTC: no GPU and no driver is needed

REAL = ("float32", "float64", "bfloat16", "float16")
TYPES = (*REAL, "complex64", "complex128")


class Case(NamedTuple):
    """Kernels of some plans, and how many of their thread blocks must fit on a multiprocessor."""

    plans: tuple[str, ...]
    blocks: int
    dtypes: tuple[str, ...]
    architectures: tuple[str, ...]
    scalars: tuple[complex, complex] = (1, 0)
    flag: bool = False
    only: str = ""  # launches with this label


def batched(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}.batched.pad16" for name in names)


ONE = batched("strassen", "winograd")
TWO = batched("strassen^2", "winograd^2")
THREE = batched("strassen^3", "winograd^3")
OUTER = ("strassen.pad16", "winograd.pad16", "strassen^2.pad16", "winograd^2.pad16")
OTHERS = tuple(s for s in scheme_names() if s not in ("strassen", "winograd"))
TABLES = step_table_names()
TURNED = (
    "strassen.batched.pad16 > vendor.inner",
    "winograd^2.pad16 > vendor.outer",
    "strassen^2.batched.pad16 > vendor.inner",
)

# One representative at least of every kind of kernel; one of three levels takes seconds.
USUAL = {
    "one level": Case(batched("winograd"), 5, ("float32", "bfloat16"), ("sm_75", "sm_90")),
    "one level, more types": Case(batched("strassen"), 5, ("float64", "float16", "complex64"), ("sm_90",)),
    "other schemes": Case(batched("laderman", "hk223"), 3, ("float32",), ("sm_90",)),
    "step tables": Case(("dps", *TABLES), 5, ("float32",), ("sm_90",)),
    "one product at a time": Case(("winograd.sequential",), 5, ("bfloat16",), ("sm_75",)),
    "unequal blocks, peeled strips": Case(("winograd", "strassen.peel"), 5, ("float64",), ("sm_80",)),
    "alpha, beta, flag": Case(ONE, 4, ("float16", "complex64"), ("sm_100",), (2.5, 0.5), True),
    "complex alpha": Case(ONE, 3, ("complex128",), ("sm_80",), (1j, 0), True),
    "complex alpha and beta": Case(ONE, 3, ("complex128",), ("sm_90",), (1j, 0.5 - 2j), True),
    "complex by three": Case(("3m", "3m.sequential.conj-b"), 5, ("complex64", "complex128"), ("sm_75", "sm_90")),
    "complex by three, alpha, beta, flag": Case(
        ("3m", "3m(strassen.pad16)"), 5, ("complex64",), ("sm_90",), (2.5 - 1j, 0.7j), True
    ),
    "complex by three, one level": Case(("3m(strassen.pad16)",), 5, ("complex128",), ARCHITECTURES),
    "complex by three, two levels": Case(("3m(strassen^2.pad16)",), 2, ("complex64",), ("sm_90",), only="join"),
    "two levels": Case(TWO, 3, ("float32",), ("sm_90",)),
    "sums that turn": Case(TURNED[:1], 3, ("float32",), ("sm_90",)),
    "sums that turn, two levels": Case(TURNED[1:], 3, ("float32",), ("sm_90",)),
    # bfloat16: 8 numbers a thread, in as many registers as the 4 of float32.
    "two levels, joins": Case(TWO[:1], 3, ("bfloat16",), ("sm_75", "sm_90"), only="join"),
    "three levels, split": Case(THREE[:1], 2, ("float64",), ("sm_90",), only="split A"),
    # Of both schemes' joins, Strassen's needs more registers.
    "three levels, join, flag": Case(THREE[:1], 2, ("float64",), ("sm_90",), flag=True, only="join"),
}
# FMM_ALL_KERNELS=1: every kernel of every shipped scheme and step table that the runtime or a user can ask for.
ALL = {
    "one level": Case((*ONE, *OUTER[:2]), 5, TYPES, ARCHITECTURES),
    "two levels": Case((*TWO, *OUTER[2:]), 3, ("float32", "float64", "complex64", "complex128"), ARCHITECTURES),
    "two levels, 8 numbers a thread": Case((*TWO, *OUTER[2:]), 2, ("bfloat16", "float16"), ARCHITECTURES),
    "three levels, split A": Case(THREE, 2, TYPES, ARCHITECTURES, only="split A"),
    "three levels, split B": Case(THREE, 2, TYPES, ARCHITECTURES, only="split B"),
    "three levels, join": Case(THREE, 2, TYPES, ARCHITECTURES, only="join"),
    "three levels, join, flag": Case(THREE, 2, TYPES, ARCHITECTURES, flag=True, only="join"),
    "other schemes": Case(batched(*OTHERS), 2, TYPES, ARCHITECTURES),
    "sums that turn": Case(TURNED, 2, TYPES, ARCHITECTURES),
    "step tables": Case((*TABLES, *(f"{t}.pad" for t in TABLES)), 5, TYPES, ARCHITECTURES),
    "dps": Case(("dps",), 4, TYPES, ARCHITECTURES),
    "one product at a time": Case(("strassen.sequential", "winograd.sequential"), 5, TYPES, ARCHITECTURES),
    "unequal blocks, peeled strips": Case(("winograd", "strassen", "strassen.peel"), 5, TYPES, ARCHITECTURES),
    "alpha, beta, flag": Case((*ONE, *TABLES), 4, TYPES, ARCHITECTURES, (2.5, 0.5), True),
    "alpha, beta, flag, two levels": Case(TWO, 2, TYPES, ARCHITECTURES, (2.5, 0.5), True),
    "alpha, beta, three levels": Case(THREE, 2, REAL, ARCHITECTURES, (2.5, 0.5), False, "join"),
    "complex alpha": Case((*ONE, *TWO), 2, TYPES[4:], ARCHITECTURES, (1j, 0), True),
    "complex alpha and beta": Case((*ONE, *TWO), 2, TYPES[4:], ARCHITECTURES, (1j, 0.5 - 2j), True),
}
ALL |= {
    "complex by three, one level": Case(("3m(strassen.pad16)",), 4, TYPES[4:], ARCHITECTURES, (2.5 - 1j, 0.7j), True),
    "complex by three, two levels": Case(("3m(strassen^2.pad16)",), 2, TYPES[4:], ARCHITECTURES),
    "complex by three": Case(("3m", "3m.sequential", "3m.conj-a.conj-b"), 5, TYPES[4:], ARCHITECTURES),
    "complex by three, alpha, beta, flag": Case(
        ("3m", "3m.sequential"), 5, TYPES[4:], ARCHITECTURES, (2.5 - 1j, 0.7j), True
    ),
}


def sources(case: Case, architecture: str) -> Iterator[tuple[str, str]]:
    """Names and texts of a case's kernels, each text once."""
    for dtype in case.dtypes:
        seen: set[str] = set()
        for plan in case.plans:
            # A multiple of every grid and of 16 bytes below it, so that whole layers and wide accesses are met.
            size = 512 if "^" in plan else 576
            for op, access in product(launches(plan, dtype, size, *case.scalars), ("vector", "scalar")):
                if (access == "scalar" or op.kernel.vector_width > 1) and case.only in ("", op.label):
                    text = sum_source(op.kernel, access, case.flag and op.writes_result)
                    if text not in seen:
                        seen.add(text)
                        yield f"{plan} {dtype} {architecture} {access} {op.label}", text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        pytest.param(case, architecture, id=f"{name}-{architecture}")
        for name, case in (ALL if os.environ.get("FMM_ALL_KERNELS") == "1" else USUAL).items()
        for architecture in case.architectures
    ],
)
def test_every_kernel_compiles_and_stays_in_registers(case: Case, architecture: str) -> None:
    """No local memory, and few enough registers that several thread blocks hide memory latency."""
    nvrtc()
    jobs: list[tuple[Any, ...]] = [(*job, architecture) for job in sources(case, architecture)]
    assert jobs
    reports = in_parallel(report, jobs)
    if path := os.environ.get("FMM_REGISTER_TABLE"):
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(
                f"{r.name}: {r.registers} registers, {r.shared} bytes shared, {r.local} local\n" for r in reports
            )
    assert [r for r in reports if r.local] == []
    for r in reports:
        assert blocks(architecture, r) >= case.blocks, r


def blocks(architecture: str, kernel: Report) -> int:
    """Return the kernel's thread blocks on one multiprocessor."""
    digits = architecture.removeprefix("sm_")
    return count_active_blocks(
        capability_limits(f"{digits[:-1]}.{digits[-1]}"), SUM_THREADS, kernel.registers, kernel.shared
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", quick_and_slow(["float32"], ["float16", "bfloat16", "complex64"]))
def test_sums_keep_subnormal_numbers(dtype: str) -> None:
    """CuPy compiles with -ftz=true, which no option of fmm's undoes."""
    sums = (launches(plan, dtype, 576, 0.3, -7.0)[-1] for plan in ("strassen.batched.pad16", "dps.sequential"))
    texts = [sum_source(op.kernel, access) for op, access in zip(sums, ("vector", "scalar"), strict=True)]
    for text in (*texts, recompute.simple_recompute_source(dtype, recompute.RECOMPUTE_ENTRY_NAME)):
        _, ptx = compile_cuda(text, "compute_90", "--std=c++17", "-ftz=true")
        assert "ret;" in ptx and "f32" in ptx
        assert set(re.findall(r"\w+[.\w]*\.ftz[.\w]*", ptx)) <= {"cvt.rn.ftz.f32.f64"}  # of alpha and beta themselves


@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
def test_parameters_have_the_size_of_the_cuda_struct(architecture: str) -> None:
    """test_sum_host.py checks the offset of each field with the host's compiler."""
    op = launches("strassen.batched.pad16", "float32", 256, 0.3, -7.0)[-1]
    assert op.kernel.scalars == 2
    text = sum_source(op.kernel, "scalar") + (
        f'static_assert(sizeof(fmm::Array) == {ARRAY_STRUCT_BYTES}, "array");\n'
        f'static_assert(sizeof(fmm::Parameters<{op.kernel.arrays}, 2>) == {len(op.parameters)}, "size");\n'
    )
    compile_cuda(text, architecture, *CPP17)
    with pytest.raises(AssertionError, match="array"):
        compile_cuda(text.replace(f"== {ARRAY_STRUCT_BYTES}", "== 8"), architecture, *CPP17)

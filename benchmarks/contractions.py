"""Tensor contractions of real programs: `python -m benchmarks contractions [--device cpu|0] [--quick]`.

The table has 54 contractions of quantum chemistry, tensor networks, quantum circuits, finite elements, statistics and
neural networks. fmm.einsum is timed beside numpy.einsum on a CPU, and beside cupy.einsum and torch.einsum on a GPU, all
with an order of pairs that opt_einsum finds. The goal is a speedup of at least 0.95 over the best of them. Samples go
to results/<device>/contractions.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import prod
from statistics import median
from typing import Any

import numpy as np
import opt_einsum

import fmm
from benchmarks.harness import (
    Call,
    Machine,
    Row,
    benchmark_parser,
    free_gpu_memory,
    has_failures,
    machine_of,
    paired_samples,
    paired_speedup,
    recorded_failure,
    rounded_samples,
    run_cases,
)

GOAL_SPEEDUP = 0.95
ROUNDS, QUICK_ROUNDS, SAMPLE_SECONDS = 7, 3, 0.02
CPU_SCALE = 0.4  # a CPU's sizes are this share of a GPU's, but at least SMALLEST_SIZE
SMALLEST_SIZE = 8
# largest error, relative to the largest entry, of a result and another library's result
TOLERANCES = {"float32": 1e-4, "complex64": 1e-4, "float64": 1e-10, "complex128": 1e-10}

# Programs: the sizes of their labels, and their contractions.
# i j k l: occupied orbitals; a b c d: virtual orbitals; P Q: auxiliary functions; m n r s: atomic orbitals
CHEMISTRY = {**dict.fromkeys("ijkl", 40), **dict.fromkeys("abcd", 160), **dict.fromkeys("PQ", 800)}
CHEMISTRY |= dict.fromkeys("mnrs", 200)
FOUR_INDEX = dict.fromkeys("mnrspqtu", 80)
TRIPLES = {**dict.fromkeys("ijkl", 12), **dict.fromkeys("abcd", 48)}
# a b c d e: bonds; s t: sites; v w: bonds of the operator
MATRIX_PRODUCT_STATES = {**dict.fromkeys("abcde", 1024), **dict.fromkeys("st", 4), **dict.fromkeys("vw", 12)}
LATTICES = {**dict.fromkeys("abcdef", 12), **dict.fromkeys("xyzuvw", 96)}
# l m n: the other qubits; x y u v: the qubits of a gate
CIRCUITS = {**dict.fromkeys("lmn", 256), **dict.fromkeys("xyuv", 4)}
# e: elements; q r s: quadrature points; i j k: basis functions
FINITE_ELEMENTS = {"e": 4000, **dict.fromkeys("qrs", 12), **dict.fromkeys("ijk", 10)}
STATISTICS = {
    "n": 20000,
    **dict.fromkeys("ijm", 2048),
    **dict.fromkeys("abc", 64),
    **dict.fromkeys("xyz", 512),
    "r": 256,
}
# b: batch; t u: tokens; h: heads; d e: model; k: head dimension; f: hidden; g: experts
NETWORKS = {"b": 8, "t": 1024, "u": 1024, "h": 16, "d": 1024, "e": 1024, "k": 64, "f": 4096, "g": 8, "c": 2048, "r": 32}

PROGRAMS: tuple[tuple[str, str, dict[str, int], tuple[str, ...]], ...] = (
    (
        "density fitting",
        "float64",
        CHEMISTRY,
        ("Pmn,mn->P", "Pmn,P->mn", "Pmn,ni->Pmi", "Pmi,Pni->mn", "Pmn,mi,na->Pia", "PQ,Qia->Pia", "Pia,Pjb->iajb"),
    ),
    ("density fitting", "float32", CHEMISTRY, ("Pmn,ni->Pmi", "Pmi,Pni->mn", "Pmn,mi,na->Pia", "Pia,Pjb->iajb")),
    ("four indices", "float64", FOUR_INDEX, ("mnrs,mp,nq,rt,su->pqtu", "mnrs,sp->mnrp", "mnrs,np->mprs")),
    (
        "coupled cluster",
        "float64",
        CHEMISTRY,
        (
            "ijcd,abcd->ijab",
            "klij,klab->ijab",
            "ikac,kbcj->ijab",
            "klcd,ijcd->klij",
            "klcd,ilad->kaic",
            "kc,ikac->ia",
            "klcd,ikac,jlbd->ijab",
        ),
    ),
    ("coupled cluster", "float32", CHEMISTRY, ("ijcd,abcd->ijab", "ikac,kbcj->ijab", "klcd,ilad->kaic")),
    ("triples", "float64", TRIPLES, ("ijad,bcdk->ijkabc", "ilab,jkcl->ijkabc")),
    (
        "matrix product states",
        "complex128",
        MATRIX_PRODUCT_STATES,
        ("awb,bsc,wstv,dvc->atd", "awb,bsc->awsc", "abs,bcs->ac", "asb,bsc->ac", "ab,bsc->asc", "asb,bc,ctd->astd"),
    ),
    ("lattices", "complex128", LATTICES, ("xaby,ycdz->xacbdz", "xaby,acef,ybcz->xefz")),
    ("circuits", "complex64", CIRCUITS, ("lxmyn,uvxy->lumvn", "lxmn,ux->lumn")),
    ("finite elements", "float64", FINITE_ELEMENTS, ("eqrs,qi,rj,sk->eijk", "eq,qi,qj->eij")),
    (
        "statistics",
        "float32",
        STATISTICS,
        ("ni,nj->ij", "n,ni,nj->ij", "ni,mi->nm", "xyz,xa,yb,zc->abc", "xyz,yr,zr->xr", "ij,mj,i->im"),
    ),
    (
        "networks",
        "float32",
        NETWORKS,
        (
            "bthk,buhk->bhtu",
            "bhtu,buhk->bthk",
            "btd,de->bte",
            "btd,dhk->bthk",
            "bthk,hkd->btd",
            "gcd,gdf->gcf",
            "btk,rkh,bth->btr",
            "btd,dr,re->bte",
            "btd,tu->bud",
            "btd,bte->de",
        ),
    ),
)


@dataclass(frozen=True)
class Case:
    """A contraction of one program: the subscripts, the element type, and the size of each label."""

    program: str
    dtype: str
    subscripts: str
    sizes: tuple[tuple[str, int], ...]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the operands."""
        sizes = dict(self.sizes)
        return [tuple(sizes[label] for label in term) for term in self.subscripts.partition("->")[0].split(",")]

    @property
    def fields(self) -> Row:
        """The fields that name the case in a row."""
        return {"program": self.program, "dtype": self.dtype, "subscripts": self.subscripts, "sizes": dict(self.sizes)}


def all_cases(scale: float) -> list[Case]:
    """Return all contractions, with the sizes of a GPU times `scale`."""
    return [
        Case(program, dtype, text, tuple((x, max(int(scale * sizes[x]), min(sizes[x], SMALLEST_SIZE))) for x in labels))
        for program, dtype, sizes, texts in PROGRAMS
        for text in texts
        for labels in [sorted(set(text) - set(",->"))]
    ]


def compared_calls(case: Case, machine: Machine) -> tuple[dict[str, Call], list[tuple[int, ...]]]:
    """Return the calls of fmm and of the libraries, and the path that all of them follow."""
    path, _ = opt_einsum.contract_path(case.subscripts, *case.shapes, shapes=True, optimize="auto")
    arrays = [random_array(shape, case.dtype, machine) for shape in case.shapes]
    library_path = ["einsum_path", *path]
    if not machine.on_gpu:
        numpy_call = partial(np.einsum, case.subscripts, *arrays, optimize=library_path)
        return {"fmm": partial(fmm.einsum, case.subscripts, *arrays, optimize=path), "numpy": numpy_call}, path
    import cupy

    calls: dict[str, Call] = {
        "fmm": partial(fmm.einsum, case.subscripts, *arrays, optimize=path),
        "cupy": partial(cupy.einsum, case.subscripts, *arrays, optimize=library_path),
    }
    if find_spec("torch"):
        import torch

        tensors = [torch.from_dlpack(x) for x in arrays]
        calls["torch"] = partial(torch.einsum, case.subscripts, *tensors)
        calls["fmm of tensors"] = partial(fmm.einsum, case.subscripts, *tensors, optimize=path)
    return calls, path


def random_array(shape: Sequence[int], dtype: str, machine: Machine) -> Any:
    """Return normal numbers, scaled so that contractions stay near 1."""
    random = import_module("cupy" if machine.on_gpu else "numpy").random
    rng = random.default_rng(prod(shape))
    real = "float32" if dtype in ("float32", "complex64") else "float64"
    x = rng.standard_normal(shape, dtype=real)
    return (x + 1j * rng.standard_normal(shape, dtype=real)).astype(dtype) if "complex" in dtype else x


def measure_case(case: Case, machine: Machine, rounds: int) -> Row:
    """Compare the results, then time all calls in shuffled rounds."""
    if machine.on_gpu:
        free_gpu_memory()
    calls, path = compared_calls(case, machine)
    results = {name: call() for name, call in calls.items()}
    error = max(relative_error(results["fmm"], other) for name, other in results.items() if name != "fmm")
    if not error <= TOLERANCES[case.dtype]:
        raise RuntimeError(f"wrong result: relative error {error:.3g}")
    del results
    samples = paired_samples(calls, rounds, SAMPLE_SECONDS, machine.clock, warm=1)
    return {**case.fields, **contraction_row(samples), "error": error, "path": [list(step) for step in path]}


def relative_error(found: Any, other: Any) -> float:
    """Return the largest difference of two results over the largest entry; arrays of torch are read by CuPy."""
    if type(other).__module__.startswith("torch"):
        import cupy

        other = cupy.from_dlpack(other.resolve_conj())
    return float(abs(found - other).max() / abs(other).max())


def contraction_row(samples: dict[str, list[float]]) -> Row:
    """Return the speedup of fmm over the best library, and whether the goal is met."""
    peers = [name for name in samples if not name.startswith("fmm")]
    best = min(peers, key=lambda name: median(samples[name]))
    own = min((name for name in samples if name.startswith("fmm")), key=lambda name: median(samples[name]))
    speedup = paired_speedup(samples[best], samples[own])
    samples = rounded_samples(samples)
    return {"best": best, "speedup": round(speedup, 4), "within_goal": speedup >= GOAL_SPEEDUP, "samples": samples}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    head = f"{row['program']:22}{row['dtype']:11}{row['subscripts']:24}"
    if row["failure"]:
        return f"{head}  {row['failure'][:90]}"
    times = "  ".join(f"{name} {1e3 * median(seconds):.3f}" for name, seconds in row["samples"].items())
    return f"{head}{row['speedup']:7.2f} of {row['best']}  ms: {times}" + "  below" * (not row["within_goal"])


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("contractions", __doc__, time_limit=1e9, device="cpu", quick="few rounds")
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    measure = recorded_failure(lambda case: measure_case(case, machine, rounds), lambda case: case.fields)
    cases = all_cases(1.0 if machine.on_gpu else CPU_SCALE)
    return has_failures(run_cases(options, machine, "contractions.json", cases, measure, text_line))

"""Huang, Yu and van de Geijn's performance: Figures 1, 8, 9 and 10.

The paper's codes are played by plans. cuBLAS is the vendor. CUTLASS is fmm's own kernel, and its one-level Strassen the
same kernel with sums inside. The reference implementation of the earlier work (Lai et al. 2013) is Winograd's variant
with workspace and the vendor's products. The hybrid is a level of the reference, then one level with sums inside. On a
CPU no product has sums inside, so only the vendor and the reference are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from math import prod
from statistics import median
from typing import Final

from benchmarks.papers.bench import Bench, time_plans
from benchmarks.papers.experiment import Experiment, ExperimentPart, Key, Numbers, Results, Row, one_part
from benchmarks.papers.figure import Figure, quantity_column
from fmm.hardware.datasheets import datasheet_names, datasheet_of
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.papers import huang
from fmm.perfmodel.papers.huang_blocks import modelled_device
from fmm.problem import Problem

ROUNDS: Final = 3
SIDE: Final = 16384
CUBLAS, CUTLASS = "cuBLAS", "CUTLASS"
HOST_CODES: Final = {
    CUBLAS: "vendor",
    "1-level reference": "winograd > vendor",
    "2-level reference": "winograd > winograd > vendor",
}
DEVICE_CODES: Final = {
    **HOST_CODES,
    CUTLASS: "tile",
    "1-level": "strassen-huang.fused.pad4 > tile",
    "2-level hybrid": "winograd > strassen-huang.fused.pad4 > tile",
}
# Figure 8's three sweeps: the varied quantity, and its sizes (m, k, n).
VARIED_SIDES: Final = (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
SWEEPS: Final = ("m=n=k", "m=n, k=4096", "k, m=n=8192")


def sweep_size(sweep: str, x: int, scale: float = 1.0) -> tuple[int, int, int]:
    """Return the scaled m, k and n of a sweep."""
    sizes = {"m=n=k": (x, x, x), "m=n, k=4096": (x, 4096, x), "k, m=n=8192": (8192, x, 8192)}[sweep]
    m, k, n = (max(int(side * scale), 32) for side in sizes)
    return m, k, n


def _sweep_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    """Yield a part for each size of each sweep, with all codes."""
    codes = HOST_CODES if bench.on_host else DEVICE_CODES
    for sweep, x in product(SWEEPS, VARIED_SIDES):
        yield rate_part(bench, codes, (sweep, x), sweep_size(sweep, x, scale))


def rate_part(
    bench: Bench, codes: Mapping[str, str], about: tuple[str, int], size: tuple[int, int, int]
) -> ExperimentPart:
    """Return the part that times all codes on products of this size.

    The key of a row has the code between the two values that identify the part.
    """
    products = tuple((Plan.parse(text), Problem(*size, "float32")) for text in codes.values())
    work = 2.0 * prod(size) * len(codes) * (ROUNDS + 1)

    def rows() -> Iterator[Row]:
        for row in rate_rows(bench, codes, size):
            yield {**row, "key": [about[0], row["key"][0], about[1]]}

    return ExperimentPart(about, rows, products, work)


def rate_rows(bench: Bench, codes: Mapping[str, str], size: tuple[int, int, int]) -> Iterator[Row]:
    """Yield seconds and effective TFLOPS of each code: 2 m n k over the time (Equation 7)."""
    m, k, n = size
    rng = bench.generator(m + k)
    a, b = (
        bench.to_storage_type(rng.standard_normal((m, k)), "float32"),
        bench.to_storage_type(rng.standard_normal((k, n)), "float32"),
    )
    seconds, failed = time_plans(bench, codes, a, b, ROUNDS)
    for name, samples in seconds.items():
        rates = [2e-12 * m * n * k / x for x in samples]
        yield {"key": [name], "plan": codes[name], "size": list(size), "tflops": rates}
    for name, why in failed.items():
        yield {"key": [name], "plan": codes[name], "size": list(size), "failed": why}


SWEEP_EXPERIMENT: Final = Experiment("huang-fig8", ("sweep", "code", "n"), SIDE, _sweep_parts, ("sweep", "n"))


# ---- Figure 1: from which size on a code is faster than cuBLAS


def _break_even(results: Results) -> Numbers:
    """Return the smallest square from which on a code is faster than cuBLAS, and its best speedup."""
    rates = results.numbers("tflops")
    codes = dict.fromkeys(code for sweep, code, _ in rates if sweep == SWEEPS[0] and code not in (CUBLAS, CUTLASS))
    found: dict[Key, float] = {}
    for code in codes:
        for n in sorted(VARIED_SIDES, reverse=True):
            own, theirs = (rates.get((SWEEPS[0], x, n)) for x in (code, CUBLAS))
            if own is None or theirs is None or own <= theirs:
                break
            found[("break-even", str(code))] = float(n)
        ratios = [
            rates[SWEEPS[0], code, n] / rates[SWEEPS[0], CUBLAS, n]
            for n in VARIED_SIDES
            if (SWEEPS[0], code, n) in rates
        ]
        found[("best speedup", str(code))] = max(ratios)
    return found


def _break_even_notes(results: Results) -> list[str]:
    """Return notes on codes without a break-even point and on codes that were not measured."""
    found, said = _break_even(results), []
    none = [code for what, code in found if what == "best speedup" and ("break-even", code) not in found]
    side = max((n for _, _, n in results.numbers("tflops") if isinstance(n, int)), default=0)
    if none:
        said.append(f"No break-even point here, up to {side}: {', '.join(map(str, none))}.")
    if absent := [code for what, code in PRINTED_1 if what == "break-even" and ("best speedup", code) not in found]:
        said.append(f"Not measured here: {', '.join(map(str, absent))} (their products have sums inside).")
    return said


# Figure 1's caption, sections 1 and 4: break-even points, and speedups over cuBLAS.
PRINTED_1: Final[Numbers] = {
    ("break-even", "1-level"): 1536.0,
    ("break-even", "1-level reference"): 7168.0,
    ("break-even", "2-level hybrid"): 7680.0,
    ("break-even", "2-level reference"): 13312.0,
    ("best speedup", "1-level"): 1.11,
    ("best speedup", "2-level hybrid"): 1.19,
}


# ---- Figure 9: the machine


def _machine_rates(bench: Bench, scale: float) -> Iterator[Row]:
    n = max(int(8192 * scale), 64)
    rows = list(rate_rows(bench, {CUBLAS: "vendor"}, (n, n, n)))
    bytes_a_second, _ = bench.stream(max(int((1 << 27) * scale**2), 1 << 12))
    yield {"key": ["tau_flop"], "rate": median(rows[0]["tflops"])}
    yield {"key": ["tau_gmop"], "rate": bytes_a_second / 1e12}
    if (shared := bench.shared_memory()) is not None:
        yield {"key": ["tau_smop"], "rate": shared / 1e12}


PRINTED_9: Final[Numbers] = {("tau_flop",): 15.67, ("tau_gmop",): 1.08, ("tau_smop",): 15.30}


def _datasheet_rates(name: str) -> Numbers:
    on = datasheet_of(name)
    rates = (on.fp32_peak_flops, on.global_memory_bandwidth, on.shared_memory_bandwidth)
    return {(row,): rate / 1e12 for row, rate in zip(("tau_flop", "tau_gmop", "tau_smop"), rates, strict=True)}


# ---- Figure 10: two strategies, no, one and two levels with all sums inside

STRATEGIES: Final = ("Huge", "Small")
PLAN_LEVELS: Final = {
    "GEMM": "",
    "1-level": "strassen-huang.fused.pad4 > ",
    "2-level": "strassen-huang^2.fused.pad4 > ",
}
SIZES_10: Final = (1024, 2048, 4096, 6144, 8192, 10240)


def _strategy_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    """Yield a part for each strategy and size; none on a CPU, which has no such kernels."""
    for strategy, n in () if bench.on_host else product(STRATEGIES, SIZES_10):
        codes = {name: f"{level}tile.{strategy.lower()}" for name, level in PLAN_LEVELS.items()}
        side = max(int(n * scale), 64)
        yield rate_part(bench, codes, (strategy, n), (side, side, side))


STRATEGY_EXPERIMENT: Final = Experiment(
    "huang-fig10", ("strategy", "code", "n"), SIZES_10[-1], _strategy_parts, ("strategy", "n")
)


def _modelled_tflops() -> Numbers:
    """Return the TFLOPS on the paper's V100 by the paper's model."""
    table = huang.huang_fig10(SIZES_10)
    found: dict[Key, float] = {}
    for strategy, n, *rates in table.rows:
        for name, rate in zip(PLAN_LEVELS, rates, strict=True):
            assert isinstance(n, int) and isinstance(rate, float)
            found[str(strategy), name, n] = rate
    return found


def _modelled_here(results: Results) -> Numbers:
    """Return the TFLOPS by the paper's model with the datasheet of the measured device; none without a datasheet."""
    words = str(results.environment.get("device", "")).casefold().split()
    known = [name for name in datasheet_names() if all(word in words for word in name.casefold().split())]
    if not known:
        return {}
    sheet = datasheet_of(max(known, key=len))
    on, found = modelled_device(sheet, element_bytes=4, cache=huang.CACHE_MULTIPLIER), dict[Key, float]()
    for strategy, n in product(STRATEGIES, SIZES_10):
        rates = huang.modelled_tflops(strategy, max(int(n * results.scale), 64), on)
        found |= {(strategy, code, n): rate for code, rate in zip(PLAN_LEVELS, rates, strict=True)}
    return found


FIGURES: Final = (
    Figure(
        "huang-fig8",
        "Huang et al., Figure 8: squares, rank-4096 updates and inner products",
        SWEEP_EXPERIMENT,
        {"measured": quantity_column("tflops")},
        "Figure 8 is a plot without numbers; the numbers in the paper's text are in the table of Figure 1. A "
        "CPU has no products with sums inside, so only the "
        "vendor and both references are measured there.",
        unit="effective TFLOPS",
        logarithmic=False,
        is_drawn=lambda key: key[0] == SWEEPS[0],
    ),
    Figure(
        "huang-fig1",
        "Huang et al., Figure 1: from which square on a code is faster than cuBLAS, and by how much at best",
        SWEEP_EXPERIMENT,
        {"measured": _break_even},
        "A break-even point is one of the measured sizes. A code without a break-even point is slower than the "
        "vendor at the largest measured size. The paper's reference forms each sum by a call of the library; fmm's "
        "reference forms all sums of a level in one pass.",
        PRINTED_1,
        keys=("number", "code"),
        x="code",
        unit="side, or speedup",
        result_notes=_break_even_notes,
    ),
    Figure(
        "huang-fig9",
        "Huang et al., Figure 9: the machine's rates",
        Experiment("huang-fig9", ("rate",), 8192, one_part(_machine_rates)),
        {"measured": quantity_column("rate")},
        "The printed tau_gmop is a fifth larger than the V100's bandwidth, because of the second-level cache. The "
        "printed tau_smop is 2 percent smaller than the number in footnote 13. tau_gmop is measured by an addition "
        "of matrices that exceed all caches, and tau_smop by threads that read 16 bytes at a time.",
        PRINTED_9,
        {"V100": partial(_datasheet_rates, "V100"), "H200": partial(_datasheet_rates, "H200")},
        x="rate",
        unit="TFLOPS, TB/s",
    ),
    Figure(
        "huang-fig10",
        "Huang et al., Figure 10: strategies Huge and Small, one product after the other",
        STRATEGY_EXPERIMENT,
        {"modelled for this device": _modelled_here, "measured": quantity_column("tflops")},
        "The column V100 has the paper's model. In this model one level with Huge blocks is faster than no level, "
        "and two levels at once are slower than both. The other modelled column has the same model with the datasheet "
        "of the measured device.",
        computed={"V100, modelled": _modelled_tflops},
        unit="effective TFLOPS",
        logarithmic=False,
        notes=("A CPU has no such kernels: nothing is measured there.",),
    ),
)

"""Compare printed and computed numbers of Huang, Yu and van de Geijn, "Strassen's Algorithm Reloaded on GPUs" (2020).

The module uses the symbols of the paper (ACM TOMS 46). A thread block computes m_S x n_S entries of C in steps of k_S;
each thread computes m_R x n_R entries. One product reads W_A blocks of A and W_B blocks of B and adds to W_C blocks of
C. tau_flop, tau_gmop and tau_smop are the rates of arithmetic, of global memory and of shared memory. Numbers in
parentheses in the tables are the numbers of the paper's equations. The notes of a table explain printed numbers that do
not follow from the paper's own formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Final

from fmm.hardware.datasheets import datasheet_of
from fmm.hardware.occupancy import register_range
from fmm.kernels.algorithms.catalogue import scheme
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.cuda.products.kernel_sizes import STRATEGIES, TileSizes, named_strategy
from fmm.kernels.plans.fused_order import FIGURE_6_VARIANTS, launch_stages
from fmm.perfmodel import block_model
from fmm.perfmodel.block_model import GEMM_OPERANDS, OperandBlocks
from fmm.perfmodel.papers import huang_blocks
from fmm.perfmodel.papers.huang_blocks import FOOTNOTE_14_REGISTERS, FOOTNOTE_15_REGISTERS, ModelledDevice
from fmm.perfmodel.papers.table import Cell, PaperTable

CACHE_MULTIPLIER: Final = 0.2  # the paper's lambda (footnote 12), "adjusted to match the GEMM performance"
# The number that Figure 9 prints for tau_smop, in bytes/s; footnote 13 and the text have 15.67e12.
FIGURE_9_SHARED_BANDWIDTH: Final = 15.30e12

# Figure 3: strategy -> threads (t_x, t_y) of a thread block in two dimensions.
FIGURE_3_THREADS: Final[Mapping[str, tuple[int, int]]] = {
    "Small": (8, 8),
    "Medium": (8, 8),
    "Large": (8, 8),
    "Tall": (16, 8),
    "Wide": (8, 16),
    "Huge": (16, 16),
}

# Figure 7: the products on the two streams of stage 0, the two streams of stage 1, and the stream of stage 2.
FIGURE_7_PRODUCTS: Final = ("M1, M5", "M4, M6", "M2", "M3", "M0")

# The block counts (W_A, W_B, W_C) of the variant Var#0 with 0, 1 and 2 levels.
VARIANT_0_OPERANDS: Final[tuple[OperandBlocks, ...]] = (GEMM_OPERANDS, (2, 2, 2), (4, 4, 4))

# Footnote 15 as printed: strategy, number of levels, active thread blocks of Var#0 on one multiprocessor (SM).
FOOTNOTE_15_BLOCKS: Final[tuple[tuple[str, int, int], ...]] = (
    ("Huge", 0, 2),
    ("Huge", 1, 2),
    ("Huge", 2, 2),
    ("Small", 0, 24),
    ("Small", 1, 20),
    ("Small", 2, 18),
)


def paper_v100() -> ModelledDevice:
    """Return the paper's V100: tau_flop 15.67 TFLOPS, tau_gmop 900 GB/s x (1 + lambda), tau_smop of footnote 13."""
    return huang_blocks.modelled_device(datasheet_of("V100"), element_bytes=4, cache=CACHE_MULTIPLIER)


def scheme_of_equation_3(level: int) -> Scheme:
    """Return the scheme of Equation 3 for one level, or the scheme's Kronecker square for two levels."""
    if level not in (1, 2):
        raise ValueError(f"the paper has 1 and 2 levels, not {level}")
    return scheme("strassen-huang" if level == 1 else "strassen-huang^2")


def operand_counts(level: int) -> Counter[OperandBlocks]:
    """Return the numbers of products with W_A blocks of A, W_B of B and W_C of C, for 0 to 2 levels; 0 is GEMM."""
    if level == 0:
        return Counter({GEMM_OPERANDS: 1})
    strassen = scheme_of_equation_3(level)
    return huang_blocks.operand_counts(strassen.u, strassen.v, strassen.w)


# ---- Figures 3 and 6


def huang_fig3() -> PaperTable:
    """Return a table of Figure 3's six strategies, with computed threads and whether Equation 18 holds."""
    rows = tuple(_strategy_row(s) for s in STRATEGIES)
    columns = (
        *("strategy", "m_S", "n_S", "k_S", "m_R", "n_R", "t_x printed", "t_x computed", "t_x difference"),
        *("t_y printed", "t_y computed", "t_y difference", "threads", "(18) holds"),
    )
    note = (
        "The strategy Small does not meet Equation 18, the condition that one prefetch fills a tile. 64 threads "
        "prefetch m_R = 2 elements each, 128 in all, but a tile has m_S k_S = 256 elements. Each thread must "
        "therefore prefetch 4 elements of A and of B, instead of m_R and n_R."
    )
    return PaperTable("huang-fig3", "Figure 3: CUTLASS's six strategies", columns, rows, (note,))


def _strategy_row(s: TileSizes) -> tuple[Cell, ...]:
    x, y = FIGURE_3_THREADS[s.name]
    holds = _strategy_bound(s, GEMM_OPERANDS, paper_v100(), 18).is_bound_met
    sizes = (s.name, s.m_s, s.n_s, s.k_s, s.m_r, s.n_r)
    return (*sizes, x, s.threads_m, s.threads_m - x, y, s.threads_n, s.threads_n - y, s.thread_count, holds)


def _strategy_bound(s: TileSizes, w: OperandBlocks, gpu: ModelledDevice, equation: int) -> huang_blocks.BlockSizeBound:
    """Return a strategy's bound from the equation of Huang's paper with this number."""
    return next(b for b in huang_blocks.strategy_bounds(s, w, gpu) if b.equation == equation)


def huang_fig6() -> PaperTable:
    """Return the table of Figure 6, with operand counts computed from Equation 3 and its Kronecker square."""
    derived = {level: operand_counts(level) for level in range(3)}
    rows = tuple(
        (
            level,
            f"Var#{var}" if level else "GEMM",
            *w,
            printed,
            derived[level][w],
            derived[level][w] - printed,
        )
        for level, var, w, printed in FIGURE_6_VARIANTS
    )
    totals = ", ".join(f"{level}-level {sum(derived[level].values())}" for level in (1, 2))
    notes = (
        f"Derived instances: {totals}.",
        "Section 3.2 says that Var#3 allocates only next1_B. With W_B = 1 the buffer next1_B would hold nothing, so "
        "the text must mean next1_A (Algorithm 1, line 3).",
        "Figure 5 agrees with the derived products in all 49 rows, except for one sign: the figure prints C14 += "
        "M10, and the Kronecker product has C14 -= M10, like C10 -= M10. In the copy of the paper that was used, "
        "Figure 5 also has no minus signs inside the operands.",
    )
    columns = ("level", "variant", "W_A", "W_B", "W_C", "printed", "computed", "difference")
    return PaperTable("huang-fig6", "Figure 6: operand and instance counts", columns, rows, notes)


def huang_fig7() -> PaperTable:
    """Return the table of Figure 7; the stages follow from the blocks of C that each product of Equation 3 writes."""
    computed = [
        (stage, number, ", ".join(f"M{product}" for task in stream for product in task))
        for stage, streams in enumerate(launch_stages(scheme_of_equation_3(1), ("streams",)))
        for number, stream in enumerate(streams)
    ]
    rows = tuple(
        (stage, stream, printed, found, "" if printed == found else "differs")
        for (stage, stream, found), printed in zip(computed, FIGURE_7_PRODUCTS, strict=True)
    )
    notes = (
        "Section 3.3 first numbers the stages 0 to 2, like the figure; later the text calls the last two stages 2 "
        "and 3.",
    )
    columns = ("stage", "stream", "printed", "computed", "difference")
    return PaperTable("huang-fig7", "Figure 7: products on two streams", columns, rows, notes)


# ---- section 5.2: bounds


def huang_bounds() -> PaperTable:
    """Return a table of the rates in section 5.2 and of the bounds on block sizes that follow from these rates."""
    rows = tuple(
        (name, printed, computed, None if printed is None else computed - printed)
        for name, printed, computed in (*_printed_rates(), *_printed_block_sizes(), *_printed_limits())
    )
    columns = ("quantity", "printed", "computed", "difference")
    return PaperTable("huang-bounds", "Section 5.2: rates and bounds", columns, rows, _notes_on_printed_bounds())


def _printed_rates() -> tuple[tuple[str, float | None, float], ...]:
    """Return (name, printed number, computed number) for each rate of section 5; None means not printed."""
    on, gpu = paper_v100(), datasheet_of("V100")
    return (
        ("tau_flop, TFLOPS (footnote 4)", 15.67, on.flop / 1e12),
        ("double precision peak, TFLOPS (footnote 5)", 7.83, gpu.fp64_peak_flops / 1e12),
        ("tau_gmop, TB/s (footnote 12)", 1.08, on.gmop / 1e12),
        ("tau_smop, TB/s (section 5.2, footnote 13)", 15.67, on.smop / 1e12),
        ("tau_smop, TB/s (Figure 9)", FIGURE_9_SHARED_BANDWIDTH / 1e12, on.smop / 1e12),
    )


def _printed_block_sizes() -> tuple[tuple[str, float | None, float], ...]:
    """Return (name, printed, computed) for the smallest m_S of a square tile (Equation 13) and m_R (Equation 15)."""
    on = paper_v100()
    figure_9 = replace(on, smop=FIGURE_9_SHARED_BANDWIDTH)
    one, two = VARIANT_0_OPERANDS[1:]
    return (
        ("(13) least m_S, GEMM, k without limit", 58.2, huang_blocks.min_square_tile_side(GEMM_OPERANDS, on)),
        ("(13) least m_S, GEMM, k = 10240", 58.2, huang_blocks.min_square_tile_side(GEMM_OPERANDS, on, 10240)),
        ("(13) least m_S, 1-level Var#0", None, huang_blocks.min_square_tile_side(one, on)),
        ("(13) least m_S, 2-level Var#0", None, huang_blocks.min_square_tile_side(two, on)),
        ("(15) least m_R, tau_smop 15.67, m_S = 128", 4.1, huang_blocks.min_square_thread_tile(128, on)),
        ("(15) least m_R, tau_smop 15.67, m_S without limit", 4.1, huang_blocks.min_square_thread_tile(inf, on)),
        ("(15) least m_R, tau_smop 15.30, m_S = 128", 4.1, huang_blocks.min_square_thread_tile(128, figure_9)),
        ("(15) least m_R, tau_smop 15.30, m_S without limit", 4.1, huang_blocks.min_square_thread_tile(inf, figure_9)),
    )


def _printed_limits() -> tuple[tuple[str, float | None, float], ...]:
    """Return (name, printed, computed) for the limits on m_R by Equation 16, and for two numbers of section 5.4."""
    on, huge = paper_v100(), named_strategy("Huge")
    one, two = VARIANT_0_OPERANDS[1:]
    pointers = 2 * (one[0] + one[1]) + 5
    throughput = on.element_bytes * on.flop / huang_blocks.global_intensity(huge, two)
    return (
        ("(16) m_R below, GEMM", 12, huang_blocks.max_square_thread_tile(GEMM_OPERANDS, on)),
        ("(16) m_R below, 1-level Var#0", 12, huang_blocks.max_square_thread_tile(one, on)),
        ("(16) m_R below, 1-level Var#0, footnote 14", 12, huang_blocks.max_square_thread_tile(one, on, pointers)),
        ("(16) m_R below, 2-level Var#0", 12, huang_blocks.max_square_thread_tile(two, on)),
        ("(16) registers, Huge, 2-level Var#0 (section 5.4)", 160, block_model.registers_needed(huge, two)),
        ("(13) GB/s, Huge, 2-level Var#0 (section 5.4)", 1900, throughput / 1e9),
    )


def _notes_on_printed_bounds() -> tuple[str, ...]:
    return (
        "tau_smop: the factors in footnote 13, 80 x 32 x 4 B x 1530 MHz, give 15.67 TB/s. The 15.30 TB/s of Figure 9 "
        "would need 1494 MHz.",
        "m_S >= 58.2: Equation 13 gives 58.03 for infinite k. For k from about 7,600 to 13,600 the write-back of C "
        "raises the bound to 58.15..58.25, which rounds to the printed 58.2 (58.19 at k = 10,240).",
        "m_R >= 4.1: with the text's 15.67 TB/s, Equation 15 gives 4.00 for large m_S and 4.13 for m_S = 128. With "
        "the 15.30 TB/s of Figure 9, Equation 15 gives 4.10 for large m_S and 4.23 for m_S = 128. Two of the four "
        "numbers round to the printed 4.1.",
        "m_R < 12: the root of Equation 16 is 13.25 for GEMM, 12.46 for 1-level Var#0 (12.06 with the registers of "
        "footnote 14 and 64-bit pointers), and 11.06 for 2-level Var#0. The printed bound '< 12' excludes m_R = 12, "
        "but Equation 16 admits m_R = 12 for GEMM and for every 1-level variant (144 + 8 x 12 = 240 < 255).",
        "No strategy meets the bounds of all 2-level variants, as the paper says. But the bound of Var#7 (2,2,4) "
        "alone is 115.1 for infinite k, like 1-level Var#0's bound, and the strategy Huge meets this bound.",
    )


def huang_admitted() -> PaperTable:
    """Return a table of the strategies that meet every bound for very long k, with 0, 1 and 2 levels."""
    on = paper_v100()
    printed = ("Large, Huge", "Huge", "")
    names = ("GEMM", "1-level", "2-level")
    rows = []
    for level, (name, expected) in enumerate(zip(names, printed, strict=True)):
        found = ", ".join(s.name for s in huang_blocks.admitted_strategies(STRATEGIES, operand_counts(level), on))
        rows.append((name, expected, found, "" if found == expected else "differs"))
    columns = ("algorithm", "printed", "computed", "difference")
    title = "Section 5.2: strategies that meet (13) and (15) to (18)"
    return PaperTable("huang-admitted", title, columns, tuple(rows))


# ---- footnote 15


def huang_footnote15() -> PaperTable:
    """Return a table of the active thread blocks per SM in footnote 15, with the computed registers per thread."""
    rows = tuple(_occupancy_row(*case) for case in FOOTNOTE_15_BLOCKS)
    columns = (
        *("strategy", "kernel", "printed", "computed", "difference", "(16) alone", "with footnote 14"),
        *("model", "least registers", "most registers"),
    )
    notes = (
        "least and most registers: the range of registers that gives the printed count on compute capability 7.0.",
        "Small: Equation 16 with footnote 14 (one register per pointer) gives 23, 29 and 41 registers; the printed "
        "counts need 33..40, 41..48 and 49..56. With 12 to 15 more registers, which the paper does not mention, all "
        "three printed counts follow. With two registers per pointer, no constant number of registers gives all "
        "three counts. The model adds 12 registers.",
        "Huge: the printed 2 active blocks need 81..128 registers. Equation 16 gives 112, 128 and 160 registers, and "
        "footnote 14 adds at least 7, 9 and 13. Kernels of one and two levels therefore have 2 active blocks only if "
        "the compiler spills registers down to 128.",
    )
    return PaperTable("huang-footnote15", "Footnote 15: active blocks per SM", columns, rows, notes)


def _occupancy_row(name: str, level: int, printed: int) -> tuple[Cell, ...]:
    s, w, on = named_strategy(name), VARIANT_0_OPERANDS[level], paper_v100()
    computed = huang_blocks.active_blocks_per_sm(s, w, on)
    follows = register_range(on.limits, s.thread_count, on.element_bytes * block_model.shared_tile_elements(s), printed)
    kernel = f"{level}-level Var#0" if level else "GEMM"
    formulas = (
        block_model.registers_needed(s, w),
        FOOTNOTE_14_REGISTERS.count_registers(s, w, on),
        FOOTNOTE_15_REGISTERS.count_registers(s, w, on),
    )
    return (name, kernel, printed, computed, computed - printed, *formulas, follows[0], follows[-1])


# ---- Figure 10


def huang_fig10(sizes: tuple[int, ...] = tuple(range(1024, 20481, 1024))) -> PaperTable:
    """Return a table of the modelled curves in Figure 10: effective TFLOPS with 0, 1 and 2 levels for m = k = n."""
    rows = tuple((s, size, *modelled_tflops(s, size, paper_v100())) for s in ("Huge", "Small") for size in sizes)
    notes = (
        "Figure 10 is a plot without numbers, so the table has computed values only.",
        "Huge: one level is faster than GEMM for all sizes from 6144 on. Two direct levels are slower than one level "
        "and than GEMM at every size: small sizes have too few tiles, and global memory limits large sizes. Small: "
        "global memory limits all three curves from 2048 on.",
        f"lambda = {CACHE_MULTIPLIER}. Active blocks are as in footnote 15. The 7 or 49 products run one after the "
        "other.",
    )
    columns = ("strategy", "m=n=k", "GEMM", "1-level", "2-level")
    return PaperTable("huang-fig10", "Figure 10: modelled TFLOPS on V100", columns, rows, notes)


def modelled_tflops(name: str, size: int, on: ModelledDevice) -> tuple[float, float, float]:
    """Return the effective TFLOPS of the named strategy on a device with 0, 1 and 2 levels for m = k = n = size."""
    s, shape = named_strategy(name), (size, size, size)

    def tflops_with_levels(level: int) -> float:
        split = (2**level,) * 3
        seconds = huang_blocks.direct_product_seconds(
            s, operand_counts(level), (split[0], split[1], split[2]), shape, on
        )
        return huang_blocks.effective_tflops(shape, seconds)

    return tflops_with_levels(0), tflops_with_levels(1), tflops_with_levels(2)


TABLE_FUNCTIONS: Final = (
    huang_fig3,
    huang_fig6,
    huang_fig7,
    huang_bounds,
    huang_admitted,
    huang_footnote15,
    huang_fig10,
)

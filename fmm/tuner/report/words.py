"""What the page's words mean, for who knows NumPy alone, and what to type next."""

from __future__ import annotations

from typing import Final

from fmm.config.schema import EPSILON, UNDETERMINED_EPSILON
from fmm.perfmodel.choose import CPU_ERROR_GROWTH, GPU_ERROR_GROWTH

NEXT: Final = (
    ("fmm.matmul(a, b)", "multiplies by what this page shows: NumPy's and CuPy's arrays, torch's tensors"),
    ("print(fmm.explain(a, b))", "says by which plan, why, at which error, with how much memory"),
    (
        "fmm.matmul(a, b, max_error_growth=3)",
        f"allows at most 3 times the library's own error; unless told {CPU_ERROR_GROWTH:g} times, on a GPU {GPU_ERROR_GROWTH:g}",
    ),
    (
        "fmm.matmul(a, b, workspace=10**9)",
        "allows at most 1 GB (10^9 bytes) beside the operands; unless told half of what is free",
    ),
    ('fmm.matmul(a, b, plan="strassen > vendor")', "goes by exactly this plan"),
    ("fmm-tune show", "tells the same in a terminal, and whether fmm.matmul reads this config"),
    ("fmm-tune --shapes FILE", "certifies plans for your own shapes: lines of M K N"),
)

WORDS: Final = (
    ("library, vendor", "whose product fmm is compared with, and which multiplies wherever nothing is faster"),
    ("times as fast", "the library's time over that of fmm.matmul by the plan, whole calls"),
    (
        "measured, certified",
        "timed alternately with the library's product on random numbers, the median of the ratios of such pairs; "
        "certified if it was confirmed on fresh numbers to be faster than by chance",
    ),
    ("95 % interval", "where that median lies with 95 % confidence"),
    ("predicted", "by a model of the device's time, which was fitted to what was measured"),
    ("held out", "shapes that were measured but not fitted to, by which the model is judged"),
    ("cuBLAS, cuBLASLt", "NVIDIA's libraries of matrix products, by which CuPy and torch multiply on its GPUs"),
    ("tf32", "float32 matrices whose numbers NVIDIA's tensor cores round to 10 bits behind the point: torch's option"),
    ("bfloat16", "numbers of 16 bits with the range of float32 and 8 bits of precision"),
    ("datasheet", "what the maker says of the device: used for what was not measured"),
    ("side, square", "a side of 4096 is a product of two matrices of 4096 rows and 4096 columns"),
    ("m, k, n", "A is m x k, B is k x n, the product C is m x n"),
    ("cube with as much work", "of other shapes the side of a square product with as many multiplications"),
    ("expected error", "of numbers at random, as a multiple of the error of the library's own product"),
    ("workspace", "memory beside the matrices and their product, while it is computed"),
    ("gram", "a matrix times its adjoint (its transpose, of complex numbers conjugated)"),
    ("pi, alpha", "seconds of one flop of large products of the library, and of adding one number to another"),
    (
        "n1",
        "the recursion point: the side from which one level pays, as alpha and pi alone tell; measured on squares of "
        "rising sides, by timing plans of one level in turn with the library",
    ),
    ("margin", "a plan is taken only if it is predicted to take less time than the library by more than that share"),
    ("GiB, GB", "2^30 and 10^9 bytes"),
    ("flop", "one multiplication or addition of two numbers; Gflop/s: 10^9 of them a second"),
    ("tau1, tau2, tau3", "the sides from which one, two, three levels are predicted to gain 2 %"),
    ("epsilon", f"{EPSILON}; {UNDETERMINED_EPSILON}"),
    (
        "Small, Medium, Large, Tall, Wide, Huge",
        "tiles of our own kernel that are Huang, Yu and van de Geijn's strategies",
    ),
    ("Square, Half, Third, Broad, Long, Deep, Solo, Duo, Trio, GPU8", "tiles that fmm adds to these"),
    ("noise", "by how much two timings of one and the same product differ"),
    ("bias", "the mean error with its sign: above zero, times are predicted to be longer than they are"),
)

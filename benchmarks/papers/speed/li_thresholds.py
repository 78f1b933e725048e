"""Li, Ranka and Sahni's section 8.1.1: below which size, tau2, no further level pays, with tau1 = tau2/2."""

from __future__ import annotations

from typing import Final

from benchmarks.papers.experiment import Key, Numbers, Results
from benchmarks.papers.figure import Figure
from benchmarks.papers.li_codes import GPU8, SGEMM, SIZES
from benchmarks.papers.li_speed import EXPERIMENT, SLOW, at_largest
from fmm.perfmodel.papers import li_counts

TAU2: Final = (512, 1024, 2048, 4096, 8192, 16384)


def _scanned(results: Results) -> dict[Key, float]:
    """The runs by levels as a scan of tau2: of 2^(k-2) tau2 < n <= 2^(k-1) tau2 come k levels."""
    seconds, found = results.numbers("seconds"), dict[Key, float]()
    for code, n, depth in seconds:
        for tau2 in TAU2 if depth else ():
            if depth == li_counts.levels(int(n), tau2):
                found[code, n, tau2] = seconds[code, n, depth]
    return found


def _best_tau2(results: Results) -> Numbers:
    """The threshold of least time of each code; twice n where none of its levels is faster than none at all."""
    seconds, best = results.numbers("seconds"), dict[Key, tuple[float, int]]()
    for (code, n, tau2), x in _scanned(results).items():
        base = GPU8 if (GPU8, n, 0) in seconds else SGEMM
        own = f"{GPU8}{SLOW}" if str(code).endswith(SLOW) else base
        none = (seconds.get((own, n, 0), float("inf")), 2 * int(n))
        best[code, n] = min(best.get((code, n), none), (x, int(tau2)))
    return {key: float(tau2) for key, (_, tau2) in best.items()}


# In words: "Strassen and Winograd had best performance when tau2 = 4096, tStrassen and tWinograd when tau2 = 2048".
PRINTED_TAU2: Final[Numbers] = {
    (code, SIZES[-1]): 2048.0 if code[0] == "t" else 4096.0
    for code in ("Strassen", "tStrassen", "Winograd", "tWinograd")
}


SAYS_TAU2: Final = (
    "On a C1060 four levels pay with texture memory and three without, so tau2 is 2048 and 4096. Today an operation of "
    "a sum costs as much as tens of those of a product, and in these codes each sum is a pass of its own. So fewer "
    "levels pay, tau2 is larger, or no level pays at all (then twice n is told). On an H200 tau2 is 4096, or 8192, at "
    "16384, and at 8192 two levels pay without texture's loads alone."
)
FIGURES: Final = (
    Figure(
        "li-tau2",
        "Li et al., section 8.1.1: run time by threshold, tau1 = tau2/2",
        EXPERIMENT,
        {"measured": _scanned},
        SAYS_TAU2,
        keys=("code", "n", "tau2"),
        x="tau2",
        unit="seconds",
        drawn=at_largest,
    ),
    Figure(
        "li-tau2-best",
        "Li et al., section 8.1.1: the threshold of least time",
        EXPERIMENT,
        {"measured": _best_tau2},
        SAYS_TAU2,
        PRINTED_TAU2,
        keys=("code", "n"),
        unit="tau2",
    ),
)

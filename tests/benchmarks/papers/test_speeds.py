"""Run times of the papers' codes: their plans, the drawn problems, and every code measured at small sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.papers import dalberto, huang
from benchmarks.papers.bench import Call, HostBench
from benchmarks.papers.experiment import Results
from benchmarks.papers.figure import figure_table
from benchmarks.papers.figures import EXPERIMENTS, FIGURES
from benchmarks.papers.li_codes import SGEMM, SIZES
from benchmarks.papers.li_speed import speed_plans
from fmm.kernels.plans.plan import Plan
from tests.support.laboratory import measure_small


def test_gemm_beside_sforzas_plans_multiplies_a_transpose_of_its_own() -> None:
    """The transpose is a copy in rows, so no library recognises the product as syrk."""
    seen: list[tuple[Any, Any]] = []

    class Watched(HostBench):
        def call(self, plan: Plan, a: Any, b: Any) -> Call:
            seen.append((a, b))
            return super().call(plan, a, b)

    rows = list(next(iter(EXPERIMENTS["sforza-fig4"].parts(Watched(), 0.01))).rows())
    ((a, b),) = seen
    assert a.flags.c_contiguous and (a == b.T).all() and not np.shares_memory(a, b)
    assert [row["key"][2] for row in rows] == ["gemm", "syrk", "one level", "recursive"]


def test_a_curve_over_sizes_is_in_their_order() -> None:
    """Of Figures 28 and 29 the paper prints the last size alone."""
    keys = [(code, n, k) for code in (SGEMM, "Strassen") for n in SIZES for k in range(5)]
    results = Results(({"device": "none"},), 1.0, {key: {"key": list(key), "seconds": [1.0]} for key in keys})
    for name in ("li-fig26", "li-fig28"):
        assert figure_table(FIGURES[name], results).column_cells("n") == SIZES


# ---- when to recurse


def test_equation_2_per_problem_and_once_for_all() -> None:
    shape = (2900, 2900, 2900)
    # one level from the side 22 x 50 on
    assert str(dalberto.hasa_dynamic(shape, 50, epsilon=0)) == "hasa > hasa > vendor"
    assert str(dalberto.hasa_dynamic(shape, 50)) == "hasa > vendor"  # one level from the side 22 (50 + 20) = 1540 on
    assert str(dalberto.hasa_dynamic(shape, 10, epsilon=0)) == "hasa > hasa > hasa > hasa > vendor"
    assert str(dalberto.hasa_static((3000, 800, 3000), 900)) == "vendor"
    assert str(dalberto.balanced_hasa((8000, 1000, 1000), 900)) == "balanced(2) > hasa > vendor"


def test_the_drawn_problems_are_the_papers_sizes() -> None:
    found = dalberto.sampled_shapes(dalberto.FIGURE_3_SIZES, 1.0, 20)
    assert len(set(found)) == 20 and all(side in dalberto.FIGURE_3_SIZES for shape in found for side in shape)
    assert found == dalberto.sampled_shapes(dalberto.FIGURE_3_SIZES, 1.0, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "codes"),
    [("dalberto-fig3", {"Balanced", "HASA", "HASA dynamic"}), ("dalberto-fig6", {"S-1", "S-2", "S-3", "HASA"})],
)
def test_speeds_of_dalberto(name: str, codes: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every code runs on each of a few small problems, with dgemm and the choice of fmm's model."""
    monkeypatch.setattr(dalberto, "DRAWN_PROBLEMS", 6)
    monkeypatch.setattr(dalberto, "SQUARE_SIDES", dalberto.SQUARE_SIDES[:4])
    monkeypatch.setattr(dalberto, "ROUNDS", 2)
    results, codes = measure_small(name, 400), codes | {dalberto.DGEMM, dalberto.FMM_MODEL}
    rows = {key: row for key, row in results.rows.items() if "n1" not in key}
    problems = {next(x for x in key if x not in codes) for key in rows}
    assert len(problems) == (6 if name == "dalberto-fig3" else 4) and len(rows) == len(problems) * len(codes)
    assert all(len(row["seconds"]) == len(row["gain"]) == 2 and min(row["seconds"]) > 0 for row in rows.values())
    gains = results.numbers("gain")
    assert {x for key, x in gains.items() if dalberto.DGEMM in key} == {0.0}


# ---- Huang's and Li's plans


def test_all_plans_of_the_papers_codes_parse() -> None:
    texts = [text for n in SIZES for host in (False, True) for text in speed_plans(n, host).values()]
    texts += list(huang.DEVICE_CODES.values())
    texts += [f"{level}tile.{s.lower()}" for level in huang.PLAN_LEVELS.values() for s in huang.STRATEGIES]
    assert all(str(Plan.parse(text)) for text in texts)
    assert speed_plans(16384, False)["tWinograd", 4] == "li-fig23 > li-fig23 > li-fig23 > li-fig13 > tile.texture"


def test_break_even_is_where_it_stays_faster() -> None:
    sizes = huang.VARIED_SIDES
    rows: dict[Any, Any] = {("m=n=k", "cuBLAS", n): {"tflops": 10.0} for n in sizes}
    rows |= {("m=n=k", "1-level", n): {"tflops": 11.0 if n in (1536, *sizes[4:]) else 9.0} for n in sizes}
    found = FIGURES["huang-fig1"].measured["measured"](Results((), 1.0, rows))
    assert found == {("break-even", "1-level"): float(sizes[4]), ("best speedup", "1-level"): 1.1}

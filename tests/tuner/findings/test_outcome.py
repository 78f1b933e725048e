"""What `fmm-tune show` tells of a model: of those that ship for an H200, what each type's lines promise is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fmm.tuner.findings.described import described, described_parts
from fmm.tuner.findings.outcome import outcome
from fmm.tuner.findings.parts import labelled_rows

from benchmarks.threshold_agreement import Table
from fmm.config import files
from fmm.config.files import SHIPPED
from fmm.config.schema import read_calibration, read_thresholds
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.tuner.findings.model_in_use import ModelInUse, answers_for, chosen_square, gains_from, model_in_use, odd_gains
from fmm.tuner.findings.thresholds import CLOSE, ROW, holds_from, li_plan
from tests.support import ROOT
from tests.support import configs as tuned

KEY, TYPES = next(iter(files.read_config(SHIPPED).items()))  # an H200


def shipped(dtype: str) -> Calibration:
    return read_calibration(TYPES[dtype]["calibration"], "calibration", dtype, "", "")


def used(dtype: str, *entries: Any, **found: Any) -> ModelInUse:
    """The shipped model, with these entries, and conditions as a tuning writes them down."""
    section = {**TYPES[dtype], "entries": [{**e.fields, "size": list(e.size)} for e in entries], **found}
    return model_in_use(KEY, dtype, {**TYPES, dtype: section})


def told(known: ModelInUse) -> str:
    return "\n".join(text for _, text in labelled_rows(outcome(known)))


def rows_of(known: ModelInUse) -> list[list[str]]:
    """Of the table of squares, without its head: side, speedup, how it is known, error, memory, its unit, plan."""
    (table,) = (part for _, part in outcome(known) if isinstance(part, Table))
    return [" ".join(row).split() for row in table.rows[1:]]


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32", "float64"])
def test_from_the_told_side_on_no_square_with_aligned_rows_is_left_to_the_vendor(dtype: str) -> None:
    """In 16-bit types and TF32 a side of 5793 is not: its rows are copied for the vendor, where 8192 gains nothing."""
    known = shipped(dtype)
    first = gains_from(known, dtype)
    assert first is not None and first % 16 == 0
    for side in (round(first * (1.2 + i / 8) / 256) * 256 for i in range(24)):  # below, tiles decide
        assert chosen_square(known, dtype, side).plan != VENDOR, side
    just_below = range(first - ROW, round(first / CLOSE) - ROW, -ROW)  # further below, some sides have lucky tiles
    assert any(chosen_square(known, dtype, side).plan == VENDOR for side in just_below)


def test_no_gain_of_nothing_is_promised() -> None:
    for dtype in TYPES:
        gains = [float(row[1]) for row in rows_of(used(dtype)) if row[6:] != ["vendor"]]
        assert gains and min(gains) > 1.0, dtype


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_told_of_round_sides_agrees_with_from_which_side_on_gains_are(dtype: str) -> None:
    """The sides of the table are asked for that too: none of them is the vendor's from there on."""
    first, known = gains_from(shipped(dtype), dtype), used(dtype)
    assert first is not None
    told_of = [row for row in rows_of(known) if int(row[0]) % 2 == 0]
    assert told_of and all(int(row[0]) >= first and row[6:] != ["vendor"] for row in told_of)


def test_odd_sides_are_told_of_where_the_vendor_is_slow_on_them() -> None:
    known = used("bfloat16")
    assert re.search(r"On odd sides, where cuBLAS is slow, it is from about \d+ on\.", told(known))
    odd = {row[0]: row[6:] for row in rows_of(known) if int(row[0]) % 2}
    assert list(odd) == ["2049", "4097", "8193", "16385"] and odd["2049"][0].startswith("aligned.")
    assert odd_gains(shipped("float32"), "float32") == {}  # by float16 products, as aligned ones


def measured(side: int, plan: str, speedup: float) -> Any:
    return tuned.entry((side, side, side), plan=plan, speedup=speedup, low=speedup - 0.01, high=speedup + 0.01)


def test_a_measured_side_is_told_of_as_fmm_matmul_goes_by_it() -> None:
    """Not by the model: 32000 has its entry's plan, and where measuring found nothing, the sentence says so."""
    plan = "winograd.overlapped.pad16 > lt3"
    known = used("bfloat16", measured(32000, plan, 1.31), measured(40000, "vendor", 1.0), measured(1024, plan, 1.2))
    rows = {row[0]: row for row in rows_of(known)}
    assert rows["32000"][1:3] == ["1.31", "measured"] and " ".join(rows["32000"][6:]) == plan
    assert rows["64000"][2] == "predicted"
    assert "nothing was clearly faster at exactly 40000: there cuBLAS multiplies" in told(known)
    assert "it is faster at exactly 1024 too" in told(known)


def test_what_does_not_fit_into_the_memory_is_not_told() -> None:
    """With less memory a leaner plan is told of, or the vendor; where A, B and C do not fit, nothing."""
    much, some, little = (used("tf32", conditions={"memory": x << 30}) for x in (400, 140, 40))
    need = [{row[0]: float(row[4]) for row in rows_of(known)} for known in (much, some, little)]
    assert need[0]["64000"] > need[1]["64000"] and "64000" not in need[2]
    assert all(x <= 140 / 2 for x in need[1].values()) and all(x <= 40 / 2 for x in need[2].values())


def test_the_plans_are_named_with_what_their_leaves_are() -> None:
    """Who knows NumPy alone reads how float32 is multiplied; who knows the papers, why tau1 is far beyond n1."""
    lines = " ".join(" ".join(described(TYPES["float32"], "float32", KEY)).split())
    assert re.search(r"1000 \d\.\d\d predicted 1\.0 0\.0 GiB f16x3 ", lines)
    assert "(f16x3: float32 by three float16 products of the tensor cores" in lines
    assert "Below tau1 f16x3 multiplies without levels, faster than cuBLAS." in lines
    assert "Below tau1" not in " ".join(described(TYPES["bfloat16"], "bfloat16", KEY))


@pytest.mark.parametrize("dtype", TYPES)
def test_levels_agree_with_the_gains(dtype: str) -> None:
    """Where plans with levels are the first that gain, their side is told twice: it is the same."""
    known = shipped(dtype)
    (taken,) = (line.split() for line in described(TYPES[dtype], dtype, KEY) if "as fmm.matmul takes them" in line)
    first = gains_from(known, dtype)
    assert first is not None and int(taken[-3]) >= first
    assert (int(taken[-3]) == first) == bool(chosen_square(known, dtype, first).plan.splits)


@pytest.mark.parametrize("side", [257, 990, 4321, 60000])
def test_a_side_between_those_of_the_grid_is_found(side: int) -> None:
    """Also between 976 and 1000, of which the second is on the grid and no multiple of 16."""
    found = holds_from(lambda x: x >= side)
    assert side <= found <= max(CLOSE * side, side + ROW)


RECORDED = sorted((ROOT / "results").glob("*/**/config.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: str(path.relative_to(ROOT / "results").parent))
def test_nothing_that_is_told_of_a_recorded_tuning_contradicts_another_line(path: Path) -> None:
    """The first row of levels is no later than the others; fmm.matmul's own begins where gains do, or later, if plans
    without levels gain before; no plan needs more than the device has; what is left to the library is not a gain."""
    ((key, types),) = files.read_config(path).items()
    for dtype, section in types.items():
        known = model_in_use(key, dtype, types)
        tables = [part for _, part in described_parts(section, dtype, key, types) if isinstance(part, Table)]
        (rows,) = (t.rows[1:] for t in tables if t.rows[0][-1] == "three")
        levels = [row[1:] for row in rows if not row[0].startswith("95 %")]
        least, taus, most = ([int(x.replace("never", "999999")) for x in row] for row in levels[:3])
        assert all(a <= b <= c for a, b, c in zip(least, taus, most, strict=True)), dtype
        if known.calibration is None:
            continue
        first, one = gains_from(known.calibration, dtype), int(levels[3][0])
        assert first is not None
        between = [chosen_square(known.calibration, dtype, first + (one - first) * i // 8) for i in range(8)]
        assert one >= first and (one > first) == any(not choice.plan.splits for choice in between), dtype
        for answer in answers_for(known, [int(row[0]) for row in tables[0].rows[1:]]):
            assert answer.gains and answer.speedup > 1, (dtype, answer.side)
            operands = 3 * DTYPES[dtype].itemsize * answer.side**2
            assert known.memory is None or operands + 2 * answer.workspace <= known.memory, (dtype, answer.side)


def test_a_cpu_has_no_odd_sides() -> None:
    known = model_in_use("cpu-a", "float64", {"float64": tuned.section()})
    assert "faster than NumPy's product" in told(known) and "odd" not in told(known)


@pytest.mark.parametrize("path", [*RECORDED, SHIPPED], ids=lambda path: str(path.relative_to(ROOT).parent))
def test_stored_thresholds_are_those_that_todays_model_chooses(path: Path) -> None:
    """No config that is recorded or that ships is said to be of an earlier fmm, and each has intervals."""
    for key, types in files.read_config(path).items():
        for dtype, section in types.items():
            said = " ".join(" ".join(described(section, dtype, key, types)).split())
            assert "earlier fmm" not in said, dtype
            assert "95 % intervals of tau1, tau2, tau3" in said, dtype
            assert "95 % of the models that the measurements admit have them there" in said, dtype


def test_thresholds_of_products_in_the_type_itself_are_told_apart() -> None:
    """Where float32 is multiplied by float16 products, levels pay far later than above the library's."""
    found = read_thresholds(TYPES["float32"]["thresholds"])
    assert found is not None and found.tau1.value and found.without_emulation["tau1"]
    assert found.without_emulation["tau1"] < found.tau1.value / 2
    sides = [found.without_emulation[name] for name in ("tau1", "tau2", "tau3")]
    said = " ".join(" ".join(described(TYPES["float32"], "float32", KEY)).split())
    told = ", ".join("never" if side is None else f"{side:.0f}" for side in sides)
    assert f"(Without emulation, FMM_EMULATION=0, tau1, tau2, tau3 are {told}: of products in float32 itself.)" in said
    assert "Without emulation" not in " ".join(described(TYPES["bfloat16"], "bfloat16", KEY))
    side = int(found.tau1.value) - 16
    assert li_plan("winograd", side, found, "vendor").levels and not li_plan("winograd", side, found, "f16x3").levels

"""The tuner and products of a matrix and its transpose: trials, entries and what a decision makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fmm.config.schema import Tuning, read_entry
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.candidates import gram_candidates
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime.decisions.decide import find_certified_entry
from fmm.tuner.commands.export import add_predictions
from fmm.tuner.commands.verify import measure_entries
from fmm.tuner.devices.cpu import CpuDevice
from fmm.tuner.devices.device import CPU_EFFORTS, RunFailedError, TimedRun
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.search.certify import config_entries
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import Trial, TrialFile
from fmm.tuner.tune_type import tune_gram_products

SIZE = (4096, 4096, 4096)


def trials(op: str, plan: str, seconds: float, stage: str, rounds: int = 12) -> list[Trial]:
    """Rounds of a plan and the vendor in turns."""
    made = Trial("run", stage, SIZE, "float64", plan, "whole", 0, 0, 0.0, seconds, None, op)  # type: ignore[arg-type]
    return [x for _ in range(rounds) for x in (replace(made, plan="vendor", seconds=1.0), made)]


def test_a_trial_knows_its_operation(tmp_path: Path) -> None:
    """And older files, which do not name any, are of products."""
    kept = TrialFile(tmp_path / "trials.jsonl")
    for op in ("gram", "product"):
        kept.add_trial(trials(op, "gram > vendor" if op == "gram" else "winograd > vendor", 0.5, "search")[1])
    kept.close()
    lines = kept.path.read_text().splitlines()
    assert '"op"' in lines[0] and '"op"' not in lines[1]
    found = [Trial(**{**record, "size": SIZE}) for _, record in kept._read_records()]
    assert [t.problem.op for t in found] == ["gram", "product"] and found[0].problem.writes_triangle


def test_entries_of_one_shape_and_two_operations() -> None:
    recorded = [
        *(t for stage in ("search", "certify") for t in trials("product", "winograd > vendor", 0.9, stage)),
        *(t for stage in ("search", "certify") for t in trials("gram", "gram > winograd > vendor", 0.8, stage)),
    ]
    entries = {(e.op, e.lean): e for e in config_entries(recorded, 0.001)}
    assert entries["product", False].plan == "winograd > vendor"
    assert entries["gram", False].plan == "gram > winograd > vendor"
    assert entries["gram", False].speedup == pytest.approx(1 / 0.8)
    assert read_entry(entries["gram", False].json_fields, "here") == entries["gram", False]


def test_a_halfs_entry_answers_no_product() -> None:
    recorded = [t for stage in ("search", "certify") for t in trials("gram", "gram > winograd > vendor", 0.8, stage)]
    device = SimulatedDevice()
    journal = Journal("run", device, recorded, is_live=False)
    assert journal.has_recorded_trial(("search", Problem(*SIZE, op="gram"), 0, TimedRun()))
    (entry,) = (e for e in config_entries(recorded, 0.001) if not e.lean)
    tuned = Tuning(device.identity, "float64", None, {entry.entry_key: entry})
    answer = find_certified_entry(Problem(*SIZE, op="gram"), Limits(1 << 34), tuned)
    assert answer is not None and answer.plan == Plan.parse("gram > winograd > vendor")
    assert find_certified_entry(Problem(*SIZE), Limits(1 << 34), tuned) is None
    assert find_certified_entry(Problem(*SIZE, op="symmetric"), Limits(1 << 34), tuned) is None


def test_squares_are_tuned_as_halves_too() -> None:
    """On a device that is a formula with noise: raced, and confirmed on fresh operands."""
    device = SimulatedDevice()
    journal, problem = Journal("run", device), Problem(8192, 8192, 8192, "float64")
    tune_gram_products(journal, [problem, Problem(512, 8192, 512)], device.truth, CPU_EFFORTS["quick"], 0.01)
    found = [t for t in journal.recorded if t.op == "gram"]
    assert found == journal.recorded and {t.size for t in found} == {problem.size, (512, 8192, 512)} - {
        (512, 8192, 512)
    }
    assert {t.stage for t in found} == {"search", "certify"}
    assert {Plan.parse(t.plan) for t in found} <= set(gram_candidates("cpu"))
    assert any(e.op == "gram" and e.plan.startswith("gram") for e in config_entries(journal.recorded, 0.01))


def test_a_canary_measures_a_half_as_such() -> None:
    """A plan of halves can do no whole product, so that its entry would condemn all others."""
    device, problem = SimulatedDevice(), Problem(8192, 8192, 8192, "float64")
    journal = Journal("run", device)
    tune_gram_products(journal, [problem], device.truth, CPU_EFFORTS["quick"], 0.01)
    found = [e for e in config_entries(journal.recorded, 0.01) if e.plan.startswith("gram")]
    assert found
    holds, said = measure_entries(Journal("canary", device), "float64", found)
    assert holds and "measured again" in said


def test_a_half_s_trials_are_predicted_as_such() -> None:
    pandas = pytest.importorskip("pandas")
    device, columns = SimulatedDevice(), ("device", "dtype", "m", "k", "n", "plan", "part", "twin", "op")
    key = device.identity.key, "float64"
    tuned = {key: Tuning(device.identity, "float64", device.truth, {})}
    rows = [
        (*key, *SIZE, f"{'gram > ' * (op == 'gram')}winograd > vendor", "whole", 0, op) for op in ("gram", "product")
    ]
    half, whole = add_predictions(pandas.DataFrame(rows, columns=columns), tuned)["predicted"]
    assert 0 < half < whole


def test_plans_of_halves_on_this_processor() -> None:
    """Checked, and timed against NumPy's own product with a transpose; a plan of whole products fails as a row."""
    with CpuDevice().open_session(Problem(300, 200, 300, "float64", op="gram"), 1) as session:
        assert session.b.ctypes.data == session.a.ctypes.data
        for plan in (VENDOR, Plan.parse("gram > strassen > vendor")):
            session.prepare_run(TimedRun(plan))
            assert session.sample_seconds(TimedRun(plan)) > 0
            np.testing.assert_allclose(session.c, session.a @ session.a.T)
        with pytest.raises(RunFailedError, match="whole products"):
            session.prepare_run(TimedRun(Plan.parse("strassen > vendor")))

"""What a report counts, by what products were really answered, and where it goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import fmm
from fmm.integrations import report as counting
from fmm.integrations.install_targets import INSTALL_TARGETS
from fmm.integrations.report import (
    MAX_REPORT_LINES,
    UNCOUNTED_PRODUCTS,
    ProductKind,
    ProductOutcome,
    ReportCounts,
    begin_report,
    end_report,
    expected_speedup,
    outcome_of_call_record,
    register_counting_callback,
    uncounted_products_text,
)
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.choose import Candidate
from fmm.runtime import run_host
from fmm.runtime.call_record import RECORDING_SWITCH, CallRecord, clear_record, last_record
from fmm.runtime.decisions import decide
from tests.support import ROOT

np: Any = numpy
LEFT = ProductOutcome("", "for the test")


@pytest.fixture
def counts(eager: None) -> Iterator[ReportCounts]:
    """NumPy's products are counted, and have plans though they are small."""
    found = begin_report()
    try:
        with fmm.installed("numpy"):
            yield found
    finally:
        end_report()


# ---- what is counted


def test_a_report_counts_and_explains(counts: ReportCounts, rng: numpy.random.Generator) -> None:
    a = rng.standard_normal((200, 200))
    for _ in range(3):
        np.matmul(a, a)
    np.dot(a[:5], a)
    np.matmul(np.ones((2, 3)), np.ones((2, 3)).T)
    with pytest.raises(ValueError, match="mismatch"):
        np.matmul(a, a[:3])  # NumPy rejects this itself
    report = counts.build_report()
    assert report.calls == 5 and 3 <= report.by_plans <= 5 and 0 < report.share < 1
    text = str(report)
    assert text.startswith(f"fmm: {report.by_plans} of 5 products ran by plans")
    assert "      3  numpy.matmul, float64, 200 x 200 by 200 x 200: " in text and "times as fast is expected" in text
    assert "2 x 3 by 3 x 2: no plan: " in text


def one(counts: ReportCounts) -> tuple[ProductKind, ProductOutcome]:
    ((key, times),) = counts.counts.items()
    assert times == 1
    return key


def test_products_that_numpy_answers_in_the_end_are_not_the_plans(counts: ReportCounts) -> None:
    """A plan is chosen, and left once the numbers are looked at."""
    a = 1e153 * np.eye(200)
    assert np.matmul(a, a).max() == 1e153 * 1e153
    _, outcome = one(counts)
    assert not outcome.plan and outcome.reason.startswith("inf, NaN or numbers so large that sums may overflow are in")
    assert outcome.reason.endswith("was chosen") and counts.build_report().by_plans == 0
    out = np.empty((200, 200))
    np.matmul(a, a, out=out)  # which NumPy completes in a thread of fmm's
    assert out.max() == 1e153 * 1e153 and counts.build_report().by_plans == 0


def test_settings_of_the_caller_s_that_leave_products_to_numpy_are_named(
    counts: ReportCounts, rng: numpy.random.Generator
) -> None:
    a = rng.standard_normal((200, 200))
    with np.errstate(under="raise"):
        np.matmul(a, a)
    assert "numpy.errstate reports underflow" in one(counts)[1].reason


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> list[Any]:
    """The memory of so many attempts does not suffice."""
    own, tried = run_host.run_call, []

    def run_call(library: Any, call: Any, *rest: Any) -> Any:
        tried.append(call.plan)
        if len(tried) <= times:
            raise MemoryError
        return own(library, call, *rest)

    monkeypatch.setattr(run_host, "run_call", run_call)
    return tried


def test_the_plan_that_ran_is_told_and_not_the_one_that_was_to(
    counts: ReportCounts, rng: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, tried = rng.standard_normal((200, 200)), failing(monkeypatch, 1)
    np.testing.assert_allclose(np.matmul(a, a), np.einsum("ij,jk->ik", a, a))
    assert len(tried) == 2 and tried[0] != tried[1]
    assert one(counts)[1].plan == str(tried[1])


def test_want_of_memory_is_a_reason(
    counts: ReportCounts, rng: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = rng.standard_normal((200, 200)), failing(monkeypatch, 1000)
    np.testing.assert_allclose(np.matmul(a, a), np.einsum("ij,jk->ik", a, a))
    assert one(counts)[1].reason.startswith("memory ran out; ") and not one(counts)[1].plan


def test_who_multiplied_while_a_shape_is_measured_is_told(
    counts: ReportCounts, rng: numpy.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "online")
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path))
    monkeypatch.setattr(decide, "MIN_TUNED_FLOPS", 0)
    a = rng.standard_normal((200, 200))
    for _ in range(2):  # the first turns are the plan's and the library's
        np.matmul(a, a)
    ours, numpys = sorted((outcome for _, outcome in counts.counts), key=lambda outcome: not outcome.plan)
    assert ours.plan and "times as fast is expected" in ours.reason
    assert numpys.reason == f"the online measurement timed the library's product; {ours.plan} was chosen"


@pytest.mark.parametrize(
    ("options", "computed"),
    [
        ({}, "float32"),
        ({"dtype": "f8"}, "float64"),
        ({"dtype": "f8", "casting": "safe"}, "float64"),
        ({"out": "float64"}, "float32"),
    ],
)
@pytest.mark.parametrize("side", [3, 200])
def test_the_type_is_the_one_that_was_computed_in(
    options: dict[str, Any], computed: str, side: int, counts: ReportCounts
) -> None:
    a = np.ones((side, side), "f4")
    given = {name: np.empty((side, side), value) if name == "out" else value for name, value in options.items()}
    np.matmul(a, a, **given)
    assert one(counts)[0] == ProductKind("numpy.matmul", (side, side), (side, side), computed)


def test_each_function_is_counted_by_its_own_name(counts: ReportCounts, rng: numpy.random.Generator) -> None:
    a, out = rng.standard_normal((200, 200)), np.empty((200, 200))
    np.dot(a, a, out=out)
    np.inner(a, a + 1)
    np.einsum("ij,jk->ik", a, a, optimize=True)
    with pytest.raises(ValueError, match="not acceptable"):
        np.dot(a, a, out=np.empty((200, 200), "f4"))
    reported = [(kind.where, bool(outcome.plan)) for kind, outcome in counts.counts]
    assert {("numpy.dot", True), ("numpy.dot", False), ("numpy.inner", True)} <= set(reported)
    assert sum(counts.counts.values()) == 4


def test_nothing_is_noted_while_nobody_counts(eager: None, rng: numpy.random.Generator) -> None:
    a = rng.standard_normal((200, 200))
    clear_record()
    with fmm.installed("numpy"):
        np.matmul(a, a)
    assert not RECORDING_SWITCH.on and last_record() is None


def test_who_watches_is_told_when_counting_begins_and_ends() -> None:
    reported: list[bool] = []
    forget = register_counting_callback(lambda: reported.append(counting.is_reporting()))
    begin_report()
    end_report()
    forget()
    begin_report()
    end_report()
    assert reported == [True, False]


# ---- the value, and its text


def test_the_function_gives_what_was_counted_so_far(eager: None, rng: numpy.random.Generator) -> None:
    a = rng.standard_normal((200, 200))
    try:
        assert fmm.report().products == ()  # counting begins
        with fmm.installed("numpy"):
            np.matmul(a, a)
            first = fmm.report()
            np.matmul(a, a)
        second = fmm.report()
    finally:
        end_report()
    assert (first.calls, second.calls, len(second.products)) == (1, 2, 1)
    assert "numpy.matmul, float64, 200 x 200" in str(second) and "not seen: " in str(second).splitlines()[-1]
    fields = json.loads(json.dumps(second.fields))
    assert fields["calls"] == 2 and fields["products"][0]["where"] == "numpy.matmul"
    assert fields["products"][0]["left"] == [200, 200] and fields["products"][0]["speedup"] > 1


def kind_of_size(m: int) -> ProductKind:
    return ProductKind("numpy.matmul", (m, 8), (8, 8), "float64")


def test_a_report_is_short_however_many_products_there_are() -> None:
    counts = ReportCounts()
    for n in range(2 * MAX_REPORT_LINES):
        counts.add_product(kind_of_size(n + 1), LEFT)
    lines = str(counts).splitlines()
    assert len(lines) == MAX_REPORT_LINES + 2 and lines[-1] == f"  and {MAX_REPORT_LINES} kinds of smaller products"
    assert f"{2 * MAX_REPORT_LINES} x 8 by 8 x 8" in lines[1]
    assert len(counts.build_report().fields["products"]) == 2 * MAX_REPORT_LINES


@pytest.mark.parametrize(
    ("places", "reported", "not_told"),
    [
        (["numpy"], ["einsum without optimize", "NumPy's", "for numpy;"], ["@", "CuPy", "torch"]),
        (["cupy"], ["methods (a.dot(b)) of CuPy's", "for cupy;"], ["@", "NumPy", "torch", "inner"]),
        (["torch"], ["torch's products on the host", "torch.compile generates", "for torch;"], ["@", "CUDA", "NumPy"]),
        (["torch-cpu"], ["torch's products on CUDA", "for torch;"], ["@", "host", "NumPy", "CuPy"]),
        (["torch", "torch-cpu", "numpy"], ["a.dot(b)", "for torch and numpy;"], ["host", "CUDA", "CuPy"]),
        (["torch-inductor"], ["but for those of fmm's candidate", "torch.compile generates"], ["host", "CUDA", "@"]),
        (["torch-inductor", "torch"], ["host", "torch.compile generates"], ["candidate", "@"]),
    ],
)
def test_only_what_is_true_of_these_libraries_is_said(
    places: list[str], reported: list[str], not_told: list[str]
) -> None:
    line = uncounted_products_text(places)
    assert line.endswith("other processes") and "\n" not in line
    assert [part for part in reported if part not in line] == [] == [part for part in not_told if part in line]


def test_every_place_has_its_words() -> None:
    assert UNCOUNTED_PRODUCTS.keys() == INSTALL_TARGETS.keys()


def test_a_report_is_made_while_threads_go_on_multiplying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread counts a product of another kind just while the others are put in order."""
    counts, kinds = ReportCounts(), [kind_of_size(n) for n in range(1, 9)]
    for kind in kinds[:4]:
        counts.add_product(kind, LEFT)
    new = iter(kinds[4:])

    def flops(kind: ProductKind) -> int:
        counts.add_product(next(new, kind), LEFT)
        return 1

    monkeypatch.setattr(ProductKind, "flops", property(flops))
    assert str(counts).count("no plan: ") == 4
    assert len(counts.counts) == 8


def test_the_speedup_is_the_models_or_the_tuners() -> None:
    decision = fmm.plan(4096, 4096, 4096)
    plan = fmm.Plan.parse("winograd > vendor")
    candidate = Candidate(plan, decision.candidates[0].prediction, 0.8, 2.0, 0.05)
    by_model = fmm.Decision(plan, decision.problem, "", (candidate,))
    assert expected_speedup(by_model) == pytest.approx(1.25)
    certified = fmm.Decision(plan, decision.problem, "measured: 1.3")
    assert expected_speedup(certified) is None
    assert outcome_of_call_record(CallRecord(certified, plan)) == ProductOutcome(str(plan), "measured: 1.3")
    assert outcome_of_call_record(CallRecord(certified, VENDOR, "why")).plan == ""


# ---- at the end of a process

PRODUCT = "import numpy as np; np.matmul(np.ones((4, 5)), np.ones((5, 6)))\n"
FORKING = f"""
import os, sys
{PRODUCT}
child = os.fork()
if child == 0:
    np.matmul(np.ones((7, 7)), np.ones((7, 7)))
    sys.exit(0)
os.waitpid(child, 0)
"""
POOL = f"""
import multiprocessing
{PRODUCT}
def work():
    np.matmul(np.ones((7, 7)), np.ones((7, 7)))
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
"""
STARTING = f"import subprocess, sys\n{PRODUCT}subprocess.run([sys.executable, '-c', 'import fmm\\n' + {PRODUCT!r}])"


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FMM_TUNING_MODE": "off", **environment}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_last_line_says_what_was_not_seen(tmp_path: Path) -> None:
    program = "import numpy as np; np.ones((4, 4)) @ np.ones((4, 4))"
    done = python(tmp_path, "-m", "fmm", "--report", "--install", "numpy", "-c", program)
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("fmm: 0 of 1 products ran by plans")
    assert last == (
        "  not seen: methods (a.dot(b)) of NumPy's arrays, numpy.einsum without optimize, functions in C; "
        "calls before fmm was installed for numpy; calls of fmm's own functions, and other processes"
    )
    done = python(tmp_path, "-m", "fmm", "--report", "--install", "cupy", "-c", "pass")  # which it does not load
    assert done.stderr.splitlines()[-1].startswith("  not seen: any product, since ")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["told.txt", "told.json"])
def test_a_report_may_go_to_a_file(name: str, tmp_path: Path) -> None:
    elsewhere = "import os; os.chdir('/')\n" + PRODUCT
    done = python(tmp_path, "-m", "fmm", f"--report={name}", "--install", "numpy", "-c", elsewhere)
    assert not done.stderr and [path.name for path in tmp_path.iterdir()] == [name]
    text = (tmp_path / name).read_text()
    if name.endswith(".json"):
        assert json.loads(text)["products"][0]["left"] == [4, 5]
    else:
        assert text.startswith("fmm: 0 of 1 products") and text.endswith("other processes\n")


@pytest.mark.slow
def test_the_environment_asks_for_one_too(tmp_path: Path) -> None:
    done = python(tmp_path, "-c", "import fmm\n" + PRODUCT, FMM_INSTALL="numpy", FMM_REPORT="told.json")
    assert not done.stderr and json.loads((tmp_path / "told.json").read_text())["calls"] == 1
    done = python(tmp_path, "-c", "import fmm", FMM_REPORT="no/such/folder/told.txt")
    assert "fmm: the report is not written to" in done.stderr and "No such file" in done.stderr
    (tmp_path / "loop.json").symlink_to("loop.json")
    done = python(tmp_path, "-c", "import fmm", FMM_REPORT="loop.json")
    assert "symbolic links" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.quick_cases(1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("program", [FORKING, POOL], ids=["fork", "multiprocessing"])
def test_a_forked_process_counts_its_own_products(program: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    done = python(tmp_path, "-m", "fmm", "--report=told-%p.json", "--install", "numpy", "program.py")
    assert not done.stderr
    reported = [json.loads(path.read_text()) for path in tmp_path.glob("told-*.json")]
    assert sorted(found["products"][0]["left"] for found in reported) == [[4, 5], [7, 7]]
    assert [found["calls"] for found in reported] == [1, 1]


@pytest.mark.slow
def test_a_process_that_is_started_writes_its_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STARTING)
    python(tmp_path, "-m", "fmm", "--report=told-%p.txt", "--install", "numpy", "program.py")
    reported = [path.read_text() for path in tmp_path.glob("told-*.txt")]
    assert len(reported) == 2 and all(text.startswith("fmm: 0 of 1 products") for text in reported)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_says_nothing_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FORKING)
    done = python(tmp_path, "-m", "fmm", "--report", "--install", "numpy", "program.py")
    assert done.stderr.count("fmm: 0 of 1 products ran by plans") == 1

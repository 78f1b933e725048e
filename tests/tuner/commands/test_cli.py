"""The command fmm-tune: exit codes, what it prints, and files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import fmm
from fmm.config import files
from fmm.kernels.plans.plan import Plan
from fmm.output import EXIT_BROKEN_PIPE
from fmm.perfmodel.stability import has_componentwise_bound
from fmm.tuner import cli, tune
from fmm.tuner.cli import main
from fmm.tuner.commands import report
from tests.support import ROOT, configs

# ---- arguments


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["predict", "--help"], ["paper", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: fmm-tune") and "--json" in printed


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    options = "--device --dtype --shapes --report --effort quick default full --time-limit --resume --fresh --output"
    commands = "--json --quiet --dry-run --version --refit show predict bench verify report export merge paper"
    for option in f"{options} {commands}".split():
        assert option in printed


@pytest.mark.parametrize("command", ["show", "predict", "export"])
def test_of_an_unknown_option_the_usage_of_its_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "64", "--no-such-option"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.startswith(f"usage: fmm-tune {command} ")
    assert told.endswith(f"fmm-tune {command}: error: unrecognized arguments: --no-such-option\n")


def test_an_export_without_entries_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    configs.write(path, "cpu-x-2t", found=configs.section())
    assert main(["export", str(path)]) == 0
    printed, told = capsys.readouterr()
    assert printed.startswith("device,dtype,m,k,n,plan,") and printed.count("\n") == 1
    assert told == f"fmm-tune export: {path} has no certified entries: the model decides all sizes\n"
    configs.write(path, "cpu-x-2t", found=configs.section(doubts=["noisy"]))
    assert main(["export", str(path)]) == 0
    assert capsys.readouterr().err == (
        f"fmm-tune export: {path} has no certified entries; fmm decides as without a tuning, since the model is "
        "rejected or missing: cpu-x-2t float64\n"
    )


WRITERS = (["merge", "x"], ["report"], ["verify"])


@pytest.mark.parametrize("command", WRITERS, ids=lambda x: x[0])
def test_all_that_writes_has_one_option_for_where(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Before the command or behind it."""
    for arguments in ([*command, "--output", "y"], ["--output", "y", *command]):
        assert cli.build_parsers()[0].parse_args(arguments).output == Path("y"), arguments
    assert cli.build_parsers()[0].parse_args(command).output is None
    with pytest.raises(SystemExit):
        main([command[0], "--help"])
    assert "--output" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"fmm-tune {fmm.__version__}\n"


BAD_ARGUMENTS = [
    (["--nonsense"], "--nonsense"),
    (["--effort", "huge"], "invalid choice: 'huge'"),
    (["--effort"], "--effort"),
    (["--output"], "--output"),
    (["nonsense"], "nonsense"),
    (["predict"], "M"),
    (["predict", "x"], "M: invalid int value: 'x'; a side is a whole number from 1 on"),
    (["predict", "1", "2", "x"], "N: invalid int value: 'x'"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD_ARGUMENTS, ids=lambda x: " ".join(x) if isinstance(x, list) else x)
def test_bad_arguments_exit_with_2(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert named in printed.err and not printed.out


BAD_VALUES = [
    (["predict", "0"], "M must be 1 or more, not 0: M alone is a square, M K N an M x K by K x N product"),
    (["predict", "0", "5", "5"], "M must be 1 or more, not 0: "),
    (["predict", "5", "-5", "5"], "K must be 1 or more, not -5: "),
    (["predict", "1", "2"], "two sides, 1 and 2, are no product: M alone is a square, M K N an "),
    (["predict", "5", "5", "5", "--dtype", "int4"], "unknown dtype 'int4'; valid: float64"),
    (["predict", "5", "5", "5", "--device", "abacus"], "abacus"),
    (["paper", "nonsense"], "unknown table 'nonsense'; the tables are "),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_VALUES, ids=lambda x: " ".join(x) if isinstance(x, list) else x)
def test_bad_values_exit_with_2_and_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.startswith("fmm-tune ")
    assert printed.err.count("\n") == 1 and not printed.out


def test_predict_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "8192", "8192", "8192", "--device", "h200", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict) and found
    assert main(["predict", "512", "512", "512"]) == 0
    assert "vendor" in capsys.readouterr().out


def test_predict_prints_the_terms_of_a_plan_and_of_the_vendors_product(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are those of docs/model.md's prediction by hand, without the kernels that no A100 has run."""
    monkeypatch.setenv("FMM_EMULATION", "0")
    arguments = ["predict", "8192", "--device", "a100", "--json", "--terms"]
    assert main([*arguments, "strassen.batched.pad16 > vendor"]) == 0
    of_plan, of_vendor = json.loads(capsys.readouterr().out)["terms"]
    assert of_plan.startswith("strassen.batched.pad16 > vendor: T = P + S + L + E - H = 0.0651936 s on A100\n")
    assert of_vendor.startswith("vendor: T = P + S + L + E - H = 0.0709931 s on A100\n")
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["terms"][0].startswith(f"{found['chosen']['plan']}: T = ")
    assert found["chosen"]["margin_of_shape"] == pytest.approx(45 * 128**2 / 8192**2)
    assert found["chosen"]["margin"] == pytest.approx(0.03 + found["chosen"]["margin_of_shape"])
    assert main([*arguments, "nonsense"]) == 2
    assert "a plan ends in its leaf" in capsys.readouterr().err


def test_predict_says_of_a_processor_that_is_not_tuned_what_a_call_goes_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It measures nothing, and a call would. (Of what is left to the library either way, nothing is said.)"""
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "none.json"))
    found = {}
    for arguments in (["16384"], ["300"], ["16384", "--device", "h200"]):
        assert main(["predict", *arguments, "--dtype", "float32"]) == 0
        found[" ".join(arguments)] = "decides by a short probe" in capsys.readouterr().out
    assert found == {"16384": True, "300": False, "16384 --device h200": False}


@pytest.mark.parametrize(
    ("variable", "value", "obeyed", "broken", "said"),
    [
        ("FMM_COMPONENTWISE", "1", has_componentwise_bound, "error", "error"),
        ("FMM_EMULATION", "0", lambda plan: not plan.uses_emulation, "emulation", "FMM_EMULATION=0"),
    ],
    ids=["every entry right", "no emulation"],
)
def test_predict_obeys_the_environment_as_fmm_plan_does(
    variable: str,
    value: str,
    obeyed: Callable[[Plan], bool],
    broken: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = dict[str, Plan]()
    for setting in ("", value):
        monkeypatch.setenv(variable, setting)
        assert main(["predict", "16384", "--dtype", "float32", "--device", "h200", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        chosen[setting] = Plan.parse(found["chosen"]["plan"])
    assert [obeyed(plan) for plan in chosen.values()] == [False, True]
    assert [broken] == next(row["exceeds"] for row in found["runners_up"] if row["plan"] == str(chosen[""]))
    assert main(["predict", "16384", "--dtype", "float32", "--device", "h200"]) == 0
    assert any(line.split("  ")[-1].strip() == said and f" {chosen['']} " in line for line in lines_of(capsys))


@pytest.mark.slow
def test_predict_by_a_tuning_leaves_half_of_the_memory_beside_the_operands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As show does; more where it is asked for, but no more than there is."""
    monkeypatch.setenv("FMM_CONFIG", str(ROOT / "results" / "nvidia-h200"))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    arguments = ["predict", "100000", "--dtype", "float32", "--device", "cuda-9.0-132sm-nvidia-h200", "--json"]
    left = 150109880320 - 3 * 4 * 1e10
    for more, most in (([], left / 2), (["--workspace", "400000000000"], left)):
        assert main([*arguments, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        assert 0.7 * most < found["workspace_limit"] <= most and found["chosen"]["workspace"] <= most
        assert any("workspace" in row["exceeds"] for row in found["runners_up"])
    assert main(["predict", "200000", *arguments[2:]]) == 2
    assert "cuda-9.0-132sm-nvidia-h200 has " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "bench"])
def test_every_command_has_the_types_of_fmm_plan(command: str) -> None:
    usual = fmm.plan(8, 8, 8).problem
    assert usual and cli.build_parsers()[0].parse_args([command, "1", "2", "3"]).dtype == usual.dtype == "float64"


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


# ---- as a command


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fmm.tuner.cli", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_the_module_is_the_command() -> None:
    done = started("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fmm-tune {fmm.__version__}\n", "")
    done = started("--nonsense")
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["paper", "all"], ["predict", "5", "5", "5"]])
def test_who_reads_the_head_alone_sees_no_traceback(arguments: list[str]) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fmm.tuner.cli", *arguments]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stderr
        child.stdout.close()  # as head does
        assert child.stderr.read() == ""
    assert child.returncode == EXIT_BROKEN_PIPE


@pytest.mark.parametrize("loaded", ["numpy", "fmm", "fmm.tuner.commands"])
def test_ctrl_c_while_it_is_loaded_is_one_line(loaded: str, tmp_path: Path) -> None:
    """Which takes a second where nothing is in the disk's cache; whoever is loaded then may not let an exception by."""
    begins = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]["fmm-tune"]
    module, function = begins.split(":")
    pressed = f"""
import importlib.abc, os, signal, sys

class Pressed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {loaded!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(10**6):
                    pass
            except BaseException as error:
                raise ImportError("as extension modules have it") from error

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background start with SIGINT ignored
sys.meta_path.insert(0, Pressed())
from {module} import {function}
sys.exit({function}())
"""
    command = [sys.executable, "-c", pressed, "--version"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "fmm-tune: interrupted before it began\n"


@pytest.mark.parametrize(("arguments", "note"), [(["report"], ""), ([], "; finished results are written")])
def test_ctrl_c_promises_results_of_a_tuning_alone(
    arguments: list[str], note: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> Path:
        raise KeyboardInterrupt

    for module in (tune, report):
        monkeypatch.setattr(module, "output_path", interrupt)
    assert main(arguments) == 130
    assert capsys.readouterr().err == f"fmm-tune: interrupted{note}\n"


@pytest.mark.slow
def test_who_ignores_ctrl_c_still_does_and_afterwards_it_is_an_exception(tmp_path: Path) -> None:
    code = """
import signal, sys
from fmm.tuner import cli
from fmm_tune import main
cli.main = lambda **given: print(signal.getsignal(signal.SIGINT) is {0}) or 0
signal.signal(signal.SIGINT, {0})
sys.exit(main())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for handler in ("signal.SIG_IGN", "signal.default_int_handler"):
        command = [sys.executable, "-c", code.format(handler)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_help_measures_and_imports_nothing_large() -> None:
    code = "import sys; from fmm.tuner import cli; cli.build_parsers(); print([m for m in LARGE if m in sys.modules])"
    code = code.replace("LARGE", "('pandas', 'optuna', 'matplotlib', 'cupy', 'scipy')")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert cli.main.__doc__


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
@pytest.mark.parametrize(
    ("command", "streams", "code", "message"),
    [
        ("paper", ">&-", 0, ""),
        ("verify", ">&- 2>&-", 0, ""),
        pytest.param(
            "predict 64",
            ">/dev/full",
            1,
            "fmm-tune: cannot write the output: No space left on device\n",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full"),
        ),
    ],
)
def test_closed_and_full_outputs_show_no_traceback(command: str, streams: str, code: int, message: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FMM_CONFIG": str(files.SHIPPED_CONFIG)}
    line = f"{sys.executable} -m fmm.tuner.cli {command} {streams}"
    done = subprocess.run(["sh", "-c", line], env=env, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (code, message)


def test_every_command_that_a_message_names_exists() -> None:
    parser, commands = cli.build_parsers()
    options = parser.format_help()
    sources = [path for folder in ("fmm", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.*")]
    for path in (*sources, ROOT / "README.md"):
        if path.suffix not in (".py", ".md"):
            continue
        for name in re.findall(r"`fmm-tune ([a-z-]+)", path.read_text(encoding="utf-8")):
            assert name in options if name.startswith("--") else name in commands.choices, f"{path}: fmm-tune {name}"


def test_predict_lists_the_devices_that_an_incomplete_key_may_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FMM_CONFIG", str(files.SHIPPED_CONFIG))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    assert cli.main(["predict", "64", "--device", "cuda-9.0-132sm"]) == 2
    message = capsys.readouterr().err
    assert "ambiguous device 'cuda-9.0-132sm'" in message and "cuda-9.0-132sm-nvidia-h200" in message

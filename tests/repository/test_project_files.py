"""CITATION.cff, SECURITY.md, issue templates, extras and the conda recipe say what is true of the package."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.config.files import MAX_FILE_BYTES, active_configs, clear_config_cache
from fmm.config.reader import ConfigError, check_text
from fmm.integrations import run
from fmm.integrations.report import ProductCount, ProductKind, ProductOutcome, end_report
from fmm.tuner import cli
from tests.support import ROOT

yaml: Any = pytest.importorskip("yaml")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEMPLATES = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
CONDA_RECIPE = ROOT / "conda.recipe" / "recipe.yaml"
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


# ---- extras


def test_the_extra_all_has_every_extra_for_users() -> None:
    """CuPy is of one CUDA version, so that the user names it."""
    extras = PROJECT["optional-dependencies"]
    ((_, names),) = [re.fullmatch(r"(fmm-tune)\[(.*)\]", line).groups() for line in extras["all"]]  # type: ignore[union-attr]
    assert set(names.split(",")) == set(extras) - {"all", "cuda12", "cuda13", "docs", "notebooks", "test"}


# ---- the conda recipe


def test_the_conda_recipe_requires_what_pyproject_requires() -> None:
    recipe = read_yaml(CONDA_RECIPE)
    assert recipe["context"]["version"] == fmm.__version__
    assert PROJECT["requires-python"] == f">={recipe['context']['python_min']}"
    assert {line.replace(" ", "") for line in recipe["requirements"]["run"][1:]} == {
        *PROJECT["dependencies"],
        "__linux",
    }
    assert recipe["build"]["python"]["entry_points"] == [f"{x} = {y}" for x, y in PROJECT["scripts"].items()]
    assert recipe["about"]["license"] == PROJECT["license"] and recipe["about"]["summary"] == PROJECT["description"]


def test_rattler_build_renders_the_conda_recipe() -> None:
    rattler_build: Any = pytest.importorskip("rattler_build")  # pip install py-rattler-build
    (variant,) = rattler_build.Stage0Recipe.from_file(CONDA_RECIPE).render()
    package = variant.recipe.to_dict()["package"]
    assert (package["name"], package["version"]) == (PROJECT["name"], fmm.__version__)


# ---- the citation


def test_the_citation_is_of_this_version_and_licence() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert str(citation["cff-version"]) == "1.2.0"
    assert citation["version"] == fmm.__version__
    assert citation["license"] == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert citation["message"] and citation["title"] and citation["type"] == "software"


def test_each_cited_paper_is_one_of_the_readmes() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split()).casefold()
    for paper in read_yaml(ROOT / "CITATION.cff")["references"]:
        assert paper["title"].casefold() in readme and f"({paper['year']})" in readme
        assert all(author["family-names"].casefold() in readme for author in paper["authors"])


# ---- issue templates


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_is_a_form(path: Path) -> None:
    form = read_yaml(path)
    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "body", "labels", "title"}
    names = [field["id"] for field in form["body"]]
    assert len(names) == len(set(names))
    for field in form["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes") and field["attributes"]["label"]
        assert field["type"] != "dropdown" or field["attributes"]["options"]


def test_the_commands_of_the_templates_exist(capsys: pytest.CaptureFixture[str]) -> None:
    texts = "\n".join(path.read_text(encoding="utf-8") for path in TEMPLATES)
    assert "python -m fmm --version --verbose" in texts
    assert run.main(["--version", "--verbose"]) == 0
    commands = re.findall(r"fmm-tune( bench)?[^\"]* (--[a-z]+)", texts)
    assert {option for _, option in commands} == {"--dtype", "--effort"}
    for command, option in commands:
        with pytest.raises(SystemExit) as stopped:
            cli.main([*command.split(), "--help"])
        assert stopped.value.code == 0 and option in capsys.readouterr().out


# ---- what SECURITY.md claims and no other test checks


@pytest.mark.slow
def test_no_module_opens_connections_or_loads_pickles() -> None:
    forbidden = {"socket", "ssl", "urllib", "http", "ftplib", "smtplib", "requests", "pickle", "marshal", "shelve"}
    found = set()
    for path in (ROOT / "fmm").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {(path.name, name) for name in names if name.partition(".")[0] in forbidden}
    assert found == set()


def test_the_working_directory_has_no_config_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path, tmp_path / "fmm"):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text('{"schema": 1, "devices": {}}', encoding="utf-8")
    for variable in ("FMM_CONFIG", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    clear_config_cache()
    assert [path for path in active_configs().files if path.is_relative_to(tmp_path)] == []
    clear_config_cache()


def test_the_stated_limits_are_those_of_the_reader() -> None:
    assert f"at most {MAX_FILE_BYTES >> 20} MiB" in SECURITY
    (letters,) = re.findall(r"at most (\d+) printable", SECURITY)
    assert check_text("x" * int(letters), "field")
    for text in ("x" * (int(letters) + 1), "\x1b[2J", "a\nb"):
        with pytest.raises(ConfigError):
            check_text(text, "field")


def test_a_report_has_no_entries_of_matrices() -> None:
    """Neither its fields nor its text, for a product whose entries are easy to find."""
    fmm.report()
    try:
        with fmm.installed("numpy"):
            np.dot(np.full((4, 5), 7654321.5), np.full((5, 6), 1234567.5))
        text = str(fmm.report()) + str(fmm.report().fields)
    finally:
        end_report()
    assert "4 x 5 by 5 x 6" in text and "7654321" not in text and "1234567" not in text
    count = ProductCount(1, ProductKind("numpy.dot", (4, 5), (5, 6), "float64"), ProductOutcome("", "small"))
    assert set(count.fields) == {"times", "where", "left", "right", "dtype", "plan", "reason", "speedup"}

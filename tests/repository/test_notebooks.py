"""Every notebook runs from top to bottom, gives the outputs that are committed, and is fit to read."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

NEEDED = ("ipykernel", "matplotlib", "nbclient", "nbformat")
if missing := [name for name in NEEDED if find_spec(name) is None]:
    pytest.skip(f"notebooks need {', '.join(missing)}: pip install 'fmm-tune[notebooks]'", allow_module_level=True)

nbclient, nbformat = map(import_module, NEEDED[2:])


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_LINES = 22  # of a code cell: it stays on a screen
MOST_BYTES = 500_000
SECONDS = 300  # of a cell, on a slow machine that builds matplotlib's font cache first

# Where Jupyter looks first, and where else it and IPython would read or write.
FOLDERS = ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")

# Somebody's folders, objects' addresses.
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|Users|mnt|opt|work)/|\b0x[0-9a-f]{6,}\b|[A-Z]:\\")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel "python3" is this interpreter and finds this tree's fmm; the folder that it runs in."""
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}), encoding="utf-8")
    for name in FOLDERS:
        monkeypatch.setenv(name, str(tmp_path / name.removesuffix("_PATH").lower()))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # else the figures would not be outputs
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def execute(book: Any, folder: Path) -> None:
    """Run all cells in a new kernel, outputs in place; raises at the first error."""
    where = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(book, timeout=SECONDS, kernel_name="python3", resources=where).execute()


def shown(output: Any) -> Any:
    """An output without what may change with a library's version: a picture counts as a picture."""
    if output.output_type in ("display_data", "execute_result"):
        return {kind: "a picture" if kind.startswith("image/") else text for kind, text in output.data.items()}
    return {key: output[key] for key in output if key != "metadata"}


def test_there_are_notebooks() -> None:
    assert ROOT / "notebooks" / "papers.ipynb" in NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_gives_what_is_committed(path: Path, kernel: Path) -> None:
    committed, book = code_cells(read(path)), read(path)
    execute(book, kernel)
    for old, new in zip(committed, code_cells(book), strict=True):
        assert [shown(o) for o in new.outputs] == [shown(o) for o in old.outputs], f"stale output of:\n{old.source}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_with_outputs_and_without_noise(path: Path) -> None:
    book = read(path)
    nbformat.validate(book)
    cells = code_cells(book)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "not run from top to bottom"
    outputs = [output for cell in cells for output in cell.outputs]
    kinds = {output.output_type for output in outputs}
    assert kinds and kinds <= {"display_data", "execute_result"}, "an error, or text that was printed or warned"
    assert any(kind.startswith("image/") for output in outputs for kind in output.data)
    assert not any(cell.metadata for cell in book.cells)
    assert set(book.metadata) <= {"kernelspec", "language_info"} and book.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_short_and_says_nothing_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    assert not MACHINE.search(text)
    for cell in code_cells(read(path)):
        assert len(cell.source.splitlines()) <= MOST_LINES, cell.source


@pytest.mark.slow
def test_an_error_in_a_cell_is_noticed(kernel: Path) -> None:
    sources = ("import sys\nprint(sys.executable)", "1 / 0", "print('not reached')")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="ZeroDivisionError"):
        execute(book, kernel)
    assert book.cells[0].outputs[0].text.strip() == sys.executable
    assert not book.cells[2].outputs


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /home/me/x", True),
        ("<Axes at 0x7f00aa11bb22>", True),
        ("C:\\\\x", True),
        ("1/2 and n/tmp/2", False),
        ("#0072B2", False),
    ],
)
def test_what_says_something_of_a_machine(text: str, found: bool) -> None:
    assert bool(MACHINE.search(text)) is found

"""Run the notebooks from top to bottom and write their outputs: `python -m benchmarks notebooks [NAME ...]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

nbclient, nbformat = map(import_module, ("nbclient", "nbformat"))  # the extra `notebooks`; they have no types

FOLDER = Path(__file__).parents[1] / "notebooks"


def run_notebook(path: Path) -> None:
    """Run a notebook and write its outputs, without the times and machines of the run."""
    book: Any = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
    for cell in book.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = {}
    book.metadata = {"kernelspec": book.metadata.kernelspec, "language_info": {"name": "python"}}
    nbformat.write(book, path)


def main(arguments: Sequence[str]) -> int:
    """Run the named notebooks, or all of them; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="without .ipynb (default: all)")
    names = parser.parse_args(arguments).names
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        run_notebook(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

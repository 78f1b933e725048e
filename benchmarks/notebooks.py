"""Runs the notebooks from top to bottom and writes their outputs: `python -m benchmarks.notebooks [NAME ...]`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

nbclient, nbformat = map(import_module, ("nbclient", "nbformat"))  # of the extra `notebooks`, without types

FOLDER = Path(__file__).parents[1] / "notebooks"


def written(path: Path) -> None:
    """With its outputs, and without what says when and where it ran."""
    book: Any = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
    for cell in book.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = {}
    book.metadata = {"kernelspec": book.metadata.kernelspec, "language_info": {"name": "python"}}
    nbformat.write(book, path)


def main(names: list[str]) -> int:
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        written(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

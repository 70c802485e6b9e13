"""``python -m tests.docs.notebooks``: run the notebooks of examples/ (or those named) and keep what they show."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"
CELL_TIMEOUT_S = 300
# What a warning calls the cell that it points to.
_CELL = re.compile(r"/[^ ]*/ipykernel_\d+/\d+\.py")


def notebooks() -> list[Path]:
    """Every notebook, in order of their names."""
    return sorted(EXAMPLES.glob("*.ipynb"))


def run(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in ``folder``. Raises ``CellExecutionError`` when a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, coalesce_streams=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    for cell in notebook.cells:
        # When each cell ran would be another every time.
        cell.metadata.pop("execution", None)
    return notebook


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or notebooks():
        with tempfile.TemporaryDirectory() as folder:
            text = nbformat.writes(run(path, Path(folder)))
        # Shipped files by their place in this checkout, and files of the run by their names.
        text = _CELL.sub("<cell>", text.replace(f"{ROOT}/", "").replace(f"{folder}/", ""))
        path.write_text(text + "\n")


if __name__ == "__main__":
    main()

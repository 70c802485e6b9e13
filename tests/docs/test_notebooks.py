"""The notebooks of examples/ run from top to bottom, and show what they print."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.docs.notebooks import EXAMPLES, notebooks, run

# The notebook that `make test` runs; `make test-long` runs the others.
QUICK = "predict_my_network"
RUN = [pytest.param(path, id=path.stem, marks=() if path.stem == QUICK else pytest.mark.long) for path in notebooks()]


@pytest.mark.parametrize("path", RUN)
def test_a_notebook_runs_in_an_empty_folder(path: Path, tmp_path: Path) -> None:
    ran = run(path, tmp_path)
    assert [cell.execution_count for cell in ran.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_its_outputs(path: Path) -> None:
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in code)
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert "/tmp" not in path.read_text()


SCRIPTS = [path for path in sorted(EXAMPLES.glob("*.py")) if "slotool" in path.read_text()]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 20

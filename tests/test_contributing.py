"""The recipes of CONTRIBUTING.md: each file and its line of test are written down as shown, and pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = re.findall(
    r"^```python\n# (\w+\.py)\n(.*?)^```", (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(), re.M | re.S
)


@pytest.mark.long
def test_every_recipe_passes_its_conformance_suite(tmp_path: Path) -> None:
    tests = [name for name, _ in RECIPES if name.startswith("test_")]
    assert len(tests) == 7
    for name, code in RECIPES:
        (tmp_path / name).write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, *tests]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout
    for name in tests:
        assert (tmp_path / name.removeprefix("test_")).is_file()

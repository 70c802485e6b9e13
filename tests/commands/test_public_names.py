"""``import slotool``: quick, complete, documented."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import slotool
from slotool.graphs.store import write_graphs
from slotool.testing.predictors import random_networks

HEAVY = {"torch", "tensorflow", "keras", "pandas", "numpy", "numba", "sklearn", "scipy", "matplotlib", "rich", "typer"}
FUNCTIONS = [name for name in slotool.__all__ if inspect.isfunction(getattr(slotool, name))]


def test_importing_it_imports_nothing_heavy() -> None:
    code = "import sys, slotool; print(*{m.partition('.')[0] for m in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "slotool" in loaded
    assert not set(loaded) & HEAVY


def test_every_public_name_is_there_and_listed_and_no_other() -> None:
    assert slotool.__all__ == sorted(slotool.__all__)
    assert set(slotool.__all__) <= set(dir(slotool))
    with pytest.raises(AttributeError, match="no attribute 'predikt'"):
        slotool.predikt  # noqa: B018  (it raises)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_its_parameters_types_result_and_errors(name: str) -> None:
    function = getattr(slotool, name)
    text = inspect.getdoc(function) or ""
    arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        assert f"    {parameter.name}: " in arguments, f"{name}: {parameter.name} is not described"
        assert parameter.annotation is not inspect.Parameter.empty, f"{name}: {parameter.name} has no type"
    described = [line.strip().partition(":")[0] for line in arguments.splitlines() if line[4:5] != " "]
    assert set(described) == set(parameters), f"{name} describes what it does not take"
    assert "Returns:\n" in text
    assert "Raises:\n" in text
    raised = text.partition("Raises:\n")[2].partition("\n\n")[0]
    from slotool import errors

    for line in raised.splitlines():
        if line[4:5] != " ":
            assert hasattr(errors, line.strip().partition(":")[0]), f"{name} raises no error of slotool: {line}"


def test_a_command_prints_the_document_of_its_function(slotool, tmp_path: Path) -> None:
    import slotool as library

    write_graphs(tmp_path / "some.jsonl", random_networks(3, seed=0))
    library.predict(tmp_path / "some.jsonl")
    # What other processes disturbed would be measured again.
    found = library.predict(tmp_path / "some.jsonl", slo_s=0.1, measure=False)
    command = ("predict", "--graph", tmp_path / "some.jsonl", "--slo", "100ms", "--no-measure")
    assert json.loads(json.dumps(found.document)) == slotool(*command, "--json").document
    finished = slotool(*command)
    assert repr(found) == (finished.stderr + finished.stdout).rstrip("\n")
    assert list(found.frame()["latency_s"]) == found.latency_s.tolist()
    assert found._repr_html_().count("<tr>") == 4

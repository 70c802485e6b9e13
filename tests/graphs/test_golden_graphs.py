"""Captured graphs as they were: ids, FLOPs and weights of networks in all formats, ``tests/golden/graphs.json``.

A change that means to change some of them records them again, by ``python -m tests.graphs.test_golden_graphs``, and
its commit says which and why. A network that is not recorded yet, such as that of a new operator, is compared from the
next recording on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "graphs.json"
GROUPS = ("drawn", "torch", "onnx", "keras", "modules", "layers")
NEEDS = {"onnx": "onnx", "keras": "tensorflow", "layers": "tensorflow", "applications": "tensorflow"}
# Groups of which a test captures every so many, and a long one all.
SLOW = {"torch": 5, "modules": 2, "keras": 6}
# Of the members of keras.applications these are captured in seconds.
QUICK = "MobileNetV3Small,ResNet50"


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


def check(group: str, every: int) -> None:
    from tests.graphs.golden_networks import captured, facts

    if group in NEEDS:
        pytest.importorskip(NEEDS[group])
    found = {name: facts(graph) for name, graph in captured(group, every)}
    expected = recorded()[group]
    assert {name: found[name] for name in found if name in expected} == {
        name: expected[name] for name in found if name in expected
    }
    assert every > 1 or expected.keys() <= found.keys()


@pytest.mark.parametrize("group", GROUPS)
def test_captured_graphs_are_as_recorded(group: str) -> None:
    check(group, every=SLOW.get(group, 1))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("group", SLOW)
def test_all_captured_graphs_are_as_recorded(group: str) -> None:
    check(group, every=1)


@pytest.mark.parametrize("names", [QUICK, pytest.param("all", marks=pytest.mark.long)])
def test_applications_of_keras_are_as_recorded(names: str) -> None:
    pytest.importorskip("tensorflow")
    from tests.graphs.golden_networks import applications, facts

    found = {name: facts(graph) for name, graph in applications(names)}
    assert found == {name: recorded()["applications"][name] for name in found}
    assert len(found) == (len(recorded()["applications"]) if names == "all" else len(names.split(",")))


def _record() -> None:
    from tests.graphs.golden_networks import applications, captured, facts

    groups = {group: {name: facts(graph) for name, graph in captured(group)} for group in GROUPS}
    groups["applications"] = {name: facts(graph) for name, graph in applications()}
    lines = [
        f'"{group}": {{\n' + ",\n".join(f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in found) + "\n}"
        for group, found in groups.items()
    ]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    _record()

"""docs/reference/graph-format.md says what is so."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from slotool.errors import GraphError
from slotool.graphs import OPERATORS, OperatorGraph
from slotool.graphs.operators import REQUIRED
from slotool.graphs.operators.elementwise import FUNCTIONS
from slotool.graphs.store import read_graphs, write_graphs
from slotool.graphs.torch_module import ACTIVATIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "graph-format.md"
DOCUMENT = PAGE.read_text()


@pytest.fixture
def example(tmp_path: Path) -> Path:
    (block,) = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    (tmp_path / "example.jsonl").write_text(block)
    return tmp_path / "example.jsonl"


def test_its_example_loads_and_comes_back(example: Path) -> None:
    small, branched = read_graphs(example)
    assert (small.name, small.weights) == ("small-mlp", 784 * 64 + 64 + 64 * 10 + 10)
    assert (branched.name, branched.kind, branched.output_shape) == ("two-branches", "cnn", (10,))
    assert [(o.op, o.shape, o.flops) for o in branched.unknown] == [("mine.Sort", (8, 32, 32), 81920)]
    write_graphs(example.with_suffix(".parquet"), [small, branched])
    assert list(read_graphs(example.with_suffix(".parquet"))) == [small, branched]


def test_its_example_can_be_profiled(slotool, example: Path, tmp_path: Path) -> None:
    finished = slotool("profile", "solo", example, "-o", tmp_path / "latency.parquet", "--dry-run")
    assert finished.exit_code == 0, finished.stderr


def test_its_tables_are_complete() -> None:
    rows = re.compile(r"(?:^\| `\w+`[`\w, ]* \| (?:\d+|one or more) \| .*\n)+", re.MULTILINE)
    alike: dict[str, list[str]] = {}
    for op in OPERATORS:
        alike.setdefault(taken(op), []).append(f"`{op}`")
    expected = "".join(f"| {', '.join(types)} | {text} |\n" for text, types in alike.items())
    listed = re.compile(r"(?<=`function` is one of )`abs`.*(?=\.$)", re.MULTILINE)
    functions = ", ".join(f"`{name}`" for name in FUNCTIONS)
    if os.environ.get("SLOTOOL_RECORD_GOLDEN"):
        PAGE.write_text(listed.sub(functions, rows.sub(lambda _: expected, DOCUMENT)))
    else:
        record = "record them: SLOTOOL_RECORD_GOLDEN=1 pytest tests/graphs/test_graph_format.py"
        assert (rows.findall(DOCUMENT), listed.findall(DOCUMENT)) == ([expected], [functions]), record
    assert f"one of {', '.join(f'`{name}`' for name in ACTIVATIONS if name)}." in " ".join(DOCUMENT.split())


def taken(op: str) -> str:
    """Return the inputs and attributes of a type as cells of the table."""
    kind = OPERATORS[op]
    inputs = "one or more" if kind.inputs is None else str(kind.inputs)
    return f"{inputs} | {', '.join(described(*attribute) for attribute in kind.attributes.items())}"


def described(name: str, default: object) -> str:
    if default is REQUIRED:
        return f"**`{name}`**"
    return f"`{name}` as the kernel" if name == "stride" and default is None else f"`{name}` {json.dumps(default)}"


def test_what_it_calls_required_is() -> None:
    source = {"name": "x", "op": "InputLayer", "attributes": {"shape": [4]}}
    unknown = {"op": "mine.Sort", "inputs": ["x"], "shape": [4]}
    assert OperatorGraph.from_document({"operators": [source, unknown]}).flops == 0
    for lacking in ({}, {"operators": [source, {**unknown, "op": None}]}, {"operators": [unknown]}):
        with pytest.raises(GraphError):
            OperatorGraph.from_document(lacking)


@pytest.mark.parametrize(
    "operators",
    [
        [{"name": "x", "op": "InputLayer", "attributes": {"shape": [8]}},
         {"name": "d", "op": "Dense", "inputs": ["x"], "attributes": {"units": 9_000_000_000_000_000_000}}],
        [{"name": "x", "op": "InputLayer", "attributes": {"shape": [2**62] * 3}}],
        [{"name": "x", "op": "InputLayer", "attributes": {"shape": [8]}},
         {"name": "u", "op": "Odd", "inputs": ["x"], "shape": [1], "weights": 0, "flops": 2**63 - 1}],
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_added_up_are_refused(operators: list[dict]) -> None:
    with pytest.raises(GraphError, match=r"operator '[xdu]': .* can be counted"):
        OperatorGraph.from_document({"operators": operators})

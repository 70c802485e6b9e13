"""Forged ``.pt2`` archives: torch would run their text, their operators, their pickles and their libraries."""

from __future__ import annotations

import json
import pickle
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slotool.errors import InputError, RunError
from slotool.models.loading import load
from tests.hostile.hostile_files import places, refused_or_fine, seed, texts

MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"


class Network(torch.nn.Module):
    """A size that is not fixed, a subgraph, a weight and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        y = self.layer(x) + torch.ones(3)
        with torch.no_grad():
            z = y.sin() * 2
        return z * x.shape[0]


@pytest.fixture(scope="module")
def records() -> dict[str, bytes]:
    """Records of an archive that torch wrote, by name."""
    import io

    stored = io.BytesIO()
    shapes = ({0: torch.export.Dim("n", min=2)},)
    torch.export.save(torch.export.export(Network().eval(), (torch.ones(2, 3),), dynamic_shapes=shapes), stored)
    with zipfile.ZipFile(stored) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write(path: Path, records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(f"net/{name}", content)
    return path


def edited(records: dict[str, bytes], edit: Callable[[Any], None], name: str = MODEL) -> dict[str, bytes]:
    document = json.loads(records[name])
    edit(document)
    return {**records, name: json.dumps(document).encode()}


def nodes(document: Any) -> list[Any]:
    return document["graph_module"]["graph"]["nodes"]


def node(document: Any, operator: str) -> Any:
    return next(each for each in nodes(document) if operator in each["target"])


def from_file(document: Any, marker: Path) -> None:
    ones = node(document, "aten.ones")
    ones["target"] = "torch.ops.aten.from_file.default"
    ones["inputs"] = [
        {"name": "filename", "arg": {"as_string": str(marker)}, "kind": 1},
        {"name": "shared", "arg": {"as_bool": True}, "kind": 1},
        {"name": "size", "arg": {"as_int": 3}, "kind": 1},
    ]


def test_an_archive_that_torch_wrote_is_read(records: dict[str, bytes], tmp_path: Path) -> None:
    assert load(write(tmp_path / "net.pt2", records))(np.ones((2, 3), np.float32))["output"].shape == (2, 3)


def test_an_operator_that_writes_a_file_runs_only_where_code_is_allowed(
    records: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    path = write(tmp_path / "net.pt2", edited(records, lambda document: from_file(document, marker)))
    with pytest.raises(InputError) as refused:
        load(path)
    assert "aten.from_file.default" in str(refused.value)
    assert "--allow-code" in str(refused.value)
    assert not marker.exists()
    monkeypatch.setenv("SLOTOOL_ALLOW_CODE", "1")
    load(path)(np.ones((2, 3), np.float32))
    assert marker.exists()


OPERATORS = [
    "torch.ops.aten._print.default",
    "torch.ops.aten.add.out",
    "torch.ops.aten.empty.memory_format",
    "torch.ops.aten._unsafe_index.Tensor",
    "torch.ops.aten.set_.source_Storage",
    "torch.ops.mine.custom.default",
    "torch.ops.higher_order.while_loop",
    "torch.ops.load_library",
    "torch.os.system",
    "torch.load",
    "_operator.attrgetter",
    "math.factorial",
    "#plugin:operator",
    "",
]


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_other_operator_is_refused_by_name_wherever_it_is(
    operator: str, records: dict[str, bytes], tmp_path: Path
) -> None:
    def in_network(document: Any) -> None:
        node(document, "aten.ones")["target"] = operator

    def in_subgraph(document: Any) -> None:
        inputs = node(document, "higher_order")["inputs"]
        graph = next(each["arg"]["as_graph"] for each in inputs if "as_graph" in each["arg"])
        graph["graph"]["nodes"][0]["target"] = operator

    def as_argument(document: Any) -> None:
        node(document, "aten.ones")["inputs"][0]["arg"] = {"as_operator": operator}

    for edit in (in_network, in_subgraph, as_argument):
        with pytest.raises(InputError, match="--allow-code") as refused:
            load(write(tmp_path / "net.pt2", edited(records, edit)))
        assert repr(operator) in str(refused.value)


def expression(text: str) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        sizes = [
            size for value in document["graph_module"]["graph"]["tensor_values"].values() for size in value["sizes"]
        ]
        next(size for size in sizes if "as_expr" in size)["as_expr"]["expr_str"] = text

    return edit


def named_metadata(document: Any) -> None:
    """A tensor called as a key whose texts are not looked at."""
    values = document["graph_module"]["graph"]["tensor_values"]
    held = json.loads(json.dumps(next(value for value in values.values() if "as_expr" in str(value))))
    next(size for size in held["sizes"] if "as_expr" in size)["as_expr"]["expr_str"] = "__import__('os').getcwd()"
    values["metadata"] = held


def node_name(document: Any) -> None:
    text = document["graph_module"]["graph"]["tensor_values"]
    forged = "ones=print('ran')"
    ones = node(document, "aten.ones")
    text[forged] = text.pop("ones")
    ones["outputs"][0]["as_tensor"]["name"] = ones["name"] = forged


def parameter_name(document: Any) -> None:
    inputs = document["graph_module"]["signature"]["input_specs"]
    next(each["parameter"] for each in inputs if "parameter" in each)["parameter_name"] = 'a", print("ran")) or ("'


def number_for_a_type(document: Any) -> None:
    node(document, "aten.ones")["inputs"].append({"name": "dtype", "arg": {"as_int": -1}, "kind": 2})


def structure(kind: str, context: Any) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        spec = [1, {"type": kind, "context": context, "children_spec": []}]
        document["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps(spec)

    return edit


TEXTS = [
    expression("__import__('os').system('true')"),
    expression("Symbol('s0').__class__"),
    expression("Symbol(__import__('os').getcwd())"),
    expression("[x for x in (1,)][0]"),
    expression("exec('1')"),
    expression("Pow(Integer(9), Integer(999999999))"),
    expression("(" * 5_000),
    named_metadata,
    node_name,
    parameter_name,
    number_for_a_type,
    structure("builtins.list", json.dumps({"__enum__": True, "fqn": "antigravity:a", "name": "a"})),
    structure("collections.defaultdict", {"default_factory_module": "antigravity", "default_factory_name": "x"}),
]


@pytest.mark.parametrize("edit", TEXTS)
def test_text_that_torch_would_run_or_import_is_refused(
    edit: Callable[[Any], None], records: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTOOL_ALLOW_CODE", "1")
    with pytest.raises(InputError, match=r"which torch\.export\.save does not write"):
        load(write(tmp_path / "net.pt2", edited(records, edit)))


def test_an_lstm_whose_state_is_of_another_size_fails_with_a_sentence(tmp_path: Path) -> None:
    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.state = torch.nn.LSTM(4, 4), torch.nn.Parameter(torch.zeros(1, 2, 4))

        def forward(self, x: Any) -> Any:
            return self.layer(x, (self.state, self.state * 1))[0]

    def narrower(document: Any) -> None:
        document["config"]["state"]["tensor_meta"]["sizes"][2] = {"as_int": 1}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Recurrent().eval(), (torch.ones(3, 2, 4),))
    torch.export.save(program, tmp_path / "whole.pt2")
    with zipfile.ZipFile(tmp_path / "whole.pt2") as archive:
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    assert load(tmp_path / "whole.pt2")(np.ones((3, 2, 4), np.float32))["output"].shape == (3, 2, 4)
    with pytest.raises(RunError):
        load(write(tmp_path / "net.pt2", edited(records, narrower, WEIGHTS)))(np.ones((3, 2, 4), np.float32))


class Touch:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_nothing_in_an_archive_is_unpickled_or_linked(
    records: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTOOL_ALLOW_CODE", "1")
    marker = tmp_path / "marker"
    stored = pickle.dumps(Touch(marker))

    def pickled(document: Any) -> None:
        next(iter(document["config"].values()))["use_pickle"] = True

    forged = [
        {**records, name: stored}
        for name in (
            "data/weights/model.pt",
            "data/constants/model.pt",
            "data/sample_inputs/model.pt",
            "data/constants/opaque_obj_0",
            "data/aotinductor/model/wrapper.so",
            "models/other.json",
        )
    ]
    forged += [edited({**records, "data/weights/weight_0": stored}, pickled, WEIGHTS)]
    for each in forged:
        with pytest.raises(InputError):
            load(write(tmp_path / "net.pt2", each))
    with pytest.raises(InputError):
        load(write(tmp_path / "net.pt2", records, zipfile.ZIP_DEFLATED))
    old = write(tmp_path / "net.pt2", records)
    with zipfile.ZipFile(old, "a") as archive:
        archive.writestr("version", "8.1")
        archive.writestr("serialized_state_dict.pt", stored)
    with pytest.raises(InputError):
        load(old)
    assert not marker.exists()


def test_a_program_whose_first_module_has_a_name_is_refused(records: dict[str, bytes], tmp_path: Path) -> None:
    document = json.loads(records[MODEL])
    document["graph_module"]["module_call_graph"][0]["fqn"] = "inner"
    path = write(tmp_path / "net.pt2", {**records, MODEL: json.dumps(document).encode()})
    with pytest.raises(InputError):
        load(path)


def test_a_program_with_any_value_replaced_works_or_is_refused(
    records: dict[str, bytes], tmp_path: Path, hostile_seconds: float
) -> None:
    attempts = [(name, at) for name in (MODEL, WEIGHTS) for at in places(json.loads(records[name]))]
    random, until_s = np.random.default_rng(seed()), time.monotonic() + hostile_seconds
    while time.monotonic() < until_s:
        name, at = attempts[random.integers(len(attempts))]
        altered = list(texts(json.loads(records[name]), at))
        forged = {**records, name: altered[random.integers(len(altered))].encode()}
        path = write(tmp_path / "net.pt2", forged)
        refused_or_fine(lambda path=path: load(path)(np.ones((2, 3), np.float32)), (name, at))

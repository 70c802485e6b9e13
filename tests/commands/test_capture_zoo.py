"""Sweeps over networks of a package: by a package of the test's own, so that nobody needs timm for them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import slotool
import slotool.process
from slotool import PackageNetworks
from slotool.errors import (
    AlreadyExistsError,
    ArgumentError,
    GraphError,
    MissingPackageError,
    RunError,
    SlotoolError,
    SlotoolWarning,
)
from slotool.factories import arguments_of
from slotool.graphs import OperatorGraph
from slotool.graphs.capture import Source, capture_torch, load_torch, package
from slotool.graphs.store import read_graphs

PATIENCE_S = 120

TIMM = """
import os
from torch import nn

MODULES = {"small": ["small_a", "small_b"], "odd": ["dies", "refuses"]}

def list_modules():
    return list(MODULES)

def list_models(module):
    return MODULES[module]

def create_model(name, pretrained):
    assert not pretrained
    if name == "dies":
        os._exit(3)
    if name == "refuses":
        raise RuntimeError("not today")
    network = nn.Sequential(nn.Conv2d(3, 4 if name == "small_a" else 6, 3), nn.ReLU())
    network.pretrained_cfg = {"input_size": (3, 8, 8)}
    return network
"""


@pytest.fixture
def timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "timm.py").write_text(TIMM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "timm", raising=False)
    yield
    __import__("sys").modules.pop("timm", None)


def test_a_network_that_dies_or_refuses_costs_itself_alone(tmp_path: Path, timm: None) -> None:
    out = tmp_path / "zoo.jsonl"
    with pytest.warns(SlotoolWarning, match="is left out"):
        found = slotool.capture(PackageNetworks("timm", "all"), out, processes=1, progress=None)
    assert [graph.name for graph in found.graphs] == ["small_a", "small_b"]
    assert [graph.weights for graph in found.graphs] == [112, 168]
    assert "exit code 3" in found.failed["dies"]
    assert found.failed["refuses"] == "not today"
    assert out.exists()
    assert not Path(f"{out}.journal").exists()
    with pytest.raises(AlreadyExistsError):
        slotool.capture(PackageNetworks("timm", "all"), out)


def test_names_are_families_or_of_the_package(timm: None) -> None:
    from slotool.graphs.capture.zoo import chosen_networks

    assert chosen_networks("timm", "families") == ["dies", "small_a"]
    assert chosen_networks("timm", "small_b,small_a,small_b") == ["small_b", "small_a"]
    with pytest.raises(GraphError, match=r"no network 'small'; did you mean small_a or small_b\?"):
        chosen_networks("timm", "small")


def test_a_sweep_goes_on_where_it_was(tmp_path: Path, timm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    graph = capture_torch(nn.Linear(4, 2), (4,))

    def captured(sources: Sequence[Source], *_: Any) -> Iterator[tuple[Source, OperatorGraph | SlotoolError]]:
        for source in sources:
            asked.append(source.name)
            if len(asked) == 2:
                raise KeyboardInterrupt
            yield source, RunError("odd") if source.name == "dies" else graph

    monkeypatch.setattr(package, "captured_side_by_side", captured)
    out = tmp_path / "zoo.jsonl"
    names = ["small_a", "small_b", "dies"]
    with pytest.raises(KeyboardInterrupt) as caught:
        slotool.capture(PackageNetworks("timm", names), out, progress=None)
    # The command line prints it.
    assert caught.value.__notes__ == [
        f"1 of 3 networks are kept in {out}.journal; the same command goes on with the rest"
    ]
    with pytest.warns(SlotoolWarning, match="dies is left out: odd"):
        found = slotool.capture(PackageNetworks("timm", names), out, progress=None)
    assert asked == ["small_a", "small_b", "small_b", "dies"]
    assert (len(found.graphs), found.failed) == (2, {"dies": "odd"})


@pytest.mark.long
def test_a_network_that_hangs_is_given_up_and_the_sweep_goes_on(
    tmp_path: Path, timm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = TIMM.replace("os._exit(3)", "import time; time.sleep(600)")
    (tmp_path / "timm.py").write_text(hanging)
    with pytest.warns(SlotoolWarning, match="dies is left out: capturing dies took longer than 10 s and was stopped"):
        found = slotool.capture(PackageNetworks("timm", "dies,small_a"), processes=1, timeout_s=10, progress=None)
    assert [graph.name for graph in found.graphs] == ["small_a"]
    assert "allow more with --timeout" in found.failed["dies"]


MANY = """
import os
import time
from torch import nn

NAMES = [f"net_{number:02}" for number in range(12)]
list_modules = lambda: ["nets"]
list_models = lambda module: NAMES

def create_model(name, pretrained):
    with open(os.environ["BUILT"], "a") as built:
        built.write(name + "\\n")
    time.sleep(0.1)
    network = nn.Sequential(nn.Conv2d(3, 1 + NAMES.index(name), 3))
    network.pretrained_cfg = {"input_size": (3, 8, 8)}
    return network
"""


def test_a_killed_sweep_whose_last_line_is_torn_loses_and_doubles_nothing(tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text(MANY)
    out, journal = tmp_path / "zoo.jsonl", tmp_path / "zoo.jsonl.journal"
    command = [slotool.process.INTERPRETER, "-m", "slotool", "capture", "--timm", "all", "-o", out, "--processes", "1"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(slotool.__file__).parents[1]}"}
    built = {run: tmp_path / f"built-{run}.txt" for run in ("first", "second")}
    given = {run: {**environment, "BUILT": str(path)} for run, path in built.items()}
    first = subprocess.Popen(command, env=given["first"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and not (journal.exists() and journal.read_bytes().count(b"\n") >= 4):
        time.sleep(0.01)
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    assert not out.exists()
    whole = journal.read_bytes()[: journal.read_bytes().rfind(b"\n") + 1]
    kept = whole.count(b"\n") - 2
    # The last line as a power cut leaves it: its row is to be captured again.
    journal.write_bytes(whole[:-20])

    second = subprocess.run(command, env=given["second"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert second.returncode == 0, second.stderr
    assert 2 <= kept < 12
    assert f"{kept} of 12 networks are in the journal already" in second.stderr
    again = built["second"].read_text().split()
    assert len(again) == len(set(again)) == 12 - kept
    assert [graph.weights for graph in read_graphs(out)] == [28 * (1 + number) for number in range(12)]
    assert not journal.exists()


TRANSFORMERS = """
from importlib.util import find_spec
from types import SimpleNamespace
from torch import nn

# As the package itself does it: one that is installed is taken for one that works.
if find_spec("torchvision"):
    import torchvision

class Net(nn.Linear):
    main_input_name = "input_ids"
    def forward(self, input_ids):
        return super().forward(input_ids.float())

class AutoConfig:
    for_model = staticmethod(lambda name: SimpleNamespace(is_encoder_decoder=False))

class AutoModel:
    from_config = staticmethod(lambda config: Net(128, 3))
"""


def test_a_torchvision_that_cannot_be_imported_costs_no_network_of_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("transformers/models/auto", "torchvision"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("transformers", "transformers/models", "transformers/models/auto"):
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "transformers" / "__init__.py").write_text(TRANSFORMERS)
    names = 'MODEL_MAPPING_NAMES = {"bert": "BertModel"}'
    (tmp_path / "transformers" / "models" / "auto" / "modeling_auto.py").write_text(names)
    broken = "raise RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / "torchvision" / "__init__.py").write_text(broken)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ours = ("torchvision", "transformers")
    before = {name: value for name, value in sys.modules.items() if name.partition(".")[0] in ours}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    try:
        found = slotool.capture(PackageNetworks("transformers", "bert"), progress=None)
        assert "torchvision" not in sys.modules
        with pytest.raises(RuntimeError, match="nms does not exist"):
            importlib.import_module("torchvision")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
            del sys.modules[name]
        sys.modules.update(before)
    assert [(graph.name, graph.weights) for graph in found.graphs] == [("bert", 128 * 3 + 3)]


def test_what_is_asked_wrongly_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="unknown package 'other'; available: keras, torchvision"):
        slotool.capture(PackageNetworks("other"))
    with pytest.raises(ArgumentError, match="processes: 0"):
        slotool.capture(PackageNetworks("timm"), processes=0)
    monkeypatch.setattr("slotool.extras.find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match=r"timm, which is not installed; pip install .*'slotool\[zoo\]'"):
        slotool.capture(PackageNetworks("timm"))


def test_one_factory_makes_many_networks(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(
        "from torch import nn\ndef net(width=2, act='relu'):\n    return nn.Linear(4, width)\n"
    )
    sources = [Source("torch", f"{tmp_path}/many.py:net", (4,), None, {"width": width}) for width in (3, 5)]
    found = slotool.capture(sources)
    assert [graph.weights for graph in found.graphs] == [15, 25]
    assert [graph.name.partition("net")[2] for graph in found.graphs] == ["(width=3)", "(width=5)"]
    with pytest.raises(GraphError, match=r"calling .*net\(depth=1\) failed: TypeError"):
        load_torch(f"{tmp_path}/many.py:net", {"depth": 1})


def test_arguments_are_literals_and_no_code() -> None:
    given = arguments_of("depth=12,width=(64,128),act=gelu,flag=True,name='a,b'")
    assert given == {"depth": 12, "width": (64, 128), "act": "gelu", "flag": True, "name": "a,b"}
    for text in ("", "12", "**{}", "a=print()", "a=1)(b=2", "a=1)+(b=2", "a=1,a=2", "a=[x]"):
        with pytest.raises(SlotoolError, match="is no list of arguments"):
            arguments_of(text)

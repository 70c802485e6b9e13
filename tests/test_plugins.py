"""Plugins: found by their entry points, imported by name, listed by doctor, and never in the way of slotool itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotool import plugins
from slotool.cli.app import command as command_line
from slotool.cli.help import PARAMETERS
from slotool.data import load_dataset, load_multilabel
from slotool.elastic.slo_nn.rankers.registry import ranker_class
from slotool.errors import ArgumentError, InputError
from slotool.graphs.store import write_graphs
from slotool.models.loading import load
from slotool.plugins import Registry
from slotool.predictors.registry import predictor_class
from slotool.rules import RuleSet
from slotool.scheduling.batching import ControlGrid, make_policy
from slotool.scheduling.edf import Query
from slotool.scheduling.policy import Policy
from slotool.serving.engines.choice import make_engine
from slotool.simulation import Scenario, simulate
from slotool.tables import LatencyTable
from slotool.testing.policies import queue_of, three_versions
from slotool.testing.predictors import random_networks, synthetic_latency_s
from slotool.testing.rules import family_outcomes

Install = Callable[..., None]
POLICY = """
from abc import abstractmethod

from slotool.scheduling.batching.baselines import MaxBatch


class Acme(MaxBatch):
    name = "acme"


class Other(MaxBatch):
    name = "other"


class Unfinished(MaxBatch):
    name = "acme"

    @abstractmethod
    def prepare(self): ...
"""
MODEL = """
from slotool.models import Signature, TensorSpec
from slotool.models.adapters.factory import FunctionModel


def same(location, threads):
    tensor = TensorSpec("x", "FP32", (-1, 2))
    return FunctionModel(lambda x: x, Signature((tensor,), (tensor,)), name=location + f" {threads}" * bool(threads))


def torn(location, threads):
    raise ValueError("no")
"""
CHOICES = """
from slotool.scheduling.batching import BatchingPolicy
from slotool.scheduling.batching.kernel import chooser


def plain(latency_us, accuracy, sizes, plan, now_us, deadlines_us, lowest, narrowest, arrived_us, free_us):
    return {cell}


class Acme(BatchingPolicy):
    name = "acme"
    choose = {choose}
"""
DATA = """
import numpy as np
from slotool.data import load_dataset
from slotool.data.adapters.base import DataAdapter
from slotool.data.table import ArrayTable


def digits():
    return load_dataset("digits")


def broken():
    raise KeyError("x")


def arrays():
    return {"size": np.array(["small", "large"] * 20), "x": np.arange(40.0)}


class TenLines(DataAdapter):
    name = "ten-lines"
    reads = "digits"
    suffixes = (".ten",)

    def open(self, location, options):
        y = np.array(list(location.path.read_text()), dtype=np.int64)
        return ArrayTable(location.text, {"x": y / 10, "y": y})


class Whole(DataAdapter):
    name = "whole"
    reads = "the name of a data set"

    def open(self, location, options):
        return load_dataset(location.path.read_text())
"""
PREDICTOR = """
from slotool.predictors.solo.linear import LinearPredictor


class Acme(LinearPredictor):
    name = "acme"
    fitted_to = ("solo",)
"""
WRONG_PREDICTOR = """
import numpy as np
from slotool.predictors.solo.linear import LinearPredictor


class Acme(LinearPredictor):
    name = "acme"

    def predict(self, graphs{more}):
        return {returned}
"""
STEPS = """
from slotool.predictors.solo.linear import LinearPredictor
from slotool.testing.predictors import PredictorConformance


class Steps(LinearPredictor):
    fit_steps = int("77")


class TestSteps(PredictorConformance):
    make = staticmethod(Steps)
"""
GENERATOR = """
from slotool.rules.generate.bootstrap import Bootstrap


class Acme(Bootstrap):
    name = "acme"
    proves = True
"""
ENGINES = """
from slotool.serving.engines import LocalInferenceEngine


class Two(LocalInferenceEngine):
    name = "two"

    def __init__(self, replicas, threads, *, address, max_examples, **more):
        super().__init__(replicas, threads, **more)
        self.address = address
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module and these entry points, ``group name = place`` each."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def add(package: str, code: str, *points: str) -> None:
        (site / f"{package}.py").write_text(code)
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[slotool.{group}]\n{rest}\n" for group, _, rest in (point.partition(" ") for point in points)]
        (info / "entry_points.txt").write_text("\n".join(lines))
        plugins.installed.cache_clear()

    yield add
    monkeypatch.undo()
    plugins.installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("acme")]:
        del sys.modules[name]


def policies() -> Registry[Any]:
    return Registry("policies", ("slackfit",), Policy)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as refused:
        call()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_plugin_is_imported_when_it_is_asked_for_and_not_before(install: Install) -> None:
    install("acme", POLICY, "policies acme = acme:Acme")
    assert policies().names() == ["slackfit", "acme"]
    assert "acme" in policies()
    assert "acme" not in sys.modules
    assert policies().load("acme").name == "acme"
    assert Registry("rankers", ()).names() == []


def test_an_unknown_name_is_refused_with_those_of_plugins(install: Install) -> None:
    assert refusal(lambda: policies().load("x")) == "no policy 'x'; there are slackfit"
    install("acme", POLICY, "policies acme = acme:Acme")
    assert refusal(lambda: policies().load("x")) == "no policy 'x'; there are slackfit, and of plugins acme"


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("acme:Missing", "policy 'acme' of acme 1.0 (acme:Missing) cannot be imported: AttributeError: "),
        ("acme_none:Acme", "cannot be imported: ModuleNotFoundError: No module named 'acme_none'"),
        ("acme:BROKEN", "policy 'acme' of acme 1.0: acme:BROKEN is no subclass of slotool.scheduling.policy.Policy"),
        ("acme:Unfinished", "policy 'acme' of acme 1.0: acme:Unfinished does not define prepare"),
        ("acme:Other", "policy 'acme' of acme 1.0: its class is called 'other'; both must have one name"),
    ],
)
def test_what_cannot_be_used_is_an_error_where_it_is_asked_for(install: Install, place: str, sentence: str) -> None:
    install("acme", POLICY + "BROKEN = 1\n", f"policies acme = {place}")
    assert sentence in refusal(lambda: policies().load("acme"))
    (plugin,) = plugins.installed("policies")
    assert sentence in str(policies().problem(plugin))


@pytest.mark.parametrize("ending", ["raise SystemExit(3)", "1 / 0", "raise RuntimeError('one\\ntwo \\x1b[31m')"])
def test_a_plugin_that_breaks_at_its_import_breaks_nothing_else(install: Install, ending: str) -> None:
    install("acme", ending, "policies acme = acme:Acme", "policies slackfit = acme:Acme")
    sentence = refusal(lambda: policies().load("acme"))
    assert "\x1b" not in sentence
    assert "policy 'acme' of acme 1.0 (acme:Acme) cannot be imported" in sentence


def test_names_of_slotool_cannot_be_taken_and_names_of_two_packages_are_refused(install: Install) -> None:
    install("acme", POLICY, "policies acme = acme:Acme", "policies slackfit = acme:Acme")
    install("acme_too", POLICY, "policies acme = acme_too:Acme")
    assert policies().names() == ["slackfit", "acme"]
    shadow = next(plugin for plugin in plugins.installed("policies") if plugin.name == "slackfit")
    assert policies().problem(shadow) == (
        "policy 'slackfit' of acme 1.0 is not used: slotool has one of that name itself"
    )
    both = refusal(lambda: policies().load("acme"))
    assert both == "policy 'acme' is in acme 1.0 and acme_too 1.0: uninstall all but one"


def test_policies_of_plugins_schedule(install: Install) -> None:
    install("acme", POLICY, "policies acme = acme:Acme")
    assert make_policy("acme", ControlGrid(three_versions()), 1e4).name == "acme"
    assert refusal(lambda: make_policy("x", ControlGrid(three_versions()), 1e4)).endswith(", and of plugins acme")


@pytest.mark.parametrize("cell", ["latency_us.size", "latency_us.size + 5", "-2", "2 ** 62"])
def test_a_cell_outside_the_grid_is_an_error_of_its_policy(install: Install, cell: str) -> None:
    install("acme", CHOICES.format(cell=cell, choose="chooser(plain)"), "policies acme = acme:Acme")
    policy = make_policy("acme", ControlGrid(three_versions()), 1e4)
    simulated = refusal(lambda: simulate(policy, Scenario(np.zeros(3), np.full(3, 1e4))))
    assert simulated == refusal(lambda: policy.decide(0.0, queue_of(Query("q", 0.0, 1e4))))
    for part in ("policy 'acme'", f"cell {eval(cell, {'latency_us': policy.grid.latency_us})} "):
        assert part in simulated


def test_a_choice_that_fails_is_an_error_of_its_policy(install: Install) -> None:
    install(
        "acme",
        CHOICES.format(cell="1 // (len(sizes) - len(sizes))", choose="chooser(plain)"),
        "policies acme = acme:Acme",
    )
    policy = make_policy("acme", ControlGrid(three_versions()), 1e4)
    failed = refusal(lambda: simulate(policy, Scenario(np.zeros(3), np.full(3, 1e4))))
    assert failed.startswith("`choose` of policy 'acme' failed: ZeroDivisionError")


@pytest.mark.parametrize(
    ("cell", "choose", "sentence"),
    [
        ("missing", "plain", "is not compiled"),
        ("missing", "None", "is not compiled"),
        ("missing", "chooser(plain)", "name 'missing' is not defined"),
        ("raise ValueError()", "chooser(plain)", "returns none"),
    ],
)
def test_a_choice_that_is_none_is_an_error_of_its_policy(install: Install, cell: str, choose: str, sentence) -> None:
    code = CHOICES.format(cell=cell, choose=choose).replace("return raise", "raise")
    install("acme", code, "policies acme = acme:Acme")
    refused = refusal(lambda: make_policy("acme", ControlGrid(three_versions()), 1e4))
    assert "policy 'acme'" in refused
    assert sentence in refused


def test_names_of_slotool_cost_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    make_policy("maxbatch", ControlGrid(three_versions()), 1e4)  # Numba searches for its own when it is first used
    plugins.installed.cache_clear()
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    assert make_policy("maxbatch", ControlGrid(three_versions()), 1e4).name == "maxbatch"


def test_data_sets_of_plugins_are_loaded_by_name_and_what_they_raise_is_one_sentence(
    install: Install, tmp_path: Path
) -> None:
    install(
        "acme",
        DATA,
        *("datasets tens = acme:digits", "datasets torn = acme:broken", "datasets csv = acme:broken"),
        *("datasets pair = acme:arrays", "datasets ten-lines = acme:TenLines"),
    )
    assert load_dataset("tens").classes == 10
    assert load_dataset("pair:size").labels == ("large", "small")
    (tmp_path / "x").write_text("0123456789" * 3)
    assert load_dataset(f"ten-lines:{tmp_path / 'x'}", label="y").classes == 10
    assert "data set 'torn', of a plugin, failed: KeyError: 'x'" in refusal(lambda: load_dataset("torn"))
    assert "tens has one label per example" in refusal(lambda: load_multilabel("tens"))
    assert "there are digits, fashion-mnist, pair, ten-lines, tens, torn" in refusal(lambda: load_dataset("none"))


def test_files_are_read_by_the_adapter_of_a_plugin_that_has_their_suffix(install: Install, tmp_path: Path) -> None:
    points = ("ten-lines = acme:TenLines", "whole = acme:Whole", "gone = acme:Gone")
    install("acme", DATA, *(f"datasets {point}" for point in points))
    path = tmp_path / "file.ten"
    path.write_text("0123456789" * 10)
    for name in (f"{path}", f"{path}:y", f"ten-lines:{path}"):
        assert len(load_dataset(name, label="y").train) == len(load_dataset(f"ten-lines:{path}", label="y").train)
    assert "this is no data file" in refusal(lambda: load_dataset(str(path.rename(tmp_path / "file.eleven"))))


def test_a_finished_data_set_of_a_plugin_is_loaded_again_by_what_it_was_asked_as(
    install: Install, tmp_path: Path
) -> None:
    install("acme", DATA, "datasets whole = acme:Whole")
    (path := tmp_path / "named").write_text("digits")
    loaded = load_dataset(f"whole:{path}")
    np.testing.assert_array_equal(load_dataset(loaded.source).train.x, loaded.train.x)
    assert loaded.source == f"whole:{path}"


def test_a_model_of_a_plugin_is_known_by_its_suffix_or_scheme(install: Install) -> None:
    install("acme", MODEL, "models same = acme:same", "models torn = acme:torn", "models onnx = acme:torn")
    np.testing.assert_array_equal(load("x.same")([[1.0, 2.0]])["x"], [[1.0, 2.0]])
    assert load("same://host/x", threads=3).name == "same://host/x 3"
    assert "x.torn: its adapter, of a plugin, failed: ValueError: no" in refusal(lambda: load("x.torn"))
    assert ", .same, .torn" in refusal(lambda: load("x.none"))
    assert "of a plugin" not in refusal(lambda: load("missing.onnx"))


def test_artifacts_load_predictors_and_rankers_of_plugins_by_name_only(install: Install) -> None:
    sentence = refusal(lambda: predictor_class("acme"))
    assert sentence.startswith("'acme' is no predictor of this slotool, which has linear, ")
    assert sentence.endswith("install the package that has it")
    install("acme", PREDICTOR, "predictors acme = acme:Acme")
    assert predictor_class("acme").name == "acme"
    sentence = refusal(lambda: predictor_class("acme", colocated=True))
    assert sentence == "'acme' predicts solo latencies, not co-located ones"
    assert "no ranker 'os:system'" in refusal(lambda: ranker_class("os:system"))


@pytest.mark.parametrize(
    ("returned", "more", "sentence"),
    [
        ("-super().predict(graphs)", "", "predictor 'acme' did not return a number of seconds above 0"),
        ("[1.0]", "", "predictor 'acme' did not return a number of seconds above 0"),
        ("np.full(len(graphs), np.inf)", "", "predictor 'acme' did not return a number of seconds above 0"),
        ("[1.0]", ", rows", "this is a fault of acme 1.0, which adds plugins"),
        ("np.linalg.inv(np.zeros((2, 2)))", "", "this is a fault of acme 1.0, which adds plugins"),
    ],
)
def test_a_fault_of_a_plugin_is_called_so(slotool, install: Install, tmp_path: Path, returned, more, sentence) -> None:
    install("acme", WRONG_PREDICTOR.format(returned=returned, more=more), "predictors acme = acme:Acme")
    graphs = random_networks(200, seed=0)
    write_graphs(tmp_path / "graphs.parquet", graphs)
    seconds = synthetic_latency_s(graphs)
    rows = ({"subject": graph.id, "samples_s": [each]} for graph, each in zip(graphs, seconds, strict=True))
    LatencyTable.of(rows).save(tmp_path / "latency.parquet")
    inputs = (tmp_path / "latency.parquet", "-g", tmp_path / "graphs.parquet", "-o", tmp_path / "p")
    trained = slotool("train-predictor", *inputs, "--model", "acme")
    assert trained.exit_code == 3
    assert sentence in trained.stderr


def test_doctor_lists_plugins_and_says_which_cannot_be_used(slotool, install: Install) -> None:
    install(
        "acme",
        POLICY,
        *("policies acme = acme:Acme", "policies slackfit = acme:Acme", "engines acme = acme:Acme"),
        "rankers gone = acme_gone:Ranker",
    )
    found = slotool("doctor", "--json").document["plugins"]
    assert [(p["group"], p["name"], p["package"], p["version"]) for p in found] == [
        ("policies", "acme", "acme", "1.0"),
        ("policies", "slackfit", "acme", "1.0"),
        ("rankers", "gone", "acme", "1.0"),
        ("engines", "acme", "acme", "1.0"),
    ]
    problems = [p["problem"] for p in found]
    assert problems[0] is None
    assert "slotool has one of that name itself" in problems[1]
    assert "cannot be imported: ModuleNotFoundError" in problems[2]
    assert "is no subclass of slotool.serving.engines.base.InferenceEngine" in problems[3]
    shown = slotool("doctor")
    assert shown.exit_code == 0
    assert "cannot be used" in shown.stdout
    assert "plugin: ranker 'gone' of acme 1.0 (acme_gone:Ranker) cannot be imported" in shown.stdout


def test_help_lists_names_of_plugins(slotool, install: Install) -> None:
    assert "Of plugins" not in slotool("simulate", "--help").stdout
    install("acme", POLICY, "policies acme = acme:Acme", "engines acme = acme:Acme")
    for command in (["simulate"], ["serve"]):
        assert "Of plugins: acme." in " ".join(slotool(*command, "--help").stdout.split())


def test_metadata_that_cannot_be_read_are_one_sentence_and_leave_help_whole(slotool, install, monkeypatch) -> None:
    make_policy("maxbatch", ControlGrid(three_versions()), 1e4)  # Numba searches for its own when it is first used
    install("acme", "", "policies")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **group: 1 / 0)
    assert "cannot be read: ZeroDivisionError: division by zero" in refusal(lambda: policies().load("x"))
    assert slotool("simulate", "--help").exit_code == 0
    assert make_policy("maxbatch", ControlGrid(three_versions()), 1e4).name == "maxbatch"


def test_help_knows_the_parameters_of_plugins() -> None:
    root = command_line()
    for path in (path for paths in PARAMETERS.values() for path in paths):
        found: Any = root
        *names, parameter = path.replace(".", " ").split()
        for name in names:
            found = found.commands[name]
        assert parameter in {param.name for param in found.params}, path


def test_a_failed_conformance_shows_the_values_that_differ(tmp_path: Path) -> None:
    (tmp_path / "test_steps.py").write_text(STEPS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "progress", "test_steps.py"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 1, finished.stdout
    assert "== 77" in finished.stdout


def test_engines_of_plugins_serve(install: Install) -> None:
    install("acme", ENGINES, "engines two = acme:Two")
    made: Any = make_engine("two", 2, 1, max_examples=8, hang_s=10.0, address="here")
    assert (made.name, made.workers, made.address) == ("two", 2, "here")
    said = r"no engine 'x'; there are .*and of plugins two"
    with pytest.raises(ArgumentError, match=said):
        make_engine("x", 1, 1, max_examples=1, hang_s=1.0)


@pytest.mark.parametrize("examples", [30, 2000])
def test_a_proof_of_a_plugin_is_not_denied(slotool, install: Install, tmp_path: Path, examples: int) -> None:
    install("acme", GENERATOR, "rule_generators acme = acme:Acme")
    family_outcomes(examples).save(tmp_path / "o.parquet")
    tiers = ("--tolerances", "0" if examples == 30 else "5", "--objective", "cost")
    result = slotool("gen-rules", tmp_path / "o.parquet", "-o", tmp_path / "r.json", "--method", "acme", *tiers)
    assert result.exit_code == 0, result.stderr
    (rule,) = RuleSet.load(tmp_path / "r.json").rules
    assert rule.certified == (examples == 2000)
    assert "proves nothing" not in result.stdout

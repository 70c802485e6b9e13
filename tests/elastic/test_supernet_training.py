"""Training supernets and choosing their points, on real digits, and ``slotool train supernet`` end to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from slotool.data import Dataset, load_dataset
from slotool.data.dataset import Split
from slotool.elastic import ElasticModel, load_model
from slotool.elastic.supernets.networks import resnet
from slotool.elastic.supernets.plan import SubnetNorm
from slotool.elastic.supernets.search import SearchResult, SubnetRegression, evenly, pareto, score, search
from slotool.elastic.supernets.space import Space, Subnet, wrap
from slotool.elastic.supernets.supernet import Supernet, measure
from slotool.elastic.supernets.training import Training, train
from slotool.errors import InputError
from slotool.graphs.torch_module import GraphModule
from slotool.scheduling import ControlSpace, by_demand
from slotool.serving import Router, ServedModel, create_app
from slotool.tables import FULL, LatencyTable, OperatingPoint, OutcomeTable

Slotool = Callable[..., Any]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small networks that a second thread only waits
    yield
    torch.set_num_threads(threads)


@cache
def digits(n: int = 256) -> Dataset:
    data = load_dataset("digits")
    return replace(data, train=Split(data.train.x[:n], data.train.y[:n]))


@cache
def space() -> Space:
    return wrap(resnet((1, 8, 8), 10, channels=(8, 16), blocks=(1, 2), ratio=0.5, stem=8), width=(0.5, 1.0))


def weights(module: GraphModule) -> list[np.ndarray]:
    return [parameter.detach().numpy() for parameter in module.parameters()]


def equal(first: GraphModule, second: GraphModule) -> bool:
    return all(map(np.array_equal, weights(first), weights(second)))


def test_every_subnet_learns_and_seeds_decide() -> None:
    data, space_ = load_dataset("digits"), wrap(space().graph, expand=(0.5, 1.0))
    module = train(space_, data, Training(epochs=5, batch_size=64, learning_rate=1e-2))
    accuracy = score(space_, module, data.train.x, data.validation, [space_.smallest, space_.largest])
    assert accuracy[space_.largest] > 0.6
    assert accuracy[space_.smallest] > 0.2, "a tenth is chance"
    first, second, other = (train(space(), digits(), Training(epochs=1, seed=seed)) for seed in (3, 3, 4))
    assert equal(first, second)
    assert not equal(first, other)


class Interrupted(Exception):
    pass


def test_taken_up_again_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    training = Training(epochs=4)
    calls: list[int] = []

    def stop() -> None:
        calls.append(len(calls))
        if len(calls) == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(space(), digits(), training, checkpoint=tmp_path / "state", progress=stop)
    resumed = train(space(), digits(), training, checkpoint=tmp_path / "state")
    assert equal(resumed, train(space(), digits(), training))
    with pytest.raises(InputError, match="of another training run"):
        train(space(), digits(), replace(training, seed=1), checkpoint=tmp_path / "state")
    (tmp_path / "state" / "state.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="this checkpoint cannot be resumed"):
        train(space(), digits(), training, checkpoint=tmp_path / "state")


def test_bad_trainings_are_refused() -> None:
    with pytest.raises(InputError, match="epochs are at least 1"):
        Training(epochs=0)
    other = wrap(resnet((1, 9, 9), 10, channels=(8,), blocks=(2,)))
    with pytest.raises(InputError, match=r"takes inputs \(1, 9, 9\), digits has \(1, 8, 8\)"):
        train(other, digits(), Training())


def made_accuracy(subnet: Subnet) -> float:
    """A law of the kind that accuracies follow: more of each dimension helps, less and less."""
    shares = np.array(subnet) / np.array(space().largest)
    return float(0.9 + 0.02 * np.log(shares).sum() - 0.01 * np.log(shares)[0] * np.log(shares)[-1])


def test_a_regression_learns_from_a_few_what_the_others_are() -> None:
    every = list(space().all())
    known = {subnet: made_accuracy(subnet) for subnet in evenly(space(), 24, seed=1)}
    told = SubnetRegression(space(), known).predict(every)
    truth = np.array([made_accuracy(subnet) for subnet in every])
    assert np.abs(told - truth).max() < 0.25 * truth.std()
    flops = SubnetRegression(space(), {s: space().flops(s) for s in known}, log=True).predict(every)
    assert np.abs(np.log(flops / [space().flops(s) for s in every])).max() < 0.25
    with pytest.raises(InputError, match="too few to learn from"):
        SubnetRegression(space(), {space().largest: 1.0})


def test_a_search_finds_the_front_and_its_ends() -> None:
    every = {subnet: made_accuracy(subnet) for subnet in space().all()}
    regression = SubnetRegression(space(), every)

    def costs(subnets: Any) -> np.ndarray:
        return np.array([space().flops(subnet) for subnet in subnets], dtype=np.float64)

    found = search(space(), regression, costs, 6)
    assert found[0].subnet == space().smallest
    assert found[-1].subnet == space().largest
    answers = regression.predict(list(every))
    front = pareto(SearchResult(*each) for each in zip(every, costs(list(every)), answers, strict=True))
    assert {each.subnet for each in found[1:-1]} <= {each.subnet for each in front}


def test_train_supernet_end_to_end(slotool: Slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotool.elastic.supernets.search.SCORED", 8)
    out, few = tmp_path / "supernet", load_dataset("digits").train
    np.savez(tmp_path / "few.npz", x=few.x[:300], y=few.y[:300])
    command = ["train", "supernet", "-o", out, "--data", tmp_path / "few.npz", "--epochs", 1, "--expand", "0.5,1"]
    done = slotool(*command, "--width", 1, "--points", 3, "--threads", 1, "--json")
    assert done.exit_code == 0, done.stderr
    rows = done.document["points"]
    assert rows[-1]["point"] == "full"
    assert [row["flops"] for row in rows] == sorted(row["flops"] for row in rows)
    model = load_model(str(out))
    assert [point.key for point in model.points] == [row["point"] for row in rows]
    assert not (tmp_path / ".supernet.training").exists()
    again = slotool(*command)
    assert again.exit_code == 2
    assert "exists already" in again.stderr

    outcomes, latency = tmp_path / "outcomes.parquet", tmp_path / "latency.parquet"
    evaluated = slotool("evaluate", out, "-o", outcomes, "--repeats", 1, "--limit", 20, "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    assert [row["version"] for row in evaluated.document["points"]] == [row["point"] for row in rows]
    arguments = ["--co-runners", 0, "--batch-size", "1,4", "--threads", 1, "--runs", 5, "--rounds", 1]
    profiled = slotool("profile", "points", out, "-o", latency, *arguments)
    assert profiled.exit_code == 0, profiled.stderr
    assert_served(model, LatencyTable.load(latency), OutcomeTable.load(outcomes))


def assert_served(model: ElasticModel, latency: LatencyTable, outcomes: OutcomeTable) -> None:
    """A server that knows both tables answers as the model does."""
    assert {*latency.rows["point"]} == {point.key for point in model.points}
    space = ControlSpace.of_tables(model.name, model.points, latency, outcomes, threads=1)
    app = create_app(Router({"supernet": ServedModel("supernet", model, by_demand(space, None), None)}))
    image = {"name": "input", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}
    with TestClient(app) as client:
        answer = client.post("/v2/models/supernet/infer", json={"inputs": [image]}).json()
    point = OperatingPoint.parse(answer["parameters"]["operating_point"])
    logits = model.forward(np.full((1, 1, 8, 8), 0.5, dtype=np.float32), point)
    np.testing.assert_allclose(answer["outputs"][0]["data"], logits[0], rtol=1e-4, atol=1e-4)


def test_points_are_chosen_anew_by_latency(slotool: Slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotool.elastic.supernets.search.SCORED", 8)
    torch.manual_seed(0)
    data, module, norm = load_dataset("digits"), GraphModule(space().graph), SubnetNorm()
    subnets = evenly(space(), 12)
    measure(space(), module, norm, subnets, data.train.x)
    model = Supernet("supernet", space(), module, norm, subnets)
    model.save(tmp_path / "supernet", config={"data": "digits"}, seed=0)
    rows = [f'supernet,"{point.key}",1,{1e-9 * space().flops(s)}' for point, s in model.subnets.items()]
    (tmp_path / "latency.csv").write_text("\n".join(["subject,point,batch_size,latency_s", *rows, ""]))
    command = ["choose-points", tmp_path / "supernet", "-o", tmp_path / "other", "--threads", 1, "--points", 4]
    done = slotool(*command, "--latency", tmp_path / "latency.csv", "--json")
    assert done.exit_code == 0, done.stderr
    for row in done.document["points"]:
        assert done.document["expected_latency_s"][row["point"]] == pytest.approx(1e-9 * row["flops"], rel=0.3)
    x = data.test.x[:5]
    np.testing.assert_array_equal(load_model(str(tmp_path / "other")).forward(x, FULL), model.forward(x, FULL))

    (tmp_path / "latency.csv").write_text("\n".join(["subject,point,batch_size,latency_s", *rows[:2], ""]))
    few = slotool(*command, "--force", "--latency", tmp_path / "latency.csv")
    assert few.exit_code == 2
    assert "latencies of 2 points of supernet at batch 1; at least 3 are needed" in " ".join(few.stderr.split())
    # Nothing smaller than its training networks passes without a word.
    predictor = Path(__file__).parents[2] / "models" / "predictor-architectures"
    unlike = slotool(*command, "--force", "--predictor", predictor)
    assert unlike.exit_code == 0, unlike.stderr
    assert "unlike the training networks of" in " ".join(unlike.stderr.split())
    neither = slotool(*command, "--force")
    assert neither.exit_code == 2
    assert "give either a latency table or a predictor" in " ".join(neither.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--network", "perceptron"], "'perceptron' is neither resnet nor transformer"),
        (["--expand", "1,0.5"], "expand: shares ascend from above 0 to 1"),
        (["--width", "some"], "neither a number nor start:stop:step"),
        (["--device", "banana"], "'banana' is no device; cpu, cuda or cuda:N is expected"),
        (["--data", "nowhere"], "no data set called 'nowhere'"),
        (["--drop", "0", "--expand", "1", "--width", "1"], "nothing to vary"),
    ],
)
def test_bad_arguments_end_in_one_sentence(
    slotool: Slotool, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    data = [] if "--data" in arguments else ["--data", "digits"]
    done = slotool("train", "supernet", "-o", tmp_path / "s", *data, "--threads", 1, *arguments)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "s").exists()

"""Models of many labels: sparse examples as two tensors in, the best labels out, over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

import slotool
from slotool.elastic import load_served
from slotool.elastic.best_labels import PADDING, BestLabels, columns_of_rows
from slotool.scheduling import ControlSpace, FixedPoint, by_demand
from slotool.serving import ServedModel
from slotool.serving.engines.messages import inputs_of_tensors, tensors_of_inputs
from tests.elastic.tiny_slo_nns import CLASSES, FEATURES, examples, sparse_model
from tests.serving.live_server import HTTP, LiveServer, live_server

X = examples(True, 6, 5)


def served_sparse() -> ServedModel:
    model = BestLabels(sparse_model())
    return ServedModel("labelled", model, by_demand(ControlSpace(model.points)))


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with live_server([served_sparse()]) as live:
        yield live


def tensors(client: Any, rows: Any) -> list[Any]:
    given = columns_of_rows(rows).arrays
    inputs = []
    for name, datatype in (("indices", "INT32"), ("values", "FP32")):
        inputs.append(client.InferInput(name, list(given[name].shape), datatype))
        inputs[-1].set_data_from_numpy(given[name])
    return inputs


def test_a_sparse_example_is_answered_by_its_best_labels(live: LiveServer) -> None:
    expected, scores = sparse_model().top(X, 5)
    with triton.InferenceServerClient(live.address) as client:
        for row in range(X.shape[0]):
            answer = client.infer("labelled", tensors(triton, X[row]))
            assert answer.as_numpy("labels").tolist() == [expected[row].tolist()]
            assert answer.as_numpy("scores")[0] == pytest.approx(scores[row], rel=1e-6)
        # Examples of different lengths in one request, and only the output that is asked for.
        answer = client.infer(
            "labelled", tensors(triton, X), outputs=[triton.InferRequestedOutput("labels")], parameters={"top": 2}
        )
    assert answer.as_numpy("labels").tolist() == expected[:, :2].tolist()
    assert answer.as_numpy("scores") is None


def test_grpc_answers_the_same(live: LiveServer) -> None:
    expected = sparse_model().top(X, 3)[0]
    with triton_grpc.InferenceServerClient(live.grpc_address) as client:
        answer = client.infer("labelled", tensors(triton_grpc, X), parameters={"top": 3})
        assert answer.as_numpy("labels").tolist() == expected.tolist()
        with pytest.raises(InferenceServerException, match="parameter top: 0, expected a whole number from 1 to 128"):
            client.infer("labelled", tensors(triton_grpc, X), parameters={"top": 0})


def test_a_minimum_accuracy_is_met_per_example(live: LiveServer) -> None:
    model = sparse_model()
    points, wanted = {point.label: point for point in model.points}, float(model.expected_accuracies(X).mean())
    chosen = [ask(live, columns_of_rows(X[row]).arrays, {"min_accuracy": wanted})["parameters"] for row in range(6)]
    for row, said in enumerate(chosen):
        expected, point = model.expected_accuracy(X[row]), points[said["operating_point"]]
        assert expected[point] >= wanted
    # The same minimum is met by different points.
    assert len({said["operating_point"] for said in chosen}) > 1


def ask(live: LiveServer, arrays: dict[str, Any], parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    inputs = [
        {"name": name, "datatype": kind, "shape": list(np.shape(arrays[name])), "data": np.ravel(arrays[name]).tolist()}
        for name, kind in (("indices", "INT32"), ("values", "FP32"))
    ]
    document: dict[str, Any] = HTTP.post(
        f"{live.url}/v2/models/labelled/infer", json={"inputs": inputs, "parameters": parameters or {}}
    ).json()
    return document


@pytest.mark.parametrize(
    ("indices", "values", "sentence"),
    [
        ([[0, FEATURES]], [[1, 1]], f"indices: {FEATURES} in example 1, but there are features 0 to {FEATURES - 1}"),
        ([[-2, 1]], [[1, 1]], f"indices: -2 in example 1, but there are features 0 to {FEATURES - 1}"),
        ([[5, 3]], [[1, 1]], "ascend, each named once; in example 1 5 is followed by 3"),
        ([[1, 2], [3, 3]], [[1, 1], [1, 1]], "ascend, each named once; in example 2 3 is followed by 3"),
        ([[PADDING, 3]], [[0, 1]], "ascend, each named once; in example 1 -1 is followed by 3"),
        ([[1, PADDING]], [[1, 1]], "index -1 fills an example up: its value is 0"),
        ([[1, 2]], [[1, None]], "values: it holds NaN or infinity"),
        ([[1, 2]], [[1]], "indices has shape [1, 2], values [1, 1]: each index needs one value"),
        ([list(range(FEATURES + 1))], [[1] * (FEATURES + 1)], f"{FEATURES + 1} features in an example, but there are"),
        ([[1], [2]], [[1]], "inputs have different numbers of examples"),
    ],
)
def test_a_wrong_example_is_one_sentence(live: LiveServer, indices: Any, values: Any, sentence: str) -> None:
    answer = ask(live, {"indices": np.array(indices), "values": np.array(values, dtype=object)})
    assert sentence in answer["error"]


@pytest.mark.parametrize("top", [0, -1, 129, 2.0, True, "5", 10**30, None])
def test_a_wrong_top_is_one_sentence(live: LiveServer, top: Any) -> None:
    answer = ask(live, columns_of_rows(X[0]).arrays, {"top": top})
    assert answer["error"].startswith("parameter top: ")


@pytest.mark.parametrize("name", ["Top", "top_k", "tops"])
def test_a_misspelt_top_is_not_ignored(live: LiveServer, name: str) -> None:
    answer = ask(live, columns_of_rows(X[0]).arrays, {name: 2})
    assert answer["error"] == f"parameter '{name}' is no option: did you mean top?"
    assert "error" not in ask(live, columns_of_rows(X[0]).arrays, {"trace": 2, "top": 2})
    with (
        triton_grpc.InferenceServerClient(live.grpc_address) as client,
        pytest.raises(InferenceServerException, match="did you mean top"),
    ):
        client.infer("labelled", tensors(triton_grpc, X), parameters={name: 2})


@pytest.mark.parametrize("output", ["labels", "scores"])
def test_places_among_the_best_are_not_sent_as_classes(live: LiveServer, output: str) -> None:
    sentence = "the best labels and their scores: the request's parameter top says how many"
    for client, address in ((triton, live.address), (triton_grpc, live.grpc_address)):
        wanted = [client.InferRequestedOutput(output, class_count=2)]
        with (
            client.InferenceServerClient(address) as connected,
            pytest.raises(InferenceServerException, match=sentence),
        ):
            connected.infer("labelled", tensors(client, X), outputs=wanted)


def test_an_empty_example_and_more_labels_than_there_are(live: LiveServer) -> None:
    nothing = {"indices": np.zeros((1, 0), dtype=int), "values": np.zeros((1, 0))}
    answer = ask(live, nothing, {"top": 7})
    assert len(answer["outputs"][0]["data"]) == 7
    assert BestLabels(sparse_model()).classes == CLASSES


def test_a_label_that_was_not_computed_has_the_score_that_the_configuration_names() -> None:
    model = BestLabels(sparse_model())
    space = ControlSpace(model.points)
    fewest = ServedModel("labelled", model, FixedPoint(space, model.points[0]))
    with live_server([fewest]) as live:
        answer = ask(live, columns_of_rows(X[0]).arrays, {"top": 128})
        labels, scores = (output["data"] for output in answer["outputs"])
        parameters = HTTP.get(f"{live.url}/v2/models/labelled/config").json()["parameters"]
    missing = float(parameters["not_computed"]["string_value"])
    assert -1 in labels
    assert [label == -1 for label in labels] == [score == missing for score in scores]
    assert min(scores) == missing


def test_an_artifact_is_served_by_named_tensors(tmp_path: Path) -> None:
    sparse_model().save(tmp_path / "labelled", config={}, seed=0)
    model = load_served(str(tmp_path / "labelled"))
    assert isinstance(model, BestLabels)
    x = columns_of_rows(X[0])
    again = inputs_of_tensors(tensors_of_inputs(x))
    assert model.respond(again, model.full)["labels"].tolist() == sparse_model().top(X[0], 5)[0].tolist()


def test_loadtest_sends_sparse_examples(live: LiveServer, tmp_path: Path) -> None:
    lines = [f"{row} {row}:1 {row + 3}:0.5" for row in range(12)]
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text("\n".join([f"12 {FEATURES} {CLASSES}", *lines, ""]))
    test = slotool.loadtest(live.url, data=str(tmp_path), rate=100, duration_s=0.3, processes=1, progress=None)
    assert (test.frame()["status"] == 200).all()

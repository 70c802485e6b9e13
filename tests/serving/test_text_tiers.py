"""A text classifier of two INT64 inputs in two sizes, from its files to tolerance tiers asked over gRPC."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from slotool.elastic import load_model
from slotool.serving.operations.sources import Sources
from slotool.tables import OutcomeTable
from tests.conftest import Slotool
from tests.elastic.text_models import text_network, texts
from tests.serving.live_server import live_server

INPUTS = ("input_ids", "attention_mask")


def tensors(drawn: dict[str, np.ndarray]) -> list[triton.InferInput]:
    made = []
    for name in INPUTS:
        tensor = triton.InferInput(name, list(drawn[name].shape), "INT64")
        made.append(tensor.set_data_from_numpy(drawn[name]))
    return made


def test_a_text_classifier_in_two_sizes_becomes_tiers_over_grpc(
    tmp_path: Path, slotool: Slotool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, words in (("small", 40), ("large", 60)):
        text_network(tmp_path / f"{name}.onnx", words)
    np.savez("texts.npz", **texts(900, 4))
    for command in (
        "family small=small.onnx large=large.onnx --data texts.npz -o texts --repeats 1 --outcomes outcomes.parquet",
        "gen-rules outcomes.parquet -o rules.json --tolerances 0.1,0.5 --tolerance-kind absolute --confidence 0.95",
    ):
        finished = slotool(*command.split())
        assert finished.exit_code == 0, finished.stderr
    served = Sources((Path("texts"),), rules=Path("rules.json")).load(warn=pytest.fail)
    family, asked = load_model("texts"), texts(4, 9)
    short = {name: asked[name][:, :5] for name in INPUTS}
    with live_server(list(served.values())) as live, triton.InferenceServerClient(live.grpc_address) as client:
        metadata = client.get_model_metadata("texts", as_json=True)
        stated = [(tensor["name"], tensor["datatype"], tensor["shape"]) for tensor in metadata["inputs"]]
        assert stated == [(name, "INT64", ["-1", "-1"]) for name in INPUTS]
        for given in (asked, short):
            answer = client.infer("texts", tensors(given), parameters={"tolerance": 0.0})
            logits = answer.as_numpy("logits")
            expected = [family.respond(_columns(given), point)["logits"] for point in family.points]
            assert any(np.allclose(logits, each, atol=1e-5) for each in expected)
        label = client.infer(
            "texts", tensors(asked), outputs=[triton.InferRequestedOutput("label")], parameters={"tolerance": 0.5}
        )
        assert set(label.as_numpy("label").tolist()) <= {0, 1}
        with pytest.raises(InferenceServerException, match="attention_mask"):
            client.infer("texts", tensors(asked)[:1])


def _columns(drawn: dict[str, np.ndarray]) -> object:
    from slotool.data import Columns

    return Columns({name: drawn[name] for name in INPUTS})


def test_groups_may_be_numbers(tmp_path: Path, slotool: Slotool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers above a million stay apart, and requests state them as text."""
    monkeypatch.chdir(tmp_path)
    for name, words in (("small", 6), ("large", 60)):
        text_network(tmp_path / f"{name}.onnx", words)

    def done(command: str) -> str:
        finished = slotool(*command.split())
        assert finished.exit_code == 0, finished.stderr
        return " ".join(f"{finished.stdout} {finished.stderr}".split())

    np.savez("shops.npz", **texts(900, 4), shop=np.arange(900) % 2 + 1_000_001)
    named = "small=small.onnx large=large.onnx --data shops.npz --keep shop"
    done(f"family {named} -o texts --repeats 1 --outcomes outcomes.parquet")
    assert set(OutcomeTable.load("outcomes.parquet").text("shop")) == {"1000001", "1000002"}
    Path("prices.csv").write_text("version,price\nsmall,1\nlarge,20\n")
    tiers = "-o rules.json --tolerances 0.1 --tolerance-kind absolute --confidence 0.95 --objective cost"
    tiers += " --prices prices.csv"
    done("import-outcomes outcomes.parquet --keep shop -o numbers.parquet")  # as a number
    said = done(f"gen-rules numbers.parquet {tiers} --group shop")
    assert "tolerance holds for each shop (examples): 1000001 (" in said
    served = Sources((Path("texts"),), rules=Path("rules.json")).load(warn=lambda said: None)
    with live_server(list(served.values())) as live, triton.InferenceServerClient(live.grpc_address) as client:
        options = {"tolerance": 0.1, "group": "1000002"}
        answer = client.infer("texts", tensors(texts(4, 9)), parameters=options)
        assert answer.as_numpy("logits").shape[0] == 4

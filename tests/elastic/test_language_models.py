"""Networks that score every position of a sequence: tables for the word that comes next."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.elastic.slo_nn.importers.torch import cut_module
from slotool.elastic.slo_nn.last_layer import build
from slotool.elastic.slo_nn.last_layer.build import cut
from slotool.errors import InputError

Slotool = Callable[..., Any]
WORDS, CONTEXT, WIDTH = 300, 6, 16


class Decoder(nn.Module):
    """The next word is near the mean of the last two: causal attention in one block, embeddings shared with scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.wide, self.narrow = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, 32),
            nn.Linear(32, WIDTH),
        )
        self.scores = nn.Linear(WIDTH, WORDS, bias=False)
        self.scores.weight = self.embedded.weight

    def features(self, words: Tensor) -> Tensor:
        x = self.embedded(words)
        x = x + functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return x + 0.1 * self.narrow(functional.gelu(self.wide(x)))

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.features(words))
        return scores


class Cache:
    """A kind of output that torch.export does not know."""


class WithCache(Decoder):
    """As networks of transformers answer: scores by name, beside hidden states and what they keep for a next call."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)

    def forward(self, words: Tensor) -> Any:
        features = self.features(words)
        kept = {"cache": Cache()} if self.config.use_cache else {}
        return {"hidden": features, "logits": self.scores(features), **kept}


class Classifier(Decoder):
    """One row of scores for a sequence, by name."""

    def forward(self, words: Tensor) -> Any:
        pooled = self.features(words).mean(dim=1)
        return {"logits": self.scores(pooled), "pooled": pooled}


class Unnamed(Decoder):
    def forward(self, words: Tensor) -> Any:
        return super().forward(words), words


def seeded(kind: type[Decoder] = Decoder) -> Decoder:
    """Always the same network."""
    torch.manual_seed(0)
    return kind().eval()


class Placed(Decoder):
    """It knows a place for each of ``CONTEXT`` words."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))

    def features(self, words: Tensor) -> Tensor:
        return super().features(words) + self.places


def placed() -> nn.Module:
    return seeded(Placed)


def with_cache() -> nn.Module:
    return seeded(WithCache)


def write_data(path: Path) -> Path:
    """Contexts, and the word that the network itself takes for the next: never one of the first ten."""
    words = np.random.default_rng(1).integers(10, WORDS, size=(2_000, CONTEXT))
    with torch.inference_mode():
        scores = seeded()(torch.from_numpy(words))[:, -1]
    y = scores.numpy()[:, 10:].argmax(axis=1) + 10
    np.savez(path, x=words.astype(np.float32), y=y)
    return path


def write_onnx(path: Path) -> Path:
    names: dict[str, Any] = {"input_names": ["words"], "output_names": ["scores"]}
    free = {"dynamic_axes": {"words": {0: "n"}, "scores": {0: "n"}}}
    example = torch.zeros(1, CONTEXT, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the newer exporter needs another package
        torch.onnx.export(seeded(), (example,), path, **names, **free, dynamo=False)
    return path


def source_of(kind: str, folder: Path) -> str:
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
        return str(write_onnx(folder / "decoder.onnx"))
    return f"tests.elastic.test_language_models:{kind}"


@pytest.mark.parametrize("kind", ["seeded", pytest.param("with_cache", marks=pytest.mark.long), "onnx"])
def test_tables_are_for_the_last_position(
    slotool: Slotool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "TIMED_S", 0.1)
    data, out, source = write_data(tmp_path / "words.npz"), tmp_path / "out", source_of(kind, tmp_path)
    done = slotool(
        "build-tables", source_of(kind, tmp_path), "-o", out, "--data", data, "--ranker", "clusters", "--json"
    )
    assert done.exit_code == int(done.document["verdict"] is not None), done.stderr
    assert f"scores each of {CONTEXT} positions of a sequence; tables are for the last one" in " ".join(
        done.stderr.split()
    )
    assert (done.document["nodes"], done.document["features"]) == (WORDS, WIDTH)
    x, model = load_dataset(str(data)).test.x[:40], load_model(out)
    with torch.inference_mode():
        wanted = seeded()(torch.from_numpy(x).long())[:, -1].numpy()
    np.testing.assert_allclose(model.forward(x, model.full), wanted, rtol=1e-4, atol=1e-4)
    # The network that it is compared with answers for the last position too.
    whole = cut(source, (CONTEXT,), tmp_path).whole
    ids = {whole.signature.inputs[0].name: x.astype(np.int64)}
    np.testing.assert_allclose(whole.run(ids)[whole.signature.outputs[0].name], wanted, rtol=1e-4, atol=1e-4)
    # Whoever reads the data again numbers words as the network does, though ten of them never follow.
    again = slotool("evaluate", out, "--data", data, "-o", tmp_path / "outcomes.parquet", "--json")
    assert again.exit_code == 0, again.stderr
    assert again.document["points"][-1]["accuracy"] == done.document["points"][-1]["accuracy"] > 0.99


def test_keras_sequences_are_cut_at_their_last_position(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    words = keras.Input((CONTEXT,), dtype="int32")
    hidden = keras.layers.GRU(WIDTH, return_sequences=True)(keras.layers.Embedding(WORDS, 8)(words))
    model = keras.Model(words, keras.layers.Dense(WORDS, activation="softmax")(hidden))
    model.save(tmp_path / "net.keras")
    made = cut(str(tmp_path / "net.keras"), (CONTEXT,), tmp_path)
    x = np.random.default_rng(0).integers(WORDS, size=(5, CONTEXT)).astype(np.int32)
    wanted = np.asarray(model(x))[:, -1]
    assert made.positions == CONTEXT
    (name,) = (spec.name for spec in made.whole.signature.outputs)
    np.testing.assert_allclose(
        made.whole.run({made.whole.signature.inputs[0].name: x})[name], wanted, rtol=1e-4, atol=1e-6
    )
    scores = made.features((CONTEXT,))(x.astype(np.float32)) @ made.layer.weights.T + made.layer.bias
    np.testing.assert_allclose(np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True), wanted, rtol=1e-3, atol=1e-6)


def test_several_outputs_without_logits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gives 2 outputs; tables need a network of one"):
        cut_module(seeded(Unnamed), "mine:net", (CONTEXT,), tmp_path)


def test_scores_by_name_of_a_whole_sequence_are_cut_too(tmp_path: Path) -> None:
    made = cut_module(seeded(Classifier), "mine:net", (CONTEXT,), tmp_path)
    x = np.random.default_rng(0).integers(WORDS, size=(5, CONTEXT))
    with torch.inference_mode():
        wanted = seeded(Classifier)(torch.from_numpy(x))["logits"].numpy()
    assert made.positions is None
    np.testing.assert_allclose(made.whole.run({"input": x})["output"], wanted, rtol=1e-4, atol=1e-5)
    features = made.features((CONTEXT,))(x.astype(np.float32))
    np.testing.assert_allclose(features @ made.layer.weights.T, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (
            (8, CONTEXT),
            WORDS + 5,
            "has 300 classes, and .* labels, not all of them numbers from 0 to 299: '30",
        ),
        ((8, CONTEXT), -100, "labels, not all of them numbers from 0 to 299: '-100'"),
        ((8, 9), 3, r"cannot be traced on inputs \(9,\) \((?!.*Long, Int).*\b6\b"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    slotool: Slotool, x: tuple[int, int], y: int, sentence: str, tmp_path: Path
) -> None:
    labels = np.resize([1, 2, 3, y], 50 * x[0])
    words = np.random.default_rng(0).integers(WORDS, size=(50 * x[0], x[1]))
    np.savez(tmp_path / "words.npz", x=words.astype(np.float32), y=labels)
    network = "tests.elastic.test_language_models:placed"
    done = slotool("build-tables", network, "-o", tmp_path / "out", "--data", tmp_path / "words.npz")
    assert done.exit_code == 2
    assert re.search(sentence, " ".join(done.stderr.split()))

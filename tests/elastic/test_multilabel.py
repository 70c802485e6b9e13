"""Multi-label networks: training beats popularity, sampling estimates the full softmax, P@k needs no dense input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from slotool.artifacts import open_artifact
from slotool.data import LabelSets, MultiLabelDataset, MultiLabelSplit, load_multilabel
from slotool.elastic import load_model, multilabel_training
from slotool.elastic.family import Family
from slotool.elastic.multilabel_training import (
    RowAdam,
    SampledLabels,
    label_gradients,
    precision_at,
    score,
    top_labels,
    train_multilabel,
)
from slotool.elastic.network import Network
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.errors import InputError
from slotool.tables import FULL
from tests.elastic.animal_records import SPECIES, WORDS, write_animals

Slotool = Callable[..., Any]
EPOCHS = 60


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """With so small a network a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_animals(tmp_path_factory.mktemp("data") / "xmc" / "animals")


@pytest.fixture(scope="module")
def animals(folder: Path) -> MultiLabelDataset:
    return load_multilabel(str(folder))


@pytest.fixture(scope="module")
def version(animals: MultiLabelDataset) -> Network:
    return train_multilabel("animals", animals, hidden_units=32, epochs=EPOCHS)


def popularity(data: MultiLabelDataset) -> float:
    """P@1 of always answering the most frequent training label."""
    answer = np.bincount(data.train.y.indices).argmax()
    return precision_at(np.full((len(data.test), 1), answer), data.test.y, (1,))[1]


def test_training_beats_popularity(animals: MultiLabelDataset, version: Network) -> None:
    assert popularity(animals) < 0.6
    assert version.scores["test_precision_at_1"] > 0.85
    assert version.scores["validation_precision_at_1"] > 0.85
    assert version.scores["test_precision_at_5"] < version.scores["test_precision_at_1"]


def test_sampled_softmax_learns_as_well(
    animals: MultiLabelDataset, version: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multilabel_training, "FEW_LABELS", 1)
    monkeypatch.setattr(multilabel_training, "NEGATIVES", 4)
    monkeypatch.setattr(multilabel_training, "BATCH_SIZE", 32)
    sampled = train_multilabel("animals", animals, hidden_units=32, epochs=8)
    assert sampled.scores["test_precision_at_1"] > 0.85


def test_same_seed_same_weights(animals: MultiLabelDataset) -> None:
    first, second, other = (
        train_multilabel("a", animals, hidden_units=8, epochs=1, seed=seed).mlp.fingerprint for seed in (3, 3, 4)
    )
    assert first == second != other


def test_the_sampled_partition_function_is_unbiased() -> None:
    rng = np.random.default_rng(0)
    classes, examples = 9_000, 8
    shares = rng.random(classes) ** 8
    scores = torch.randn(examples, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    full = scores.exp().sum(dim=1)
    draws, estimates = 300, []
    for _ in range(draws):
        held = [np.flatnonzero(rng.random(classes) < shares).astype(np.int32) for _ in range(examples)]
        labels = LabelSets(np.cumsum([0, *map(len, held)]), np.concatenate(held))
        candidates = SampledLabels.draw(labels, shares, rng)
        assert candidates.rows is not None
        assert candidates.log_chance is not None
        assert np.array_equal(candidates.rows[candidates.positions], labels.indices)
        estimates.append((scores[:, candidates.rows] - candidates.log_chance).exp().sum(dim=1))
    mean, error = torch.stack(estimates).mean(dim=0), torch.stack(estimates).std(dim=0) / draws**0.5
    assert ((mean - full).abs() < 4 * error).all()
    assert (error < 0.01 * full).all()


@pytest.mark.parametrize("sampled", [False, True])
def test_loss_and_gradients_are_those_of_automatic_differentiation(sampled: bool) -> None:
    sets = LabelSets(np.array([0, 2, 3]), np.array([1, 4, 0], dtype=np.int32))
    hidden, labels, log_chance = torch.rand(2, 3), torch.randn(5, 4), torch.rand(5).log()
    hidden.requires_grad_()
    labels.requires_grad_()
    candidates = SampledLabels(None, log_chance if sampled else None, torch.from_numpy(sets.indices.astype(np.int64)))
    wanted = torch.tensor([[0, 0.5, 0, 0, 0.5], [1, 0, 0, 0, 0]])
    scores = hidden @ labels[:, :-1].T + labels[:, -1]
    loss = torch.nn.functional.cross_entropy(scores - log_chance * (wanted == 0) * sampled, wanted)
    expected = torch.autograd.grad(loss, (hidden, labels))
    found, *gradients = label_gradients(hidden, labels, sets, candidates)
    assert found == pytest.approx(loss.item(), rel=1e-5)
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(gradients, expected, strict=True))


def test_rows_not_in_a_batch_are_left_alone_and_all_rows_step_alike() -> None:
    start, gradient = torch.randn(6, 3), torch.randn(6, 3)
    some, every = RowAdam(start.clone()), RowAdam(start.clone())
    rows = torch.tensor([4, 1])
    some.step(rows, gradient[rows], 0.1)
    every.step(None, gradient, 0.1)
    assert torch.equal(some.weights[[0, 2, 3, 5]], start[[0, 2, 3, 5]])
    assert torch.allclose(some.weights[rows], every.weights[rows])
    # Adam's first step: the gradient over its root mean square, along the row.
    expected = start - 0.1 * gradient / gradient.square().mean(dim=1, keepdim=True).sqrt()
    assert torch.allclose(every.weights, expected, atol=1e-5)


def test_saved_and_loaded_it_answers_sparse_and_dense_alike(
    animals: MultiLabelDataset, version: Network, tmp_path: Path
) -> None:
    Family.of("animals", [version]).save(tmp_path / "animals", config={}, seed=0)
    model = load_model(open_artifact(tmp_path / "animals", "network"))
    assert isinstance(model, Family)
    assert model.sparse
    x = animals.test.x[:20]
    logits = model.forward(x, FULL)
    assert (logits.shape, logits.dtype) == ((20, SPECIES), np.float32)
    assert logits == pytest.approx(model.forward(x.toarray(), FULL), abs=1e-4)
    assert score(model.networks[0].mlp, animals.test)[1] == version.scores["test_precision_at_1"]


def test_top_labels_agree_with_sorting_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    layers = [(12, 7), (7, 30)]
    mlp = MLP(
        (12,),
        tuple(
            DenseLayer(f"d{i}", rng.normal(size=(o, n)).astype(np.float32), rng.normal(size=o).astype(np.float32))
            for i, (n, o) in enumerate(layers)
        ),
    )
    x = rng.normal(size=(25, 12)).astype(np.float32) * (rng.random((25, 12)) < 0.3)
    expected = np.argsort(-mlp.logits(x), axis=1)[:, :4]
    assert np.array_equal(top_labels(mlp, x, 4), expected)
    monkeypatch.setattr(multilabel_training, "CHUNK_EXAMPLES", 10)
    monkeypatch.setattr(multilabel_training, "CHUNK_BYTES", 4 * 30 * 3)
    assert np.array_equal(top_labels(mlp, csr_matrix(x), 4), expected)
    with pytest.raises(InputError, match="takes 12 features, the examples have 11"):
        top_labels(mlp, x[:, :11], 1)
    with pytest.raises(InputError, match="the best 31 of 30"):
        top_labels(mlp, x, 31)


def test_dense_features_are_trained_too(animals: MultiLabelDataset) -> None:
    parts = (MultiLabelSplit(part.x.toarray(), part.y) for part in (animals.train, animals.validation, animals.test))
    dense = MultiLabelDataset("dense", *parts, classes=SPECIES, source="dense")
    version = train_multilabel("dense", dense, hidden_units=32, epochs=EPOCHS)
    assert not version.sparse
    assert version.scores["test_precision_at_1"] > 0.85


def test_the_command_and_those_that_take_no_sparse_network(
    slotool: Slotool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTOOL_DATA_DIR", str(folder.parent.parent))
    out = tmp_path / "animals"
    command = ["train", "xmc", "--data", "animals", "-o", out, "--hidden", "16", "--epochs", "30", "--threads", "1"]
    done = slotool(*command, "--json")
    assert done.exit_code == 0, done.stderr
    document = done.document
    assert document["schema"] == "slotool/train-xmc"
    assert document["examples"] == {"train": 1349, "validation": 150, "test": 399}
    assert (document["features"], document["labels"], document["unlabelled"]) == (WORDS, SPECIES, 2)
    assert document["scores"]["test_precision_at_1"] > 0.6
    assert open_artifact(out, "network").manifest["config"] == {"data": "animals", "hidden": 16, "epochs": 30}
    again = slotool(*command)
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    shown = slotool(*command, "--force")
    assert "animals: 160 words" not in shown.stdout
    for expected in ("160 features, 40 labels, 1,349 training examples", "validation", "P@1", "P@5", "wrote "):
        assert expected in shown.stdout
    assert "2 examples without labels are left out" in shown.stderr

    evaluated = slotool("evaluate", out, "-o", tmp_path / "e", "--repeats", "1", "--json").document
    assert evaluated["points"][0]["accuracy"] == pytest.approx(document["scores"]["test_precision_at_1"])

    for other, sentence in (
        (["build-tables", out, "-o", tmp_path / "b"], "so tables would save no work"),
        (["profile", "points", out, "-o", tmp_path / "p"], "takes sparse examples, and profiling draws dense ones"),
        (["profile", "solo", out, "-o", tmp_path / "p"], "takes sparse examples, and profiling draws dense ones"),
        (["train", "mlp", "--data", "animals", "-o", tmp_path / "m"], "animals has any number of labels per example"),
    ):
        refused = slotool(*other)
        assert (refused.exit_code, sentence in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(
    ("data", "sentence"),
    [("nothing", "no multi-label data set 'nothing'"), ("digits", "digits has one class per example")],
)
def test_wrong_data_end_in_one_sentence(slotool: Slotool, tmp_path: Path, data: str, sentence: str) -> None:
    done = slotool("train", "xmc", "--data", data, "-o", tmp_path / "x")
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "x").exists()


def test_a_damaged_set_ends_in_one_sentence(slotool: Slotool, tmp_path: Path) -> None:
    folder = write_animals(tmp_path / "animals")
    text = (folder / "train.txt").read_text().split("\n")
    text[4] += f" {WORDS}:1"
    (folder / "train.txt").write_text("\n".join(text))
    done = slotool("train", "xmc", "--data", folder, "-o", tmp_path / "x")
    assert done.exit_code == 2
    assert "train.txt, line 5: the feature of '160:1' is beyond the 160 that line 1 promises" in done.stderr

"""Static pruning: what is never used goes for nothing, what is hardly used goes while accuracy holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from slotool.artifacts import open_artifact
from slotool.elastic import load_model
from slotool.elastic.family import Family
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.pruning import measure, prune, remove, steps
from slotool.errors import InputError
from tests.elastic.activator_subjects import digits, trained


def with_dead(mlp: MLP, counts: tuple[int, int], seed: int) -> MLP:
    """``mlp`` with units that never fire put in at random places of both hidden layers, and read all the same."""
    rng = np.random.default_rng(seed)
    layers = list(mlp.layers)
    for at, count in enumerate(counts):
        layer, after = layers[at], layers[at + 1]
        places = rng.integers(0, layer.units + 1, size=count)
        zeros = np.zeros(count)
        weights = np.insert(layer.weights, places, zeros[:, None], axis=0)
        layers[at] = DenseLayer(layer.name, weights, np.insert(layer.bias, places, zeros - 1.0))
        reads = rng.normal(size=(after.units, count)).astype(np.float32)
        layers[at + 1] = DenseLayer(after.name, np.insert(after.weights, places, reads, axis=1), after.bias)
    return MLP(mlp.input_shape, tuple(layers))


@given(counts=st.tuples(st.integers(0, 5), st.integers(0, 5)), seed=st.integers(0, 1_000))
@settings(max_examples=10, deadline=None)
def test_units_that_never_fire_go_and_no_answer_changes(counts: tuple[int, int], seed: int) -> None:
    own = trained(48, 32).mlp
    padded = with_dead(own, counts, seed)
    x = digits().train.x.reshape(len(digits().train), -1)
    usages = measure(padded, x)
    dead = [(at, int(unit)) for at, usage in enumerate(usages) for unit in np.flatnonzero(usage.dead)]
    assert len(dead) >= sum(counts)
    left = remove(padded, dead, usages)
    np.testing.assert_allclose(left.logits(x), own.logits(x), rtol=1e-4, atol=1e-4)


def test_usage_is_of_the_outputs_and_the_same_of_sparse_inputs() -> None:
    x = digits().train.x.reshape(len(digits().train), -1)
    hidden = np.maximum(trained(48, 32).mlp.layers[0].pre_activations(x), 0)
    for usage in (measure(trained(48, 32).mlp, x)[0], measure(trained(48, 32).mlp, csr_matrix(x))[0]):
        np.testing.assert_allclose(usage.mean, hidden.mean(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(usage.std, hidden.std(axis=0), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(usage.largest, hidden.max(axis=0), rtol=1e-5)


def test_a_unit_that_is_always_the_same_becomes_a_bias() -> None:
    own = trained(48, 32).mlp
    first, second = own.layers[:2]
    bias = np.append(first.bias, np.float32(3.0))
    constant = DenseLayer("first", np.vstack([first.weights, 0 * first.weights[:1]]), bias)
    column = np.ones((second.units, 1), dtype=np.float32)
    reading = DenseLayer("second", np.hstack([second.weights, column]), second.bias - 3.0)
    padded = MLP(own.input_shape, (constant, reading, own.layers[2]))
    x = digits().train.x.reshape(len(digits().train), -1)
    left = remove(padded, [(0, first.units)], measure(padded, x))
    np.testing.assert_allclose(left.logits(x), own.logits(x), rtol=1e-4, atol=1e-3)


def test_more_may_go_when_more_may_be_lost_and_the_promise_holds() -> None:
    padded = with_dead(trained(48, 32).mlp, (4, 3), 0)
    kept = []
    for loss in (0.0, 0.05, 0.2):
        calls: list[None] = []
        pruned = prune(padded, digits(), loss, lambda: calls.append(None))  # noqa: B023
        assert pruned.accuracy >= pruned.accuracy_before - loss
        assert pruned.before == (52, 35)
        assert pruned.dead >= (4, 3)
        assert all(k <= b - d for k, b, d in zip(pruned.kept, pruned.before, pruned.dead, strict=True))
        assert [layer.units for layer in pruned.mlp.layers] == [*pruned.kept, 10]
        x = digits().validation.x.reshape(len(digits().validation), -1)
        own = (pruned.mlp.logits(x).argmax(axis=1) == digits().validation.y).mean()
        assert own == pytest.approx(pruned.accuracy)
        assert 1 < len(calls) <= steps(padded)
        kept.append(sum(pruned.kept))
    assert kept[0] > kept[1] > kept[2] >= 2


def test_each_layer_keeps_a_unit_even_when_all_may_be_lost() -> None:
    assert prune(trained(48, 32).mlp, digits(), 1.0).kept == (1, 1)
    with pytest.raises(InputError, match=r"between 0 and 1, not -0\.1"):
        prune(trained(48, 32).mlp, digits(), -0.1)


def test_build_tables_prunes_first_and_says_what_it_cost(slotool: Callable[..., Any], tmp_path: Path) -> None:
    Family("mlp", [trained(48, 32)]).save(tmp_path / "mlp", config={"data": "digits"}, seed=0)
    command = ["build-tables", tmp_path / "mlp", "-o", tmp_path / "slo-nn", "--ranker", "clusters", "--k", "0.5"]
    done = slotool(*command, "--prune", "--prune-loss", "0.05", "--allowed-loss", "1")
    assert done.exit_code == 0, done.stderr
    assert "pruned, per hidden layer: " in done.stdout
    assert "for the network before pruning" in " ".join(done.stdout.split())
    artifact = open_artifact(tmp_path / "slo-nn")
    pruned, model = artifact.manifest["config"]["pruned"], load_model(artifact)
    assert isinstance(model, SloNN)
    assert [layer.units for layer in model.mlp.layers[:-1]] == pruned["units_kept"]
    assert pruned["validation_accuracy"] >= pruned["validation_accuracy_before"] - 0.05

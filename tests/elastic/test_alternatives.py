"""What else answers for an output layer: fixed lists of nodes in float32 and int8, and what they promise to lose."""

from __future__ import annotations

import numpy as np
import pytest

from slotool.data.dataset import LabelSets, MultiLabelSplit
from slotool.elastic.slo_nn.assessment import FixedList, promised_loss, shortest_popularity_list
from slotool.elastic.slo_nn.promises import Promise
from tests.elastic.tiny_slo_nns import CLASSES, examples, sparse_model


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("count", [1, 50, CLASSES])
def test_the_best_of_a_list_for_every_input(int8: bool, count: int) -> None:
    model, x = sparse_model(), examples(True, 100, 5)
    names = np.random.default_rng(0).permutation(CLASSES)[:count]
    found = FixedList.of(model, names, int8=int8).labels(x)
    scores = model.mlp.logits(x)[:, names]
    assert set(found) <= set(names)
    if int8:  # nearly always the same, and then nearly as good
        assert (found == names[scores.argmax(axis=1)]).mean() > 0.95
    else:
        np.testing.assert_array_equal(found, names[scores.argmax(axis=1)])


def test_the_shortest_popular_list_keeps_the_loss() -> None:
    """Every third label is node 0 and the others are the network's own: a list that names all of them loses nothing."""
    model = sparse_model()
    x = examples(True, 2_000, 7)
    labels = model.mlp.logits(x).argmax(axis=1).astype(np.int32)
    split = MultiLabelSplit(x, LabelSets(np.arange(len(labels) + 1), labels))
    assert shortest_popularity_list(model, split, 0.0) is None
    everything = shortest_popularity_list(model, split, 1.0)
    assert everything is not None
    assert len(everything) == round(model.shares[0] * CLASSES)
    some = shortest_popularity_list(model, split, 0.5)
    assert some is not None
    np.testing.assert_array_equal(some[: len(everything)], everything)
    right = FixedList.of(model, some, int8=False).labels(x) == labels
    assert 1 - right.mean() <= 0.5


def test_a_promise_bounds_what_was_lost() -> None:
    full = np.ones(1_000, dtype=bool)
    assert promised_loss(full, full, 0.9) < 0.01
    worse = full.copy()
    worse[:100] = False
    assert 0.1 < promised_loss(worse, full, 0.9) < 0.15


def test_a_verdict_where_no_node_is_saved() -> None:
    saving = Promise.of(sparse_model(), 1.0)
    assert saving.verdict() is None
    none = Promise.of(sparse_model(), 0.0)
    assert none.verdict() == "no k below 100 % keeps the allowed loss of 0 points"

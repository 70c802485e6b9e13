"""A batch answered in one call: the same answers as one query after another, in every way there is to answer."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, random_array

from slotool.data import Dataset
from slotool.data.dataset import LabelSets, MultiLabelDataset, MultiLabelSplit, Split
from slotool.elastic.activators.build import Settings, Subject, build
from slotool.elastic.activators.mlp import MLP, DenseLayer
from slotool.elastic.activators.slo_nn import LEAST_FOR_PRODUCTS, SloNN
from slotool.elastic.queries import Queries
from slotool.errors import InputError
from slotool.profiling.backends.elastic_backend import ElasticBackend, ModelAtPoint
from slotool.tables import FULL

FEATURES, CLASSES = 60, 300


def network(inputs: int, *units: int) -> MLP:
    rng = np.random.default_rng(inputs)
    widths = [inputs, *units]
    return MLP(
        (inputs,),
        tuple(
            DenseLayer(f"dense_{at}", rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=n).astype(np.float32))
            for at, (m, n) in enumerate(zip(widths[:-1], units, strict=True))
        ),
    )


@lru_cache
def small() -> SloNN:
    """Dense inputs that are not negative, hidden layers with activators, so that int8 means all layers in full."""
    mlp = network(20, 40, 30, 5)
    x = np.random.default_rng(1).random((600, 20), dtype=np.float32)
    y = mlp.logits(x).argmax(axis=1)
    y[::4] = 0
    parts = [Split(x[part], y[part]) for part in (slice(0, 400), slice(400, 500), slice(500, 600))]
    data = Dataset("small", *parts, classes=5, labels=tuple("abcde"))
    return build("small", Subject(mlp, data), "centred-freehash", Settings((0.2, 0.5)))


@lru_cache
def labelled() -> SloNN:
    """Sparse inputs and an output layer with an activator, in whose rows int8 may stand."""
    mlp, splits = network(FEATURES, 24, CLASSES), []
    for n in (3_000, 400, 200):
        x = csr_matrix(random_array((n, FEATURES), density=0.1, rng=np.random.default_rng(n), dtype=np.float32))
        best = mlp.logits(x).argmax(axis=1).astype(np.int32)
        best[::3] = 0
        splits.append(MultiLabelSplit(x, LabelSets(np.arange(n + 1), best)))
    data = MultiLabelDataset("labelled", *splits, classes=CLASSES, source="labelled")
    return build("labelled", Subject(mlp, data), "clusters", Settings())


def examples(model: SloNN, n: int, seed: int) -> np.ndarray | csr_matrix:
    rng = np.random.default_rng(seed)
    if model.sparse:
        return csr_matrix(random_array((n, FEATURES), density=0.1, rng=rng, dtype=np.float32))
    return rng.random((n, 20), dtype=np.float32)


@settings(max_examples=60, deadline=None)
@given(
    sparse=st.booleans(),
    int8=st.booleans(),
    n=st.integers(1, 2 * LEAST_FOR_PRODUCTS),
    p=st.integers(1, 5),
    chosen=st.one_of(st.integers(0, 2), st.floats(0.0, 0.3)),
    seed=st.integers(0, 2**16),
)
def test_a_batch_is_answered_as_its_queries_are(
    sparse: bool, int8: bool, n: int, p: int, chosen: float, seed: int
) -> None:
    model = (labelled() if sparse else small()).at_int8(int8)
    x = examples(model, n, seed)
    if isinstance(chosen, int):
        answerer = model.answerer(p, point=model.points[chosen - 1])
    else:
        answerer = model.answerer(p, accuracy=model.target(chosen))
    together = answerer.many(x)
    for row in range(n):
        labels, scores = answerer.row(x, row)
        assert model.points[together.taken[row]] == answerer.taken
        np.testing.assert_allclose(together.scores[row], scores, rtol=1e-4, atol=1e-4)
        # Sums are added up in another order, so labels of all but equal scores may change places.
        clear = np.diff(scores, append=-np.inf) < -1e-3
        np.testing.assert_array_equal(together.labels[row][clear], labels[clear])


@pytest.mark.parametrize("sparse", [False, True])
def test_logits_of_a_batch_are_those_of_its_queries(sparse: bool) -> None:
    model = labelled() if sparse else small()
    x = examples(model, 2 * LEAST_FOR_PRODUCTS, 0)
    alone = np.concatenate([model.forward(x[row : row + 1], FULL) for row in range(x.shape[0])])
    np.testing.assert_allclose(model.forward(x, FULL), alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("point", [0, -1])
def test_one_bad_query_of_a_batch_is_refused(point: int) -> None:
    x = examples(small(), 2 * LEAST_FOR_PRODUCTS, 0)
    x[7, 3] = np.nan
    for way in (small().top, small().forward):
        with pytest.raises(InputError, match="NaN or infinite"):
            way(x, point=small().points[point])
    many = examples(labelled(), 2 * LEAST_FOR_PRODUCTS, 0)
    many.indices[5] = FEATURES
    with pytest.raises(InputError, match="has features 0 to 59, no others"):
        labelled().answerer(point=labelled().points[point]).many(many)


def test_an_empty_batch_has_no_answers() -> None:
    assert small().answerer(2).many(np.empty((0, 20), dtype=np.float32)).labels.shape == (0, 2)


def test_a_profile_asks_for_batches_of_real_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    x = examples(model, 50, 3)
    split = Split(x, np.zeros(50, dtype=np.int64))
    queries = Queries(model, split)
    calls = queries.batches(16, model.points[0])
    assert len(calls) == 3
    found = np.concatenate([call() for call in calls])
    label = queries.answer(model.points[0]).label
    np.testing.assert_array_equal(found, [label(row) for row in range(48)])
    with pytest.raises(InputError, match="50 examples, too few for batches of 51"):
        queries.batches(51)
    data = Dataset("own", split, split, split, classes=5, labels=tuple("abcde"))
    monkeypatch.setattr("slotool.profiling.backends.elastic_backend._data", lambda model, name: data)
    call = ElasticBackend("cpu").prepare(ModelAtPoint(model, model.points[0], "own"), 16)
    for start in (0, 16, 32, 0):
        np.testing.assert_array_equal(call(), found[start : start + 16])

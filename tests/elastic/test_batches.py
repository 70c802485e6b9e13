"""A batch answered in one call: the same answers as one query after another, in every way there is to answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.data import Dataset
from slotool.data.dataset import Split
from slotool.elastic.queries import Queries
from slotool.elastic.slo_nn.kernels import full_batch
from slotool.errors import InputError
from slotool.profiling.backends.elastic_backend import ElasticBackend, ModelAtPoint
from slotool.tables import FULL
from tests.elastic.tiny_slo_nns import FEATURES, INPUTS, dense_model, examples, sparse_model


@pytest.fixture(scope="module", autouse=True)
def products() -> Iterator[None]:
    """Products of sparse inputs in small batches too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(full_batch, "MIN_SPARSE", full_batch.MIN_DENSE)
        yield


@settings(max_examples=60, deadline=None)
@given(
    sparse=st.booleans(),
    int8=st.booleans(),
    n=st.integers(1, 2 * full_batch.MIN_DENSE),
    p=st.integers(1, 5),
    chosen=st.one_of(st.integers(0, 2), st.floats(0.0, 0.3)),
    seed=st.integers(0, 2**16),
)
def test_a_batch_is_answered_as_its_queries_are(
    sparse: bool, int8: bool, n: int, p: int, chosen: float, seed: int
) -> None:
    model = sparse_model().at_int8(int8) if sparse else dense_model()
    x = examples(sparse, n, seed)
    if isinstance(chosen, int):
        session = model.compiled_session(p, point=model.points[chosen - 1])
    else:
        session = model.compiled_session(p, accuracy=model.target(chosen))
    all_labels, all_scores = session.many(x)
    for row in range(n):
        labels, scores = session.row(x, row)
        np.testing.assert_allclose(all_scores[row], scores, rtol=1e-4, atol=1e-4)
        # Sums are added up in another order, so labels of all but equal scores may change places.
        clear = np.diff(scores, append=-np.inf) < -1e-3
        np.testing.assert_array_equal(all_labels[row][clear], labels[clear])


@pytest.mark.parametrize("sparse", [False, True])
def test_logits_of_a_batch_are_those_of_its_queries(sparse: bool) -> None:
    model = sparse_model() if sparse else dense_model()
    x = examples(sparse, 2 * full_batch.MIN_DENSE, 0)
    alone = np.concatenate([model.forward(x[row : row + 1], FULL) for row in range(x.shape[0])])
    np.testing.assert_allclose(model.forward(x, FULL), alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("point", [0, -1])
def test_one_bad_query_of_a_batch_is_refused(point: int) -> None:
    x = examples(False, 2 * full_batch.MIN_DENSE, 0)
    x[7, 3] = np.nan
    for way in (dense_model().top, dense_model().forward):
        with pytest.raises(InputError, match="NaN or infinite"):
            way(x, point=dense_model().points[point])
    many = examples(True, 2 * full_batch.MIN_DENSE, 0)
    many.indices[5] = FEATURES
    with pytest.raises(InputError, match="has features 0 to 59, no others"):
        sparse_model().compiled_session(point=sparse_model().points[point]).many(many)


def test_an_empty_batch_has_no_answers() -> None:
    assert dense_model().compiled_session(2).many(np.empty((0, INPUTS), dtype=np.float32))[0].shape == (0, 2)


def test_a_profile_asks_for_batches_of_real_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dense_model()
    x = examples(False, 50, 3)
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
    monkeypatch.setattr("slotool.profiling.backends.elastic_backend.dataset_of", lambda *_, **__: data)
    call = ElasticBackend("cpu").prepare(ModelAtPoint(model, model.points[0], "own"), 16)
    for start in (0, 16, 32, 0):
        np.testing.assert_array_equal(call(), found[start : start + 16])

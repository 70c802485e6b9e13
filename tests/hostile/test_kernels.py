"""What reaches a compiled kernel: queries, sessions and artifacts of every wrong kind are refused."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.session import CompiledSession
from slotool.errors import InputError
from tests.elastic import numpy_slo_nn
from tests.hostile import kernel_fuzz


def model_of(kind: str) -> SloNN:
    """A small random one whose output layer has clusters, the same each time."""
    for seed in range(1000):
        model = kernel_fuzz.random_model(np.random.default_rng(seed), kind == "sparse")
        activator = model.activators.get(len(model.mlp.layers) - 1)
        if activator and activator.ranker.name == "clusters" and model.mlp.layers[0].inputs > 8 and not model.int8:
            return model
    raise AssertionError("no such model")


@pytest.fixture(scope="module")
def model() -> SloNN:
    return model_of("dense")


@pytest.fixture(scope="module")
def sparse() -> SloNN:
    return model_of("sparse")


def query(model: SloNN, seed: int = 0) -> np.ndarray:
    return kernel_fuzz.whole(np.random.default_rng(seed), 0, 8, model.mlp.layers[0].inputs)


@pytest.mark.parametrize("length", [0, 1, 7, 1_000, 100_000])
def test_a_query_of_another_length_is_refused(model: SloNN, length: int) -> None:
    with pytest.raises(InputError, match=f"takes {model.mlp.layers[0].inputs} values, not {length}"):
        model.compiled_session().dense(np.zeros(length, dtype=np.float32))


@pytest.mark.parametrize("dtype", ["f8", "f2", ">f4", "i4", "i8", "c8", "O"])
def test_a_query_of_another_type_is_refused_and_compiles_nothing(model: SloNN, dtype: str) -> None:
    session = model.compiled_session()
    session.dense(query(model))
    with pytest.raises(InputError, match=r"takes an array float32 \[inputs\], contiguous, not .*ascontiguousarray"):
        session.dense(query(model).astype(dtype))


def test_what_is_no_contiguous_array_is_refused(model: SloNN) -> None:
    width, session = model.mlp.layers[0].inputs, model.compiled_session()
    for bad in (
        np.zeros((width, 2), dtype=np.float32)[:, 0],
        np.zeros((1, width), dtype=np.float32),
        [0.0] * width,
        None,
        "x",
        0.5,
    ):
        with pytest.raises(InputError, match="contiguous"):
            session.dense(bad)
    labels = session.dense(query(model)).copy()
    readable = query(model)
    readable.flags.writeable = False
    assert (session.dense(readable) == labels).all()


def test_features_and_values_must_pair(sparse: SloNN) -> None:
    session = sparse.compiled_session()
    with pytest.raises(InputError, match="3 features and 2 values"):
        session.sparse(np.arange(3, dtype=np.int32), np.ones(2, dtype=np.float32))
    with pytest.raises(InputError, match="2 features and 3 values"):
        session.sparse(np.arange(2, dtype=np.int32), np.ones(3, dtype=np.float32))
    with pytest.raises(InputError, match="takes indices int32"):
        session.sparse(np.arange(2), np.ones(2, dtype=np.float32))


def test_features_beyond_the_network_are_refused(sparse: SloNN) -> None:
    session, width = sparse.compiled_session(), sparse.mlp.layers[0].inputs
    for bad in (-1, width, 2**31 - 1, -(2**31)):
        with pytest.raises(InputError, match="has features 0 to"):
            session.sparse(np.array([0, bad], dtype=np.int32), np.ones(2, dtype=np.float32))
    with pytest.raises(InputError, match=f"{width + 1} entries for {width} features"):
        session.sparse(np.zeros(width + 1, dtype=np.int32), np.ones(width + 1, dtype=np.float32))


def test_a_feature_named_twice_has_the_sum_of_its_values(sparse: SloNN) -> None:
    features, values = np.array([3, 1, 3], dtype=np.int32), np.array([2, 5, 1], dtype=np.float32)
    x = np.zeros((1, sparse.mlp.layers[0].inputs), dtype=np.float32)
    x[0, 1], x[0, 3] = 5, 3
    for point in sparse.points:
        session = sparse.compiled_session(2, point=point)
        session.sparse(features, values)
        np.testing.assert_allclose(
            session.scores, numpy_slo_nn.top(sparse, csr_matrix(x), 2, point=point)[1][0], rtol=1e-5
        )


def beside_compiled_calls(model: SloNN) -> list[Callable[[Any, Any], Any]]:
    """What SciPy and NumPy compute, who check neither pointers nor features."""
    return [
        partial(numpy_slo_nn.forward, model),
        lambda x, point: numpy_slo_nn.top(model, x, point=point),
        lambda x, point: model.cheapest(x, 0.5),
        lambda x, point: model.expected_accuracies(x),
        lambda x, point: model.confidences(x),
    ]


def test_what_is_not_finite_or_masked_is_refused_by_every_call(model: SloNN) -> None:
    shape = (1, *model.input_shape)
    masked = np.ma.masked_array(np.zeros(shape, dtype=np.float32), mask=True)
    for bad in (np.full(shape, np.nan, dtype=np.float32), masked):
        for ask in (lambda x, point: model.top(x, point=point), model.forward, *beside_compiled_calls(model)):
            with pytest.raises(InputError):
                ask(bad, model.points[0])


def test_a_count_of_answers_that_is_none_is_refused(model: SloNN) -> None:
    for p in (0, 1.5, True, "1", model.classes + 1):
        with pytest.raises(InputError, match="labels cannot be given"):
            model.compiled_session(p)


@pytest.mark.parametrize("n", [1, 3, 20])
def test_a_csr_matrix_that_is_none_is_refused(sparse: SloNN, n: int) -> None:
    good = csr_matrix(np.tile(query(sparse), (n, 1)))
    width = good.shape[1]

    def broken(part: str, change: Callable[[np.ndarray], Any]) -> csr_matrix:
        bad = good.copy()
        changed = change(getattr(bad, part))
        if changed is not None:
            setattr(bad, part, changed)
        return bad

    matrices = [
        broken("indptr", lambda rows: rows.__setitem__(slice(1, None), 10**6)),
        broken("indptr", lambda rows: rows.__setitem__(0, 5) if n == 1 else rows.__setitem__(1, 10**6)),
        broken("indptr", lambda rows: rows.__setitem__(0, -9)),
        broken("indptr", lambda rows: rows[:-1]),
        broken("indices", lambda at: at.__setitem__(0, width)),
        broken("indices", lambda at: at.__setitem__(0, -1)),
        broken("indices", lambda at: at.astype(np.int64) + 2**32),
        broken("indices", lambda at: at.astype(np.float32)),
        broken("data", lambda values: values[:-1]),
        broken("data", lambda values: values.astype(np.complex64)),
        broken("data", lambda values: values.__setitem__(0, np.nan)),
    ]
    for bad in matrices:
        for point in (sparse.points[0], sparse.full):
            for ask in (
                lambda bad, point: sparse.top(bad, point=point),
                sparse.forward,
                *beside_compiled_calls(sparse),
            ):
                with pytest.raises(InputError):
                    ask(bad, point)
    labels, _ = sparse.top(good.astype(np.float64))
    assert (labels == sparse.top(good)[0]).all()


def test_a_batch_of_another_kind_is_refused(model: SloNN) -> None:
    session, width = model.compiled_session(), model.mlp.layers[0].inputs
    for bad in (
        np.zeros((3, width + 1), dtype=np.float32),
        np.zeros((3, width), dtype=np.float64),
        np.zeros((width, 3), dtype=np.float32).T,
        np.zeros(width, dtype=np.float32),
    ):
        with pytest.raises(InputError):
            session.many(bad)
    for bad in (np.zeros((3, width), dtype=np.complex64), np.full((3, width), "x")):
        with pytest.raises(InputError):
            model.top(bad)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_cannot_be_copied(model: SloNN, copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"session of fuzz cannot be copied or pickled, .* compiled_session\(\.\.\.\)"):
        copied(model.compiled_session())


def test_results_cannot_be_replaced(model: SloNN) -> None:
    with pytest.raises(AttributeError):
        model.compiled_session().labels = np.zeros(1, dtype=np.int32)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copied_model_has_workspaces_of_its_own(model: SloNN, copied: Callable[[Any], Any]) -> None:
    wanted = model.top(query(model)[None], 2)[1]
    other = copied(model)
    assert other.compiled is not model.compiled
    np.testing.assert_array_equal(other.top(query(model)[None], 2)[1], wanted)


def test_a_session_belongs_to_one_thread(model: SloNN) -> None:
    session, refusals = model.compiled_session(), []

    def ask() -> None:
        try:
            session.dense(query(model))
        except InputError as error:
            refusals.append(str(error))

    session.dense(query(model))
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert "belongs to another thread; make one here" in refusals[0]
    assert session.dense(query(model)).shape == (1,)


def test_threads_with_sessions_of_their_own_share_a_model(model: SloNN) -> None:
    """The kernels keep the interpreter lock, so workspaces are never in use twice."""
    x = np.stack([query(model, seed) for seed in range(40)])
    wanted = model.top(x, 2)[1]
    wrong: list[int] = []

    def ask(offset: int) -> None:
        session: CompiledSession = model.compiled_session(2)
        for turn in range(2_000):
            at = (turn + offset) % len(x)
            session.dense(x[at])
            rows = model.top(x[at : at + 3], 2)[1]
            if not np.allclose(session.scores, wanted[at]) or not np.allclose(rows, wanted[at : at + 3]):
                wrong.append(at)

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in (0, 13, 29)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_process_may_go_on_with_its_session(model: SloNN) -> None:
    session = model.compiled_session(2)
    wanted = session.dense(query(model)).copy()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(session.dense(query(model)).tolist()))
    child.start()
    found = answers.get()
    child.join()
    assert found == wanted.tolist()
    assert session.dense(query(model)).tolist() == wanted.tolist()

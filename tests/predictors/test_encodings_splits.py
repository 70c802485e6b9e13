"""Properties of the flattened encoding and of the paper's splits."""

from __future__ import annotations

import contextlib
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.errors import GraphError, InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.encodings import FlatEncoding
from slotool.predictors.splits import MIN_DEV_ROWS, paper_split
from slotool.testing.predictors import random_networks, strange_network

GRAPHS = random_networks(20, seed=3) + random_networks(20, seed=3, kind="cnn")
ENCODING = FlatEncoding.fit(GRAPHS)


def branching() -> OperatorGraph:
    builder = GraphBuilder()
    first = builder.add("InputLayer", shape=[4])
    left = builder.add("Dense", first, units=4)
    right = builder.add("Dense", first, units=4, bias=False)
    builder.add("Add", [left, right])
    return builder.graph()


def renamed(graph: OperatorGraph, prefix: str) -> OperatorGraph:
    document = graph.document()
    for entry in document["operators"]:
        entry["name"] = prefix + entry["name"]
        entry["inputs"] = [prefix + name for name in entry.get("inputs", [])]
    return OperatorGraph.from_document(document)


def test_a_row_reads_as_the_paper_describes_it() -> None:
    encoding = FlatEncoding(("Add", "Dense"), nodes=5)
    row = encoding.transform([branching()])[0]
    types, weights, edges = np.split(row, [15, 20])
    # Slots: Add, Dense, and the unknown one, which InputLayer falls into; the fifth node is padding.
    assert types.reshape(5, 3).tolist() == [[0, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert weights.tolist() == [0, 20, 16, 0, 0]
    assert np.argwhere(edges.reshape(5, 5)).tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert np.array_equal(row[encoding.weight_columns], weights)


@given(st.sampled_from(GRAPHS), st.text("abc_.", min_size=1, max_size=5))
def test_names_of_operators_play_no_part(graph: OperatorGraph, prefix: str) -> None:
    rows = ENCODING.transform([graph, renamed(graph, prefix)])
    assert np.array_equal(rows[0], rows[1])


def test_different_networks_have_different_rows() -> None:
    assert len({row.tobytes() for row in ENCODING.transform(GRAPHS)}) == len(GRAPHS)


@given(st.lists(st.sampled_from(GRAPHS), min_size=1, max_size=8), st.sampled_from(GRAPHS))
def test_state_round_trips(training: list[OperatorGraph], graph: OperatorGraph) -> None:
    encoding = FlatEncoding.fit([*training, graph])
    again = FlatEncoding.from_state(json.loads(json.dumps(encoding.state())))
    assert again == encoding
    assert np.array_equal(again.transform([graph]), encoding.transform([graph]))


def test_unknown_operators_share_a_slot() -> None:
    slots = len(ENCODING.operator_types) + 1
    assert ENCODING.transform([strange_network()])[0][2 * slots + slots - 1] == 1


def test_no_graphs_and_too_many_operators_are_sentences() -> None:
    with pytest.raises(GraphError, match="no graphs"):
        FlatEncoding.fit([])
    with pytest.raises(GraphError, match="has 4 operators, but the encoding holds 3"):
        FlatEncoding(("Dense",), nodes=3).transform([branching()])


mixed = st.tuples(st.integers(0, 400), st.integers(0, 400)).map(lambda n: ["mlp"] * n[0] + ["cnn"] * n[1])


@given(mixed, st.integers(0, 5))
def test_splits_are_disjoint_cover_all_and_balance_the_kinds(kinds: list[str], seed: int) -> None:
    if len(kinds) < 260 or min(Counter(kinds).values()) < 2 * MIN_DEV_ROWS:
        with contextlib.suppress(InputError):
            paper_split(kinds, seed)
        return
    split = paper_split(kinds, seed)
    rows = np.concatenate([split.train, split.dev, split.test])
    assert sorted(rows) == list(range(len(kinds)))
    assert len(split.dev) == len(split.test) >= MIN_DEV_ROWS
    for part in (split.dev, split.test):
        assert len(set(Counter(kinds[i] for i in part).values())) == 1
    for kind, count in Counter(kinds).items():
        assert sum(kinds[i] == kind for i in split.train) >= count / 2


@pytest.mark.parametrize(
    ("kinds", "shares"),
    [
        (["mlp"] * 1000, (0.8, 0.1, 0.1)),
        (["cnn"] * 1000, (0.7, 0.15, 0.15)),
        (["mlp"] * 700 + ["cnn"] * 300, (0.85, 0.075, 0.075)),
    ],
)
def test_splits_have_the_papers_shares(kinds: list[str], shares: tuple[float, float, float]) -> None:
    split = paper_split(kinds, seed=0)
    assert [len(part) / 1000 for part in (split.train, split.dev, split.test)] == pytest.approx(shares, abs=0.003)


@pytest.mark.parametrize("kinds", [[], ["mlp"] * 170, ["cnn"] * 110, ["mlp"] * 300 + ["cnn"] * 30])
def test_too_few_rows_are_a_sentence(kinds: list[str]) -> None:
    with pytest.raises(InputError, match="too few labelled graphs to split"):
        paper_split(kinds, seed=0)


@pytest.mark.parametrize(
    ("kinds", "needed"),
    [
        (["mlp"] * 8, {"mlp": 175}),
        (["cnn"] * 8, {"cnn": 117}),
        (["mlp"] * 3 + ["cnn"] * 9, {"mlp": 191, "cnn": 36}),
    ],
)
def test_the_number_of_rows_needed_is_named_and_suffices(kinds: list[str], needed: dict[str, int]) -> None:
    with pytest.raises(InputError, match="at least ") as refused:
        paper_split(kinds, seed=0)
    stated = str(refused.value)
    rows = sum(needed.values())
    assert f"at least {rows} are needed" in stated
    enough = [kind for kind, count in needed.items() for _ in range(count)]
    assert len(paper_split(enough, seed=0).dev) >= 18
    with pytest.raises(InputError):
        paper_split(enough[1:], seed=0)


def test_splits_honour_their_seed() -> None:
    kinds = ["mlp"] * 200
    first, same, other = (paper_split(kinds, seed).test.tolist() for seed in (1, 1, 2))
    assert first == same != other

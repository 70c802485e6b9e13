"""Operators of many graphs as arrays, against looking at one graph and one operator after the other."""

from __future__ import annotations

import numpy as np
import pytest

from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.encodings import Batch, OperatorArrays, operator_measures
from slotool.testing.predictors import random_networks


def skipping(units: int) -> OperatorGraph:
    """Whose operators take what stands far before them, and one value twice; names are those of other networks."""
    builder = GraphBuilder("mlp")
    first = builder.add("InputLayer", shape=[units], name="a")
    second = builder.add("InputLayer", shape=[units], name="b")
    dense = builder.add("Dense", first, units=units, activation="relu", name="c")
    twice = builder.add("Add", [dense, dense], name="d")
    builder.add("Concatenate", [second, twice, first], name="e")
    return builder.graph()


GRAPHS = [*random_networks(4, seed=2), skipping(8), *random_networks(3, seed=2, kind="cnn"), skipping(5), skipping(8)]


@pytest.mark.parametrize("graphs", [GRAPHS, Batch(GRAPHS), GRAPHS[4:5], []], ids=["list", "batch", "one", "none"])
def test_arrays_are_those_of_each_graph_one_after_the_other(graphs: list[OperatorGraph]) -> None:
    arrays = OperatorArrays.of(graphs)
    operators = [operator for graph in graphs for operator in graph.operators]
    assert [arrays.distinct[row] for row in arrays.rows] == operators
    assert len(arrays.distinct) == len({id(operator) for operator in operators})
    assert [arrays.types[0][kind] for kind in arrays.types[1]] == [operator.op for operator in operators]
    edges, before = [], 0
    for number, graph in enumerate(graphs):
        at = {operator.name: i for i, operator in enumerate(graph.operators, start=before)}
        edges += [(at[name], at[operator.name]) for operator in graph.operators for name in operator.inputs]
        assert arrays.owners[before : before + len(at)].tolist() == [number] * len(at)
        assert np.array_equal(arrays.measures[before : before + len(at)], operator_measures(graph))
        before += len(at)
    assert list(zip(*(ends.tolist() for ends in arrays.edges), strict=True)) == edges
    assert len(arrays.measures) == before


def test_a_part_is_what_its_graphs_alone_are() -> None:
    for first, last in ((0, 4), (4, 5), (3, 9), (10, 10)):
        part, alone = OperatorArrays.of(GRAPHS).part(first, last), OperatorArrays.of(GRAPHS[first:last])
        assert np.array_equal(part.measures, alone.measures)
        assert [part.distinct[row] for row in part.rows] == [alone.distinct[row] for row in alone.rows]
        assert [part.types[0][kind] for kind in part.types[1]] == [alone.types[0][kind] for kind in alone.types[1]]
        assert all(np.array_equal(own, other) for own, other in zip(part.edges, alone.edges, strict=True))


def test_an_operator_knows_the_shapes_that_it_takes() -> None:
    for graph in GRAPHS:
        shapes = {operator.name: operator.shape for operator in graph.operators}
        for operator in OperatorGraph.from_document(graph.document()).operators:
            assert operator.input_shapes == tuple(shapes[name] for name in operator.inputs)

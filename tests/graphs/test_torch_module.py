"""A graph as a torch module: every operator has the shape, the weights and the numbers that it says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slotool.errors import GraphError
from slotool.graphs import OPERATORS, GraphBuilder, OperatorGraph
from slotool.graphs.operators import OperatorType
from slotool.graphs.torch_module import GraphModule
from slotool.profiling.backends.torch_backend import TorchBackend
from tests.graphs.operator_cases import (
    CASES,
    case_names,
    computed_places,
    constants_meet_data,
    graph_of,
    shared_backend,
)
from tests.graphs.test_operator_vocabulary import CASES as IN_TORCH


def test_every_operator_can_be_built() -> None:
    not_built = {op for op, kind in OPERATORS.items() if type(kind).torch is OperatorType.torch}
    assert not_built == {"InputLayer", "Constant"}


@pytest.mark.parametrize(("op", "attributes", "sources"), CASES, ids=case_names())
def test_an_operator_leaves_its_shape_and_has_its_weights(op: str, attributes: dict, sources: list) -> None:
    graph = graph_of(op, attributes, sources)
    module = GraphModule(graph).eval()
    inputs = [torch.from_numpy(values) for values in shared_backend(TorchBackend).feeds(graph, 3)]
    if attributes.get("function") == "asin":
        inputs = [x.tanh() for x in inputs]  # of values beyond 1 it is NaN, which equals nothing
    with torch.inference_mode():
        together, alone = module(*inputs), module(*(x[1:2] for x in inputs))
    assert tuple(together.shape) == (3, *graph.output_shape)
    assert sum(tensor.numel() for tensor in module.state_dict().values()) - counters(module) == graph.weights
    torch.testing.assert_close(together[1:2], alone)


def counters(module: nn.Module) -> int:
    """torch counts the batches that a BatchNorm has seen, which is no weight."""
    return sum(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) for part in module.modules())


# A graph holds no exponent; torch takes the variance of a sample, and another epsilon.
OTHERWISE = ("Elementwise", "Variance", "RMSNormalization")


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("op", "attributes", "shapes", "in_torch"), [case for case in IN_TORCH if case[0] not in OTHERWISE]
)
def test_an_operator_computes_what_torch_does(op: str, attributes: dict, shapes: list, in_torch: nn.Module) -> None:
    kinds = {"Gather": {1: "int64"}, "GatherElements": {1: "int64"}, "Scatter": {1: "int64"}, "Where": {0: "bool"}}
    sources = [(shape, kinds.get(op, {}).get(at, "float32")) for at, shape in enumerate(shapes)]
    graph = graph_of(op, attributes, sources)
    module, inputs = GraphModule(graph).eval(), []
    for shape, kind in sources:
        values = torch.randn(2, *shape, generator=torch.Generator().manual_seed(len(inputs)))
        # The references look up place 0 alone.
        inputs.append(
            values > 0 if kind == "bool" else values if kind == "float32" else torch.zeros_like(values).long()
        )
    if isinstance(in_torch, nn.Module):
        names = [name for name, _ in module.named_parameters()]
        module.load_state_dict(dict(zip(names, in_torch.parameters(), strict=True)), strict=False)
    with torch.inference_mode():
        found, wanted = module(*inputs), in_torch(*inputs)
    torch.testing.assert_close(found, wanted[0] if isinstance(wanted, tuple) else wanted)


@pytest.mark.parametrize("make", [constants_meet_data, computed_places])
def test_constants_and_lookups_are_within_bounds(make) -> None:
    graph, backend = make(), shared_backend(TorchBackend)
    together = backend.array(backend.prepare(graph, 3)())
    assert together.shape == (3, *graph.output_shape)
    alone = backend.feeds(graph, 3)[0][1:2]
    module = GraphModule(graph).eval()
    with torch.inference_mode():
        assert tuple(module(torch.from_numpy(alone)).shape) == (1, *graph.output_shape)
    assert sum(p.numel() for p in module.parameters()) == graph.weights


def test_tokens_are_drawn_from_the_vocabulary_and_masks_are_ones() -> None:
    builder = GraphBuilder()
    tokens = builder.add("InputLayer", shape=[50], dtype="int64")
    mask = builder.add("InputLayer", shape=[50], dtype="int64")
    last = builder.add("Embedding", tokens, vocabulary=9, units=2)
    builder.add("Multiply", [last, builder.add("Reshape", mask, shape=[50, 1])])
    ids, hidden = shared_backend(TorchBackend).feeds(builder.graph(), 4)
    assert (ids.shape, ids.dtype, hidden.shape) == ((4, 50), "int64", (4, 50))
    assert (ids.min(), ids.max()) == (0, 8)
    assert (hidden == 1).all()


def test_a_type_of_slotools_that_a_file_only_states_is_not_run() -> None:
    source = {"name": "x", "op": "InputLayer", "attributes": {"shape": [6]}}
    stated = {"name": "top", "op": "TopK", "inputs": ["x"], "attributes": {"k": 2}, "shape": [2], "weights": 5}
    with pytest.raises(GraphError, match="'top': TopK cannot be built in torch"):
        GraphModule(OperatorGraph.from_document({"operators": [source, stated]}))

"""Captures of torch: branches, loops, tensors that are written in place, and batches of several inputs at once."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from slotool.graphs import OperatorGraph
from slotool.graphs.capture import capture_torch


def own_flops(module: nn.Module, *shapes: tuple[int, ...]) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module.eval()(*(torch.zeros(1, *shape) for shape in shapes))
    return counter.get_total_flops()


def product_flops(graph: OperatorGraph) -> int:
    return sum(operator.flops for operator in graph.operators if operator.op in ("Dense", "Conv2D", "Conv3D", "MatMul"))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.short = nn.Linear(16, 16)
        self.long = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.short, self.long, (x,))


def test_of_two_branches_the_one_with_more_flops_counts():
    module = Branches()
    graph = capture_torch(module, (16,))
    assert [operator.op for operator in graph.operators] == ["InputLayer", "Constant", "Dense", "Dense"]
    assert graph.flops == graph.counted_flops == 2 * 2 * 16 * 64
    # The other branch is not run, and its weights are the network's all the same.
    assert graph.weights == sum(each.numel() for each in module.parameters()) == 2400
    # Counting FLOPs of one such network does not keep torch from exporting another.
    assert capture_torch(Branches(), (16,)).id == graph.id


class WordBranches(nn.Module):
    """Of whole numbers: which inputs it takes is found by running it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.branches = nn.Embedding(10, 16), Branches()

    def forward(self, ids: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return self.branches(self.embedding(ids) + shift[:, None, None])


@pytest.mark.parametrize("make", [Branches, WordBranches])
def test_capturing_branches_keeps_what_the_process_has_compiled(make):
    shape = (16,) if make is Branches else {"ids": (5,), "shift": ()}
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    double = torch.compile(lambda x: 2 * x, backend=backend)
    double(torch.ones(3))
    first, second = capture_torch(make(), shape), capture_torch(make(), shape)
    assert first.id == second.id
    assert first.matrix_flops == first.counted_flops
    double(torch.ones(3))
    assert len(compiled) == 1
    # Nor does a network that the user runs itself then fail to.
    inputs = [torch.zeros(2, 16)] if make is Branches else [torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2)]
    with torch.no_grad():
        assert make()(*inputs).shape[0] == 2


def test_weights_that_both_branches_or_a_later_layer_have_count_once():
    module = Branches()

    class After(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.branches.short(self.branches(x))

    graph = capture_torch(After(), (16,))
    assert graph.weights == 2400
    assert "Constant" not in {operator.op for operator in graph.operators}


class Loop(nn.Module):
    """Runs its body as often as ``kind`` has it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(16, 16), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.map import map as mapped
        from torch._higher_order_ops.scan import scan
        from torch._higher_order_ops.while_loop import while_loop

        if self.kind == "map":
            return mapped(self.layer, x.transpose(0, 1))
        if self.kind == "scan":
            start = torch.zeros_like(x[:, 0])
            return scan(lambda state, y: (torch.tanh(self.layer(state) + y), state + y), start, x, dim=1)[1]
        return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, self.layer(y)), (torch.tensor(0), x))[1]


@pytest.mark.parametrize("kind", ["map", "scan"])
def test_a_body_counts_for_each_step(kind: str):
    graph = capture_torch(Loop(kind), (7, 16))
    assert graph.flops == 7 * 2 * 16 * 16
    assert not graph.uncosted


def test_of_a_loop_that_ends_by_values_the_cost_is_unknown():
    assert capture_torch(Loop("while"), (7, 16)).uncosted == ("while_loop",)


class Written(nn.Module):
    """Keys and values are written into tensors of zeros, step by step or at once, as RWKV and caches do."""

    def __init__(self, steps: bool) -> None:
        super().__init__()
        self.project, self.steps = nn.Linear(16, 48), steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        keys, values = torch.zeros_like(key), x.new_zeros(x.shape[0], x.shape[1], 16)
        if self.steps:
            for at in range(x.shape[1]):
                keys[:, at] = key[:, at].tanh()
        else:
            keys[:, 1:] = key[:, 1:]
            keys[:, :1] = 0
        values[:, :] = value
        return torch.softmax(query @ keys.transpose(1, 2), -1) @ values


@pytest.mark.parametrize("steps", [True, False])
def test_what_is_written_into_a_part_of_a_tensor_is_read_from_it(steps: bool):
    module = Written(steps)
    graph = capture_torch(module, (8, 16))
    assert product_flops(graph) == graph.counted_flops == own_flops(module, (8, 16))
    assert not graph.unknown
    written = [operator for operator in graph.operators if operator.op == "Scatter"]
    assert len(written) == (8 if steps else 2)
    # The tensor is there already: only its part moves, with the operator that is written.
    assert {operator.moved for operator in written} == {0}


class Siamese(nn.Module):
    """One encoder over two images as one batch, parted again, and sampled at places (RAFT)."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.ReLU())

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first, second = torch.chunk(self.encode(torch.cat([a, b], dim=0)), 2, dim=0)
        windows = torch.einsum("bchw,bcij->bhwij", first, second).flatten(0, 2)[:, None]
        places = torch.zeros(1, 3, 3, 2) + windows[:, 0, :1, :1, None]
        return functional.grid_sample(windows, places, align_corners=True).flatten(1)


def test_two_inputs_as_one_batch_are_followed():
    module = Siamese()
    graph = capture_torch(module, {"a": (3, 6, 6), "b": (3, 6, 6)})
    assert not graph.unknown
    assert not graph.examples_interact
    assert product_flops(graph) == pytest.approx(own_flops(module, (3, 6, 6), (3, 6, 6)), rel=0.01)


class Heads(nn.Module):
    """A convolution over space and time of each head, all with the same kernel (MViT's pooling of keys)."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Conv3d(4, 4, 3, stride=(1, 2, 2), padding=1, groups=4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def test_a_convolution_of_three_axes_over_heads_is_known():
    module = Heads()
    graph = capture_torch(module, (2, 4, 5, 8, 8))
    assert not graph.unknown
    assert graph.flops == own_flops(module, (2, 4, 5, 8, 8))
    assert graph.operators[-1].shape == (2, 4, 5, 4, 4)


class LastState(nn.Module):
    def __init__(self, layers: int, bidirectional: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, (state, _) = self.lstm(x)
        return self.head(state[-1])


@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, False), (1, True), (3, True)])
def test_the_last_state_of_a_recurrent_layer_is_known(layers: int, bidirectional: bool):
    module = LastState(layers, bidirectional)
    graph = capture_torch(module, (10, 8))
    assert not graph.unknown
    assert graph.weights == sum(parameter.numel() for parameter in module.parameters())


class Stepped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.other, self.head = nn.LSTMCell(8, 16), nn.GRUCell(16, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, other = (x.new_zeros(len(x), 16),) * 2, x.new_zeros(len(x), 4)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            other = self.other(state[0], other)
        answer: torch.Tensor = self.head(other)
        return answer


def test_cells_are_recurrent_layers_over_one_step():
    module = Stepped()
    graph = capture_torch(module, (5, 8))
    assert not graph.unknown
    kinds = [operator.op for operator in graph.operators]
    assert (kinds.count("LSTM"), kinds.count("GRU")) == (5, 5)
    assert graph.matrix_flops == graph.counted_flops == 2 * (5 * (4 * 16 * (8 + 16) + 3 * 4 * (16 + 4)) + 4 * 2)
    assert graph.weights == sum(parameter.numel() for parameter in module.parameters())


class Translation(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.encoder, self.decoder = kind(12, 8, batch_first=True), kind(9, 8, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        _, state = self.encoder(x)
        answer: torch.Tensor = self.decoder(y, state)[0]
        return answer


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_decoder_that_begins_with_the_state_of_its_encoder_keeps_it(kind: type[nn.LSTM] | type[nn.GRU]):
    module = Translation(kind)
    graph = capture_torch(module, {"x": (7, 12), "y": (5, 9)})
    assert [operator.op for operator in graph.operators if operator.op != "Slice"][2:] == [kind.__name__] * 2
    assert graph.matrix_flops == graph.counted_flops
    assert graph.weights == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_of_embeddings_is_known(mode: str):
    graph = capture_torch(nn.EmbeddingBag(50, 8, mode=mode), (7,))
    assert [operator.op for operator in graph.operators] == ["InputLayer", "Embedding", mode.title()]
    assert graph.weights == 400

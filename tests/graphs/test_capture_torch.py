"""Capture from torch: the same network however it is written, what is unknown kept, what cannot be traced explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.nn import functional

from slotool.errors import GraphError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.capture import capture_torch, load_torch
from slotool.graphs.generators import RandomGraphs
from slotool.graphs.torch_module import GraphModule
from tests.graphs.graph_strategies import graphs


class Block(nn.Module):
    """A residual block with squeeze and excitation, written with layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.reduce, self.expand = nn.Linear(8, 2), nn.Linear(2, 8)
        self.pool, self.drop, self.head = nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu6(self.norm(self.conv(functional.pad(x, (0, 1, 0, 1)))), inplace=True)
        y = functional.silu(self.depthwise(x))
        gate = torch.sigmoid(self.expand(torch.relu(self.reduce(y.mean((2, 3))))))
        x = x + y * gate.view(-1, 8, 1, 1)
        return functional.softmax(self.head(self.drop(self.pool(x).flatten(1))), dim=-1)


def block_graph() -> OperatorGraph:
    builder = GraphBuilder()
    last = builder.add("InputLayer", shape=[3, 16, 16])
    last = builder.add("Conv2D", builder.add("ZeroPadding2D", last, padding=(0, 1, 0, 1)),
                       filters=8, kernel=3, stride=2, bias=False)  # fmt: skip
    x = builder.add("Activation", builder.add("BatchNormalization", last), activation="relu6")
    y = builder.add("DepthwiseConv2D", x, kernel=5, padding="same", activation="silu")
    gate = builder.add("Dense", builder.add("GlobalAveragePooling2D", y), units=2, activation="relu")
    gate = builder.add("Dense", gate, units=8, activation="sigmoid")
    last = builder.add("Multiply", [y, builder.add("Reshape", gate, shape=[8, 1, 1])])
    last = builder.add("GlobalAveragePooling2D", builder.add("Add", [x, last]))
    builder.add("Dense", last, units=10, activation="softmax")
    return builder.graph()


def test_a_module_is_captured_as_the_graph_one_would_write() -> None:
    graph = capture_torch(Block(), (3, 16, 16))
    assert [o.op for o in graph.operators] == [o.op for o in block_graph().operators]
    assert graph.id == block_graph().id
    assert graph.kind == "torch"


def test_random_networks_survive_torch_and_back() -> None:
    for family in ("mlp", "cnn"):
        for graph in RandomGraphs(family, 3, seed=1, max_memory_bytes=3_000_000):
            assert capture_torch(GraphModule(graph), graph.input_shape).id == graph.id


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_a_captured_graph_has_the_weights_and_the_output_of_its_module(graph: OperatorGraph) -> None:
    captured = capture_torch(GraphModule(graph), graph.input_shape)
    assert captured.output_shape == graph.output_shape
    # What a Normalization keeps are buffers: constants that nobody trained.
    assert captured.weights == graph.weights - sum(o.weights for o in graph.operators if o.op == "Normalization")
    if not captured.unknown:
        rebuilt = GraphModule(captured, device="meta")
        original = sum(p.numel() for p in GraphModule(graph, device="meta").parameters())
        assert sum(p.numel() for p in rebuilt.parameters()) == original


class Scaled(nn.Module):
    """Every channel times a parameter, as ConvNeXt and CaiT have it."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * x).relu() * self.scale


@pytest.mark.parametrize(
    ("sizes", "shape", "is_scale"),
    [
        ((4, 1, 1), (4, 6, 5), True),
        ((1, 4, 1, 1), (4, 6, 5), True),
        ((5,), (4, 6, 5), False),
        ((6, 5), (4, 6, 5), False),
        ((8,), (5, 8), True),
        ((5, 8), (5, 8), False),
        ((8,), (8,), True),
    ],
)
def test_a_factor_per_channel_is_a_layer_scale(sizes: tuple[int, ...], shape: tuple[int, ...], is_scale: bool) -> None:
    graph = capture_torch(Scaled(*sizes), shape)
    expected = "LayerScale" if is_scale else "Multiply"
    assert [o.op for o in graph.operators if o.op != "Constant"] == ["InputLayer", expected, "ReLU", expected]
    # Both are one parameter.
    assert graph.weights == torch.Size(sizes).numel()


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(5, 8))
        self.rnn = nn.LSTM(8, 4, batch_first=True)
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.rnn(x + self.position)
        first, second = self.head(x).chunk(2, dim=-1)
        return torch.special.bessel_j0(torch.cat([first, second], dim=-1).cumsum(1))


def test_unknown_operators_are_kept_with_their_shapes_and_weights() -> None:
    module = Strange()
    graph = capture_torch(module, (5, 8))
    assert graph.weights == sum(p.numel() for p in module.parameters())
    (unknown,) = graph.unknown
    assert (unknown.op, unknown.shape, unknown.flops) == ("torch.special_bessel_j0", (5, 4), 0)
    # It is priced by what it reads and writes.
    assert unknown.moved == 2 * 5 * 4
    assert graph.unknown_bytes_share == unknown.moved / sum(operator.moved for operator in graph.operators)
    known = {operator.op: operator for operator in graph.operators}
    # Five steps of a product with (8 + 4) inputs and 4 × 4 gates, as torch's counter has it.
    assert known["LSTM"].flops == 5 * 2 * (8 + 4) * 16
    assert {"Add", "Constant", "Slice", "CumulativeSum"} <= set(known)
    assert graph.output_shape == (5, 4)
    assert OperatorGraph.from_document(graph.document()).id == graph.id


class Eigen(nn.Module):
    """Uses both outputs of a call that slotool does not know, of which the first is the smaller."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, vectors = torch.linalg.eigh(x @ x.transpose(1, 2))
        return vectors * values[:, None]


def test_a_call_of_several_outputs_is_one_unknown_operator() -> None:
    graph = capture_torch(Eigen(), (8, 8))
    assert [(operator.op, operator.shape) for operator in graph.unknown] == [("torch.linalg_eigh", (8, 8))]
    assert graph.output_shape == (8, 8)
    assert graph.uncosted == ("linalg_eigh",)


class TwoInputs(nn.Module):
    """Tokens and a mask, whose answers are in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(30, 8), nn.Linear(8, 30, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor | None]:
        x = self.words(tokens)
        y = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=None if mask is None else mask[:, None])
        return {"hidden": None, "logits": self.head(y)}


def test_several_inputs_are_taken_by_name_with_their_types() -> None:
    module = TwoInputs()
    graph = capture_torch(module, {"tokens": (6,), "mask": (6,)}, {"tokens": "int64", "mask": "bool"})
    assert [(o.name, o.shape, o.attributes["dtype"]) for o in graph.inputs] == [
        ("tokens", (6,), "int64"), ("mask", (6,), "bool"),
    ]  # fmt: skip
    assert not graph.unknown
    assert graph.output_shape == (6, 30)
    # The head has the weights of the embedding.
    assert (graph.weights, graph.shared_weights) == (30 * 8, 30 * 8)
    alone = capture_torch(module, (6,))
    assert [o.attributes["dtype"] for o in alone.inputs] == ["int64"]
    longer = capture_torch(module, {"tokens": (12,)}, "int64")
    attention = [next(o.flops for o in g.operators if "Attention" in o.op) for g in (alone, longer)]
    assert attention[1] == 4 * attention[0]


@pytest.mark.parametrize(
    ("shape", "dtype", "sentence"),
    [
        ({"tokens": (6,), "maks": (6,)}, "int64", "takes no input 'maks'; its forward has tokens, mask"),
        ({"mask": (6,)}, "int64", "needs the input 'tokens'"),
        ({"tokens": (6,)}, {"mask": "bool"}, "input 'mask' has a dtype and no shape"),
        ({"tokens": (6, 0)}, None, "size below 1"),
    ],
)
def test_inputs_that_the_module_does_not_take_are_named(shape: dict, dtype: object, sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence):
        capture_torch(TwoInputs(), shape, dtype)


def test_within_inference_mode_the_same_graph_is_captured() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2), nn.Upsample(size=(9, 9), mode="bilinear"))
    outside = capture_torch(module, (3, 8, 8))
    with torch.inference_mode():
        assert capture_torch(module, (3, 8, 8)) == outside


def test_capture_leaves_the_module_in_the_modes_it_was_in_and_prints_nothing(capfd) -> None:
    module = Block()
    module.norm.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    capture_torch(module, (3, 16, 16))
    assert module.training
    assert module.drop.training
    assert not module.norm.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with pytest.raises(GraphError):
        capture_torch(Branching(), (3,))
    assert capfd.readouterr() == ("", "")


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("module", "shape", "sentence"),
    [
        (
            Branching(),
            (3,),
            "Branching cannot be traced on inputs of [3]: what its forward computes",
        ),
        (nn.LazyLinear(3), (5,), "LazyLinear has no weights yet: 'weight' is of a lazy layer"),
        (nn.Linear(3, 4), (5,), "Linear cannot run on inputs of [5], with a batch of 2 added in front: mat1 and mat2"),
        (nn.Conv2d(3, 4, 3), (1, 3, 8, 8), "leave out the batch: --input-shape 3,8,8"),
        (nn.Identity(), (5,), "Identity computes nothing from its input"),
        (nn.Linear(3, 4), (0,), "has a size below 1"),
        (nn.Linear(3, 4), (), "has a size below 1"),
    ],
)
def test_what_cannot_be_captured_is_explained(module: nn.Module, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(GraphError) as caught:
        capture_torch(module, shape)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


NETS = """
from torch import nn
def tiny():
    return nn.Linear(8, 4)
class Net(nn.Sequential):
    pass
made = nn.ReLU()
number = 3
def fails():
    raise ValueError("no weights here")
def text():
    return "net"
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "capture_nets.py").write_text(NETS)
    (tmp_path / "capture_broken.py").write_text("import not_a_package_anywhere\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("nets")
def test_a_factory_a_class_and_a_module_are_all_loaded() -> None:
    kinds = [type(load_torch(f"capture_nets:{name}")).__name__ for name in ("tiny", "Net", "made", "nn.ReLU")]
    assert kinds == ["Linear", "Net", "ReLU", "ReLU"]


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("capture_nets", "is not module:factory"),
        (":tiny", "is not module:factory"),
        ("capture_nix:tiny", "no module capture_nix in the current directory or installed"),
        ("capture_nix.deep:tiny", "no module capture_nix.deep in the current directory or installed"),
        ("capture_nets:nope", "module capture_nets has no nope"),
        ("capture_nets:number", "neither a torch.nn.Module nor a function making one"),
        ("capture_nets:text", "makes no torch.nn.Module, but something of type str"),
        ("capture_nets:fails", "calling capture_nets:fails() failed: ValueError: no weights here"),
        ("capture_broken:net", "importing capture_broken failed: ModuleNotFoundError: No module named"),
    ],
)
def test_what_names_no_module_is_explained(name: str, sentence: str) -> None:
    with pytest.raises(GraphError) as caught:
        load_torch(name)
    assert sentence in str(caught.value)


class Masked(nn.Module):
    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return tokens * mask * scale


def test_a_module_of_two_inputs_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        GraphError, match=r"Masked takes 2 inputs \(tokens, mask\): say the shape of each by its name, as tokens"
    ):
        capture_torch(Masked(), (4,))


def test_a_number_for_each_example_is_an_input_of_one_value() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(6, 4)

        def forward(self, strength: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.dense(x) * strength[:, None]

    graph = capture_torch(Scaled(), {"strength": (), "x": (6,)})
    assert [each.shape for each in graph.inputs] == [(1,), (6,)]
    assert not graph.unknown

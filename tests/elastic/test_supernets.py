"""Supernets: what they wrap, that every subnet is the one that could be cut out, and what they refuse."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.artifacts import create_artifact, open_artifact
from slotool.elastic import load_model
from slotool.elastic.evaluation import evaluate
from slotool.elastic.supernets import layers
from slotool.elastic.supernets.layers import LAYERS
from slotool.elastic.supernets.networks import patch_transformer, resnet
from slotool.elastic.supernets.plan import SubnetNorm, learning_plan, signatures
from slotool.elastic.supernets.space import Space, share_of, wrap
from slotool.elastic.supernets.supernet import STATISTICS_FILE, WEIGHTS_FILE, Supernet, measure
from slotool.errors import ArtifactError, InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.torch_module import GraphModule
from slotool.tables import OperatingPoint
from tests.elastic.elastic_conformance import ElasticModelConformance


def convolutional() -> OperatorGraph:
    """Its last stage has fewer positions than filters, its first more: both ways to convolve in part."""
    return resnet((1, 8, 8), 5, channels=(16, 32, 48), blocks=(2, 3, 2), ratio=0.5, stem=8)


def transformer() -> OperatorGraph:
    return patch_transformer((1, 8, 8), 5, patch=2, width=16, layers=3, heads=4, hidden=24)


def strange() -> OperatorGraph:
    """Plain, depthwise and grouped convolutions, uneven padding, a concatenation, layer norms, and a flattening."""
    builder = GraphBuilder()
    last = builder.add("InputLayer", shape=[2, 9, 9])
    last = builder.add("Conv2D", last, filters=12, kernel=2, stride=2, padding="same", activation="relu", name="stem")
    inner = builder.add("Conv2D", last, filters=10, kernel=3, padding="same", name="a")
    inner = builder.add("DepthwiseConv2D", inner, kernel=3, padding="same", name="b")
    inner = builder.add("BatchNormalization", builder.add("LayerNormalization", inner), scale=False)
    last = builder.add("Add", [last, builder.add("Conv2D", inner, filters=12, kernel=1, name="c")], name="sum")
    grouped = builder.add("Conv2D", last, filters=4, kernel=1, groups=2, name="grouped")
    last = builder.add("Concatenate", [grouped, builder.add("Conv2D", last, filters=6, kernel=1, name="beside")])
    last = builder.add("Conv2D", last, filters=8, kernel=3, activation="gelu", name="free")
    last = builder.add("Dense", builder.add("Flatten", last), units=20, activation="relu", name="hidden")
    builder.add("Dense", last, units=5, name="out")
    return builder.graph()


GRAPHS = {"convolutional": convolutional, "transformer": transformer, "strange": strange}


@cache
def made(name: str) -> tuple[Space, GraphModule, SubnetNorm, np.ndarray]:
    """Space, random weights, statistics as they come to be needed, and inputs to take them of."""
    torch.manual_seed(0)
    graph = GRAPHS[name]()
    module = GraphModule(graph, layers=LAYERS)
    for parameter in module.parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    x = np.random.default_rng(0).random((24, *graph.input_shape), dtype=np.float32)
    return wrap(graph, expand=(0.25, 0.6, 1.0), width=(0.5, 1.0)), module, SubnetNorm(), x


def supernet(name: str, drawn: int = 5) -> Supernet:
    space, module, norm, x = made(name)
    rng = np.random.default_rng(1)
    subnets = [space.largest, space.smallest, *(space.draw(rng) for _ in range(drawn))]
    measure(space, module, norm, subnets, x)
    return Supernet(name, space, module, norm, subnets)


@pytest.mark.parametrize("name", GRAPHS)
@settings(max_examples=8)
@given(data=st.data())
def test_every_actuated_subnet_is_the_one_extracted(name: str, data: st.DataObject) -> None:
    space, module, norm, x = made(name)
    subnet = tuple(data.draw(st.sampled_from(dimension.choices)) for dimension in space.dimensions)
    measure(space, module, norm, [subnet], x)
    model = Supernet("s", space, module, norm, [subnet])
    batch = x[: data.draw(st.sampled_from([1, 2, 7, 20]))]
    before = batch.copy()
    with torch.inference_mode():
        alone = model.extract(subnet)(torch.from_numpy(batch)).numpy()
    np.testing.assert_allclose(model.forward(batch, model.full), alone, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(batch, before)
    assert space.subnet(OperatingPoint.parse(space.point(subnet).key)) == subnet


@pytest.mark.parametrize("name", ["convolutional", "strange"])
def test_both_ways_to_convolve_have_one_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space, module, norm, x = made(name)
    answers = []
    for work, images in ((0, sys.maxsize), (sys.maxsize, 1), (layers.SMALL_WORK, layers.POINTWISE_IMAGES)):
        monkeypatch.setattr(layers, "SMALL_WORK", work)
        monkeypatch.setattr(layers, "POINTWISE_IMAGES", images)
        measure(space, module, norm, [space.smallest, space.largest], x)
        model = Supernet("s", space, module, norm, [space.smallest, space.largest])
        answers.append([model.forward(x[:n], point) for n in (1, 3, 20) for point in model.points])
    for one, other, chosen in zip(*answers, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(one, chosen, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", GRAPHS)
def test_all_points_answer_by_the_same_weights(name: str) -> None:
    """Nothing was copied for a point: a change of the shared weights is seen at each."""
    model, x = supernet(name), made(name)[3]
    last = model.module.of[model.space.graph.operators[-1].name]
    kept = last.weight.clone()
    try:
        last.weight.zero_()
        for point in model.points:
            np.testing.assert_allclose(model.forward(x[:2], point), np.tile(last.bias.numpy(), (2, 1)))
    finally:
        last.weight.copy_(kept)


@pytest.mark.parametrize("name", GRAPHS)
@settings(max_examples=3)
@given(data=st.data())
def test_training_sees_the_network_that_answers(name: str, data: st.DataObject) -> None:
    """With the statistics of its own batch, which learning uses, and gradients into shared weights."""
    space, module, norm, x = made(name)
    subnet = tuple(data.draw(st.sampled_from(dimension.choices)) for dimension in space.dimensions)
    measure(space, module, norm, [subnet], x)
    answers = Supernet("s", space, module, norm, [subnet]).forward(x, space.point(subnet))
    module.requires_grad_(True)
    learnt = learning_plan(space.narrowed(subnet), module)(torch.from_numpy(x))
    np.testing.assert_allclose(learnt.detach().numpy(), answers, rtol=1e-3, atol=1e-3)
    learnt.sum().backward()
    first = next(module.parameters())
    assert first.grad is not None
    assert first.grad.shape == first.shape
    module.zero_grad()


class TestConvolutional(ElasticModelConformance):
    @pytest.fixture
    def model(self) -> Supernet:
        return supernet("convolutional")

    def plain(self, model: Supernet, x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model.extract(model.space.largest)(torch.from_numpy(x)).numpy()


class TestTransformer(TestConvolutional):
    @pytest.fixture
    def model(self) -> Supernet:
        return supernet("transformer")


def test_what_is_found_in_a_residual_network() -> None:
    space = made("convolutional")[0]
    assert [(dimension.name, len(dimension.choices)) for dimension in space.dimensions] == [
        ("depth", 2), ("expand", 3), ("depth", 3), ("expand", 3), ("depth", 2), ("expand", 3), ("width", 2),
    ]  # fmt: skip
    assert space.size == 2 * 3 * 3 * 3 * 2 * 3 * 2
    assert space.flops(space.largest) > 4 * space.flops(space.smallest)
    assert space.narrowed(space.largest).id == space.graph.id
    shallow = space.narrowed((1, *space.largest[1:]))
    assert not any(operator.name.startswith("stage0_block1") for operator in shallow.operators)


def test_what_is_found_in_a_transformer() -> None:
    space = made("transformer")[0]
    assert [dimension.name for dimension in space.dimensions] == ["depth", "expand", "heads", "width"]
    assert [block.exit for block in space.dimensions[0].blocks] == ["layer1_out", "layer2_out"]


def test_layers_that_cannot_change_alone_keep_their_size() -> None:
    space = made("strange")[0]
    chosen = {name for dimension in space.dimensions for name in dimension.operators}
    assert {"a", "free", "hidden"} <= chosen
    assert chosen.isdisjoint({"grouped", "beside", "out"})


def test_a_network_with_nothing_to_choose_is_refused() -> None:
    builder = GraphBuilder()
    builder.add("Dense", builder.add("InputLayer", shape=[4]), units=3)
    with pytest.raises(InputError, match="nothing to vary"):
        wrap(builder.graph(), width=(0.5, 1.0))
    with pytest.raises(InputError, match=r"expand: shares ascend from above 0 to 1, not 0\.5, 0\.25"):
        wrap(convolutional(), expand=(0.5, 0.25))
    with pytest.raises(InputError, match="-1 blocks cannot be left out"):
        wrap(convolutional(), drop=-1)


@given(st.integers(1, 4_096), st.floats(0.01, 1.0))
def test_a_share_is_some_of_the_whole(whole: int, share: float) -> None:
    size = share_of(whole, share)
    assert 1 <= size <= whole
    assert size % 8 == 0 or whole % 8 != 0 or whole < 32
    assert share_of(whole, 1.0) == whole


def test_statistics_are_shared_up_to_where_subnets_part() -> None:
    space, module, _, x = made("convolutional")
    norm, last = SubnetNorm(), len(space.dimensions) - 2
    parted = (*space.largest[:last], 0.25, space.largest[-1])
    measure(space, module, norm, [space.largest], x)
    alone = norm.rows
    measure(space, module, norm, [parted], x)
    ours, theirs = (signatures(space.narrowed(subnet)) for subnet in (space.largest, parted))
    layers = [operator.name for operator in space.graph.operators if operator.op == "BatchNormalization"]
    differ = [name for name in layers if ours[name] != theirs[name]]
    assert norm.rows - alone == len(differ)
    assert all(name.startswith("stage2") for name in differ)
    channels = [o.shape[0] for o in space.graph.operators if o.name in layers]
    channels += [o.shape[0] for o in space.narrowed(parted).operators if o.name in differ]
    assert norm.bytes == 2 * 4 * sum(channels), "a float32 mean and variance per channel, and nothing twice"


def test_statistics_of_its_own_are_what_a_subnet_answers_by() -> None:
    """With those of the largest subnet the smallest would answer otherwise: why SubnetNorm exists."""
    space, module, norm, x = made("convolutional")
    measure(space, module, norm, [space.smallest, space.largest], x)
    alone = Supernet("s", space, module, norm, [space.smallest]).extract(space.smallest)
    largest = Supernet("s", space, module, norm, [space.largest]).extract(space.largest)
    with torch.inference_mode():
        right = alone(torch.from_numpy(x)).numpy()
        for name, layer in alone.of.items():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.running_mean.copy_(largest.of[name].running_mean[: layer.num_features])
                layer.running_var.copy_(largest.of[name].running_var[: layer.num_features])
        wrong = alone(torch.from_numpy(x)).numpy()
    assert np.abs(right - wrong).max() > 0.1 * np.abs(right).max()


def test_missing_statistics_unknown_subnets_and_wrong_shapes_are_refused() -> None:
    space, module, _, x = made("convolutional")
    with pytest.raises(InputError, match="statistics of 'stem_norm' are missing for this subnet"):
        Supernet("s", space, module, SubnetNorm(), [space.largest])
    with pytest.raises(InputError, match=r"batch statistics need inputs \(1, 8, 8\), not \(1, 9, 9\)"):
        measure(space, module, SubnetNorm(), [space.largest], np.zeros((4, 1, 9, 9), np.float32))
    with pytest.raises(InputError, match=r"expand cannot be 0\.3; it is one of 0\.25, 0\.6, 1"):
        space.require((1, 0.3, 1, 1, 1, 1, 1))
    with pytest.raises(InputError, match="has 7 values, not 1"):
        space.require((1,))
    for key in ("depth=1", "k=0.5", "depth=1-1-1-1,expand=1-1-1,width=1", "depth=a-1-1,expand=1-1-1,width=1"):
        with pytest.raises(
            InputError, match="is no subnet of this network; a subnet is written as depth=1-1-1,expand="
        ):
            space.subnet(OperatingPoint.parse(key))
    with pytest.raises(InputError, match=r"has no operating point k=0\.5; it has 7: "):
        supernet("convolutional").forward(x[:1], OperatingPoint.of(k=0.5))


def test_evaluation_takes_it_as_any_model() -> None:
    from slotool.data.dataset import Split

    model, x = supernet("transformer"), made("transformer")[3]
    outcomes = evaluate(model, Split(x, np.arange(len(x)) % 5), repeats=1)
    assert outcomes.versions == [point.key for point in model.points]


def test_a_bundle_whose_parts_do_not_belong_together_is_refused(tmp_path: Path) -> None:
    supernet("convolutional").save(tmp_path / "good", config={}, seed=0)
    good = open_artifact(tmp_path / "good")
    weights, rows = good.tensors(WEIGHTS_FILE), good.tensors(STATISTICS_FILE)
    narrow = {name: values[:, :-1] for name, values in rows.items()}
    for name, tensors, statistics, sentence in (
        ("torn", {}, rows, "more weights than there are"),
        ("short", weights, narrow, "do not fit their index"),
        ("misshapen", {name: values.reshape(-1) for name, values in weights.items()}, rows, "has the shape"),
    ):
        with create_artifact(tmp_path / name, "supernet", config={}) as bundle:
            for file in ("space.json", "subnets.json"):
                bundle.write_json(file, good.json(file))
            bundle.write_tensors(WEIGHTS_FILE, tensors)
            bundle.write_tensors(STATISTICS_FILE, statistics)
        with pytest.raises(ArtifactError, match=sentence):
            load_model(str(tmp_path / name))


def test_a_space_that_calls_its_dimensions_dials_is_read() -> None:
    space = wrap(convolutional())
    document = space.document()
    older = {"graph": document["graph"], "dials": document["dimensions"]}
    assert Space.from_document(older).dimensions == space.dimensions

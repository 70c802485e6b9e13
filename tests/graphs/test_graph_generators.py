"""Random networks: as many as wanted, all unique, the same for the same seed, and an end when there are no more."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path

import pytest
import torch

from slotool.errors import InputError
from slotool.graphs.generators import BLOCKS, DOWNSAMPLING, MLP_SPACE, RandomGraphs, SearchSpace
from slotool.graphs.store import write_graphs
from slotool.graphs.torch_module import GraphModule


@pytest.mark.parametrize("family", ["mlp", "cnn"])
def test_networks_are_different_and_within_the_papers_bounds(family: str) -> None:
    graphs = list(RandomGraphs(family, 600, seed=1))
    assert len({graph.id for graph in graphs}) == 600
    assert {graph.kind for graph in graphs} == {family}
    hidden = [
        [o.shape[0] for o in graph.operators[:-1] if o.attributes.get("activation") == "relu"] for graph in graphs
    ]
    assert {len(sizes) for sizes in hidden} == set(range(3, 11))
    greatest = 14 if family == "mlp" else 10
    assert {size for sizes in hidden for size in sizes} == {2**e for e in range(greatest + 1)}
    assert {graph.output_shape for graph in graphs} == {(10,)}


def test_an_mlp_and_a_cnn_are_built_as_documented() -> None:
    (mlp,) = RandomGraphs("mlp", 1, space=SearchSpace((1, 1), (3, 3), (784,)))
    assert [o.op for o in mlp.operators] == ["InputLayer", "Dense", "Dense"]
    assert mlp.weights == 784 * 8 + 8 + 8 * 10 + 10
    (cnn,) = RandomGraphs("cnn", 1, space=SearchSpace((2, 2), (2, 2), (3, 32, 32)))
    assert [o.op for o in cnn.operators] == ["InputLayer", "Conv2D", "Conv2D", "GlobalAveragePooling2D", "Dense"]
    assert cnn.weights == (27 * 4 + 4) + (36 * 4 + 4) + (4 * 10 + 10)
    assert cnn.operators[2].shape == (4, 32, 32)


def test_same_seed_same_networks_and_a_longer_run_only_adds() -> None:
    first = [graph.id for graph in RandomGraphs("mlp", 50, seed=3)]
    assert [graph.id for graph in RandomGraphs("mlp", 80, seed=3)][:50] == first
    assert [graph.id for graph in RandomGraphs("mlp", 50, seed=4)] != first


def test_the_shipped_networks_are_those_of_their_seed_for_ever() -> None:
    first = {family: next(RandomGraphs(family, 1, seed=1)).id for family in ("mlp", "cnn")}
    assert first == {"mlp": "c1fd1e21e66d4539", "cnn": "b4de7a36aa022bef"}


@pytest.mark.parametrize(
    ("family", "digest"),
    [
        ("mlp", "49384363b0b862ed3c1417b952459e8fe15447650714e07007c99aa78b52da97"),
        ("cnn", "54d2cf1d34f61a7a43ab1edb082aaef224f91ea96d004114b57d15ac08f3626f"),
    ],
)
def test_the_papers_networks_are_written_byte_for_byte_as_ever(family: str, digest: str, tmp_path: Path) -> None:
    """As before there were other blocks, resolutions, or names."""
    write_graphs(tmp_path / "graphs.jsonl", RandomGraphs(family, 20, seed=1, max_memory_bytes=4 * 10**9))
    assert hashlib.sha256((tmp_path / "graphs.jsonl").read_bytes()).hexdigest() == digest


ALL_KINDS = {"blocks": tuple(BLOCKS), "downsampling": DOWNSAMPLING, "resolutions": (4, 8)}


def test_other_blocks_downsampling_and_resolutions_are_drawn_and_run() -> None:
    graphs = list(RandomGraphs("cnn", 200, seed=1, space=SearchSpace((3, 6), (0, 4), (3, 32, 32), **ALL_KINDS)))
    operators = {o.op for graph in graphs for o in graph.operators}
    assert operators >= {"Conv2D", "DepthwiseConv2D", "SeparableConv2D", "BatchNormalization", "LayerNormalization"}
    assert operators >= {"LayerScale", "Add", "Multiply", "Concatenate", "ReLU", "Activation", "MaxPooling2D"}
    assert {o.attributes.get("stride") for g in graphs for o in g.operators if o.op == "Conv2D"} == {None, 2}
    assert {graph.input_shape for graph in graphs} == {(3, 4, 4), (3, 8, 8)}
    for graph in graphs[:25]:
        with torch.inference_mode():
            assert GraphModule(graph)(torch.zeros(2, *graph.input_shape)).shape == (2, 10)


def test_all_networks_of_all_kinds_can_be_had_once_each() -> None:
    space = SearchSpace((1, 2), (0, 1), (3, 8, 8), **ALL_KINDS)
    assert space.size == 2 * (54 + 54 * 54)
    assert len({graph.id for graph in RandomGraphs("cnn", space.size, space=space)}) == space.size


def test_the_memory_limit_is_that_of_the_batch() -> None:
    space = SearchSpace((2, 4), (0, 6), (3, 32, 32))
    alone = RandomGraphs("cnn", 50, 1, space, max_memory_bytes=2_000_000)
    together = RandomGraphs("cnn", 50, 1, space, max_memory_bytes=2_000_000, batch_size=8)
    assert all(graph.memory_bytes(8) <= 2_000_000 for graph in together)
    assert any(graph.memory_bytes(8) > 2_000_000 for graph in alone)
    assert together.skipped > alone.skipped


def test_all_networks_of_the_search_space_can_be_had_but_not_one_more() -> None:
    space = SearchSpace((1, 3), (0, 3), (5,))
    assert space.size == 4 + 16 + 64
    assert len({graph.id for graph in RandomGraphs("mlp", 84, space=space)}) == 84
    with pytest.raises(InputError, match="85 networks wanted, but the search space has only 84"):
        RandomGraphs("mlp", 85, space=space)


def test_networks_over_the_memory_limit_are_passed_over_counted_and_replaced() -> None:
    limit = 40_000_000
    graphs = RandomGraphs("mlp", 100, seed=2, max_memory_bytes=limit)
    kept = list(graphs)
    assert len({graph.id for graph in kept}) == 100
    assert max(graph.memory_bytes() for graph in kept) <= limit
    everything = RandomGraphs("mlp", 100 + graphs.skipped, seed=2)
    assert sum(graph.memory_bytes() > limit for graph in everything) == graphs.skipped > 0


def test_a_memory_limit_that_leaves_too_few_ends_the_search() -> None:
    space = SearchSpace((2, 2), (0, 3), (4,))
    sizes = sorted(graph.memory_bytes() for graph in RandomGraphs("mlp", 16, space=space))
    fitting = sum(size <= sizes[9] for size in sizes)
    graphs = RandomGraphs("mlp", 16, space=space, max_memory_bytes=sizes[9])
    with pytest.raises(InputError, match=f"found only {fitting} of 16 networks"):
        list(graphs)
    with pytest.raises(InputError, match="the smallest network in this search space takes"):
        RandomGraphs("mlp", 1, space=MLP_SPACE, max_memory_bytes=1000)


def test_drawing_is_lazy() -> None:
    assert len(list(islice(RandomGraphs("mlp", 10**9), 3))) == 3


@pytest.mark.parametrize(
    "bad",
    [
        {"depth": (0, 3), "exponents": (0, 3), "input_shape": (4,)},
        {"depth": (5, 3), "exponents": (0, 3), "input_shape": (4,)},
        {"depth": (1, 3), "exponents": (-1, 3), "input_shape": (4,)},
        {"depth": (1, 3), "exponents": (0, 99), "input_shape": (4,)},
        {"depth": (1, 3), "exponents": (0, 3), "input_shape": (0,)},
        {"depth": (1, 3), "exponents": (0, 3), "input_shape": ()},
        {"depth": (1, 3), "exponents": (0, 3), "input_shape": (3, 8, 8), "blocks": ("dens",)},
        {"depth": (1, 3), "exponents": (0, 3), "input_shape": (3, 8, 8), "blocks": ()},
        {"depth": (1, 3), "exponents": (0, 3), "input_shape": (3, 8, 8), "downsampling": ("pool", "pool")},
        {"depth": (1, 3), "exponents": (0, 3), "input_shape": (3, 8, 8), "resolutions": (0,)},
    ],
)
def test_bounds_that_hold_nothing_are_refused(bad: dict) -> None:
    with pytest.raises(InputError):
        SearchSpace(**bad)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(InputError, match="there are mlp, cnn"):
        RandomGraphs("rnn", 1)


def test_every_block_is_told_of(slotool) -> None:
    told = slotool("generate", "cnn", "--help").stdout
    assert all(name in told for name in BLOCKS)

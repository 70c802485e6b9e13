"""Networks of the kinds that people use: drawn, built and run as documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import slotool
from slotool.errors import ArgumentError, InputError
from slotool.graphs.architectures import ARCHITECTURES, RandomArchitectures
from slotool.graphs.generators import NetworkLimits
from slotool.graphs.store import read_graphs
from slotool.profiling.backends.torch_backend import TorchBackend
from tests.graphs.operator_cases import shared_backend

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "random-networks.md").read_text()
PUBLISHED = {
    # Parameters and FLOPs as published, 2 FLOPs a multiply-add; small differences lie in heads and paddings.
    ("resnet", (224, 64, (3, 4, 6, 3), "bottleneck", 0, "relu", 1000)): (25.6e6, 8.2e9),
    ("convnext", (224, 96, (3, 3, 9, 3), 7, 4, True, 1000)): (28.6e6, 9.0e9),
    ("vit", ((224, 16), 384, 12, 64, 4, False, False, 1000)): (22.1e6, 9.2e9),
    ("swin", ((7, 1), 96, (2, 2, 6, 2), 4, 1000)): (28.3e6, 9.0e9),
    ("mixer", ((224, 16), 512, 8, 256, 4, 1000)): (18.5e6, 7.6e9),
    ("gpt", (64, 50257, 768, 12, 64, 4)): (163e6 - (1024 - 64) * 768, 64 * 2 * 123.7e6),
}  # fmt: skip


@pytest.mark.parametrize("kind", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_the_smallest_of_each_kind_runs(kind) -> None:
    graph, backend = kind.graph((0,) * len(kind.sizes)), shared_backend(TorchBackend)
    assert graph.kind == kind.name
    assert not graph.unknown
    assert backend.array(backend.prepare(graph, 1)()).shape == (1, *graph.output_shape)


@pytest.mark.parametrize(("name", "sizes"), PUBLISHED, ids=[name for name, _ in PUBLISHED])
def test_a_published_network_of_the_kind_has_its_weights_and_flops(name: str, sizes: tuple) -> None:
    from slotool.graphs import GraphBuilder

    kind, builder = ARCHITECTURES[name], GraphBuilder()
    kind.build(builder, **dict(zip(kind.sizes, sizes, strict=True)))
    graph, (weights, flops) = builder.graph(), PUBLISHED[name, sizes]
    assert graph.weights == pytest.approx(weights, rel=0.02)
    assert graph.matrix_flops == pytest.approx(flops, rel=0.05)


def test_same_seed_same_networks_within_limits() -> None:
    limits = NetworkLimits(memory_bytes=100_000_000, flops=500_000_000)
    graphs = RandomArchitectures(list(ARCHITECTURES), 40, 3, limits)
    drawn = list(graphs)
    assert len({graph.id for graph in drawn}) == 40
    assert len({graph.kind for graph in drawn}) > 6
    assert all(graph.flops <= limits.flops and graph.memory_bytes() <= limits.memory_bytes for graph in drawn)
    assert graphs.skipped > 0
    again = RandomArchitectures(list(ARCHITECTURES), 20, 3, limits)
    assert [graph.id for graph in again] == [graph.id for graph in drawn[:20]]
    assert drawn[0].id == "57ce6905d1733129"  # As long as this kind draws so.


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name each once, from resnet"):
        RandomArchitectures(["vit", "cubist"], 1)
    with pytest.raises(InputError, match="the smallest network in this search space takes"):
        RandomArchitectures(["gpt"], 1, limits=NetworkLimits(flops=1000))
    with pytest.raises(InputError, match="search space has only 840"):
        RandomArchitectures(["densenet"], 841)
    with pytest.raises(ArgumentError, match="has none, or its own"):
        slotool.generate_networks("architectures", tmp_path / "g.jsonl", blocks="residual")
    with pytest.raises(ArgumentError, match="a network of kind 'mlp' has none"):
        slotool.generate_networks("mlp", tmp_path / "g.jsonl", architectures="vit")


def test_the_command_writes_them(slotool, tmp_path: Path) -> None:
    done = slotool(
        "generate", "architectures", "-o", str(tmp_path / "g.jsonl"), "--count", "3", "--architectures", "vit,bert",
        "--max-gflops", "1", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert [graph.kind in ("vit", "bert") for graph in read_graphs(tmp_path / "g.jsonl")] == [True] * 3


def test_every_size_is_documented() -> None:
    for kind in ARCHITECTURES.values():
        (row,) = (line for line in DOCUMENT.splitlines() if line.startswith(f"| `{kind.name}` |"))
        assert kind.source in row
        for name, values in kind.sizes.items():
            shown = ", ".join(map(_shown, values))
            shared = re.search(rf"^\| `{name}` \| {re.escape(shown)} \| .*`{kind.name}`.* \|$", DOCUMENT, re.MULTILINE)
            assert shared or re.search(rf"`{name}` {re.escape(shown)}(;| \|)", row)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "×".join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)

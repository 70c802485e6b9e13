"""Element type and compiled-ness of a graph: part of its id and its file, and what slotool measures is float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slotool.errors import GraphError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.operators import Effect
from slotool.graphs.store import read_graphs, write_graphs

# What the network below was called before graphs knew of element types.
ID_OF_BEFORE = "56135a04a7e70169"


def plain() -> OperatorGraph:
    builder = GraphBuilder("mlp", "net")
    last = builder.add("Dense", builder.add("InputLayer", shape=[8]), units=4, activation="relu")
    builder.add("mine.Sort", last, stated=Effect((4,), 0, 64))
    return builder.graph()


def forms() -> list[OperatorGraph]:
    types = ("bfloat16", "float16", "int8", "bfloat16+float32")
    return [plain(), replace(plain(), compiled=True), *(replace(plain(), element_type=kind) for kind in types)]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_forms_come_back_from_a_file_and_differ_in_their_ids(tmp_path: Path, suffix: str) -> None:
    written = [replace(graph, counted_flops=64) for graph in forms()]
    write_graphs(tmp_path / f"forms{suffix}", written)
    read = list(read_graphs(tmp_path / f"forms{suffix}"))
    assert [(g.id, g.form, g.counted_flops) for g in read] == [(g.id, g.form, 64) for g in written]
    assert len({graph.id for graph in read}) == len(written)
    assert [graph.plain for graph in read] == [True, *[False] * (len(written) - 1)]


def test_a_float32_network_has_the_id_and_the_text_it_always_had() -> None:
    assert plain().id == ID_OF_BEFORE
    assert list(plain().document()) == ["kind", "name", "operators"]
    assert plain().text.startswith('{"kind":"mlp","name":"net","operators":[{"name":"inputlayer_0"')


def test_shares_of_what_is_unknown() -> None:
    graph = replace(plain(), counted_flops=256)
    assert (graph.unknown_share, graph.unknown_flops_share) == (0.5, 0.5)
    assert (graph.matrix_flops, graph.uncounted_flops_share) == (128, 0.5)
    assert (plain().uncounted_flops_share, plain().flops_mismatch) == (0.0, 0.0)
    assert graph.flops_mismatch == -0.5
    twice = replace(plain(), counted_flops=64)
    assert (twice.flops_mismatch, twice.uncounted_flops_share) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"element_type": 16}, "element_type is neither"),
        ({"element_type": ""}, "element_type is neither"),
        ({"element_type": "float16+"}, "element_type is neither"),
        ({"element_type": "half a float"}, "element_type is neither"),
        ({"elment_type": "float16"}, "unknown key 'elment_type'"),
        ({"compiled": "yes"}, "compiled is neither true nor false"),
        ({"examples_interact": 1}, "examples_interact is neither true nor false"),
        ({"counted_flops": -1}, "counted_flops is no whole number"),
        ({"counted_flops": True}, "counted_flops is no whole number"),
    ],
)
def test_a_form_that_is_none_is_refused(stated: dict, sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence):
        OperatorGraph.from_document({**plain().document(), **stated})


@pytest.mark.parametrize(("at", "form"), [(1, "compiled float32"), (2, "bfloat16")])
def test_what_is_not_float32_is_not_measured_as_if_it_were(slotool, tmp_path: Path, at: int, form: str) -> None:
    write_graphs(tmp_path / "graphs.jsonl", [forms()[at]])
    finished = slotool("profile", "solo", tmp_path / "graphs.jsonl", "-o", tmp_path / "out.parquet", "--dry-run")
    assert finished.exit_code == 2
    assert f"graph net is of a {form} network" in finished.stderr

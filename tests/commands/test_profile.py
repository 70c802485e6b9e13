"""``slotool.profile``: measured in processes of their own, from Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import slotool
from slotool.artifacts.bundle import shipped_artifact
from slotool.errors import AlreadyExistsError, ArgumentError
from slotool.graphs import GraphBuilder, OperatorGraph


def network(units: int = 2) -> OperatorGraph:
    builder = GraphBuilder()
    builder.add("Dense", builder.add("InputLayer", shape=(4,)), units=units)
    return builder.graph()


def test_a_graph_is_measured_and_the_same_call_measures_nothing_twice(tmp_path: Path) -> None:
    heard: list[tuple[int, int | None]] = []
    out = tmp_path / "latency.parquet"
    settings = {"threads": 1, "runs": 5, "rounds": 1, "max_seconds": 0.05}
    found = slotool.profile(network(), out, **settings, progress=lambda text, *step: heard.append(step))
    assert heard == [(1, 1)]
    assert found.measured_rows == 1
    assert found.frame()["median_s"][0] > 0
    assert slotool.load(out).rows["subject"].tolist() == [network().id]
    again = slotool.profile(network(), out, **settings)
    assert again.document["measured"] == 0
    assert repr(again).endswith(f"nothing was left to measure; {out} is complete")
    with pytest.raises(AlreadyExistsError):
        slotool.profile(network(), out, **{**settings, "runs": 6})


def test_figures_are_of_what_was_asked_for_and_earlier_rows_stay(tmp_path: Path) -> None:
    out = tmp_path / "latency.parquet"
    settings = {"threads": 1, "runs": 5, "rounds": 1, "max_seconds": 0.05, "progress": None}
    slotool.profile([network(2), network(3)], out, **settings)
    found = slotool.profile([network(4), network(2), network(3)], out, limit=1, **settings)
    document = found.document
    assert (document["measured"], document["ok_rows"], document["others"], found.measured_rows) == (1, 1, 2, 1)
    assert len(slotool.load(out).rows) == 3
    assert slotool.profile(network(2), out, strict=True, **settings).document["others"] == 2


def test_the_fastest_networks_are_listed_by_name(tmp_path: Path) -> None:
    graphs = [replace(network(units), name=f"net-{units}") for units in range(2, 14)]
    settings = {"threads": 1, "runs": 3, "rounds": 1, "max_seconds": 0.01, "progress": None}
    profiled = slotool.profile(graphs, tmp_path / "latency.parquet", **settings)
    rows = profiled.document["networks"]
    assert len(rows) == 10
    assert [row["median_s"] for row in rows] == sorted(profiled.frame()["median_s"])[:10]
    titles = {graph.id: graph.name for graph in graphs}
    assert all(row["network"] == titles[row["subject"]] and row["network"] in repr(profiled) for row in rows)


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [({}, "subjects"),
     ({"subjects": network(), "batch_sizes": [0]}, "batch_sizes"), ({"subjects": network(), "samples": 3}, "samples"),
     ({"subjects": network(), "threads": 10_000}, "threads"),
     ({"subjects": network(), "predictor": shipped_artifact("predictor-torch").path, "samples": 3}, "samples")],
)  # fmt: skip
def test_a_wrong_argument_is_named(tmp_path: Path, arguments: dict[str, object], argument: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        slotool.profile(out=tmp_path / "latency.parquet", **arguments)
    assert raised.value.argument == argument
    assert not any(tmp_path.iterdir())

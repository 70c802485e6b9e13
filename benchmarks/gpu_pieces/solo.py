"""Labels of networks alone, measured in two campaigns whose difference says how well a label repeats.

They are of CUDA graphs on a GPU: launching one operator after the other is the host's time. On an H100 such labels of
eager torch differed by a tenth from campaign to campaign, as the host's core was at times half as fast.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import slotool
from benchmarks.gpu_pieces.piece import Figures, Piece
from slotool.graphs import OperatorGraph
from slotool.graphs.store import read_graphs, write_graphs
from slotool.tables import LatencyTable

DATASETS = Path(__file__).parents[2] / "datasets"
RANDOM, ZOO = "random-networks", "keras-applications"
CAMPAIGNS = ("first", "second")
# By what was measured: the piece that did.
PIECE_OF = {RANDOM: "solo-random", ZOO: "solo-zoo"}
# Of labels, by whether the device is a GPU.
BACKENDS = {True: "torch-cuda-graph", False: "torch"}
SEED = 7


def random_networks(piece: Piece) -> None:
    """Networks of every kind that is shipped."""
    twice(piece, RANDOM, drawn(piece))


def zoo(piece: Piece) -> None:
    """The Keras applications, as captured, run by torch."""
    twice(piece, ZOO, applications(piece.sizes.zoo))


def drawn(piece: Piece) -> list[OperatorGraph]:
    """So many of each file: at random, or the smallest."""
    chance, found = random.Random(SEED), []
    for name, count in piece.sizes.random.items():
        graphs = list(read_graphs(DATASETS / f"random-{name}.parquet"))
        found += chance.sample(graphs, count) if piece.sizes.full else smallest(graphs, count)
    return found


def applications(count: int) -> list[OperatorGraph]:
    """The ``count`` smallest."""
    return smallest(list(read_graphs(DATASETS / "keras-applications-graphs.parquet")), count)


def smallest(graphs: Sequence[OperatorGraph], count: int) -> list[OperatorGraph]:
    return sorted(graphs, key=lambda graph: graph.flops)[:count]


def graphs_file(piece: Piece, name: str) -> Path:
    """Where the networks of these labels are."""
    return piece.table_of(PIECE_OF[name], f"{name}-graphs.parquet")


def label_tables(piece: Piece, name: str) -> list[Path]:
    """Both campaigns' tables."""
    return [piece.table_of(PIECE_OF[name], f"{name}-latency-{campaign}.parquet") for campaign in CAMPAIGNS]


def twice(piece: Piece, name: str, graphs: list[OperatorGraph]) -> None:
    """Two campaigns over ``graphs``, the second over what the first has measured; then how far they differ."""
    write_graphs(piece.tables / f"{name}-graphs.parquet", graphs)
    left = graphs
    for number, campaign in enumerate(CAMPAIGNS):
        out = piece.tables / f"{name}-latency-{campaign}.parquet"
        found = piece.step(campaign, lambda left=left, out=out, seed=SEED + number: measured(piece, left, out, seed))
        if found is None:
            return
        labels = medians(LatencyTable.load(out))
        left = [graph for graph in graphs if labels.keys() & {graph.id, graph.name}]
    piece.step("repeatability", lambda: repeatability(*map(LatencyTable.load, label_tables(piece, name))))


def measured(piece: Piece, graphs: list[OperatorGraph], out: Path, seed: int, **given: Any) -> Figures:
    """A campaign of one round, for half of the allowance at most, and what its table holds."""
    budget_s = piece.budget_s(1 / len(CAMPAIGNS))
    options = {"backend": BACKENDS[piece.on_gpu], "device": piece.device, "threads": 1, "rounds": 1}
    options |= {"runs": piece.sizes.runs, "budget_s": budget_s}
    options |= {"max_seconds": piece.sizes.seconds_per_item, "seed": seed, "progress": None}
    return contents(slotool.profile(graphs, out, **{**options, **given}).latency)


def contents(table: LatencyTable) -> Figures:
    """Rows by status, and what they say of the device."""
    rows = table.rows
    ok = rows[rows["status"] == "ok"]
    found: Figures = {"rows": len(rows), "statuses": rows["status"].value_counts().to_dict()}
    found |= {
        "campaign": table.provenance.get("campaign"),
        "reasons": sorted(set(rows.get("reason", [])) - {"", None})[:5],
    }
    if "power_capped" in ok:
        found["power_capped"] = float(ok["power_capped"].mean())
        found["remarks"] = sorted(set(ok["remarks"]) - {""})[:5]
        found["device_settings"] = next(iter(ok["device_settings"]), "")
        found["colocation"] = next(iter(ok["colocation"]), "")
    return found


def medians(table: LatencyTable) -> dict[str, float]:
    """Seconds by subject, of rows that were measured."""
    rows = table.rows[table.rows["status"] == "ok"]
    return {name: float(np.median(samples)) for name, samples in zip(rows["subject"], rows["samples_s"], strict=True)}


def repeatability(first: LatencyTable, second: LatencyTable) -> Figures:
    """The relative difference of two labels of the same network: of all, and by terciles of latency."""
    one, other = medians(first), medians(second)
    names = sorted(one.keys() & other.keys())
    pair = np.array([[one[name], other[name]] for name in names])
    mean = pair.mean(axis=1)
    relative = np.abs(pair[:, 0] - pair[:, 1]) / mean
    found: Figures = {"networks": len(names), **quantiles(relative)}
    edges = np.quantile(mean, [1 / 3, 2 / 3])
    thirds = np.digitize(mean, edges)
    found["by_latency"] = [
        {"low_s": float(mean[thirds == third].min()), "high_s": float(mean[thirds == third].max()),
         **quantiles(relative[thirds == third])}
        for third in np.unique(thirds)
    ]  # fmt: skip
    return found


def quantiles(relative: np.ndarray) -> Figures:
    return {"median": float(np.median(relative)), "p90": float(np.quantile(relative, 0.9))}

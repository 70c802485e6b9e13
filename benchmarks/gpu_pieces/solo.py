"""Labels of networks alone, measured in two campaigns whose difference says how well a label repeats.

They are of CUDA graphs on a GPU: launching one operator after the other is the host's time. On an H100 such labels of
eager torch differed by a tenth from campaign to campaign, as the host's core was at times half as fast.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

import slotool
from benchmarks.gpu_pieces.piece import Figures, Piece
from slotool.graphs import OperatorGraph
from slotool.graphs.store import read_graphs, write_graphs
from slotool.tables import LatencyTable

DATASETS = Path(__file__).parents[2] / "datasets"
RANDOM, ZOO = "random-networks", "keras-applications"
CAMPAIGNS = ("first", "second")
# Of labels, by whether the device is a GPU.
BACKENDS = {True: "torch-cuda-graph", False: "torch"}
SEED = 7
APPLICATIONS = 40
# Networks of each ``datasets/random-NAME.parquet``. A campaign ends with its budget; the order is random.
RANDOM_NETWORKS = {"architectures": 400, "networks-blocks": 250, "networks-cnns": 150, "networks-mlps": 100}
MANY_NETWORKS = {"architectures": 300, "networks-blocks": 150, "networks-cnns": 150, "networks-mlps": 130}
REHEARSED = {"architectures": 3, "networks-blocks": 6, "networks-cnns": 115, "networks-mlps": 3}
RUNS, SECONDS = 20, 0.15


def random_networks(piece: Piece) -> None:
    """Networks of every kind that is shipped, twice."""
    twice(piece, RANDOM, drawn(piece.sized(RANDOM_NETWORKS, REHEARSED), piece.full))


def many_random_networks(piece: Piece) -> None:
    """At least 120 labels of each kind, and some of them again."""
    twice(piece, RANDOM, drawn(piece.sized(MANY_NETWORKS, REHEARSED), piece.full, SEED + 1), first=0.85)


def zoo(piece: Piece) -> None:
    """The Keras applications, as captured, run by torch, twice."""
    twice(piece, ZOO, applications(piece.sized(APPLICATIONS, 14)))


def drawn(counts: Mapping[str, int], by_chance: bool, seed: int = SEED) -> list[OperatorGraph]:
    """So many of each file: at random, or the smallest."""
    chance, selected = random.Random(seed), []
    for name, count in counts.items():
        graphs = list(read_graphs(DATASETS / f"random-{name}.parquet"))
        selected += chance.sample(graphs, count) if by_chance else smallest(graphs, count)
    return selected


def applications(count: int) -> list[OperatorGraph]:
    """The ``count`` smallest."""
    return smallest(list(read_graphs(DATASETS / "keras-applications-graphs.parquet")), count)


def compiled(piece: Piece, graphs: Sequence[OperatorGraph], names: Sequence[str] = ()) -> list[OperatorGraph]:
    """Return networks for a compiler, which takes its time: those of ``names``, in a rehearsal one of few layers."""
    if not piece.full:
        return smallest(list(read_graphs(DATASETS / "random-networks-mlps.parquet")), 1)
    return [graph for graph in graphs if not names or graph.name in names]


def smallest(graphs: Sequence[OperatorGraph], count: int) -> list[OperatorGraph]:
    return sorted(graphs, key=lambda graph: graph.flops)[:count]


def twice(piece: Piece, name: str, graphs: list[OperatorGraph], first: float = 0.5) -> None:
    """Two campaigns over ``graphs``, the second over what the first has measured; then how far they differ, and what
    explains the labels. ``first``: share of the allowance for the first."""
    write_graphs(piece.tables / f"{name}-graphs.parquet", graphs)
    left, tables = graphs, []
    for number, (campaign, share) in enumerate(zip(CAMPAIGNS, (first, 1 - first), strict=True)):
        tables.append(out := piece.tables / f"{name}-latency-{campaign}.parquet")
        budget_s = piece.budget_s(0.95 * share)
        figures = piece.step(
            campaign, lambda left=left, out=out, number=number, budget_s=budget_s: measured(
                piece, left, out, SEED + number, budget_s=budget_s
            )
        )  # fmt: skip
        if figures is None:
            return
        labels = medians(LatencyTable.load(out))
        left = [graph for graph in graphs if labels.keys() & {graph.id, graph.name}]
    piece.step("repeatability", lambda: repeatability(*map(LatencyTable.load, tables)))
    piece.step("explained", lambda: explained(graphs, medians(LatencyTable.load(tables[0]))))


def explained(graphs: Sequence[OperatorGraph], latency_s: Mapping[str, float]) -> Figures:
    """How much of the labels the device's work explains, and how much the number of operators: R² of least squares on
    FLOPs and bytes, and on operators, of the logarithm as well as of seconds."""
    rows = [(graph, latency_s[name]) for graph in graphs for name in (graph.id, graph.name) if name in latency_s]
    seconds = np.array([each for _, each in rows])
    work = np.array([(graph.flops, graph.weight_bytes + graph.moved_bytes, 1.0) for graph, _ in rows])
    operators = np.array([(len(graph.operators), 1.0) for graph, _ in rows], dtype=float)
    figures: Figures = {"networks": len(rows)}
    for what, terms in (("flops_and_bytes", work), ("operators", operators)):
        coefficients, _ = nnls(terms / seconds[:, None], np.ones(len(seconds)))
        predicted_s = np.maximum(terms @ coefficients, 1e-9)
        figures[what] = {"coefficients": coefficients.tolist(), "r2": r2(seconds, predicted_s),
                       "r2_log": r2(np.log(seconds), np.log(predicted_s)),
                       "median_error": float(np.median(np.abs(predicted_s / seconds - 1)))}  # fmt: skip
    return figures


def r2(values: np.ndarray, predicted: np.ndarray) -> float:
    return float(1 - np.mean((values - predicted) ** 2) / np.var(values))


def measured(piece: Piece, graphs: Sequence[OperatorGraph], out: Path, seed: int, **given: Any) -> Figures:
    """A campaign of one round, and what its table holds."""
    options = {"backend": BACKENDS[piece.on_gpu], "device": piece.device, "threads": 1, "rounds": 1}
    options |= {"runs": piece.sized(RUNS, 2), "max_seconds": piece.sized(SECONDS, 0.005)}
    options |= {"seed": seed, "progress": None}
    return contents(slotool.profile(graphs, out, **{**options, **given}).latency)


def contents(table: LatencyTable) -> Figures:
    """Rows by status, and what they say of the device."""
    rows = table.rows
    ok = rows[rows["status"] == "ok"]
    figures: Figures = {"rows": len(rows), "statuses": rows["status"].value_counts().to_dict()}
    figures |= {
        "campaign": table.provenance.get("campaign"),
        "reasons": sorted(set(rows.get("reason", [])) - {"", None})[:5],
    }
    if "power_capped" in ok:
        figures["power_capped"] = float(ok["power_capped"].mean())
        figures["remarks"] = sorted(set(ok["remarks"]) - {""})[:5]
        figures["device_settings"] = next(iter(ok["device_settings"]), "")
        figures["colocation"] = next(iter(ok["colocation"]), "")
    return figures


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
    figures: Figures = {"networks": len(names), **quantiles(relative)}
    edges = np.quantile(mean, [1 / 3, 2 / 3])
    thirds = np.digitize(mean, edges)
    figures["by_latency"] = [
        {"low_s": float(mean[thirds == third].min()), "high_s": float(mean[thirds == third].max()),
         **quantiles(relative[thirds == third])}
        for third in np.unique(thirds)
    ]  # fmt: skip
    return figures


def quantiles(relative: np.ndarray) -> Figures:
    return {"median": float(np.median(relative)), "p90": float(np.quantile(relative, 0.9))}

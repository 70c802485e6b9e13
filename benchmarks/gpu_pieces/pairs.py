"""Pairs of Keras applications that share the device: each in a process of its own, or on streams of one process."""

from __future__ import annotations

import numpy as np

import slotool
from benchmarks.gpu_pieces.piece import Figures, Left, Piece
from benchmarks.gpu_pieces.solo import SEED, applications, contents
from slotool.tables import LatencyTable

# Tables by how the members share the device.
TABLES = {
    "processes": "keras-applications-colocated.parquet",
    "streams": "keras-applications-colocated-streams.parquet",
}
ROUNDS = 2
# Every third of the applications by size: pairs of networks of unlike size tell more.
STRIDE = 3


def run(piece: Piece) -> None:
    for sharing in TABLES:
        piece.step(sharing, lambda sharing=sharing: measured(piece, sharing))


def measured(piece: Piece, sharing: str) -> Figures:
    """Every pair, on a core per member: the host waits for the device by keeping a core busy."""
    sizes = piece.sizes
    if sharing == "streams" and not piece.on_gpu:
        raise Left("streams are those of a GPU")
    graphs = applications(STRIDE * sizes.colocated if sizes.full else sizes.colocated)
    found = slotool.profile_colocated(
        graphs[:: STRIDE if sizes.full else 1], piece.tables / TABLES[sharing], sizes=(2,), placement="split",
        sharing=sharing, device=piece.device, threads=1, runs=sizes.runs, rounds=ROUNDS,
        max_seconds=sizes.seconds_per_pair, budget_s=piece.budget_s(1 / len(TABLES)), seed=SEED, progress=None,
    )  # fmt: skip
    return {**contents(found.latency), **slowdowns(found.latency)}


def slowdowns(table: LatencyTable) -> Figures:
    """Co-located over solo median, of all rows that were measured."""
    rows = table.rows[table.rows["status"] == "ok"]
    ratios = np.array([
        np.median(samples) / np.median(solo) for samples, solo in zip(rows["samples_s"], rows["solo_s"], strict=True)
    ])  # fmt: skip
    if not len(ratios):
        return {}
    return {"slowdown": {"median": float(np.median(ratios)), "p10": float(np.quantile(ratios, 0.1)),
                         "p90": float(np.quantile(ratios, 0.9))}}  # fmt: skip

"""Pairs of Keras applications that share the device: each in a process of its own, or on streams of one process."""

from __future__ import annotations

import numpy as np

import slotool
from benchmarks.gpu_pieces.piece import Figures, Left, Piece
from benchmarks.gpu_pieces.solo import BACKENDS, SEED, applications, contents
from slotool.tables import LatencyTable

# Tables by how the members share the device.
TABLES = {
    "processes": "keras-applications-colocated.parquet",
    "streams": "keras-applications-colocated-streams.parquet",
}
# Networks of which every pair is measured: every third by size, for pairs of unlike size say more.
NETWORKS, STRIDE = 12, 3
FEW = 4
RUNS, SECONDS = 20, 1.0


def few(piece: Piece) -> None:
    """Pairs of a few networks: most of the time goes to starting a process for each network."""
    both(piece, piece.sized(FEW, 2))


def all_pairs(piece: Piece) -> None:
    """Pairs of twelve networks."""
    both(piece, piece.sized(NETWORKS, 2))


def both(piece: Piece, count: int) -> None:
    for sharing in TABLES:
        piece.step(sharing, lambda sharing=sharing: measured(piece, sharing, count))


def measured(piece: Piece, sharing: str, count: int) -> Figures:
    """Every pair, on a core per member: the host waits for the device by keeping a core busy."""
    if sharing == "streams" and not piece.on_gpu:
        raise Left("streams are those of a GPU")
    stride = piece.sized(STRIDE * NETWORKS // count, 1)
    profiled = slotool.profile_colocated(
        applications(stride * count)[::stride], piece.tables / TABLES[sharing], sizes=(2,), placement="split",
        sharing=sharing, backend=BACKENDS[piece.on_gpu], device=piece.device, threads=1, runs=piece.sized(RUNS, 2),
        rounds=1, max_seconds=piece.sized(SECONDS, 0.5), budget_s=piece.budget_s(1 / len(TABLES)), seed=SEED,
        progress=None,
    )  # fmt: skip
    return {**contents(profiled.latency), **slowdowns(profiled.latency)}


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

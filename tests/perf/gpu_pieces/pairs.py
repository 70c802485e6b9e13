"""Pairs of Keras applications that share the device, each in a process of its own."""

from __future__ import annotations

import numpy as np

import slotool
from slotool.tables import LatencyTable
from tests.perf.gpu_pieces.piece import Figures, Piece
from tests.perf.gpu_pieces.solo import SEED, applications, contents

TABLE = "keras-applications-colocated.parquet"
ROUNDS = 2
# Every third of the applications by size: pairs of networks of unlike size tell more.
STRIDE = 3


def run(piece: Piece) -> None:
    piece.step("pairs", lambda: measured(piece))


def measured(piece: Piece) -> Figures:
    sizes = piece.sizes
    graphs = applications(STRIDE * sizes.colocated if sizes.full else sizes.colocated)
    found = slotool.profile_colocated(
        graphs[:: STRIDE if sizes.full else 1], piece.tables / TABLE, sizes=(2,), device=piece.device, threads=1,
        runs=sizes.runs, rounds=ROUNDS, max_seconds=sizes.seconds_per_pair, budget_s=piece.budget_s(1.0), seed=SEED,
        progress=None,
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

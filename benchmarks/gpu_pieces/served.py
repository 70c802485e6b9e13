"""What ``slotool serve --device`` adds to the bare call on the device, and a load test of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import slotool
from benchmarks.gpu_pieces.piece import Figures, Piece
from benchmarks.gpu_pieces.solo import SEED
from benchmarks.http_caller import caller
from slotool.data import load_dataset
from slotool.elastic import load_model

MODELS = Path(__file__).parents[2] / "models"
DATA, RATE_PER_S, CALLS_PER_REPEAT, WARM_UP_CALLS = "digits", 200.0, 5, 20
SERVED, REPEATS, LOAD_S = ("mlp", "supernet"), 200, 10.0


def run(piece: Piece) -> None:
    for name in piece.sized(SERVED, SERVED[-1:]):
        piece.step(name, lambda name=name: served(piece, name))


def served(piece: Piece, name: str) -> Figures:
    """A request after the other beside the bare call, by turns; then requests at random instants."""
    x = load_dataset(DATA).test.x[:1]
    model = load_model(str(MODELS / name)).on(piece.device)
    options = ["--device", piece.device] if piece.on_gpu else []
    with slotool.serve(MODELS / name, names=name, options=options) as server:
        port = urlsplit(server.url).port
        calls: dict[str, Callable[[], Any]] = {
            "bare call": lambda: model.forward(x, model.full),
            "request": caller(port, f"/v2/models/{name}/infer", x),
        }
        seconds = by_turns(calls, piece.sized(REPEATS, 3))
        load = slotool.loadtest(
            server.url,
            model=name,
            rate=RATE_PER_S,
            duration_s=piece.sized(LOAD_S, 1.0),
            data=DATA,
            seed=SEED,
            progress=None,
        )
    shown = ("requests", "answered", "achieved_rate_per_s", "p50_s", "p99_s", "send_delay_p99_s")
    figures: Figures = {
        f"{what} {key}": value for what, each in seconds.items() for key, value in statistics(each).items()
    }
    overhead_s = figures["request p50_s"] - figures["bare call p50_s"]
    return {**figures, "overhead_s": overhead_s, "load": {key: load.summary.get(key) for key in shown}}


def by_turns(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, np.ndarray]:
    """Seconds of each; each turn begins with calls that are not counted, after which caches know it again."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            for number in range(WARM_UP_CALLS + CALLS_PER_REPEAT):
                began = time.perf_counter()
                call()
                if number >= WARM_UP_CALLS:
                    seconds[name].append(time.perf_counter() - began)
    return {name: np.array(each) for name, each in seconds.items()}


def statistics(seconds: np.ndarray) -> dict[str, float]:
    return {"p50_s": float(np.median(seconds)), "p99_s": float(np.quantile(seconds, 0.99))}

"""Where the time of a query goes: reading it, hashing it and choosing k, listing nodes, computing them.

Source: slo-aware-neural-networks, Figure 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.elastic.activators.slo_nn import SloNN
from slotool.tables import OperatingPoint
from slotool.timing.turns import in_turns

# Queries that are broken off in one compiled call, each of which is a sample of about so many seconds.
QUERIES, CALL_S, CALLS = 2_000, 0.002, 60


@dataclass(frozen=True)
class StageTimes:
    """µs of one query within compiled code, caches warm: medians of calls of many queries.

    ``read_us``: its values are brought in. ``hash_us``: keys, their buckets, and k where it is chosen per input.
    ``list_us``: the nodes to compute are taken from the lists. ``compute_us``: products, and the best of them.
    """

    read_us: float
    hash_us: float
    list_us: float
    compute_us: float

    @property
    def total_us(self) -> float:
        return self.read_us + self.hash_us + self.list_us + self.compute_us

    @classmethod
    def of(
        cls, model: SloNN, x: Any, point: OperatingPoint | None = None, threshold: float = float("inf")
    ) -> StageTimes:
        """Of the rows of ``x``, float32 [n, *input_shape] or CSR, answered by ``model`` at ``point``; None: with k
        chosen per input by ``threshold``, and no less than all nodes where that is infinite.
        """
        from slotool.elastic.activators.kernels import layout, single, stages

        at = layout.BY_CONFIDENCE if point is None else model.points.index(point)
        flat = model.flat(x)[:QUERIES]
        rest: tuple[Any, ...] = (at, threshold, *model.compiled.state)
        layers = len(model.mlp.layers)
        stops = [0, *(1 + stages.STAGES * layer + stage for layer in range(layers) for stage in range(stages.STAGES))]
        few = _few(lambda rows: stages.until(stops[-1], *single.batch(rows), *rest), flat)
        taken_us = _by_stop(lambda stop: stages.until(stop, *single.batch(few), *rest), stops) / few.shape[0]
        parts = np.diff(taken_us)[: stages.STAGES * layers].reshape(layers, stages.STAGES).sum(axis=0)
        return cls(
            read_us=float(taken_us[0]),
            hash_us=float(parts[stages.HASH]),
            list_us=float(parts[stages.LIST]),
            compute_us=float(parts[stages.COLUMNS] + parts[stages.COMPUTE]),
        )


def _few(answer: Callable[[Any], Any], rows: Any) -> Any:
    """So many of ``rows`` that answering them takes about ``CALL_S``."""
    each_s = in_turns([answer], lambda block: [[(rows[:4],) for _ in block]], 5).medians_s[0] / 4
    return rows[: max(4, int(CALL_S / each_s))]


def _by_stop(answer: Callable[[int], Any], stops: list[int]) -> np.ndarray:
    """Median µs of a call for each of ``stops``."""
    turns = in_turns([answer] * len(stops), lambda block: [[(stop,) for _ in block] for stop in stops], CALLS)
    medians_us: np.ndarray = 1e6 * turns.medians_s
    return medians_us

"""Latencies of a family's versions by batch size, on examples of its data set, in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from slotool.data.columns import RaggedColumns
from slotool.elastic.family import Family
from slotool.machine import machine_id
from slotool.tables import LatencyTable
from slotool.timing.timer import Measurement, MeasurementHooks, StoppingRule, measure
from slotool.timing.turns import Watch, agree

# Single calls, since a deadline holds for each. Calls of a row are spread over rounds, so that a short disturbance
# slows a part of each row's calls, and not all calls of one row.
ROUNDS, CALLS = 5, 8
RULE = StoppingRule(runs=CALLS, max_samples=CALLS, single=True)


def measure_batches(
    family: Family,
    x: Any,
    batch_sizes: Sequence[int],
    threads: int,
    *,
    provenance: Mapping[str, Any],
    progress: Callable[[], None] = lambda: None,
) -> LatencyTable:
    """Return a row for each version and batch size, as ``slotool profile points`` does.

    Batches are rows of ``x``, repeated if it has fewer, or one example repeated if lengths differ. ``progress`` is
    called per row. Errors of a version are raised.
    """
    measurements: dict[tuple[int, str], list[Measurement]] = {}
    with Watch.opened() as watch:
        hooks = MeasurementHooks(begin=watch.begin, lost=watch.lost)
        for turn, size in itertools.product(range(ROUNDS), batch_sizes):
            batch = x[np.arange(size) % len(x)]
            if isinstance(batch, RaggedColumns):
                batch = x[np.zeros(size, dtype=np.int64)]
            for point in family.points:
                call = lambda point=point, batch=batch: family.respond(batch, point)  # noqa: E731
                measurements.setdefault((size, point.key), []).append(measure(call, RULE, watch.clock, hooks))
                if turn == ROUNDS - 1:
                    progress()
    rows = [
        {
            "subject": family.name,
            "point": point,
            "batch_size": size,
            "device": "cpu",
            "backend": "elastic",
            "threads": threads,
            "machine": machine_id(),
            "first_call_s": rounds[0].first_call_s,
            "samples_s": np.concatenate([part.samples_s for part in rounds]),
            "samples_per_round": [len(part.samples_s) for part in rounds],
            "discarded": sum(part.discarded for part in rounds),
            "interrupted": any(part.interrupted for part in rounds),
            "stable": not any(part.interrupted for part in rounds) and agree([part.samples_s for part in rounds]),
        }
        for (size, point), rounds in measurements.items()
    ]
    return LatencyTable(pd.DataFrame(rows), provenance)

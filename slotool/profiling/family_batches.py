"""Latencies of a model family's versions by batch size, on examples of its data set, in this process."""

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

# Single calls, for it is single answers that keep a deadline or miss it. Rounds over all rows, of as many calls each:
# what else the machine does for a second then slows a part of each row's calls, and not all calls of one row.
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
    """A row for each version and batch size, as ``slotool profile points`` has them.

    Batches are rows of ``x``, repeated where it has fewer; of one example where their lengths differ. ``progress``:
    called per row.

    Raises what a version raises.
    """
    found: dict[tuple[int, str], list[Measurement]] = {}
    with Watch.opened() as watch:
        hooks = MeasurementHooks(begin=watch.begin, lost=watch.lost)
        for turn, size in itertools.product(range(ROUNDS), batch_sizes):
            batch = x[np.arange(size) % len(x)]
            if isinstance(batch, RaggedColumns):
                batch = x[np.zeros(size, dtype=np.int64)]
            for point in family.points:
                call = lambda point=point, batch=batch: family.respond(batch, point)  # noqa: E731
                found.setdefault((size, point.key), []).append(measure(call, RULE, watch.clock, hooks))
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
            "samples_s": np.concatenate([one.samples_s for one in rounds]),
            "samples_per_round": [len(one.samples_s) for one in rounds],
            "discarded": sum(one.discarded for one in rounds),
            "interrupted": any(one.interrupted for one in rounds),
            "stable": not any(one.interrupted for one in rounds) and agree([one.samples_s for one in rounds]),
        }
        for (size, point), rounds in found.items()
    ]
    return LatencyTable(pd.DataFrame(rows), provenance)

"""Latencies of a model family's versions by batch size, on examples of its data set, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from slotool.data.sequences import RaggedColumns
from slotool.elastic.model_family import ModelFamily
from slotool.machine import machine_id
from slotool.profiling.timer import StoppingRule, measure
from slotool.tables import LatencyTable

# Single calls, for it is single answers that keep a deadline or miss it.
RULE = StoppingRule(runs=30, max_seconds=0.3, single=True)


def measure_batches(
    family: ModelFamily,
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
    rows = []
    for size in batch_sizes:
        batch = x[np.arange(size) % len(x)]
        if isinstance(batch, RaggedColumns):
            batch = x[np.zeros(size, dtype=np.int64)]
        for point in family.points:
            found = measure(lambda point=point, batch=batch: family.respond(batch, point), RULE)  # type: ignore[misc]
            rows.append(
                {
                    "subject": family.name,
                    "point": point.key,
                    "batch_size": size,
                    "device": "cpu",
                    "backend": "elastic",
                    "threads": threads,
                    "machine": machine_id(),
                    "first_call_s": found.first_call_s,
                    "samples_s": found.samples_s,
                    "samples_per_round": [len(found.samples_s)],
                }
            )
            progress()
    return LatencyTable(pd.DataFrame(rows), provenance)

"""What arrivals that are known some time ahead are worth: a policy that takes the call after which sampled futures
bring the most, each by dynamic programming over the queue as it is. It takes milliseconds a decision.

With nothing known ahead it is the ``hindsight`` policy without its tables: what these lose by being tables. With more
known ahead it tells which part of the distance to the best possible is ignorance of arrivals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.compilation import njit
from slotool.scheduling.batching import ControlGrid
from slotool.scheduling.batching.clairvoyant import BETWEEN, look_back, useful_calls, value_at
from slotool.scheduling.batching.kernel import WINDOW, arrival_rate_per_us
from slotool.scheduling.edf import RECENT
from slotool.simulation import Scenario

# Sampled futures, how many deadlines they reach, steps of a deadline, and the gaps' squared coefficient of variation.
FUTURES, REACH, STEPS, CV2 = 32, 3.0, 144, 3.0


def with_lookahead(grid: ControlGrid, scenario: Scenario, ahead: float, seed: int = 0) -> tuple[float, float]:
    """Effective accuracy and attainment of one worker that knows the arrivals of the next ``ahead`` deadlines.

    Later ones come with gamma gaps at the rate that policies observe.
    """
    arrival_us = scenario.arrival_us
    deadline_us = float(scenario.deadline_us[0] - arrival_us[0])
    counts, accuracies, times_us = useful_calls(grid.latency_us, grid.accuracy, grid.sizes, deadline_us)
    generator = np.random.default_rng(seed)
    next_one, now_us, brought, in_time = 0, 0.0, 0.0, 0
    while next_one < len(arrival_us):
        now_us = max(now_us, arrival_us[next_one])
        if arrival_us[next_one] + deadline_us <= now_us:
            next_one += 1
            continue
        arrived, known = np.searchsorted(arrival_us, [now_us, now_us + ahead * deadline_us], side="right").tolist()
        recent_us = arrival_us[max(0, arrived - RECENT) : arrived]
        rate = arrival_rate_per_us(now_us, recent_us, WINDOW * deadline_us, deadline_us)
        coming_us = (REACH - ahead) * deadline_us
        gaps_us = generator.gamma(1 / CV2, CV2 / rate, (FUTURES, int(2 * rate * coming_us) + 40))
        futures_us = now_us + ahead * deadline_us + np.cumsum(gaps_us, axis=1)
        futures_us[futures_us > now_us + REACH * deadline_us] = np.inf
        values = _values(
            arrival_us[next_one:known], futures_us, arrived - next_one, now_us, deadline_us, counts, accuracies,
            times_us,
        )  # fmt: skip
        best = int(values.argmax())
        if best == len(counts):
            next_one += 1
            continue
        brought, in_time = brought + counts[best] * accuracies[best], in_time + int(counts[best])
        next_one, now_us = next_one + int(counts[best]), now_us + times_us[best]
    return brought / len(arrival_us), in_time / len(arrival_us)


@njit(cache=True)
def _values(
    known_us: Any, futures_us: Any, waiting: int, now_us: float, deadline_us: float, counts: Any, accuracies: Any,
    times_us: Any,
) -> Any:  # fmt: skip
    """float64 [calls + 1]: what each call and all behind it bring, summed over the futures; at last, dropping the most
    urgent."""
    values, step_us = np.zeros(len(counts) + 1), deadline_us / STEPS
    for coming_us in futures_us:
        arrival_us = np.concatenate((known_us, coming_us[coming_us < np.inf]))
        best = np.zeros((len(arrival_us) + int(counts.max()) + 1, STEPS + 1))
        look_back(arrival_us, deadline_us, counts, accuracies, times_us, STEPS, BETWEEN, best, 1, len(arrival_us))
        for c in range(len(counts) + 1):
            taken = counts[c] if c < len(counts) else 1
            ends_us = now_us + (times_us[c] if c < len(counts) else 0.0)
            if c < len(counts) and (taken > waiting or ends_us > known_us[0] + deadline_us + 1e-3):
                values[c] = -np.inf
                continue
            values[c] += taken * accuracies[c] if c < len(counts) else 0.0
            if taken < len(arrival_us):
                values[c] += value_at(best[taken], (ends_us - arrival_us[taken]) / step_us)
    return values

"""What every arrival process must keep. Use it with one line of test::

class TestMine(ArrivalConformance):
    make = staticmethod(Mine)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slotool.workloads.arrivals.processes import ArrivalProcess

RATE_PER_S = 400.0
DURATION_S = 50.0


class ArrivalConformance:
    """``make``: a process of the mean rate it is given, in arrivals per second.

    ``rate_slack``: by how much the rate of ``DURATION_S`` seconds may differ from the mean, as a share of it.
    """

    make: Callable[[float], ArrivalProcess]
    rate_slack: float = 0.05

    def test_instants_ascend_within_the_duration(self) -> None:
        times_s = self.make(RATE_PER_S).times(DURATION_S, seed=0)
        assert times_s.dtype == np.float64
        assert times_s.ndim == 1
        assert (np.diff(times_s) >= 0).all()
        assert times_s[0] >= 0
        assert times_s[-1] < DURATION_S

    def test_the_mean_rate_is_kept(self) -> None:
        process = self.make(RATE_PER_S)
        kept = len(process.times(DURATION_S, seed=1)) / DURATION_S
        assert abs(kept / process.mean_rate_per_s - 1) < self.rate_slack

    def test_the_seed_decides(self) -> None:
        process = self.make(RATE_PER_S)
        first, again, other = (process.times(5.0, seed=seed) for seed in (7, 7, 8))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_it_has_a_name(self) -> None:
        assert self.make(RATE_PER_S).name

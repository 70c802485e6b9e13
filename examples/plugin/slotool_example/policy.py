"""A scheduling policy that leaves half of the slack unspent."""

from slotool.scheduling.batching.kernel import REJECT, chooser, fits, widest
from slotool.scheduling.batching.policy import BatchingPolicy


# Compiled: slotool serve and slotool simulate call the same function.
@chooser
def choose_half_slack(latency_us, accuracy, sizes, plan, now_us, deadlines_us, lowest, narrowest, arrived_us, free_us):
    if not fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest):
        return REJECT
    slack_us = deadlines_us[0] - now_us
    for row in range(len(accuracy) - 1, lowest - 1, -1):
        column = widest(latency_us, row, narrowest, slack_us / 2)
        if column >= 0:
            return row * len(sizes) + column
    column = widest(latency_us, lowest, narrowest, slack_us)
    return lowest * len(sizes) + column if column >= 0 else REJECT


class HalfSlack(BatchingPolicy):
    """The most accurate point that takes at most half of the most urgent query's slack, in the largest such batch.

    Where none does, the fastest point in the largest batch that is in time at all.
    """

    name = "half-slack"
    choose = choose_half_slack

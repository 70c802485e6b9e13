"""Several sequences of hypotheses tested together: fixed order within each, Holm's procedure across them.

A hypothesis is looked at only when all before it in its sequence are rejected. A sequence that comes to its end
leaves its share of the level to the others. This is a graphical procedure (Bretz, Maurer, Brannath & Posch 2009): it
rejects any true hypothesis with probability at most the level, however the p-values depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence


def holm_over_sequences(sequences: Sequence[Sequence[float]], level: float) -> list[int]:
    """How many hypotheses of each sequence are rejected, from its beginning; ``sequences`` hold p-values."""
    rejected = [0] * len(sequences)
    while active := [at for at, sequence in enumerate(sequences) if rejected[at] < len(sequence)]:
        share = level / len(active)
        before = list(rejected)
        for at in active:
            while rejected[at] < len(sequences[at]) and sequences[at][rejected[at]] <= share:
                rejected[at] += 1
        if rejected == before:
            break
    return rejected

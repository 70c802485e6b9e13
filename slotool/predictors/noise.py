"""The noise floor: how far a perfect predictor would be from labels that are themselves measurements."""

from __future__ import annotations

import math

import numpy as np

from slotool.tables.rounds import Counts, round_medians


def label_noise_s(samples: np.ndarray, per_round: Counts = ()) -> float:
    """How far a label, the median of its samples, may be off, in seconds, by what its rounds show.

    ``samples``: float64 seconds [n], in the order measured, of which each round gave ``per_round``; where the rounds
    are unknown, the halves of the samples stand for two. The difference between the mean of the first rounds' medians
    and that of the last, scaled to the deviation of the mean of all: if rounds err independently and as often up as
    down, this is distributed as the error of the label, so a predictor that knows every true latency is off by so much.
    What hit all rounds alike, it does not see; and it is too high where one round scatters widely, for the label, the
    median of all together, keeps to the others. NaN for a single round or sample.
    """
    half = len(samples) // 2
    medians = round_medians(samples, per_round if len(per_round) else (half, len(samples) - half))
    first = len(medians) // 2
    if not first:
        return math.nan
    last = len(medians) - first
    return float(abs(medians[:first].mean() - medians[first:].mean())) * math.sqrt(first * last) / len(medians)


def floor(measured_s: np.ndarray, noise_s: np.ndarray) -> dict[str, float | None]:
    """What a perfect predictor would score, in the keys of ``scoring.score``, from labels and their noise [n].

    Labels without noise known count as the others do on average; None where they are more than half.
    """
    known = np.isfinite(noise_s)
    if 2 * known.sum() < len(known):
        return dict.fromkeys(("mae_s", "mae_over_mean", "mape", "within_5_percent", "within_10_percent"))
    error_s, label_s = noise_s[known], measured_s[known]
    relative = error_s / label_s
    return {
        "mae_s": float(error_s.mean()),
        "mae_over_mean": float(error_s.mean() / label_s.mean()),
        "mape": float(relative.mean()),
        "within_5_percent": float(np.mean(relative <= 0.05)),
        "within_10_percent": float(np.mean(relative <= 0.10)),
    }

"""The noise floor: how far a perfect predictor would be from labels that are themselves measurements."""

from __future__ import annotations

import math

import numpy as np


def label_noise_s(samples: np.ndarray) -> float:
    """Half the difference between the medians of the first and the last half of a label's samples, in seconds.

    ``samples``: float64 seconds [n], in the order measured, so that the halves of a row of several visits are visits.
    If the halves err independently and as often up as down, this is distributed as the error of the label, their
    middle: a predictor that knows every true latency is off by so much. It sees what differs between the halves;
    what hit both alike, it does not; and it is too high where one half scatters widely, for the label, the median of
    both together, keeps to the other. NaN for a single sample, of which nobody can tell.
    """
    half = len(samples) // 2
    if not half:
        return math.nan
    return float(abs(np.median(samples[:half]) - np.median(samples[-half:]))) / 2


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

"""What knowing the arrival process would bring: ``python -m benchmarks.known_process`` prints the shares of the best
possible that the results page shows, for ramps and for bursts of CV² 8, eight draws each; it takes about ten minutes.

The process samples futures of exactly what draws the arrivals: the rate of a ramp before it begins, how long the last
gap has lasted, and of which stream each request is. It does not know arrivals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincc, gammainccinv

from benchmarks.lookahead import REACH, STEPS, _values, with_lookahead
from benchmarks.scheduling import DEADLINE_S, LASTS, Setting, measured, modelled
from slotool.scheduling.batching import ControlGrid, make_policy
from slotool.scheduling.batching.clairvoyant import useful_calls
from slotool.simulation import Scenario, optimum_of_one_worker, simulate
from slotool.workloads import Bursty, TimeVarying

FUTURES, DRAWS, CV2 = 48, 8, 8.0


@dataclass(frozen=True)
class Process:
    """Arrivals with gamma gaps in expected counts, and regular ones beside them.

    ``at_us``, ``counted``: float64, how many of the gamma stream are expected until an instant, linear in between.
    ``regular_us``: float64, the other stream. ``is_regular``: bool [n], of the arrivals drawn.
    """

    times_s: np.ndarray
    at_us: np.ndarray
    counted: np.ndarray
    regular_us: np.ndarray
    is_regular: np.ndarray

    def futures(self, random: np.random.Generator, now_us: float, last_us: float, until_us: float) -> np.ndarray:
        """Arrivals after ``now_us``, float64 [FUTURES, any], ``inf`` beyond ``until_us``; ``last_us``: of the last
        of the gamma stream."""
        shape = 1 / CV2
        since, now, until = np.interp([last_us, now_us, until_us], self.at_us, self.counted)
        survives = gammaincc(shape, (now - since) * shape)
        gaps = random.gamma(shape, 1 / shape, (FUTURES, int(2 * (until - now)) + 60))
        gaps[:, 0] = gammainccinv(shape, np.maximum(random.random(FUTURES) * survives, 1e-300)) / shape
        counts = since + np.cumsum(gaps, axis=1)
        coming_us = np.where(counts > until, np.inf, np.interp(counts, self.counted, self.at_us))
        coming_us = np.maximum(coming_us, now_us + 1e-3)
        others = self.regular_us[(self.regular_us > now_us) & (self.regular_us <= until_us)]
        return np.sort(np.concatenate([coming_us, np.broadcast_to(others, (FUTURES, len(others)))], axis=1), axis=1)


def burst(setting: Setting, share: float, seed: int) -> Process:
    lasts_s = LASTS * setting.deadline_s
    drawn = Bursty(share * setting.unit / 4, 3 * share * setting.unit / 4, CV2)
    times_s = drawn.times(lasts_s, seed)
    regular_s = (np.arange(int(np.ceil(drawn.base_per_s * lasts_s))) + 0.5) / drawn.base_per_s
    is_regular = np.abs(times_s[:, None] - regular_s[None]).min(axis=1) < 1e-9
    end_us = 1e6 * (lasts_s + 10 * setting.deadline_s)
    at_us = np.array([0.0, end_us])
    return Process(times_s, at_us, 1e-6 * drawn.burst_per_s * at_us, 1e6 * regular_s, is_regular)


def ramp(setting: Setting, takes: float, seed: int) -> Process:
    """From .3 to 1.3 of the unit, in a share ``takes`` of the trace."""
    lasts_s, low, high = LASTS * setting.deadline_s, 0.3 * setting.unit, 1.3 * setting.unit
    per_s2, starts_s = (high - low) / (takes * lasts_s), lasts_s / 4
    times_s = TimeVarying(low, high, per_s2, cv2=CV2, starts_s=starts_s).times(lasts_s, seed)
    at_us = np.linspace(0, 1e6 * (lasts_s + 10 * setting.deadline_s), 200_001)
    rate_per_us = 1e-6 * np.clip(low + per_s2 * (1e-6 * at_us - starts_s), low, high)
    counted = np.concatenate([[0.0], np.cumsum((rate_per_us[1:] + rate_per_us[:-1]) / 2 * np.diff(at_us))])
    return Process(times_s, at_us, counted, np.empty(0), np.zeros(len(times_s), dtype=bool))


def knowing(grid: ControlGrid, scenario: Scenario, process: Process, seed: int = 0) -> float:
    """Requests times accuracy in time, of one worker that takes the call after which sampled futures bring the most."""
    arrival_us = scenario.arrival_us
    deadline_us = float(scenario.deadline_us[0] - arrival_us[0])
    calls = useful_calls(grid.latency_us, grid.accuracy, grid.sizes, deadline_us)
    random, drawn_us = np.random.default_rng(seed), arrival_us[~process.is_regular]
    first, now_us, right = 0, 0.0, 0.0
    while first < len(arrival_us):
        now_us = max(now_us, arrival_us[first])
        if arrival_us[first] + deadline_us <= now_us:
            first += 1
            continue
        arrived = int(np.searchsorted(arrival_us, now_us, side="right"))
        past = int(np.searchsorted(drawn_us, now_us, side="right"))
        last_us = float(drawn_us[past - 1]) if past else 0.0
        futures = np.ascontiguousarray(process.futures(random, now_us, last_us, now_us + REACH * deadline_us))
        values = _values(arrival_us[first:arrived], futures, arrived - first, now_us, deadline_us, *calls)
        best = int(values.argmax())
        if best == len(calls[0]):
            first += 1
            continue
        right += calls[0][best] * calls[1][best]
        first, now_us = first + int(calls[0][best]), now_us + calls[2][best]
    return right


def main() -> None:
    traces: dict[str, Callable[[Setting, int], Process]] = {
        "ramp slowly": lambda setting, seed: ramp(setting, 0.5, seed),
        "ramp at once": lambda setting, seed: ramp(setting, 0.025, seed),
        "0.9, CV² 8": lambda setting, seed: burst(setting, 0.9, seed),
        "1.3, CV² 8": lambda setting, seed: burst(setting, 1.3, seed),
    }
    for setting in (measured()[-1], Setting("modelled", modelled(12, [1, 2, 4, 8, 16]), DEADLINE_S)):
        policies = {
            name: make_policy(name, setting.grid, 1e6 * setting.deadline_s) for name in ("value-iteration", "hindsight")
        }
        for trace, drawn in traces.items():
            shares: dict[str, list[float]] = {}
            for seed in range(1, DRAWS + 1):
                process = drawn(setting, seed)
                scenario = Scenario.of(process.times_s, setting.deadline_s)
                best = optimum_of_one_worker(setting.grid, scenario, steps=STEPS).bound
                each = {
                    name: simulate(policy, scenario).summary()["effective_accuracy"]
                    for name, policy in policies.items()
                }
                each["observed rate"] = with_lookahead(setting.grid, scenario, 0.0)[0]
                each["true process"] = knowing(setting.grid, scenario, process) / len(scenario)
                each["¼ deadline known"] = with_lookahead(setting.grid, scenario, 0.25)[0]
                for name, accuracy in each.items():
                    shares.setdefault(name, []).append(100 * accuracy * len(scenario) / best)
            said = (
                f"{name} {np.mean(own):.2f} ({sum(share >= 99.5 for share in own)} of {DRAWS})"
                for name, own in shares.items()
            )
            print(f"{setting.name}, {trace}:", *said, sep="  ", flush=True)


if __name__ == "__main__":
    main()

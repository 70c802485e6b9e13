"""Prediction of T(k, β) that was not measured: operating points co-located with busy copies of their model.

A co-runner on the same core takes it away for a time slice now and then, at every operating point. A call of s seconds
alone therefore takes c · s plus the pauses that fall into it. The rate of pauses per second of work, their lengths, and
the slow-down c of calls between them (the co-runner empties caches) do not depend on the point: they are learnt from
all measured co-located points together. Pauses by other processes are learnt from solo latencies and are not attributed
to the copies. Source: slo-aware-neural-networks, §2.3 (T(k, β)) and its future work; the form is our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import InputError
from slotool.printable import name_list
from slotool.tables import LatencyTable, OperatingPoint
from slotool.tables.latency import copies_in

# A call longer than its solo median by these seconds and this share was paused by a process; interrupts are shorter.
MIN_PAUSE_S, MIN_SHARE = 2e-4, 0.25
# Beyond this share of interrupted calls, many are interrupted twice, and one pause cannot be told from two.
MAX_INTERRUPTED = 0.3
# Calls that represent a predicted distribution: many, as pauses are rare where calls are short.
DRAWN = 20_000
NOMINAL_COVERAGE = 0.90
SETTING = ["device", "backend", "threads", "replicas", "machine"]


@dataclass(frozen=True)
class CoRunnerEffect:
    """Effect of ``copies`` busy co-runners on a call, learnt from ``rows`` measured rows.

    ``stretch``: slow-down c between pauses. ``pauses``: number of pauses within ``worked_s`` seconds of work.
    ``pause_s``: their lengths, float64 seconds [n].
    """

    copies: int
    stretch: float
    pauses: float
    worked_s: float
    pause_s: np.ndarray
    rows: int

    @classmethod
    def learn(cls, copies: int, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> CoRunnerEffect:
        """Learn from ``pairs``: solo and co-located samples of each measured row, float64 seconds."""
        stretch = float(np.exp(np.mean([_log_stretch(alone, colocated) for alone, colocated in pairs])))
        worked_s, gained_s, pause_s = 0.0, 0.0, []
        for alone, colocated in pairs:
            undisturbed_s = stretch * float(np.median(alone))
            longer = colocated - undisturbed_s
            interrupted = longer > _threshold_s(undisturbed_s)
            worked_s += undisturbed_s * len(colocated)
            gained_s += float(longer[interrupted].sum())
            if 0 < interrupted.mean() <= MAX_INTERRUPTED:
                pause_s.append(longer[interrupted])
        lengths_s = np.concatenate(pause_s) if pause_s else np.empty(0)
        if not len(lengths_s) and gained_s:
            # Pauses that cannot be told apart count as one in every call.
            lengths_s = np.array([gained_s / sum(len(colocated) for _, colocated in pairs)])
        pauses = gained_s / float(lengths_s.mean()) if len(lengths_s) else 0.0
        return cls(copies, stretch, pauses, worked_s, lengths_s, len(pairs))

    def document(self) -> dict[str, Any]:
        return {
            "copies": self.copies,
            "rows": self.rows,
            "stretch": self.stretch,
            "pauses": self.pauses,
            "worked_s": self.worked_s,
            "mean_pause_s": float(self.pause_s.mean()) if len(self.pause_s) else None,
        }

    @property
    def paused(self) -> float:
        """Seconds of pauses per second of work."""
        return self.pauses * float(self.pause_s.mean()) / self.worked_s if len(self.pause_s) else 0.0

    def at(self, copies: int, others: float = 0.0) -> CoRunnerEffect:
        """Return the effect of another number of copies: each takes its time slice before this process runs again.

        ``others``: ``paused`` by other processes, without copies.
        """
        if copies == self.copies or not self.paused:
            return self
        longer = (others + (self.paused - others) * copies / self.copies) / self.paused
        return replace(self, copies=copies, pause_s=self.pause_s * max(longer, 0.0))

    def calls_s(self, alone: np.ndarray, rng: np.random.Generator, n: int = DRAWN) -> np.ndarray:
        """Return ascending seconds of ``n`` co-located calls of a point whose solo samples are ``alone``.

        They are quantiles rather than random draws, so that the expected share is interrupted.
        """
        median_s = float(np.median(alone))
        quick = alone[alone <= median_s + _threshold_s(median_s)]
        undisturbed_s = self.stretch * _quantiles(quick, rng.permutation(n) / n + 0.5 / n)
        if not len(self.pause_s):
            return np.asarray(np.sort(undisturbed_s))
        # Time slices are about equally long, so pauses come at even distances rather than as a Poisson process.
        ended = np.floor(np.cumsum(undisturbed_s) * self.pauses / self.worked_s + rng.random()).astype(int)
        count = np.diff(ended, prepend=0)
        places = rng.permutation(int(count.sum()))
        lengths_s = _quantiles(self.pause_s, (places + 0.5) / max(1, len(places)))
        paused_s = np.bincount(np.repeat(np.arange(n), count), lengths_s, minlength=n)
        return np.asarray(np.sort(undisturbed_s + paused_s))


def _quantiles(samples: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return ``np.quantile``, faster for thousands of shares."""
    return np.asarray(np.interp(shares * (len(samples) - 1), np.arange(len(samples)), np.sort(samples)))


def _threshold_s(call_s: float) -> float:
    return max(MIN_PAUSE_S, MIN_SHARE * call_s)


def _log_stretch(alone: np.ndarray, colocated: np.ndarray) -> float:
    """Return the log slow-down of calls that were not interrupted."""
    alone_s = float(np.median(alone))
    quick = colocated[colocated <= alone_s + _threshold_s(alone_s)]
    if len(quick) < (1 - MAX_INTERRUPTED) * len(colocated):
        return 0.0
    return float(np.log(np.median(quick) / alone_s))


@dataclass(frozen=True)
class Filled:
    """Completed latency ``table`` with measured and ``predicted`` (a number) rows; ``learnt``: effects by measured β.

    ``errors``: for measured rows, each predicted from the others: point, β, statistic, measured and predicted seconds.
    """

    table: LatencyTable
    predicted: int
    learnt: dict[int, CoRunnerEffect]
    errors: pd.DataFrame

    @cached_property
    def mean_errors(self) -> list[dict[str, Any]]:
        """Mean relative error by number of copies and statistic."""
        if self.errors.empty:
            return []
        wrong = (self.errors["predicted_s"] / self.errors["measured_s"] - 1).abs()
        groups = self.errors.assign(wrong=wrong).groupby(["copies", "statistic"], sort=False)["wrong"]
        rows = groups.agg(["size", "mean"]).reset_index().itertuples(index=False)
        return [
            {"copies": int(copies), "rows": int(size), "statistic": statistic, "mape": mean}
            for copies, statistic, size, mean in rows
        ]


def fill(
    subject: str, points: Sequence[OperatingPoint], table: LatencyTable, copy_counts: Sequence[int], *, seed: int = 0
) -> Filled:
    """Return T(k, β) of all ``points`` at all ``copy_counts``: measured rows of ``table``, the others predicted.

    ``samples_s`` of a predicted row are calls of the predicted distribution; 90 % of them lie in ``low_s`` to
    ``high_s``. Raises ``InputError`` if the table has no row of ``subject`` co-located with copies of itself, or lacks
    the solo latency of a point.
    """
    rows = table.where(subject=subject, status="ok").rows
    rows = rows[rows["point"].isin([point.key for point in points]) & ~rows["predicted"]]
    counts: list[Any] = [copies_in(subject, text) for text in rows["co_runners"]]
    rows = rows.assign(copies=counts).dropna(subset=["copies"])
    if not (rows["copies"] > 0).any():
        raise InputError(
            f"the latency table has no row of {subject} co-located with copies of itself: measure some with "
            "evaluate --co-runners 1 or profile points --co-runners 0,1"
        )
    alone = set(rows.loc[rows["copies"] == 0, "point"])
    if absent := [point.key for point in points if point.key not in alone]:
        raise InputError(f"the latency table has no solo latency of {subject} at {name_list(absent, 4)}")
    settings = [_Setting(part, seed) for _, part in rows.groupby(SETTING, sort=False) if (part["copies"] > 0).any()]
    new = [row for setting in settings for row in setting.missing(copy_counts)]
    measured = rows[rows["copies"].isin(copy_counts)].drop(columns="copies")
    filled = pd.concat([measured, pd.DataFrame(new, columns=measured.columns if new else None)], ignore_index=True)
    errors = pd.DataFrame([error for setting in settings for error in setting.left_out()])
    provenance = {**table.provenance, "predictor": "time-slices", "predicted_rows": len(new)}
    return Filled(LatencyTable(filled, provenance), len(new), settings[0].learnt, errors)


class _Setting:
    """Rows of one ``SETTING``, with the column ``copies``."""

    def __init__(self, rows: pd.DataFrame, seed: int):
        self._seed = seed
        alone = rows[rows["copies"] == 0]
        self._alone = {(row["point"], row["batch_size"]): row for row in alone.to_dict("records")}
        colocated = rows[rows["copies"] > 0].to_dict("records")
        self._colocated = [row for row in colocated if _place(row) in self._alone]
        self._known = {(*_place(row), row["copies"]) for row in self._colocated}
        self._label = next(row["co_runners"] for row in colocated).split("+")[0]
        self.learnt = self._learn(self._colocated)
        samples = [np.asarray(row["samples_s"]) for row in self._alone.values()]
        self._others = CoRunnerEffect.learn(0, [(each, each) for each in samples]).paused

    def _learn(self, rows: Sequence[dict[Any, Any]]) -> dict[int, CoRunnerEffect]:
        pairs: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        for row in rows:
            alone = self._alone[_place(row)]["samples_s"]
            pairs.setdefault(int(row["copies"]), []).append((np.asarray(alone), np.asarray(row["samples_s"])))
        return {copies: CoRunnerEffect.learn(copies, samples) for copies, samples in sorted(pairs.items())}

    def missing(self, copy_counts: Sequence[int]) -> Iterator[dict[str, Any]]:
        for copies in sorted(set(copy_counts)):
            for place, row in self._alone.items():
                if copies and (*place, copies) not in self._known:
                    calls_s = self._calls_s(self.learnt, row, copies)
                    low_s, high_s = np.quantile(calls_s, [0.5 - NOMINAL_COVERAGE / 2, 0.5 + NOMINAL_COVERAGE / 2])
                    prediction = {
                        "co_runners": "+".join([self._label] * copies),
                        "samples_s": calls_s,
                        "predicted": True,
                        "low_s": float(low_s),
                        "high_s": float(high_s),
                        "first_call_s": np.nan,
                    }
                    yield {**{str(name): value for name, value in row.items() if name != "copies"}, **prediction}

    def left_out(self) -> Iterator[dict[str, Any]]:
        """Yield errors of every co-located row, predicted from the others."""
        for at, row in enumerate(self._colocated):
            learnt = self._learn([*self._colocated[:at], *self._colocated[at + 1 :]])
            if not learnt:
                return
            predicted, measured = self._calls_s(learnt, row, int(row["copies"])), np.asarray(row["samples_s"])
            for name, of in STATISTICS.items():
                errors = {"statistic": name, "measured_s": of(measured), "predicted_s": of(predicted)}
                yield {"point": row["point"], "batch_size": row["batch_size"], "copies": int(row["copies"]), **errors}

    def _calls_s(self, learnt: dict[int, CoRunnerEffect], row: dict[Any, Any], copies: int) -> np.ndarray:
        nearest = min(learnt, key=lambda measured: abs(np.log(measured / copies)))
        rng = np.random.default_rng([self._seed, copies])
        return learnt[nearest].at(copies, self._others).calls_s(np.asarray(self._alone[_place(row)]["samples_s"]), rng)


def _place(row: dict[Any, Any]) -> tuple[str, int]:
    return row["point"], row["batch_size"]


STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "median": lambda samples: float(np.median(samples)),
    "mean": lambda samples: float(np.mean(samples)),
    "p95": lambda samples: float(np.quantile(samples, 0.95)),
    "p99": lambda samples: float(np.quantile(samples, 0.99)),
}

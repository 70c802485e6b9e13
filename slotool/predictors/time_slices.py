"""T(k, β) that nobody measured: a model's points beside busy copies of it, from their latencies alone and a few in
company.

A rival on the same core takes it away for a time slice now and then, whatever point we answer at; so what a call of s
seconds alone takes in company is c · s plus the pauses that fall into it. How often pauses come per second of our own
work, how long they are, and by how much calls between them are slower (c: caches that the rival has emptied) does not
depend on the point, and is learnt from all points measured in company together. What other processes take of a call
alone, they take in company as well: it is learnt from the latencies alone, and not the copies' doing.
Source: slo-aware-neural-networks, §2.3 (T(k, β)) and its future work; the form is our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import InputError
from slotool.tables import LatencyTable, OperatingPoint
from slotool.tables.latency import copies_in

# A call longer by this than its median alone, and by this share of it, was interrupted by another process; the system's
# own interrupts are shorter.
LEAST_PAUSE_S, LEAST_SHARE = 2e-4, 0.25
# Where more than this share of calls are interrupted, many are so twice, and a pause can no longer be told from two.
MOST_INTERRUPTED = 0.3
# Of the distribution of single calls, as many are held as of a measured row: pauses are rare where calls are short.
DRAWN = 20_000
NOMINAL_COVERAGE = 0.90
SETTING = ["device", "backend", "threads", "replicas", "machine"]


@dataclass(frozen=True)
class Company:
    """What company of ``beside`` copies does to a call, learnt from ``rows`` measured rows.

    ``stretch``: c. ``pauses``: how many were seen within ``worked_s`` seconds of own work. ``pause_s``: how long they
    were, float64 [n], none where none was seen.
    """

    beside: int
    stretch: float
    pauses: float
    worked_s: float
    pause_s: np.ndarray
    rows: int

    @classmethod
    def learn(cls, beside: int, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Company:
        """``pairs``: samples alone and in company of each row measured there, float64 seconds."""
        stretch = float(np.exp(np.mean([_log_stretch(alone, company) for alone, company in pairs])))
        worked_s, gained_s, pause_s = 0.0, 0.0, []
        for alone, company in pairs:
            own_s = stretch * float(np.median(alone))
            longer = company - own_s
            interrupted = longer > _threshold_s(own_s)
            worked_s += own_s * len(company)
            gained_s += float(longer[interrupted].sum())
            if 0 < interrupted.mean() <= MOST_INTERRUPTED:
                pause_s.append(longer[interrupted])
        found = np.concatenate(pause_s) if pause_s else np.empty(0)
        if not len(found) and gained_s:
            # Seen in sums only: as if every call had one.
            found = np.array([gained_s / sum(len(company) for _, company in pairs)])
        pauses = gained_s / float(found.mean()) if len(found) else 0.0
        return cls(beside, stretch, pauses, worked_s, found, len(pairs))

    @property
    def paused(self) -> float:
        """Seconds of pauses per second of own work."""
        return self.pauses * float(self.pause_s.mean()) / self.worked_s if len(self.pause_s) else 0.0

    def at(self, beside: int, others: float = 0.0) -> Company:
        """The same of another number of copies: each has its slice before it is our turn again.

        ``others``: what is ``paused`` beside none, by other processes.
        """
        if beside == self.beside or not self.paused:
            return self
        longer = (others + (self.paused - others) * beside / self.beside) / self.paused
        return replace(self, beside=beside, pause_s=self.pause_s * max(longer, 0.0))

    def calls_s(self, alone: np.ndarray, rng: np.random.Generator, n: int = DRAWN) -> np.ndarray:
        """Seconds of ``n`` single calls in company, ascending, of a point that takes ``alone`` without.

        Drawn evenly, not at random, so that as many of them are interrupted as should be.
        """
        median_s = float(np.median(alone))
        quick = alone[alone <= median_s + _threshold_s(median_s)]
        own_s = self.stretch * np.quantile(quick, rng.permutation(n) / n + 0.5 / n)
        if not len(self.pause_s):
            return np.asarray(np.sort(own_s))
        # Slices are of about one length, so that pauses come at even distances: no Poisson.
        ended = np.floor(np.cumsum(own_s) * self.pauses / self.worked_s + rng.random()).astype(int)
        count = np.diff(ended, prepend=0)
        places = rng.permutation(int(count.sum()))
        drawn = np.quantile(self.pause_s, (places + 0.5) / max(1, len(places)))
        paused_s = np.bincount(np.repeat(np.arange(n), count), drawn, minlength=n)
        return np.asarray(np.sort(own_s + paused_s))


def _threshold_s(own_s: float) -> float:
    return max(LEAST_PAUSE_S, LEAST_SHARE * own_s)


def _log_stretch(alone: np.ndarray, company: np.ndarray) -> float:
    """Log of how much slower calls are that were not interrupted."""
    own_s = float(np.median(alone))
    quick = company[company <= own_s + _threshold_s(own_s)]
    if len(quick) < (1 - MOST_INTERRUPTED) * len(company):
        return 0.0
    return float(np.log(np.median(quick) / own_s))


@dataclass(frozen=True)
class Filled:
    """``table``: rows asked for, measured ones as they are; ``predicted``: how many were. ``learnt``: by β measured.
    ``errors``: of measured rows, each predicted from the others: point, β, statistic, measured and predicted s."""

    table: LatencyTable
    predicted: int
    learnt: dict[int, Company]
    errors: pd.DataFrame


def fill(
    subject: str, points: Sequence[OperatingPoint], table: LatencyTable, besides: Sequence[int], *, seed: int = 0
) -> Filled:
    """T(k, β) of all ``points`` at all of ``besides``: what ``table`` has as measured, the rest predicted.

    A predicted row's ``samples_s`` are single calls drawn from the distribution predicted, ``low_s`` and ``high_s`` the
    interval that holds 90 % of them. Raises ``InputError`` when the table has no row of ``subject`` beside copies of
    itself, or lacks a point alone.
    """
    rows = table.where(subject=subject, status="ok").rows
    rows = rows[rows["point"].isin([point.key for point in points]) & ~rows["predicted"]]
    company: list[Any] = [copies_in(subject, text) for text in rows["co_runners"]]
    rows = rows.assign(beside=company).dropna(subset=["beside"])
    if not (rows["beside"] > 0).any():
        raise InputError(
            f"the latency table has no row of {subject} beside copies of itself to learn from: measure some, "
            "by evaluate --beside 1 or profile points --beside 0,1"
        )
    _require_alone(subject, points, rows)
    settings = [_Setting(part, seed) for _, part in rows.groupby(SETTING, sort=False) if (part["beside"] > 0).any()]
    made = [row for setting in settings for row in setting.missing(besides)]
    kept = rows[rows["beside"].isin(besides)].drop(columns="beside")
    filled = pd.concat([kept, pd.DataFrame(made, columns=kept.columns if made else None)], ignore_index=True)
    errors = pd.DataFrame([found for setting in settings for found in setting.left_out()])
    provenance = {**table.provenance, "predictor": "time-slices", "predicted_rows": len(made)}
    return Filled(LatencyTable(filled, provenance), len(made), settings[0].learnt, errors)


def _require_alone(subject: str, points: Sequence[OperatingPoint], rows: pd.DataFrame) -> None:
    alone = set(rows.loc[rows["beside"] == 0, "point"])
    missing = [point.key for point in points if point.key not in alone]
    if missing:
        named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise InputError(f"the latency table does not say how long {subject} takes alone at {named}")


class _Setting:
    """Rows of one device, backend, number of threads …, with the column ``beside``."""

    def __init__(self, rows: pd.DataFrame, seed: int):
        self._seed = seed
        alone = rows[rows["beside"] == 0]
        self._alone = {(row["point"], row["batch_size"]): row for row in alone.to_dict("records")}
        together = rows[rows["beside"] > 0].to_dict("records")
        self._together = [row for row in together if _place(row) in self._alone]
        self._known = {(*_place(row), row["beside"]) for row in self._together}
        self._label = next(row["co_runners"] for row in together).split("+")[0]
        self.learnt = self._learn(self._together)
        samples = [np.asarray(row["samples_s"]) for row in self._alone.values()]
        self._others = Company.learn(0, [(each, each) for each in samples]).paused

    def _learn(self, rows: Sequence[dict[Any, Any]]) -> dict[int, Company]:
        pairs: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        for row in rows:
            alone = self._alone[_place(row)]["samples_s"]
            pairs.setdefault(int(row["beside"]), []).append((np.asarray(alone), np.asarray(row["samples_s"])))
        return {beside: Company.learn(beside, found) for beside, found in sorted(pairs.items())}

    def missing(self, besides: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Rows for what was not measured."""
        for beside in sorted(set(besides)):
            for place, row in self._alone.items():
                if beside and (*place, beside) not in self._known:
                    calls_s = self._calls_s(self.learnt, row, beside)
                    low_s, high_s = np.quantile(calls_s, [0.5 - NOMINAL_COVERAGE / 2, 0.5 + NOMINAL_COVERAGE / 2])
                    made = {
                        "co_runners": "+".join([self._label] * beside),
                        "samples_s": calls_s,
                        "predicted": True,
                        "low_s": float(low_s),
                        "high_s": float(high_s),
                        "first_call_s": np.nan,
                    }
                    yield {**{str(name): value for name, value in row.items() if name != "beside"}, **made}

    def left_out(self) -> Iterator[dict[str, Any]]:
        """Every row measured in company, predicted from the others."""
        for at, row in enumerate(self._together):
            learnt = self._learn([*self._together[:at], *self._together[at + 1 :]])
            if not learnt:
                return
            predicted, measured = self._calls_s(learnt, row, int(row["beside"])), np.asarray(row["samples_s"])
            for name, of in STATISTICS.items():
                found = {"statistic": name, "measured_s": of(measured), "predicted_s": of(predicted)}
                yield {"point": row["point"], "batch_size": row["batch_size"], "beside": int(row["beside"]), **found}

    def _calls_s(self, learnt: dict[int, Company], row: dict[Any, Any], beside: int) -> np.ndarray:
        nearest = min(learnt, key=lambda known: abs(np.log(known / beside)))
        rng = np.random.default_rng([self._seed, beside])
        return learnt[nearest].at(beside, self._others).calls_s(np.asarray(self._alone[_place(row)]["samples_s"]), rng)


def _place(row: dict[Any, Any]) -> tuple[str, int]:
    return row["point"], row["batch_size"]


STATISTICS = {
    "median": lambda samples: float(np.median(samples)),
    "mean": lambda samples: float(np.mean(samples)),
    "p95": lambda samples: float(np.quantile(samples, 0.95)),
    "p99": lambda samples: float(np.quantile(samples, 0.99)),
}

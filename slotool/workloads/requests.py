"""The request log: every request a client sent, when it should have left, and what became of it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import TableError
from slotool.printable import row_name
from slotool.tables import Column, Schema, Table
from slotool.tables.rounds import tail_quantile
from slotool.tables.schema import FINITE, NOT_NEGATIVE, POSITIVE

REQUESTS_SCHEMA = Schema(
    "requests",
    1,
    (
        Column("intended_s", "number", "when it should have been sent, since the start", rule=NOT_NEGATIVE),
        Column("sent_s", "number", "when it was sent", rule=NOT_NEGATIVE),
        Column("done_s", "number", "when its answer, or its failure, was there", rule=NOT_NEGATIVE),
        Column("status", "integer", "HTTP status; 0 when there was no answer at all", rule=NOT_NEGATIVE),
        Column("label", "integer", "true class of the example, -1 where what is right is no class"),
        Column("answer", "integer", "class answered, -1 for none", default=-1),
        Column("confidence", "number", "confidence stated with the answer", optional=True, rule=FINITE),
        Column("point", "text", "operating point that answered", default=""),
        Column("deadline_s", "number", "seconds allowed from intended_s", optional=True, rule=POSITIVE),
        Column("queue_s", "number", "seconds in the server's queue, as it says", optional=True, rule=NOT_NEGATIVE),
        Column("compute_s", "number", "seconds of computing, as the server says", optional=True, rule=NOT_NEGATIVE),
        Column("example", "integer", "number of the example in its split, -1 when unknown", default=-1),
        Column("error", "text", "why there is no answer; empty when there is one", default=""),
        Column("priority", "integer", "1 the most important, 0 for none", default=0, rule=NOT_NEGATIVE),
        Column("tolerance", "number", "error degradation accepted", optional=True, rule=NOT_NEGATIVE),
    ),
)


class RequestLog(Table):
    """Rows of ``REQUESTS_SCHEMA``, one per request sent, in order of the intended instant.

    Latency counts from the instant a request *should* have been sent, so that a client or server that stalls cannot
    hide the requests it held up (no coordinated omission). Every rate is over all requests sent.
    """

    schema = REQUESTS_SCHEMA

    def _checked(self, rows: pd.DataFrame, source: str) -> pd.DataFrame:
        if rows.empty:
            raise TableError(f"{source}: no request was sent")
        self._check_order(rows, source)
        return rows.sort_values("intended_s", kind="stable", ignore_index=True)

    @cached_property
    def latency_s(self) -> np.ndarray:
        """Seconds from the intended instant to the answer or failure, float64 [n]."""
        return (self.rows["done_s"] - self.rows["intended_s"]).to_numpy()

    @cached_property
    def send_delay_s(self) -> np.ndarray:
        """Seconds by which the client missed its own schedule, float64 [n]."""
        return (self.rows["sent_s"] - self.rows["intended_s"]).to_numpy()

    @cached_property
    def answered(self) -> np.ndarray:
        """Mask of requests with a 2xx status and a class, bool [n]; any readable outputs if the truth is no class."""
        has_class, has_outputs = self.rows["answer"] >= 0, (self.rows["label"] < 0) & (self.rows["error"] == "")
        return (self.rows["status"].between(200, 299) & (has_class | has_outputs)).to_numpy()

    @cached_property
    def in_time(self) -> np.ndarray:
        """Mask of requests answered within the deadline, if there is one, bool [n]."""
        deadline_s = self.rows["deadline_s"].fillna(np.inf).to_numpy()
        return self.answered & (self.latency_s <= deadline_s)

    @cached_property
    def in_time_from_sending(self) -> np.ndarray:
        """Mask as ``in_time`` with deadlines from sending, as if the client had kept its schedule, bool [n]."""
        deadline_s = self.rows["deadline_s"].fillna(np.inf).to_numpy()
        in_time: np.ndarray = self.answered & (self.latency_s - self.send_delay_s <= deadline_s)
        return in_time

    @cached_property
    def correct(self) -> np.ndarray:
        """Mask of requests answered with the true class, bool [n]."""
        return self.answered & ((self.rows["answer"] == self.rows["label"]) & (self.rows["label"] >= 0)).to_numpy()

    @property
    def has_labels(self) -> bool:
        """True if what is right is known as a class of every example; without them no accuracy is."""
        return bool((self.rows["label"] >= 0).all())

    @property
    def deadline_s(self) -> float | None:
        """The deadline of all requests, or None when they have none or differ."""
        values = self.rows["deadline_s"]
        return float(values.iloc[0]) if values.notna().all() and values.nunique() == 1 else None

    @property
    def effective_accuracy(self) -> float:
        """Share of sent requests answered correctly in time (model-switching, §2); NaN without labels."""
        return float((self.correct & self.in_time).mean()) if self.has_labels else float("nan")

    def quantile_s(self, quantile: float) -> float:
        """Return the latency quantile of answered requests, seconds; NaN for too few of them."""
        answered_s = self.latency_s[self.answered]
        return tail_quantile(answered_s, quantile) if len(answered_s) else float("nan")

    def tail_of_all_s(self, quantile: float) -> float | None:
        """Return the latency quantile of all requests, seconds; None if it is one of the unanswered, counted last."""
        waited_s = np.sort(np.where(self.answered, self.latency_s, np.inf))
        found_s = float(waited_s[min(len(waited_s) - 1, int(np.ceil(quantile * len(waited_s))))])
        return found_s if np.isfinite(found_s) else None

    def summary(self) -> dict[str, Any]:
        """Return the figures of a load test. Times in seconds, rates per second, quantiles of answered requests.

        ``drawn_rate_per_s`` is what the drawn arrivals come to, ``achieved_rate_per_s`` what the client kept of it.
        """
        answered = int(self.answered.sum())
        return {
            "requests": len(self),
            "answered": answered,
            "drawn_rate_per_s": _rate(self.rows["intended_s"]),
            "achieved_rate_per_s": _rate(self.rows["sent_s"]),
            "p50_s": self.quantile_s(0.5),
            "p90_s": self.quantile_s(0.9),
            "p99_s": self.quantile_s(0.99),
            "worst_s": float(self.latency_s[self.answered].max()) if answered else float("nan"),
            "deadline_s": self.deadline_s,
            "deadline_meet_rate": float(self.in_time.mean()),
            "deadline_meet_rate_from_sending": float(self.in_time_from_sending.mean()),
            "effective_accuracy": self.effective_accuracy,
            "accuracy_of_answered": float(self.correct.sum() / answered)
            if answered and self.has_labels
            else float("nan"),
            "send_delay_p99_s": tail_quantile(self.send_delay_s, 0.99),
            "send_delay_max_s": float(self.send_delay_s.max()),
        }

    def statuses(self) -> list[dict[str, Any]]:
        """Per status, most frequent first: how many, and one of the errors."""
        errors = self.rows[self.rows["error"] != ""].groupby("status")["error"].first()
        values, counts = np.unique(self.rows["status"], return_counts=True)
        return [
            {"status": int(values[i]), "requests": int(counts[i]), "error": errors.get(values[i], "")}
            for i in np.argsort(-counts, kind="stable")
        ]

    def points(self) -> list[dict[str, Any]]:
        """Per operating point of the answered requests, most used first: share of them, accuracy, median latency."""
        frame = self.rows.assign(latency_s=self.latency_s, correct=self.correct)[self.answered]
        rows = [
            {
                "point": str(point) or "unknown",
                "requests": len(group),
                "share": len(group) / len(frame),
                "accuracy": float(group["correct"].mean()) if self.has_labels else float("nan"),
                "median_latency_s": float(group["latency_s"].median()),
            }
            for point, group in frame.groupby("point")
        ]
        return sorted(rows, key=lambda row: -row["requests"])

    def priorities(self) -> list[dict[str, Any]]:
        """Per priority, the most important first and those without last: requests, and what became of them."""
        values = self.rows["priority"].to_numpy()
        levels = sorted(set(values.tolist()), key=lambda priority: (priority == 0, priority))
        return [{"priority": priority, **self._of(values == priority)} for priority in levels]

    def tolerances(self) -> list[dict[str, Any]]:
        """Per tolerance, the strictest first: requests, and what became of them; [] where none has one."""
        values = self.rows["tolerance"].to_numpy(dtype=np.float64)
        return [
            {"tolerance": each, **self._of(values == each)} for each in np.unique(values[~np.isnan(values)]).tolist()
        ]

    def _of(self, some: np.ndarray) -> dict[str, Any]:
        """Return counts and results of some requests, a mask bool [n]."""
        effective = float((self.correct & self.in_time)[some].mean()) if self.has_labels else float("nan")
        return {
            "requests": int(some.sum()),
            "answered": float(self.answered[some].mean()),
            "deadline_meet_rate": float(self.in_time[some].mean()),
            "effective_accuracy": effective,
        }

    @staticmethod
    def _check_order(rows: pd.DataFrame, source: str) -> None:
        for earlier, later in (("intended_s", "sent_s"), ("sent_s", "done_s")):
            wrong = np.flatnonzero((rows[later] < rows[earlier]).to_numpy())
            if len(wrong):
                raise TableError(f"{source}: {row_name(wrong[0])}, column {later}: lies before {earlier}")


def _rate(instants_s: pd.Series) -> float:
    """Return the events per second from the first to the last; NaN below two."""
    span_s = float(instants_s.max() - instants_s.min())
    return (len(instants_s) - 1) / span_s if span_s > 0 else float("nan")

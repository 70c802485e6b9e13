"""Deadlines met and accuracy under co-location: the answers of each strategy, solo and with busy copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from slotool.tables import Column, Schema, Table
from slotool.tables.schema import NOT_NEGATIVE, POSITIVE

LCAO, FULL_NETWORK, LEAST, ACLO = "lcao", "full", "least", "aclo"

INTERFERENCE_SCHEMA = Schema(
    "interference",
    2,
    (
        Column("strategy", "text", "lcao, aclo, full (the whole network) or least (the cheapest point)"),
        Column("co_runners", "integer", "busy copies on the same core", rule=NOT_NEGATIVE),
        Column("target", "number", "lcao: the deadline in seconds; aclo: the accuracy asked for", optional=True),
        Column("queries", "integer", "queries sent", rule=POSITIVE),
        Column(
            "rejected", "integer", "queries rejected because their deadline cannot be met", default=0, rule=NOT_NEGATIVE
        ),
        Column("latency_s", "numbers", "seconds of single answers, choosing k among them", rule=POSITIVE),
        Column("right", "numbers", "of the same answers: 1 for a right one, 0 for a wrong one"),
        Column("example", "numbers", "of the same answers: number of the example in its split"),
        Column("k", "numbers", "of the same answers: share of nodes; NaN for a model without k"),
    ),
)


class InterferenceTable(Table):
    """Rows of ``INTERFERENCE_SCHEMA``; shares and accuracies are views."""

    schema = INTERFERENCE_SCHEMA

    @property
    def co_runner_counts(self) -> list[int]:
        """The numbers of copies, ascending."""
        return sorted({int(co_runners) for co_runners in self.rows["co_runners"]})

    @property
    def deadlines_s(self) -> np.ndarray:
        """Deadlines of LCAO, ascending."""
        return np.unique(self.rows.loc[self.rows["strategy"] == LCAO, "target"].to_numpy(dtype=np.float64))

    def answers(self, strategy: str, co_runners: int) -> list[Answers]:
        """Return the answers of one strategy, by rising target."""
        rows: pd.DataFrame = self.rows
        selected = rows[(rows["strategy"] == strategy) & (rows["co_runners"] == co_runners)].sort_values("target")
        return [Answers.of_row(row) for row in selected.to_dict("records")]

    def summary(self) -> Iterator[dict[str, Any]]:
        """Yield LCAO's figures per deadline and number of copies, beside the full network and the cheapest point.

        A deadline missed by the cheapest point could not be saved by any choice of k.
        """
        for co_runners in self.co_runner_counts:
            full, least = self.answers(FULL_NETWORK, co_runners)[0], self.answers(LEAST, co_runners)[0]
            for answers in self.answers(LCAO, co_runners):
                lost, error = answers.lost(full)
                yield {
                    "co_runners": co_runners,
                    "deadline_us": 1e6 * answers.target,
                    "met_share": answers.met_share(answers.target),
                    "full_met_share": full.met_share(answers.target),
                    "least_met_share": least.met_share(answers.target),
                    "rejected_share": answers.rejected / answers.queries,
                    "accuracy": answers.accuracy,
                    "standard_error": answers.standard_error,
                    "lost": lost,
                    "lost_standard_error": error,
                    "mean_k": answers.mean_k,
                }


class Answers(NamedTuple):
    """Row of the table; see the schema."""

    target: float
    queries: int
    rejected: int
    latency_s: np.ndarray
    right: np.ndarray
    k: np.ndarray
    example: np.ndarray

    @classmethod
    def of_row(cls, row: Any) -> Answers:
        arrays = (np.asarray(row[name], dtype=np.float64) for name in ("latency_s", "right", "k", "example"))
        return cls(float(row["target"]), int(row["queries"]), int(row["rejected"]), *arrays)

    def met_share(self, deadline_s: float) -> float:
        """Return the share of all queries answered within the deadline; rejected ones were not."""
        if not len(self.latency_s):
            return 0.0
        return float((self.latency_s <= deadline_s).mean()) * (1 - self.rejected / self.queries)

    @property
    def accuracy(self) -> float:
        """Accuracy of the examples answered, in time or not, each counting once; NaN without any."""
        return float(self.by_example.mean()) if len(self.right) else float("nan")

    @property
    def standard_error(self) -> float:
        return float(self.by_example.std() / np.sqrt(len(self.by_example))) if len(self.right) else float("nan")

    @property
    def by_example(self) -> pd.Series:
        """Share of right answers by number of the example."""
        return pd.Series(self.right).groupby(self.example).mean()

    def lost(self, full: Answers) -> tuple[float, float]:
        """Return the accuracy lost against ``full`` on common examples, and its paired standard error, or NaN."""
        difference = (full.by_example - self.by_example).dropna()
        if difference.empty:
            return float("nan"), float("nan")
        return float(difference.mean()), float(difference.std(ddof=0) / np.sqrt(len(difference)))

    @property
    def mean_k(self) -> float:
        return float(self.k.mean()) if len(self.k) else float("nan")

    def quantile_s(self, quantile: float) -> float:
        return float(np.quantile(self.latency_s, quantile)) if len(self.latency_s) else float("nan")
